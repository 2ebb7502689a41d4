"""Phases of CUDA steps: the agent's events against kernels of known length, with no wait for the device in a step.

A part of `bench.gpu_check`. On CPU the same steps sleep, so that the check itself is tested without a GPU.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gradwire
import msgspec
import torch
import torch.distributed as dist
from gradwire.timing.clock import CudaClock, MonotonicClock
from gradwire.transport.place import find_streams
from gradwire.transport.spool import Spool
from gradwire_protocol.records import Record, StepWindow
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS = 30
FORWARD_SECONDS, BACKWARD_SECONDS = 0.02, 0.03
# The most that a phase may be off, share of the step; and the only thread that may read the device's clock.
TOLERANCE = 0.05
READER = "gradwire-recorder"

Spend = Callable[[float], None]
# Raises if something in its body waits for the device.
Watch = Callable[[torch.device], AbstractContextManager[None]]


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, spend: Spend) -> Tensor:
        ctx.spend = spend
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.spend(BACKWARD_SECONDS)
        return gradients[0], None


class _Model(nn.Module):
    def __init__(self, spend: Spend) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self._spend = spend

    def forward(self, x: Tensor) -> Tensor:
        self._spend(FORWARD_SECONDS)
        out: Tensor = _Backward.apply(self.layer(x), self._spend)  # type: ignore[no-untyped-call]
        return out


class Readers:
    """Notes which threads ask either clock for the time of a stamp."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        for clock in (CudaClock, MonotonicClock):
            for name in ("is_ready", "seconds"):
                self._wrap(clock, name)

    def _wrap(self, clock: type, name: str) -> None:
        inner = getattr(clock, name)

        def noting(this: object, stamp: object) -> Any:
            self.names.add(threading.current_thread().name)
            return inner(this, stamp)

        setattr(clock, name, noting)


def spender(device: torch.device) -> Spend:
    """Return what keeps the device busy for some seconds, and the host not at all where there is a device."""
    if device.type != "cuda":
        return time.sleep
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 100_000_000
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    rate = cycles / (begin.elapsed_time(end) / 1e3)
    return lambda seconds: torch.cuda._sleep(int(rate * seconds))


def check_timing(device: torch.device, nothing_waits: Watch) -> None:
    """Train alone in the default group, and compare what the agent recorded with what was injected.

    Raises:
        RuntimeError: A phase is off, a step waited for the device, or the training thread read its clock.
    """
    readers, spend = Readers(), spender(device)
    ddp = DistributedDataParallel(_Model(spend).to(device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batch = torch.ones(4, 64, device=device)

    def step(session: gradwire.Session) -> None:
        ddp(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(samples=4)

    with tempfile.TemporaryDirectory() as folder:
        with gradwire.attach(ddp, optimizer=optimizer, spool=folder) as session:
            for _ in range(3):
                step(session)
            with nothing_waits(device):
                for _ in range(NUM_STEPS):
                    step(session)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        judge([window for window in spooled(Path(folder)) if not window.is_settling], readers.names)


def judge(windows: list[StepWindow], readers: set[str]) -> None:
    """Raise RuntimeError unless phases are what was injected, and only the recorder has read the clock."""
    if not readers <= {READER}:
        raise RuntimeError(f"stamps were read by {sorted(readers)}; wanted: {READER} alone")
    whole = sum(window.seconds.step for window in windows)
    num_steps = sum(window.num_steps for window in windows)
    if not num_steps:
        raise RuntimeError("the agent recorded no settled step")
    for name, injected in (("forward", FORWARD_SECONDS), ("backward", BACKWARD_SECONDS)):
        measured = sum(getattr(window.seconds, name) for window in windows)
        if abs(measured - num_steps * injected) > TOLERANCE * whole:
            raise RuntimeError(
                f"{name} took {1000 * injected:.1f} ms of a step and was measured as "
                f"{1000 * measured / num_steps:.1f} ms"
            )


def spooled(folder: Path) -> list[StepWindow]:
    """Return the windows that closed sessions left below a spool folder."""
    decoder, found = msgspec.json.Decoder(Record), []
    for place, _ in find_streams(folder):
        spool = Spool(place)
        while (batch := spool.next_batch()) is not None:
            found += [decoder.decode(record) for record in batch.records]
            spool.acknowledge(batch.number)
        spool.close()
    return [record for record in found if isinstance(record, StepWindow)]


def timing_on_rank(rank: int, store: str, backend: str, nothing_waits: Watch) -> None:
    """Run the check as the only rank of a group."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
    check_timing(device, nothing_waits)
    dist.destroy_process_group()
