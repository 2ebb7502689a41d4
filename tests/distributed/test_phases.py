"""Phases of real DDP steps whose parts sleep for a known time; sleeping is a lower bound that cannot flake."""

import time
from typing import Any

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach
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
            # The slow rank: the other one waits for it, and nobody's transfer grows.
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


def _wait_of(windows: list[StepWindow]) -> float:
    return sum(window.seconds.straggler_wait or 0.0 for window in windows)


def test_waiting_for_a_slow_rank_is_booked_as_waiting(tmp_path):
    fast, slow = run_ranks(2, _sleepy_run, str(tmp_path), False)
    # Rank 0 reaches its exchange about 0.1 s before rank 1 in every step after the first.
    compared = [window for window in fast if window.seconds.straggler_wait is not None]
    assert compared
    assert _wait_of(fast) >= 0.08 * (sum(window.num_steps for window in compared) - 1)
    assert _wait_of(slow) < _wait_of(fast) / 2
    transfer = sum(window.seconds.exposed_transfer or 0.0 for window in fast)
    assert transfer < _wait_of(fast) / 2
