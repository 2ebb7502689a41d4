"""One sentence and one button for every situation."""

import pytest
from gradwire_server.pages.sentences.next_step import next_step
from gradwire_server.runs.views import QualityView, RunView, StatusView, StragglerView, WaitingView
from made_view import (
    NOW,
    chinese,
    compressed_view,
    directive_view,
    english,
    paying_view,
    quality_view,
    run_view,
    verdict_view,
)


def action(view: RunView) -> tuple[str, str]:
    step = next_step(english(), view)
    assert step.sentence
    assert step.label
    assert next_step(chinese(), view).sentence != step.sentence
    return step.action, step.codec or step.target


def test_worth_it_turns_the_suggested_codec_on() -> None:
    assert action(run_view()) == ("turn_on", "int8")


def test_worth_it_without_a_suggestion_offers_nothing_to_turn_on() -> None:
    assert action(run_view(summary={"verdict": verdict_view(suggested_codec="")})) == ("link", "charts")


def test_not_worth_it_leads_to_where_the_time_goes() -> None:
    assert action(run_view(summary={"verdict": verdict_view(kind="not_worth_it")})) == ("link", "charts")


def test_not_paying_off_rolls_back() -> None:
    view = compressed_view(summary={"verdict": paying_view(kind="not_paying_off")})
    assert action(view)[0] == "rollback"


def test_quality_beyond_its_limit_comes_before_speed() -> None:
    assert action(compressed_view(quality=quality_view(state="breach")))[0] == "rollback"


def test_compressed_without_a_baseline_asks_for_one() -> None:
    no_evidence = QualityView(state="no_evidence", reason="no_baseline")
    assert action(compressed_view(quality=no_evidence, baseline_choices=(("id", "first"),))) == ("link", "quality")


def test_paying_off_with_quality_keeps_it_on() -> None:
    assert action(compressed_view(quality=quality_view())) == ("link", "charts")


def test_an_open_change_asks_to_wait() -> None:
    assert action(run_view(last_change=directive_view(state="delivered"))) == ("link", "history")


def test_a_silent_run_leads_to_its_events() -> None:
    view = run_view(summary={"status": StatusView(name="lost", since=NOW - 60)})
    assert action(view) == ("link", "history")


def test_an_ended_run_offers_nothing_to_turn_on() -> None:
    view = run_view(summary={"status": StatusView(name="finished", since=NOW - 60)})
    assert action(view) == ("link", "charts")


def test_a_run_that_cannot_be_steered_offers_nothing_to_turn_on() -> None:
    assert action(run_view(is_steered=False)) == ("link", "history")


LATE = WaitingView(straggler=StragglerView(rank=3, host="node-02", others_wait_share=0.36))


@pytest.mark.parametrize("kind", ["not_worth_it", "cannot_say", "not_measured"])
def test_a_rank_that_others_wait_for_is_named_and_nothing_is_to_be_compressed(kind: str) -> None:
    view = run_view(waiting=LATE, summary={"verdict": verdict_view(kind=kind)})
    assert action(view) == ("link", "charts")
    sentence = next_step(english(), view).sentence
    share = english().percent(0.36)
    assert sentence == f"Look at GPU 3 on node-02: the others wait for it during {share} of every step."


def test_transfer_that_costs_more_than_a_straggler_comes_before_it() -> None:
    assert action(run_view(waiting=LATE)) == ("turn_on", "int8")


def test_a_straggler_that_costs_more_than_transfer_comes_before_compression() -> None:
    slower = WaitingView(straggler=StragglerView(rank=3, host="node-02", others_wait_share=0.6))
    view = run_view(waiting=slower)
    assert view.summary.verdict.kind == "worth_it"
    assert action(view) == ("link", "charts")
    assert next_step(english(), view).sentence.startswith("Look at GPU 3 on node-02")
