"""Stamps of a device are read by the recorder's thread alone, and late ones hold nobody up."""

import threading
import time
from typing import Any

import gradwire.wiring
import pytest
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, train_step
from gradwire_protocol.records import StepWindow

pytestmark = pytest.mark.distributed

NUM_STEPS = 40


class _DeviceStamp:
    """An event that the device has not passed yet: its time is known some stamps later."""

    def __init__(self, number: int, seconds: float) -> None:
        self.number = number
        self.seconds = seconds


class _DeviceClock:
    """Runs `lag` stamps behind, as a device with a queue does, and notes which threads ask it for a time."""

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._num_stamps = 0
        self.askers: set[str] = set()
        self.num_early = 0

    def stamp(self) -> _DeviceStamp:
        self._num_stamps += 1
        return _DeviceStamp(self._num_stamps, time.perf_counter())

    def is_ready(self, stamp: _DeviceStamp) -> bool:
        self.askers.add(threading.current_thread().name)
        return stamp.number + self._lag <= self._num_stamps

    def seconds(self, stamp: _DeviceStamp) -> float:
        self.askers.add(threading.current_thread().name)
        # Asking a real event for its time before the device has passed it is an error.
        self.num_early += stamp.number + self._lag > self._num_stamps
        return stamp.seconds


def _train(rank: int, world_size: int, folder: str, plan: str) -> tuple[set[str], int, list[StepWindow]]:
    clock = _DeviceClock(lag=20)
    gradwire.wiring.clock_for = lambda device: clock
    ddp, optimizer = make_model()
    windows: list[StepWindow] = []
    session: Any = attach(ddp, optimizer, folder, plan=plan)
    session._recorder._on_window = windows.append
    for step in range(NUM_STEPS):
        # Steps of a usual length: several pulses pass while a device is behind by one step.
        time.sleep(0.03)
        loss = train_step(ddp, optimizer, batch(rank, step))
        if step % 10 == 5:
            with session.pause("evaluation"):
                ddp.module(batch(rank, step))
        session.step(loss=loss, samples=16)
    # The device comes to the end of its queue.
    for _ in range(20):
        clock.stamp()
    session.close()
    return clock.askers, clock.num_early, windows


@pytest.mark.parametrize("plan", ["none", "int8"])
def test_the_training_thread_never_asks_for_the_time_of_a_stamp(plan, tmp_path):
    for askers, num_early, windows in run_ranks(2, _train, str(tmp_path), plan):
        assert askers == {"gradwire-recorder"}
        assert num_early == 0
        assert sum(window.num_steps for window in windows) == NUM_STEPS
        assert any(window.seconds.exposed_transfer is not None for window in windows)
