"""What `bench.overhead` makes of block times."""

import random
from typing import Any

import pytest

from bench import overhead
from bench.overhead_rank import MEASURING, OFF, PEER, STREAMING


def blocks(num_rounds: int, **costs: float) -> dict[str, Any]:
    """Blocks of 0.2 s that the whole machine's noise stretches, and each mode its own cost."""
    chance = random.Random(1)
    names = {"off": OFF, "measuring": MEASURING, "streaming": STREAMING, "peer": PEER}
    rounds: dict[str, list[tuple[float, float]]] = {names[name]: [] for name in costs}
    for _ in range(num_rounds):
        noise = 1 + chance.random()
        for name, cost in costs.items():
            seconds = 0.2 * noise * (1 + cost) * (1 + 0.002 * chance.gauss(0, 1))
            rounds[names[name]].append((seconds, seconds / 2))
    return {"rounds": rounds, "num_steps": 10, "run": "", "num_delivered": 1}


def ours(at_20: float, at_200: float) -> dict[str, Any]:
    return {
        "20": blocks(30, off=0, measuring=at_20 / 2, streaming=at_20),
        "200": blocks(30, off=0, measuring=at_200 / 2, streaming=at_200),
    }


def missed(at_20: float, at_200: float, peer: float | None) -> set[str]:
    theirs = None if peer is None else {"20": blocks(30, off=0, peer=peer)}
    targets = overhead.judge(ours(at_20, at_200), {"20": 0.008}, theirs, "no such package").targets
    return {name for name, target in targets.items() if not target.ok}


def test_noise_that_all_modes_meet_does_not_count() -> None:
    cost = overhead.overhead(blocks(40, off=0, streaming=0.02), STREAMING)
    assert cost.value == pytest.approx(0.02, abs=0.002)
    assert cost.low < 0.02 < cost.high
    assert cost.high - cost.low < 0.005


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
    result = overhead.judge(ours(0.005, 0.0), {}, None, "no such package")
    assert result.rows[-1]["mode"] == "traceml-ai: no such package"
    assert {tuple(row) for row in result.rows} == {tuple(result.rows[0])}


def test_the_agents_own_figure_stands_beside_what_was_measured() -> None:
    rows = overhead.judge(ours(0.005, 0.0), {"20": 0.0081}, None, "").rows
    assert [row["own figure"] for row in rows if row["mode"] == STREAMING] == ["0.81%", ""]
