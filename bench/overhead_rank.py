"""One rank of `bench.overhead`: the same training with and without an agent, block by block in turn.

Rank 0 prints one JSON line: for each case the block times of both modes by round, on the clock and of the training
thread's CPU, the CPU share of the mode's own threads, and the run that the agent reported to.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gradwire
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bench.truth_rank import without_side_group
from examples.demo.model import ByteTransformer

OFF, HOOK = "off", "torch's own hook"
MEASURING, STREAMING, PEER = "measuring", "measuring, pulse and stream", "traceml-ai"
# The demo's byte transformer, small.
WIDTH, NUM_BLOCKS, LENGTH = 64, 2, 64
# Before a mode's time counts buckets are dealt out anew, caches fill, and the stream has found its server.
LEAST_WARM_STEPS, WARM_SECONDS = 6, 1.0
CALIBRATION_BATCH = 4
# Of a step that waits as for a device, what its ranks compute.
COMPUTED_SHARE = 0.25
# What a mode's threads take is counted while it trains alone for so long.
STRETCH_SECONDS = 4.0


@dataclass(frozen=True)
class Case:
    """One comparison with "off"."""

    name: str
    mode: str
    # Of a step.
    milliseconds: float
    steps_per_block: int
    num_rounds: int
    # Whether the whole step is computed; otherwise most of it is waited for, as for a device.
    is_busy: bool = False


@dataclass(frozen=True)
class Settings:
    """What to run, from the command line."""

    cases: list[dict[str, Any]]
    folder: str
    server: str = ""
    token: str = ""
    # Where the peer is installed.
    peer: str = ""


@dataclass
class Mode:
    """One way to train; `around` is held during its blocks."""

    name: str
    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    session: gradwire.Session | None = None
    # Of the kernel, those that came with the mode.
    threads: set[int] = field(default_factory=set)
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    in_step: Callable[[nn.Module], contextlib.AbstractContextManager[Any]] = field(
        default=lambda _module: contextlib.nullcontext()
    )

    def step(self, work: "Work") -> None:
        """Run one training step."""
        batch = work.batch
        with self.in_step(self.ddp.module):
            time.sleep(work.wait_seconds)
            self.optimizer.zero_grad()
            loss = self.ddp.module.loss(self.ddp(batch), batch)
            loss.backward()
            self.optimizer.step()
        if self.session is not None:
            self.session.step(loss=loss, samples=len(batch))


@dataclass(frozen=True)
class Work:
    """What every step does: waits, then computes [B, LENGTH] bytes."""

    wait_seconds: float
    batch: Tensor


class Patches:
    """What the peer replaces in torch for the whole process, to be taken out while others train."""

    PLACES = (
        (nn.Module, "__call__"),
        (Tensor, "backward"),
        (Tensor, "to"),
        (torch.autograd, "backward"),
        (DataLoader, "__iter__"),
    )

    def __init__(self) -> None:
        self._own = [getattr(owner, name) for owner, name in self.PLACES]
        self._theirs = self._own

    def take_out(self) -> None:
        """Note what was put in since, and put torch's own back."""
        self._theirs = [getattr(owner, name) for owner, name in self.PLACES]
        self._put(self._own)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Hold the peer's replacements."""
        self._put(self._theirs)
        try:
            yield
        finally:
            self._put(self._own)

    def _put(self, functions: list[Any]) -> None:
        for (owner, name), function in zip(self.PLACES, functions, strict=True):
            setattr(owner, name, function)


def make_mode(name: str, settings: Settings, patches: Patches, run: str) -> Mode:
    """Make a mode with a model of its own; all ranks make theirs in the same order."""
    torch.manual_seed(0)
    before = threads()
    module = ByteTransformer(width=WIDTH, num_blocks=NUM_BLOCKS, length=LENGTH, num_heads=4)
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
    mode = Mode(name, ddp, torch.optim.SGD(ddp.parameters(), lr=1e-4))
    arguments: dict[str, Any] = {
        "optimizer": mode.optimizer,
        "spool": Path(settings.folder),
        "run": run,
    }
    if name == HOOK:
        ddp.register_comm_hook(None, allreduce_hook)
    elif name == MEASURING:
        with without_side_group():
            mode.session = gradwire.attach(ddp, **arguments)
    elif name == STREAMING:
        mode.session = gradwire.attach(ddp, server=settings.server, token=settings.token, **arguments)
    elif name == PEER:
        import traceml_ai

        mode.around, mode.in_step = patches.inside, traceml_ai.trace_step
    mode.threads = threads() - before
    return mode


