"""What a rank wants of all ranks, between one pulse and the next."""

from gradwire.steering.pulse import GUARD_REPORT, GUARD_ROLLBACK, LOCAL_ROLLBACK, NO_ROLLBACK
from gradwire.steering.wish import Wish


def test_a_report_leaves_a_rollback_that_was_asked_for_meanwhile():
    wish = Wish()
    wish.ask(GUARD_REPORT, "the loss leapt")
    wish.ask(LOCAL_ROLLBACK, "an operator")
    assert wish.take(GUARD_REPORT) == ""
    assert wish.kind == LOCAL_ROLLBACK
    assert wish.take() == "an operator"
    assert wish.kind == NO_ROLLBACK


def test_the_strongest_wish_counts():
    wish = Wish()
    wish.ask(GUARD_ROLLBACK, "not finite")
    wish.ask(LOCAL_ROLLBACK, "an operator")
    assert (wish.kind, wish.take()) == (max(GUARD_ROLLBACK, LOCAL_ROLLBACK), "not finite")
