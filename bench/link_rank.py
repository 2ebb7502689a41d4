"""One rank of `bench.link`: trains one model in every mode in turn and measures each step.

Rank 0 prints one JSON line: for each mode, round by round, the step times, the bytes that left the host and the
time in codecs.
"""

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from gradwire.host.network import traffic
from gradwire_compression import Plan
from torch import Tensor

from bench.modes import Batch, Mode, Replica, make_modes
from examples.demo import corpus
from examples.demo.model import ByteTransformer

# The first step of a block switches, its caches are another mode's, and what PyTorch's PowerSGD allocates in every
# step comes from the system again in the first two.
WARM_STEPS = 3
# What may be missing of the mean after one exchange, relative: float32 arithmetic, or, where the wire carries half
# precision, its rounding.
TOLERANCE = 1e-5
CAST_TOLERANCE = 5e-3
ROUNDING = {"bf16", "fp16", "hybrid"}
# The parameter whose gradient is compared.
CHECKED = "blocks.0.feed_in.weight"


@dataclass
class Round:
    """One block of steps of one mode."""

    # The slowest rank's time, for each step.
    step_seconds: list[float]
    # What left a host in a step by the network device's own count, headers included; the mean over hosts.
    sent_bytes: float
    # What a rank says it sent in a step, and its time in codecs; None where nobody says. Means over ranks.
    told_bytes: float | None
    codec_seconds: float | None


@dataclass(frozen=True)
class Settings:
    """What to run, from the command line."""

    width: int
    num_blocks: int
    batch_size: int
    length: int
    plans: dict[str, dict[str, object]]
    # Modes to run, all of them if empty.
    only: list[str]
    steps_per_block: int
    least_rounds: int
    # When no further round should begin that would end after it, seconds of the wall clock.
    deadline: float


class Training:
    """The data, and the steps of one mode after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._text = corpus.load()
        self._own, self._common = self._batches(1 + dist.get_rank()), self._batches(0)
        plans = {name: Plan.from_dict(values) for name, values in settings.plans.items()}
        self.modes = make_modes(self._make_module, plans, settings.only, hosts())

    def warm_up(self) -> None:
        """Let every wrapper settle."""
        for mode in self.modes:
            mode.enter()
            for _ in range(mode.first_steps):
                mode.replica.step(self._batch(mode), mode.is_synced)

    def block(self, mode: Mode) -> Round:
        """Run one block of a mode."""
        mode.enter()
        for _ in range(WARM_STEPS):
            mode.replica.step(self._batch(mode), mode.is_synced)
        dist.barrier()
        before = self._counts(mode)
        seconds = []
        for _ in range(self._settings.steps_per_block):
            batch = self._batch(mode)
            began = time.perf_counter()
            mode.replica.step(batch, mode.is_synced)
            seconds.append(time.perf_counter() - began)
        slowest = torch.tensor(seconds, dtype=torch.float64)
        # After this everybody has all it was sent, and the counters stand still.
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        means = (self._counts(mode) - before) / len(seconds)
        dist.all_reduce(means)
        sent, told, codec = (means / dist.get_world_size()).tolist()
        if mode.meter is None:
            return Round(slowest.tolist(), sent, None, None)
        if mode.meter.errors:
            raise RuntimeError(f"{mode.name}: {mode.meter.errors[0]}")
        return Round(slowest.tolist(), sent, told, codec)

    def check_averages(self) -> None:
        """Check that every codec of ours conserves the mean: averaged gradient plus residuals is the exact mean.

        Raises:
            RuntimeError: Names the mode that does not.
        """
        ours = [mode for mode in self.modes if mode.meter is not None]
        # They share a replica, and nothing is learned meanwhile.
        replica, batch = ours[0].replica, next(self._own)
        replica.backward(batch, is_synced=False)
        exact = mean(gradient_of(replica))
        for mode in ours:
            check_average(mode, batch, exact)

    def check_replicas(self) -> None:
        """Check that each wrapper's parameters are finite and the same on all ranks.

        Raises:
            RuntimeError: Names a mode whose replicas differ.
        """
        for mode in self.modes:
            sums = torch.stack(
                [parameter.detach().double().sum() for parameter in mode.replica.module.parameters()]
            )
            others = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
            dist.all_gather(others, sums)
            if not all(torch.equal(sums, other) for other in others) or not bool(sums.isfinite().all()):
                raise RuntimeError(f"{mode.name}: the ranks' parameters differ or are not finite")

    def _make_module(self) -> ByteTransformer:
        settings = self._settings
        return ByteTransformer(
            width=settings.width, num_blocks=settings.num_blocks, length=settings.length, num_heads=4
        )

    def _batches(self, seed: int) -> Iterator[Batch]:
        settings = self._settings
        return corpus.batches(self._text, size=settings.batch_size, length=settings.length, seed=seed)

    def _batch(self, mode: Mode) -> Batch:
        return next(self._own if mode.is_averaged else self._common)

    @staticmethod
    def _counts(mode: Mode) -> Tensor:
        told, codec = (mode.meter.wire_bytes, mode.meter.codec_seconds) if mode.meter else (0, 0.0)
        return torch.tensor([sent_bytes(), told, codec], dtype=torch.float64)


def check_average(mode: Mode, batch: Batch, exact: Tensor) -> None:
    """Compare one averaged gradient, the mean of its residuals added, with the mean of the ranks' gradients."""
    assert mode.meter is not None
    assert mode.meter.exchange is not None
    mode.enter()
    mode.replica.backward(batch)
    averaged = gradient_of(mode.replica)
    residual = mode.meter.exchange.owed().get(CHECKED, torch.zeros_like(exact))
    error = float((averaged + mean(residual) - exact).norm() / exact.norm())
    tolerance = CAST_TOLERANCE if ROUNDING.intersection(mode.name.split()) else TOLERANCE
    if mode.meter.errors or not error < tolerance or not averaged.any():
        raise RuntimeError(f"{mode.name}: {error:.2g} of the mean is lost {mode.meter.errors}")


