"""Phases of real DDP steps whose parts sleep for a known time; sleeping is a lower bound that cannot flake."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, pulse_with_every_exchange
from gradwire_protocol.records import StepWindow
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class _Sleepy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.outer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(0.03)
        return {"output": self.outer(_SleepInBackward.apply(self.inner(x), 0.04))}


def _sleepy_run(rank: int, world_size: int, folder: str, accumulate: bool) -> list[StepWindow]:
    ddp = DistributedDataParallel(_Sleepy())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    session = attach(ddp, optimizer, folder)
    windows: list[StepWindow] = []
    session._recorder._on_window = windows.append
    for _ in range(6):
        time.sleep(0.02)
        for is_last in (False, True) if accumulate else (True,):
            ddp.require_backward_grad_sync = is_last
            ddp(torch.ones(2, 16))["output"].sum().backward()
        with session.pause("evaluation"):
            time.sleep(0.05)
            with torch.no_grad():
                ddp(torch.ones(2, 16))
        if rank == 1:
            time.sleep(0.1)
        optimizer.step()
        optimizer.zero_grad()
        session.step(samples=2)
    session.close()
    return windows


@pytest.mark.parametrize("accumulate", [False, True])
def test_phases_hold_at_least_what_was_slept(accumulate, tmp_path):
    for rank, windows in enumerate(run_ranks(2, _sleepy_run, str(tmp_path), accumulate)):
        num_steps = sum(window.num_steps for window in windows)
        assert num_steps == 6
        passes = 2 if accumulate else 1

        def total(name: str, windows: list[StepWindow] = windows) -> float:
            return sum(getattr(window.seconds, name) or 0.0 for window in windows)

        assert total("data_wait") >= 0.02 * num_steps
        assert total("forward") >= 0.03 * passes * num_steps
        assert total("backward") >= 0.04 * passes * num_steps
        assert total("pause") >= 0.08 * num_steps
        if rank == 1:
            assert total("other") >= 0.1 * num_steps
        parts = ("data_wait", "forward", "backward", "exposed_communication", "exposed_codec", "optimizer", "pause")
        assert sum(total(part) for part in (*parts, "other")) == pytest.approx(total("step"), rel=1e-6)


def _straggling_run(rank: int, world_size: int, folder: str) -> list[StepWindow]:
    """Rank 1 sleeps once rank 0 is about to exchange, so that rank 0 must wait whatever the load."""
    pulse_with_every_exchange()
    ddp = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    session = attach(ddp, optimizer, folder)
    windows: list[StepWindow] = []
    session._recorder._on_window = windows.append
    for step in range(8):
        loss = ddp(torch.ones(2, 16)).sum()
        arrived = Path(folder, f"arrived-{step}")
        if rank == 0:
            arrived.touch()
        else:
            while not arrived.exists():
                time.sleep(0.002)
            time.sleep(0.3)
        loss.backward()
        optimizer.step()
        session.step(samples=2)
    session.close()
    return [window for window in windows if window.seconds.straggler_wait is not None]


def _total(windows: list[StepWindow], name: str) -> float:
    return sum(getattr(window.seconds, name) for window in windows)


def test_waiting_for_a_slow_rank_is_booked_as_waiting(tmp_path):
    fast, slow = run_ranks(2, _straggling_run, str(tmp_path))
    num_steps = sum(window.num_steps for window in fast)
    assert num_steps >= 6
    # Half of what was slept leaves room for a rank that is late to its own exchange on a busy machine.
    assert _total(fast, "straggler_wait") >= 0.15 * num_steps
    assert _total(slow, "straggler_wait") < _total(fast, "straggler_wait")
    for windows in (fast, slow):
        split = _total(windows, "exposed_transfer") + _total(windows, "straggler_wait")
        assert split == pytest.approx(_total(windows, "exposed_communication"))
