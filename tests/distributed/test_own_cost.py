"""An agent that costs more than its budget traces fewer steps, the same ones on every rank."""

from typing import Any

import pytest
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, pulse_with_every_exchange, train_step
from gradwire_protocol.records import Event, StepWindow

pytestmark = pytest.mark.distributed

NUM_STEPS = 60


def _train(rank: int, world_size: int, folder: str, budget: float) -> tuple[list[int], list[Any], list[Any]]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, budget=budget)
    windows: list[StepWindow] = []
    events: list[Event] = []
    session._recorder._on_window = windows.append
    session._steering._on_event = events.append
    # Only rank 1 finds the agent too dear.
    if rank == 1:
        cost = session._steering._tracing._cost
        cost.economy, cost._longest = 4, 64
    traced = []
    for step in range(1, NUM_STEPS + 1):
        if session._phases.is_traced:
            traced.append(step)
        train_step(ddp, optimizer, batch(rank, step))
        session.step(samples=16)
    session.close()
    return traced, windows, events


def test_all_ranks_trace_the_steps_that_the_dearest_one_can_afford(tmp_path):
    first, second = run_ranks(2, _train, str(tmp_path), 1.0)
    assert first[0] == second[0]
    # Every step until the ranks have spoken, then one in four; the wish goes down again with the first window.
    assert {4, 8, 12} <= set(first[0])
    assert len(first[0]) < NUM_STEPS
    assert next(event.data["stride"] for event in first[2] if event.kind == "traced") == 4
    assert not any(event.kind == "traced" for event in second[2])
    for _, windows, _ in (first, second):
        assert sum(window.num_steps for window in windows) == NUM_STEPS
        for window in windows:
            seconds = window.seconds
            parts = (seconds.data_wait, seconds.forward, seconds.backward, seconds.exposed_communication)
            parts += (seconds.exposed_codec, seconds.optimizer, seconds.pause, seconds.other)
            assert sum(parts) == pytest.approx(seconds.step, rel=1e-6)
            assert seconds.overlapped >= 0
            assert seconds.exposed_transfer is not None or window.unknown_reason
        assert any(window.seconds.exposed_transfer is not None for window in windows)


def _train_beside_dear_threads(rank: int, world_size: int, folder: str) -> list[StepWindow]:
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    windows: list[StepWindow] = []
    session._recorder._on_window = windows.append
    # No training thread spends as much, so it shows where the cost comes from.
    session._recorder._cost.take_thread_seconds = lambda: 100.0
    for step in range(1, NUM_STEPS + 1):
        train_step(ddp, optimizer, batch(rank, step))
        session.step(samples=16)
    session.close()
    return windows


def test_the_agents_own_threads_are_part_of_its_cost(tmp_path):
    (windows,) = run_ranks(1, _train_beside_dear_threads, str(tmp_path))
    assert windows
    assert all(window.seconds.agent >= 100.0 for window in windows)
