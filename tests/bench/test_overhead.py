"""What `bench.overhead` makes of block times."""

import random
from dataclasses import asdict
from typing import Any

import pytest

from bench import overhead
from bench.overhead_rank import MEASURING, OFF, PEER, STREAMING, Case


def outcome(name: str, mode: str, cost: float, num_rounds: int = 30) -> dict[str, Any]:
    """Blocks of 0.2 s that the whole machine's noise stretches, and the mode its own cost."""
    chance = random.Random(1)
    rounds: dict[str, list[tuple[float, float]]] = {OFF: [], mode: []}
    for _ in range(num_rounds):
        noise = 1 + chance.random()
        for each, share in ((OFF, 0.0), (mode, cost)):
            seconds = 0.2 * noise * (1 + share) * (1 + 0.002 * chance.gauss(0, 1))
            rounds[each].append((seconds, seconds / 4))
    return {"case": asdict(Case(name, mode, 20, 10, num_rounds)), "rounds": rounds, "threads": 0.0042}


def ours(at_20: float, at_200: float) -> list[dict[str, Any]]:
    return [
        outcome("20 ms", MEASURING, at_20 / 2),
        {**outcome("20 ms", STREAMING, at_20), "own_figure": 0.0081},
        outcome("200 ms", STREAMING, at_200),
    ]


def missed(at_20: float, at_200: float, peer: float | None) -> set[str]:
    theirs = [] if peer is None else [outcome("20 ms", PEER, peer)]
    targets = overhead.judge([*ours(at_20, at_200), *theirs], "" if theirs else "no such package").targets
    return {name for name, target in targets.items() if not target.ok}


def test_noise_that_both_modes_meet_does_not_count() -> None:
    cost = overhead.overhead(outcome("20 ms", STREAMING, 0.02, num_rounds=40))
    assert cost.value == pytest.approx(0.02, abs=0.002)
    assert cost.low < 0.02 < cost.high
    assert cost.high - cost.low < 0.005


def test_cpu_time_is_a_share_of_the_step_and_not_of_itself() -> None:
    noisy = outcome("20 ms", STREAMING, 0.2)
    assert overhead.cpu(noisy).value == pytest.approx(0.2 / 4, rel=0.2)


@pytest.mark.parametrize(
    ("at_20", "at_200", "peer", "wanted"),
    [
        (0.005, 0.0, 0.02, set()),
        (0.012, 0.0, 0.02, {"overhead_at_20_ms_with_everything"}),
        (0.005, 0.008, 0.02, {"overhead_at_200_ms_with_everything"}),
        (0.005, 0.0, 0.002, {"overhead_at_20_ms_of_traceml_ai"}),
        (0.005, 0.0, None, {"overhead_at_20_ms_of_traceml_ai"}),
    ],
)
def test_targets(at_20: float, at_200: float, peer: float | None, wanted: set[str]) -> None:
    assert missed(at_20, at_200, peer) == wanted


def test_a_peer_that_could_not_be_measured_says_why_in_its_row() -> None:
    result = overhead.judge(ours(0.005, 0.0), "no such package")
    assert result.rows[-1]["mode"] == "traceml-ai: no such package"
    assert {tuple(row) for row in result.rows} == {tuple(result.rows[0])}


def test_the_agents_own_figure_stands_beside_what_was_measured() -> None:
    rows = overhead.judge(ours(0.005, 0.0), "").rows
    assert [row["own figure"] for row in rows if row["mode"] == STREAMING] == ["0.81%", ""]
    assert [row["CPU of threads"] for row in rows if row["mode"] == OFF] == ["", "", ""]