def threads() -> set[int]:
    """Return the kernel's numbers of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def cpu_seconds(numbers: set[int]) -> float:
    """Return the CPU time of these threads, of those that have ended none."""
    seconds = 0.0
    for number in numbers:
        with contextlib.suppress(OSError):
            # Nanoseconds on a CPU come first.
            seconds += int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0]) / 1e9
    return seconds


def start_peer(settings: Settings, patches: Patches) -> set[int]:
    """Let the peer put its patches into torch and start its threads, and return these.

    Raises:
        RuntimeError: It did not; measuring it would mean nothing.
    """
    # Last, so that of what both need the versions of this environment are used.
    before = threads()
    sys.path.append(settings.peer)
    import traceml_ai
    from traceml_ai.runtime.arming import is_tracing_armed

    traceml_ai.init(mode="auto", ui_mode="summary", on_missing_aggregator="raise")
    if not is_tracing_armed():
        raise RuntimeError("traceml-ai did not begin to trace")
    patches.take_out()
    return threads() - before


def calibrated(mode: Mode, case: Case) -> Work:
    """Return what a step has to do to take about as long as the case says, the same on all ranks."""
    seconds = case.milliseconds / 1000
    wanted = seconds if case.is_busy else COMPUTED_SHARE * seconds
    work = Work(0.0, text(CALIBRATION_BATCH))
    for _ in range(3):
        size = len(work.batch) * wanted / step_seconds(mode, work)
        work = Work(0.0, text(max(1, int(size))))
    return work if case.is_busy else Work(max(0.0, seconds - step_seconds(mode, work)), work.batch)


def step_seconds(mode: Mode, work: Work) -> float:
    """Return what a step takes on the slowest rank."""
    mode.step(work)
    began = time.perf_counter()
    for _ in range(4):
        mode.step(work)
    took = torch.tensor((time.perf_counter() - began) / 4)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def text(size: int) -> Tensor:
    """Return [size, LENGTH] random bytes."""
    return torch.randint(0, 256, (size, LENGTH))


def block(mode: Mode, work: Work, num_steps: int) -> tuple[float, float]:
    """Run one block of a mode; return its seconds, from all ranks' start to the last one's end, and of the CPU."""
    with mode.around():
        mode.step(work)
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.thread_time()
        for _ in range(num_steps):
            mode.step(work)
        dist.barrier()
        return time.perf_counter() - began, time.thread_time() - cpu_began


def stretch(mode: Mode, work: Work, num_steps: int) -> float:
    """Train so many steps without a break and return the share of a core that the mode's own threads take."""
    with mode.around():
        began, cpu_began = time.perf_counter(), cpu_seconds(mode.threads)
        for _ in range(num_steps):
            mode.step(work)
        return (cpu_seconds(mode.threads) - cpu_began) / (time.perf_counter() - began)


def compare(case: Case, settings: Settings, patches: Patches, peer_threads: set[int]) -> dict[str, Any]:
    """Measure one case, both modes in turn."""
    work = calibrated(make_mode(OFF, settings, patches, case.name), case)
    off = make_mode(OFF, settings, patches, case.name)
    mode = make_mode(case.mode, settings, patches, case.name)
    mode.threads |= peer_threads
    num_warm, num_alone = (
        max(LEAST_WARM_STEPS, int(1000 * seconds / case.milliseconds))
        for seconds in (WARM_SECONDS, STRETCH_SECONDS)
    )
    for one in (off, mode):
        stretch(one, work, num_warm)
    rounds: dict[str, list[tuple[float, float]]] = {OFF: [], mode.name: []}
    for index in range(case.num_rounds):
        for one in (off, mode) if index % 2 else (mode, off):
            rounds[one.name].append(block(one, work, case.steps_per_block))
    check_equal(off, mode)
    outcome = {"case": asdict(case), "rounds": rounds, "threads": stretch(mode, work, num_alone)}
    if mode.session is not None:
        summary = mode.session.close()
        outcome |= {"run": mode.session.run_id, "num_delivered": summary.num_delivered if summary else 0}
    return outcome


def run(settings: Settings) -> dict[str, Any]:
    """Measure every case."""
    patches = Patches()
    peer_threads = start_peer(settings, patches) if settings.peer else set()
    cases = [compare(Case(**case), settings, patches, peer_threads) for case in settings.cases]
    return {"cases": cases}


def check_equal(off: Mode, mode: Mode) -> None:
    """Check that both modes have trained the same model to the same bits.

    Raises:
        RuntimeError: They have not.
    """
    one, other = (torch.cat([p.detach().reshape(-1) for p in each.ddp.parameters()]) for each in (off, mode))
    if not torch.equal(one, other) or not bool(one.isfinite().all()):
        raise RuntimeError(f"{mode.name}: the weights are not those without it")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    outcome = run(Settings(**json.loads(sys.argv[1])))
    if dist.get_rank() == 0:
        print(json.dumps(outcome), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
