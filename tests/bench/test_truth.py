"""What `bench.truth` makes of sums, and a short real run of it."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from bench import ranks, truth
from bench.ranks import Cluster
from bench.truth_rank import PHASES, Scenario, Truth
from examples.demo import network


def sums(**seconds: float) -> dict[str, Any]:
    return dict.fromkeys((*PHASES, "overlapped"), 0.0) | seconds


def one(injected: dict[str, Any], measured: dict[str, Any], **facts: Any) -> dict[str, Any]:
    told = {"step": 10.0, "num_steps": 100, "most_of_step": 1.0, "least_overlapped": 0.0, "unknown_reason": ""}
    whole = measured | told | {"has_bare_unknown": False} | facts
    compared = None if whole["transfer"] is None else whole
    return {
        "injected": injected,
        "measured": whole,
        "injected_when_compared": injected,
        "measured_when_compared": compared,
    }


def unknown(reason: str = "no side group", **facts: Any) -> dict[str, Any]:
    return one(sums(transfer=3.0), sums() | {"transfer": None, "wait": None}, unknown_reason=reason, **facts)


def missed(first: dict[str, Any], second: dict[str, Any] | None = None) -> set[str]:
    outcome = {"compute": [first, first], "no pulse": [second or unknown(), unknown()]}
    return {name for name, target in truth.judge(outcome).targets.items() if not target.ok}


GOOD = one(sums(forward=5.0, overlapped=1.0), sums(forward=5.4, overlapped=0.6))


def test_phases_within_a_twentieth_of_the_step_meet_every_target() -> None:
    assert missed(GOOD) == set()


@pytest.mark.parametrize("phase", [*PHASES, "overlapped"])
def test_any_phase_that_is_further_off_is_missed(phase: str) -> None:
    assert missed(one(sums(**{phase: 5.0}), sums(**{phase: 4.4}))) == {"worst_phase_off_share_of_step"}


def test_more_than_the_step_negative_overlap_and_bare_unknowns_are_missed() -> None:
    assert missed(one(sums(), sums(), most_of_step=1.01)) == {"phases_sum_to_at_most_the_step"}
    assert missed(one(sums(), sums(), least_overlapped=-1e-9)) == {"least_overlapped_seconds"}
    assert missed(one(sums(), sums(), has_bare_unknown=True)) == {"unknown_without_a_reason"}
    assert missed(GOOD, unknown(reason="")) == {"ranks_that_say_why_without_a_pulse"}


def test_unknown_is_said_and_never_counted_as_nothing() -> None:
    rows = truth.judge({"no pulse": [unknown(), unknown()]}).rows
    assert {row["phase"]: row["measured"] for row in rows} == {"transfer": "unknown", "wait": "unknown"}
    assert {row["reason"] for row in rows} == {"no side group"}


def test_the_table_has_the_rank_that_is_further_off() -> None:
    worse = one(sums(forward=5.0), sums(forward=5.2))
    rows = truth.judge({"compute": [GOOD, worse], "no pulse": [unknown(), unknown()]}).rows
    (row,) = (row for row in rows if row["phase"] == "forward")
    assert (row["rank"], row["injected"], row["measured"], row["off"]) == (0, "50.0%", "54.0%", "+4.0%")


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        # In time, and half of the first bucket's way hidden by what comes between the buckets.
        (10.0, 12.0, {"wait": 0.0, "transfer": 2.0 + 3.0, "overlapped": 2.0}),
        # Early by 1: that wait is hidden too.
        (9.0, 11.0, {"wait": 0.0, "transfer": 3.0 + 3.0, "overlapped": 2.0}),
        # Early by 4: of which 2 are hidden.
        (6.0, 8.0, {"wait": 2.0, "transfer": 4.0 + 3.0, "overlapped": 2.0}),
    ],
)
def test_truth_of_an_exchange_follows_from_when_all_ranks_are_ready(
    first: float, last: float, wanted: dict[str, float]
) -> None:
    step = Truth(first=first, last=last)
    step.add_exchange([(first, last), (10.0, 12.0)], first=4.0, second=3.0)
    assert {name: step.seconds[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.netns
@pytest.mark.distributed
def test_real_ranks_read_back_what_they_injected(tmp_path) -> None:
    scenarios = [
        Scenario("late", forward=0.02, straggle=0.1, pause=0.05),
        replace(Scenario("no pulse", backward=0.05), is_steered=False),
    ]
    options = {
        "scenarios": [asdict(scenario) for scenario in scenarios],
        "num_steps": 9,
        "link": truth.LINK,
        "burst": network.burst_of(truth.LINK),
        "folder": str(tmp_path),
    }
    outcome = ranks.run(Cluster(2, truth.LINK), "bench.truth_rank", options, limit_seconds=100)
    fast, late = outcome["late"]
    # Steps of which the agent tells: all but the two that settle.
    assert fast["measured"]["num_steps"] == late["measured"]["num_steps"] == 7
    assert late["injected"]["forward"] >= 7 * 0.12
    for rank in (fast, late):
        # What was slept is a lower bound, whatever the machine is doing.
        assert rank["measured"]["pause"] >= rank["injected"]["pause"] >= 7 * 0.05
        assert rank["measured"]["forward"] >= rank["injected"]["forward"]
    assert fast["measured_when_compared"]["wait"] > late["measured_when_compared"]["wait"]
    for rank in outcome["no pulse"]:
        assert rank["measured"]["transfer"] is None
        assert "side group" in rank["measured"]["unknown_reason"]
    assert truth.judge(outcome).targets["phases_sum_to_at_most_the_step"].ok
