"""The account of check windows, on a clock of the test's own."""

from itertools import pairwise

import pytest
from gradwire.steering.checks import CHECK_STEPS, Budget


def train(
    share: float, *, num_exchanges: int, exact: float, compressed: float, known_ratio: float = 4.0
) -> tuple[Budget, list[int]]:
    """Return the account after compressed training, and the exchanges at which windows began."""
    budget, now, left, begun = Budget(share), 0.0, 0, []
    for exchange in range(num_exchanges):
        budget.tick(now, "none" if left else "int8", is_checking=left > 0)
        now += exact if left else compressed
        left = max(0, left - 1)
        if not left and budget.allows(CHECK_STEPS, known_ratio):
            begun.append(exchange)
            left = CHECK_STEPS
    return budget, begun


@pytest.mark.parametrize("share", [0.005, 0.02])
@pytest.mark.parametrize("exact", [0.011, 0.03])
def test_windows_come_again_and_again_and_stay_within_their_share(share, exact):
    budget, begun = train(share, num_exchanges=150_000, exact=exact, compressed=0.01)
    assert len(begun) > 5
    spent = budget.check_seconds / (budget.check_seconds + budget.compressed_seconds)
    assert 0.5 * share < spent <= share


def test_share_holds_even_for_the_first_window_of_which_nothing_is_known_but_the_bytes():
    _, begun = train(0.005, num_exchanges=60_000, exact=0.04, compressed=0.01)
    # Until the first window ends, all that is known is that an exact step takes four times as long at most.
    assert (begun[0] + 1) * 0.01 * 0.005 >= CHECK_STEPS * 0.04


def test_share_of_nothing_means_no_window():
    _, begun = train(0.0, num_exchanges=20_000, exact=0.02, compressed=0.01)
    assert begun == []


def test_enough_compressed_steps_lie_between_windows_to_compare_with():
    _, begun = train(0.5, num_exchanges=1000, exact=0.01, compressed=0.01)
    assert len(begun) > 3
    gaps = [after - before - CHECK_STEPS for before, after in pairwise(begun)]
    assert min(gaps) >= 2 * (CHECK_STEPS + 2)


def test_a_pause_between_steps_buys_no_window():
    budget = Budget(0.005)
    for exchange in range(50):
        budget.tick(exchange * 0.01, "int8", is_checking=False)
    budget.tick(3600.0, "int8", is_checking=False)
    assert budget.compressed_seconds < 1.0
    assert not budget.allows(CHECK_STEPS, 4.0)
