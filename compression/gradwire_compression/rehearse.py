"""A rehearsal: some of one rank's gradients encoded and decoded by a codec, nothing sent and nothing kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.buckets import BucketView, Slot
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.collectives.power import AgreedPower
from gradwire_compression.costs import Codec
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.low_rank.reference import Multiply
from gradwire_compression.layout import Layout
from gradwire_compression.matrices import Matrix, matrix_of, orthonormalise, start
from gradwire_compression.plan import EXACT, Plan

# Elements of a sample: 4 MB of memory, and some milliseconds for a codec.
MAX_ELEMENTS = 1 << 20
# What every codec leaves uncompressed, this one does too.
_COMPRESSED = Plan(codec="int8")
# Of these the largest are sorted out; more would take longer than all codecs.
_SORTED_ELEMENTS = 1 << 16
# Parts of the elements of which the share of the norm is told.
LARGEST = (0.01, 0.05, 0.25)
# Power iterations until low-rank factors are as good as those of a training that has begun.
_ITERATIONS = 3


@dataclass(frozen=True)
class Sample:
    """Gradients of one rank that codecs compress, one after the other."""

    # [n] in the bucket's dtype; a copy.
    flat: Tensor
    slots: tuple[Slot, ...]
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Trial:
    """What a codec made of a sample; stamps are of the caller's clock, tensors lie where the sample does."""

    # [3] float64: exact times decoded, exact squared, decoded squared, all summed.
    sums: Tensor
    encode: tuple[Any, Any]
    decode: tuple[Any, Any]
    num_elements: int


def take_sample(view: BucketView) -> Sample | None:
    """Copy what codecs would compress of a bucket before it is averaged; None if they would compress nothing of it.

    The first tensors are taken until there are `MAX_ELEMENTS`; of the last one, its first rows.
    """
    if view.buffer.is_sparse or not view.buffer.is_contiguous():
        return None
    parts: list[Tensor] = []
    slots, matrices, offset, taken = [], [], 0, 0
    for index, parameter in enumerate(view.parameters):
        if taken >= MAX_ELEMENTS:
            break
        matrix, numel = matrix_of(parameter), parameter.numel()
        is_compressed = _COMPRESSED.decide("", parameter).codec != EXACT
        matrix = _cut(matrix, MAX_ELEMENTS - taken)
        if is_compressed and matrix.numel:
            parts.append(view.buffer[offset : offset + matrix.numel])
            slots.append(Slot(str(index), taken, matrix.numel))
            matrices.append(matrix)
            taken += matrix.numel
        offset += numel
    return Sample(torch.cat(parts), tuple(slots), tuple(matrices)) if parts else None


def _cut(matrix: Matrix, most: int) -> Matrix:
    """Return as many whole lines of memory as fit."""
    if matrix.numel <= most:
        return matrix
    length = matrix.num_rows if matrix.is_transposed else matrix.num_columns
    num_lines = most // max(1, length)
    if matrix.is_transposed:
        return Matrix(matrix.num_rows, num_lines, True)
    return Matrix(num_lines, matrix.num_columns)


def norm_shares(sample: Sample) -> Tensor:
    """Return [len(LARGEST)] float32 where the sample is: the share of the norm that the largest elements have."""
    stride = max(1, sample.flat.numel() // _SORTED_ELEMENTS)
    squares = sample.flat[::stride].float().square().sort(descending=True).values.cumsum(0)
    places = [max(0, round(part * squares.numel()) - 1) for part in LARGEST]
    return (squares[places] / squares[-1].clamp_min(torch.finfo(torch.float32).tiny)).sqrt()


def rehearse(codec: Codec, sample: Sample, stamp: Callable[[], Any]) -> Trial:
    """Encode and decode the sample without residuals; nothing here waits for a device.

    Low-rank factors are found in matrices as the collective reads them, of one rank alone.
    """
    decoded = torch.zeros(sample.flat.numel(), device=sample.flat.device)
    if isinstance(codec, LowRankCodec):
        encode, decode = _low_rank(codec, sample, decoded, stamp)
    else:
        encode, decode = _elementwise(codec, sample, decoded, stamp)
    exact, got = sample.flat.double(), decoded.double()
    sums = torch.stack([exact @ got, exact @ exact, got @ got])
    return Trial(sums, encode, decode, sample.flat.numel())


Interval = tuple[Any, Any]


def _elementwise(
    codec: ScaledCodec | CastCodec, sample: Sample, decoded: Tensor, stamp: Callable[[], Any]
) -> tuple[Interval, Interval]:
    layout = Layout.build(sample.slots, codec.block)
    layout.place(sample.flat.device)
    residual = torch.zeros_like(decoded)
    if isinstance(codec, ScaledCodec):
        payload = torch.zeros(codec.wire_bytes(layout.num_blocks), dtype=torch.uint8, device=decoded.device)
        begin = stamp()
        codec.encode(sample.flat, layout, residual, payload)
        middle = stamp()
        codec.decode(payload, layout, decoded)
        return (begin, middle), (middle, stamp())
    wire = torch.zeros(decoded.numel(), dtype=codec.dtype, device=decoded.device)
    power = AgreedPower({}, (), decoded.device)
    if codec.is_scaled:
        # As the ranks would have agreed on in the step before.
        largest, codes = torch.zeros(1, device=decoded.device), torch.zeros(1, device=decoded.device)
        power.write(codes, 0, sample.flat.float().abs().amax().view(1))
        power.read(codes)
    largest = torch.zeros(1, device=decoded.device)
    begin = stamp()
    codec.encode(sample.flat, layout, residual, wire, 1, power.exponent, largest)
    middle = stamp()
    codec.decode(wire, layout, decoded, power.exponent)
    return (begin, middle), (middle, stamp())


def _low_rank(
    codec: LowRankCodec, sample: Sample, decoded: Tensor, stamp: Callable[[], Any]
) -> tuple[Interval, Interval]:
    pieces = list(zip(sample.slots, sample.matrices, strict=True))
    exact = sample.flat.float()
    rights = [start("rehearsal", codec.rank, matrix.num_columns, exact.device) for matrix in sample.matrices]
    # Directions that training would have found in earlier steps.
    for _ in range(_ITERATIONS - 1):
        rights = [
            _turned(matrix.of(slot.of(exact)), right) for (slot, matrix), right in zip(pieces, rights, strict=True)
        ]
    kernels, residual = dispatch.low_rank_kernels(), torch.zeros_like(exact)
    begin = stamp()
    factors = []
    for (slot, matrix), right in zip(pieces, rights, strict=True):
        by = Multiply.ROWS if matrix.is_transposed else Multiply.COLUMNS
        product = torch.zeros(codec.rank, matrix.num_rows)
        kernels.sweep(matrix.stored(slot.of(residual)), None, slot.of(sample.flat), by, right, product)
        left = orthonormalise(product[None])[0]
        factors.append((left, left @ matrix.of(slot.of(residual))))
    middle = stamp()
    for (slot, matrix), (left, right) in zip(pieces, factors, strict=True):
        kernels.write(*matrix.stored_factors(left, right), slot.of(decoded))
    return (begin, middle), (middle, stamp())


def _turned(matrix: Tensor, right: Tensor) -> Tensor:
    return orthonormalise((right @ matrix.t())[None])[0] @ matrix
