"""One rank of `bench.scaling`: averages one vector by every scheme, and times encoding and decoding on the way.

Rank 0 prints one JSON line: for each scheme the seconds of each round, the bytes that a host sent and the seconds
in its codec in the fastest round, and for each codec the size of its payload.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from gradwire_compression import BucketTiming, Exchange, Plan, registry
from gradwire_compression.buckets import BucketView, Slot
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.two_phase import MAX_PART_BYTES, divide
from gradwire_compression.layout import Layout
from torch import Tensor

from bench.link_rank import mean, sent_bytes
from bench.model import ALL_GATHER, NONE, TWO_PHASE
from bench.modes import Meter
from bench.numbers import middle

COLUMNS = 1024
# Elements whose mean is compared with the exact one.
NUM_CHECKED = 65536
TOLERANCE = 1e-5
# All-reduces of one number, to learn the latency; averages of one row, to learn what an average takes besides.
NUM_TINY = 50
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Settings:
    """What to run, from the command line."""

    num_rows: int
    num_rounds: int


@dataclass(frozen=True)
class Scheme:
    """One way to average `buffer`; `residual` holds afterwards what the result lacks."""

    name: str
    enter: Callable[[], object]
    average: Callable[[Tensor], None]
    residual: Callable[[], Tensor]
    # Seconds of the last average: to encode what this rank sends, and everything else that the codec did.
    work: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)


@dataclass
class _Watch(Meter):
    """Keeps the codec's seconds of the last average apart by what they were for."""

    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    def bucket_done(self, timing: BucketTiming) -> None:
        """Take one bucket, which is all there is."""
        super().bucket_done(timing)
        self.encode_seconds, self.decode_seconds = (
            sum(end - begin for begin, end, kind in timing.codec if kind == operation)
            for operation in ("encode", "decode")
        )


class ByExchange:
    """Averages through our own exchange, as training does."""

    def __init__(self, num_rows: int) -> None:
        self._parameter = torch.nn.Parameter(torch.zeros(num_rows, COLUMNS))
        self._meter = _Watch()
        self._exchange = Exchange(
            [("vector", self._parameter)], None, plan=Plan(), optimizer_class="SGD", observer=self._meter
        )
        self._meter.exchange = self._exchange

    def scheme(self, codec: str) -> Scheme:
        """Return the scheme of one codec."""
        name = NONE if codec == NONE else f"{codec} {TWO_PHASE}"
        return Scheme(name, lambda: self._enter(codec), self._average, self._residual, self._work)

    def _enter(self, codec: str) -> None:
        self._meter.prepared = self._exchange.prepare(Plan(codec=codec, min_elements=0))

    def _average(self, buffer: Tensor) -> None:
        self._exchange.average(BucketView(0, True, buffer, [self._parameter])).wait()
        if self._meter.errors:
            raise self._meter.errors[0]

    def _work(self) -> tuple[float, float]:
        return self._meter.encode_seconds, self._meter.decode_seconds

    def _residual(self) -> Tensor:
        residuals: dict[str, Tensor] = self._exchange.owed()
        return residuals.get("vector", torch.zeros_like(self._parameter.detach())).flatten()


class ByAllGather:
    """Averages as most published codecs do: everybody sends its payload to all, everybody decodes them all."""

    def __init__(self, codec: ScaledCodec, numel: int) -> None:
        self._codec = codec
        self._layout = Layout.build([Slot("vector", 0, numel)], codec.block)
        num_bytes = codec.wire_bytes(self._layout.num_blocks)
        self._residual = torch.zeros(numel)
        self._payload = torch.zeros(num_bytes, dtype=torch.uint8)
        self._all = torch.zeros(dist.get_world_size(), num_bytes, dtype=torch.uint8)
        self._boxes = torch.zeros_like(self._all).view(-1)
        self._work = 0.0, 0.0

    def scheme(self) -> Scheme:
        """Return the scheme."""
        return Scheme(
            f"{self._codec.name} {ALL_GATHER}",
            self._residual.zero_,
            self._average,
            lambda: self._residual,
            lambda: self._work,
        )

    @property
    def payload_bytes(self) -> int:
        """What one rank sends to every other."""
        return self._payload.numel()

    def _average(self, buffer: Tensor) -> None:
        world_size, parts = dist.get_world_size(), self._payload.split(MAX_PART_BYTES)
        boxes = self._boxes.split([world_size * part.numel() for part in parts])
        began = time.perf_counter()
        self._codec.encode(buffer, self._layout, self._residual, self._payload)
        encoded = time.perf_counter()
        # In parts, issued together, as our own exchange sends: as a whole it would go one way at a time.
        sent = [compat.start_all_gather(box, part, _world()) for box, part in zip(boxes, parts, strict=True)]
        for work in sent:
            work.wait()
        torch.cat([box.view(world_size, -1) for box in boxes], dim=1, out=self._all)
        arrived = time.perf_counter()
        for rank, payload in enumerate(self._all):
            self._codec.decode(payload, self._layout, buffer, 1 / world_size, accumulate=rank > 0)
        self._work = encoded - began, time.perf_counter() - arrived


