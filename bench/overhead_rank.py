"""One rank of `bench.overhead`: the same training with and without an agent, block by block in turn.

Rank 0 prints one JSON line: for each step time the block times of every mode by round, on the clock and of the CPU,
and the run that the streaming agent reported to.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradwire
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bench.truth_rank import without_side_group
from examples.demo.model import ByteTransformer

OFF, MEASURING, STREAMING, PEER = "off", "measuring", "measuring, pulse and stream", "traceml-ai"
# The demo's byte transformer, small.
WIDTH, NUM_BLOCKS, LENGTH = 64, 2, 64
# Before a mode's time counts buckets are dealt out anew, caches fill, and the stream has found its server.
LEAST_WARM_STEPS, WARM_SECONDS = 6, 0.6
CALIBRATION_BATCH = 4


@dataclass(frozen=True)
class Settings:
    """What to run, from the command line."""

    modes: list[str]
    # Milliseconds of a step, and for each the steps of a block and the number of rounds.
    steps: dict[str, tuple[int, int]]
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
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    in_step: Callable[[nn.Module], contextlib.AbstractContextManager[Any]] = field(
        default=lambda _module: contextlib.nullcontext()
    )

    def step(self, batch: Tensor) -> None:
        """Run one training step."""
        with self.in_step(self.ddp.module):
            self.optimizer.zero_grad()
            loss = self.ddp.module.loss(self.ddp(batch), batch)
            loss.backward()
            self.optimizer.step()
        if self.session is not None:
            self.session.step(loss=loss, samples=len(batch))


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


def make_mode(name: str, settings: Settings, patches: Patches, milliseconds: str) -> Mode:
    """Make a mode with a model of its own; all ranks make theirs in the same order."""
    torch.manual_seed(0)
    module = ByteTransformer(width=WIDTH, num_blocks=NUM_BLOCKS, length=LENGTH, num_heads=4)
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
    mode = Mode(name, ddp, torch.optim.SGD(ddp.parameters(), lr=1e-4))
    arguments: dict[str, Any] = {
        "optimizer": mode.optimizer,
        "spool": Path(settings.folder),
        "run": f"{milliseconds} ms",
    }
    if name == MEASURING:
        with without_side_group():
            mode.session = gradwire.attach(ddp, **arguments)
    elif name == STREAMING:
        mode.session = gradwire.attach(ddp, server=settings.server, token=settings.token, **arguments)
    elif name == PEER:
        import traceml_ai

        mode.around, mode.in_step = patches.inside, traceml_ai.trace_step
    return mode


def start_peer(settings: Settings, patches: Patches) -> None:
    """Let the peer put its patches into torch and start its threads.

    Raises:
        RuntimeError: It did not; measuring it would mean nothing.
    """
    # Last, so that of what both need the versions of this environment are used.
    sys.path.append(settings.peer)
    import traceml_ai
    from traceml_ai.runtime.arming import is_tracing_armed

    traceml_ai.init(mode="auto", ui_mode="summary", on_missing_aggregator="raise")
    if not is_tracing_armed():
        raise RuntimeError("traceml-ai did not begin to trace")
    patches.take_out()


def calibrated(mode: Mode, milliseconds: float) -> Tensor:
    """Return a batch with which a step takes about that long, equally large on all ranks."""
    size = CALIBRATION_BATCH
    for _ in range(3):
        batch = text(size)
        mode.step(batch)
        began = time.perf_counter()
        for _ in range(4):
            mode.step(batch)
        took = torch.tensor((time.perf_counter() - began) / 4)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        size = max(1, int(size * milliseconds / 1000 / float(took)))
    return text(size)


def text(size: int) -> Tensor:
    """Return [size, LENGTH] random bytes."""
    return torch.randint(0, 256, (size, LENGTH))


def block(mode: Mode, batch: Tensor, num_steps: int) -> tuple[float, float]:
    """Run one block of a mode; return its seconds, from all ranks' start to the last one's end, and of the CPU."""
    with mode.around():
        mode.step(batch)
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            mode.step(batch)
        dist.barrier()
        return time.perf_counter() - began, time.process_time() - cpu_began


def run(settings: Settings) -> dict[str, Any]:
    """Measure every step time, all modes in turn."""
    patches = Patches()
    if PEER in settings.modes:
        start_peer(settings, patches)
    outcome: dict[str, Any] = {}
    for milliseconds, (num_steps, num_rounds) in settings.steps.items():
        batch = calibrated(make_mode(OFF, settings, patches, milliseconds), float(milliseconds))
        modes = [make_mode(name, settings, patches, milliseconds) for name in settings.modes]
        for mode in modes:
            with mode.around():
                for _ in range(max(LEAST_WARM_STEPS, int(1000 * WARM_SECONDS / float(milliseconds)))):
                    mode.step(batch)
        rounds: dict[str, list[tuple[float, float]]] = {mode.name: [] for mode in modes}
        for index in range(num_rounds):
            first = index % len(modes)
            # Every mode follows a different one in each round.
            for mode in modes[first:] + modes[:first]:
                rounds[mode.name].append(block(mode, batch, num_steps))
        outcome[milliseconds] = {"rounds": rounds, "num_steps": num_steps, "run": "", "num_delivered": 0}
        for mode in modes:
            if mode.session is not None:
                summary = mode.session.close()
                if mode.name == STREAMING and summary is not None:
                    outcome[milliseconds].update(run=mode.session.run_id, num_delivered=summary.num_delivered)
        check_equal(modes)
    return outcome


def check_equal(modes: list[Mode]) -> None:
    """Check that every mode has trained the same model to the same bits.

    Raises:
        RuntimeError: Names a mode that has not.
    """
    weights = [torch.cat([one.detach().reshape(-1) for one in mode.ddp.parameters()]) for mode in modes]
    for mode, vector in zip(modes[1:], weights[1:], strict=True):
        if not torch.equal(vector, weights[0]) or not bool(vector.isfinite().all()):
            raise RuntimeError(f"{mode.name}: the weights are not those that the others have")


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
