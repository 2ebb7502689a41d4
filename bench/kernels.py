"""How fast the kernels are: encode with error feedback and decode-accumulate, beside a copy of the same vector.

One thread, one vector of 6.5 million float32. GB/s are gigabytes of that vector per second, whatever a kernel reads
and writes besides. Every kernel is timed in every round and compared with the copy of the same round; a row gives
medians, and half the distance between the quartiles. Before anything is timed, payload, residual and decoded vector
of the compiled kernels must equal the reference's bit for bit.

PowerSGD works by passes over matrices and not by encode and decode; `bench.link` has its time.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from gradwire_compression import registry
from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.kernels import dispatch
from gradwire_compression.layout import Layout
from gradwire_compression.plan import Plan
from torch import Tensor

from bench.numbers import half_spread, middle, quotients
from bench.runner import Result, Row, Target, main

NUM_ELEMENTS = 6_500_000
ROUNDS = 30
QUICK_ROUNDS = 10
# One call of a reference takes up to a second, and nobody waits for its exact figure.
REFERENCE_ROUNDS = 2
CPU = torch.device("cpu")
WORLD_SIZE = 2

COMPILED, REFERENCE = "C", "reference"

# (codec, operation) -> largest time relative to a copy, for the compiled kernels.
LIMITS = {
    ("onebit", "encode"): 2.0,
    ("onebit", "decode"): 1.2,
    ("int8", "encode"): 2.5,
    ("int4", "encode"): 2.5,
    ("topk", "encode"): 5.0,
}

# What one call does, by (codec, backend, operation).
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Subject:
    """One codec on one backend; `encode` and `decode` write to `written`."""

    codec: str
    backend: str
    encode: Callable[[], None]
    decode: Callable[[], None]
    written: dict[str, Tensor]

    def operations(self) -> Iterator[tuple[Key, Callable[[], None]]]:
        """Yield what can be timed."""
        yield (self.codec, self.backend, "encode"), self.encode
        yield (self.codec, self.backend, "decode"), self.decode


def measure(quick: bool, numel: int = NUM_ELEMENTS) -> Result:
    """Check and time every codec that has kernels.

    Raises:
        RuntimeError: A backend does not do what the reference does.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gradient = torch.randn(numel)
    subjects = make_subjects(gradient)
    check(subjects)
    times = time_all(subjects, gradient, QUICK_ROUNDS if quick else ROUNDS)
    rows = rows_of(times, numel)
    return Result(rows=rows, targets=targets_of(rows))


def codecs_with_kernels() -> list[str]:
    """Return the names of the codecs that have kernels."""
    lossy = [name for name in registry.available() if registry.facts(name).is_lossy]
    return [name for name in lossy if not isinstance(make_codec(name), LowRankCodec)]


def make_codec(name: str) -> Any:
    """Return the codec with its default parameters."""
    return registry.make(name, Plan(codec=name).parameters, CPU)


def make_subjects(gradient: Tensor) -> list[Subject]:
    """Return every codec on every backend that this installation has."""
    subjects = []
    for name in codecs_with_kernels():
        if dispatch.is_compiled():
            subjects.append(subject(name, COMPILED, gradient))
        with plain_torch():
            subjects.append(subject(name, REFERENCE, gradient))
    return subjects


@contextmanager
def plain_torch() -> Iterator[None]:
    """Make codecs inside as an installation without a C compiler makes them."""
    held, dispatch._cpu = dispatch._cpu, None
    said = set(dispatch._said)
    dispatch._said.update(dispatch.notes())
    try:
        yield
    finally:
        dispatch._cpu = held
        dispatch._said.clear()
        dispatch._said.update(said)


def subject(name: str, backend: str, gradient: Tensor) -> Subject:
    """Return one codec with buffers of its own, its residual at zero."""
    codec = make_codec(name)
    numel = gradient.numel()
    layout = Layout.build([Slot("vector", 0, numel)], codec.block)
    residual, decoded = torch.zeros(numel), torch.zeros(numel)
    if isinstance(codec, CastCodec):
        wire = torch.zeros(numel, dtype=codec.dtype)
        exponent, largest = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        return Subject(
            name,
            backend,
            lambda: codec.encode(gradient, layout, residual, wire, WORLD_SIZE, exponent, largest),
            lambda: codec.decode(wire, layout, decoded, exponent),
            {"payload": wire, "residual": residual, "decoded vector": decoded},
        )
    payload = torch.zeros(codec.wire_bytes(layout.num_blocks), dtype=torch.uint8)
    return Subject(
        name,
        backend,
        lambda: codec.encode(gradient, layout, residual, payload),
        lambda: codec.decode(payload, layout, decoded, 1 / WORLD_SIZE, accumulate=True),
        {"payload": payload, "residual": residual, "decoded vector": decoded},
    )


def check(subjects: Sequence[Subject]) -> None:
    """Run every subject twice, so that the residual counts, and compare the backends of a codec.

    Raises:
        RuntimeError: Names codec, backend and what differs.
    """
    truths: dict[str, Subject] = {one.codec: one for one in subjects if one.backend == REFERENCE}
    for one in subjects:
        for _ in range(2):
            one.encode()
            one.decode()
    for one in subjects:
        for what, tensor in one.written.items():
            if not torch.equal(tensor.view(torch.uint8), truths[one.codec].written[what].view(torch.uint8)):
                raise RuntimeError(f"{one.codec}: the {what} of the {one.backend} kernels is not the reference's")
            if what != "payload" and not bool(tensor.isfinite().all() and tensor.any()):
                raise RuntimeError(f"{one.codec}: the {what} of the {one.backend} kernels is zero or not finite")


def time_all(subjects: Sequence[Subject], gradient: Tensor, rounds: int) -> dict[Key, list[float]]:
    """Time every operation and a copy once a round; the slow references in the first rounds only."""
    target = torch.zeros_like(gradient)
    operations: dict[Key, Callable[[], object]] = {("float32", "torch", "copy"): lambda: target.copy_(gradient)}
    operations.update(operation for one in subjects for operation in one.operations())
    times: dict[Key, list[float]] = {key: [] for key in operations}
    for index in range(rounds):
        for key, call in operations.items():
            if key[1] != REFERENCE or index < REFERENCE_ROUNDS:
                began = time.perf_counter()
                call()
                times[key].append(time.perf_counter() - began)
    return times


def rows_of(times: dict[Key, list[float]], numel: int) -> list[Row]:
    """Return a row for each operation; ratios are taken round by round."""
    copies = times["float32", "torch", "copy"]
    rows = []
    for (codec, backend, operation), seconds in times.items():
        ratios = quotients(seconds, copies[: len(seconds)])
        rows.append(
            {
                "codec": codec,
                "backend": backend,
                "operation": operation,
                "ms": 1000 * middle(seconds),
                "GB/s": 4e-9 * numel / middle(seconds),
                "x copy": middle(ratios),
                "±": half_spread(ratios),
                "rounds": len(seconds),
            }
        )
    return rows


def targets_of(rows: Sequence[Row]) -> dict[str, Target]:
    """Judge the compiled kernels; a codec or backend that is not there misses its target."""
    ratios = {(row["codec"], row["operation"]): row["x copy"] for row in rows if row["backend"] == COMPILED}
    targets = {}
    for (codec, operation), limit in LIMITS.items():
        ratio = ratios.get((codec, operation))
        value = None if ratio is None else round(ratio, 2)
        targets[f"{codec}_{operation}_times_a_copy"] = Target(
            value, f"<= {limit}", value is not None and value <= limit
        )
    return targets


if __name__ == "__main__":
    sys.exit(main("kernels", measure))