def scaled_codecs() -> dict[str, ScaledCodec]:
    """Return the codecs that travel in two phases, with their default parameters."""
    lossy = [name for name in registry.available() if registry.facts(name).is_lossy]
    made = {name: registry.make(name, Plan(codec=name).parameters, CPU) for name in lossy}
    return {name: codec for name, codec in made.items() if isinstance(codec, ScaledCodec)}


def check(scheme: Scheme, source: Tensor, buffer: Tensor) -> None:
    """Compare a part of the result with the exact mean.

    Raises:
        RuntimeError: Something is lost that is in no residual.
    """
    scheme.enter()
    buffer.copy_(source)
    scheme.average(buffer)
    exact = mean(source[:NUM_CHECKED])
    kept = buffer[:NUM_CHECKED] + mean(scheme.residual()[:NUM_CHECKED])
    error = float((kept - exact).norm() / exact.norm())
    if not error < TOLERANCE or not buffer.any():
        raise RuntimeError(f"{scheme.name}: {error:.2g} of the mean is lost")


def time_once(scheme: Scheme, source: Tensor, buffer: Tensor) -> tuple[float, float]:
    """Return (the slowest rank's seconds, bytes that a host sent)."""
    buffer.copy_(source)
    dist.barrier()
    before, began = sent_bytes(), time.perf_counter()
    scheme.average(buffer)
    slowest = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    sent = torch.tensor(float(sent_bytes() - before), dtype=torch.float64)
    return float(slowest), float(mean(sent))


def run(settings: Settings) -> dict[str, Any]:
    """Check every scheme, then time them in turn."""
    torch.manual_seed(dist.get_rank())
    numel = settings.num_rows * COLUMNS
    source, buffer = torch.randn(numel), torch.zeros(numel)
    exchange, codecs = ByExchange(settings.num_rows), scaled_codecs()
    gathers = {name: ByAllGather(codec, numel) for name, codec in codecs.items()}
    schemes = [exchange.scheme(NONE)]
    for name in codecs:
        schemes += [exchange.scheme(name), gathers[name].scheme()]
    for scheme in schemes:
        check(scheme, source, buffer)
    seconds: dict[str, list[float]] = {scheme.name: [] for scheme in schemes}
    sent: dict[str, list[float]] = {scheme.name: [] for scheme in schemes}
    work: dict[str, list[tuple[float, float]]] = {scheme.name: [] for scheme in schemes}
    for _ in range(settings.num_rounds):
        for scheme in schemes:
            scheme.enter()
            time_once(scheme, source, buffer)
            took, num_bytes = time_once(scheme, source, buffer)
            seconds[scheme.name].append(took)
            sent[scheme.name].append(num_bytes)
            work[scheme.name].append(scheme.work())
    fastest = {name: work[name][seconds[name].index(min(seconds[name]))] for name in seconds}
    return {
        "schemes": {
            name: {
                "seconds": seconds[name],
                "sent_bytes": sent[name],
                "encode_seconds": fastest[name][0],
                "decode_seconds": fastest[name][1],
            }
            for name in seconds
        },
        "fixed_seconds": {
            TWO_PHASE: fixed_seconds(ByExchange(1).scheme("int8")),
            ALL_GATHER: fixed_seconds(ByAllGather(codecs["int8"], COLUMNS).scheme()),
        },
        "payload_bytes": {name: gather.payload_bytes for name, gather in gathers.items()},
        "latency_seconds": middle([_tiny() for _ in range(NUM_TINY)]) / (2 * (dist.get_world_size() - 1)),
    }


def fixed_seconds(scheme: Scheme) -> float:
    """Return what an average takes however little there is to average."""
    source, buffer = torch.randn(COLUMNS), torch.zeros(COLUMNS)
    scheme.enter()
    return min(time_once(scheme, source, buffer)[0] for _ in range(NUM_TINY))


def part_sizes(codec: ScaledCodec, num_rows: int, world_size: int) -> dict[str, int]:
    """Return how the exchange cuts the vector, without running it."""
    num_blocks = Layout.build([Slot("vector", 0, num_rows * COLUMNS)], codec.block).num_blocks
    num_parts, shard_blocks = divide(num_blocks, world_size, codec)
    return {"num_parts": num_parts, "shard_bytes": codec.wire_bytes(shard_blocks)}


def _tiny() -> float:
    box = torch.zeros(1)
    began = time.perf_counter()
    dist.all_reduce(box)
    return time.perf_counter() - began


def _world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = run(Settings(**json.loads(sys.argv[1])))
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