def gradient_of(replica: Replica) -> Tensor:
    """Return the gradient that the checks look at, and clear all."""
    gradient = replica.module.get_parameter(CHECKED).grad
    assert gradient is not None
    replica.optimizer.zero_grad()
    return gradient


def mean(tensor: Tensor) -> Tensor:
    """Return the exact mean over ranks."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def hosts() -> list[range]:
    """Return the ranks of each host."""
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    return [range(first, first + per_host) for first in range(0, dist.get_world_size(), per_host)]


def sent_bytes() -> int:
    """Return what has left this host so far; its ranks share the counter."""
    device = os.environ["GLOO_SOCKET_IFNAME"]
    if (counted := traffic(device)) is None:
        raise RuntimeError(f"there is no network device {device}")
    return counted.sent_bytes


def run(settings: Settings) -> dict[str, list[Round]]:
    """Check, measure in alternating blocks for the time that is given, and check again."""
    training = Training(settings)
    training.warm_up()
    training.check_averages()
    rounds: dict[str, list[Round]] = {mode.name: [] for mode in training.modes}
    index, longest, is_more = 0, 0.0, True
    while is_more:
        began = time.time()
        first = index % len(training.modes)
        # Every mode follows a different one in each round.
        for mode in training.modes[first:] + training.modes[:first]:
            rounds[mode.name].append(training.block(mode))
        index, longest = index + 1, max(longest, time.time() - began)
        is_more = agree(index < settings.least_rounds or time.time() + longest < settings.deadline)
    training.check_replicas()
    return rounds


def agree(value: bool) -> bool:
    """Return what rank 0 says."""
    box = torch.tensor(int(value))
    dist.broadcast(box, 0)
    return bool(box)


def main() -> None:
    socket.sethostname(f"host{os.environ['GROUP_RANK']}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rounds = run(Settings(**json.loads(sys.argv[1])))
    if dist.get_rank() == 0:
        print(json.dumps({name: [asdict(one) for one in blocks] for name, blocks in rounds.items()}), flush=True)
    dist.barrier()
    # What still holds a group when the interpreter ends lets gloo abort the process now and then.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
