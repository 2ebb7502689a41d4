"""Sampling: how long a codec needs on this machine, from a turn of its work on made-up gradients."""

from collections.abc import Callable

import torch

from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.costs import Codec, Line
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.low_rank.reference import Multiply
from gradwire_compression.layout import Layout
from gradwire_compression.matrices import orthonormalise
from gradwire_compression.probing import least_seconds

# Elements of a bucket that is all overhead, and of one that is not.
_SIZES = (4096, 262_144)
_REPEATS = 3
_ROWS = 256


def sample(codec: Codec, world_size: int, device: torch.device) -> Line:
    """Return what a rank spends on a bucket by its elements: encode, average its share as an owner, decode.

    Args:
        codec: Any.
        world_size: Ranks whose payloads an owner averages.
        device: Where gradients lie; it is waited for.

    Cost: some milliseconds with compiled kernels.
    """
    points = []
    for numel in _SIZES:
        turn = _turn(codec, numel, world_size, device)
        # The first turn compiles kernels and touches memory.
        turn()
        points.append((float(numel), least_seconds(turn, _REPEATS, device)))
    return Line.through(points[0], points[1])


def _turn(codec: Codec, numel: int, world_size: int, device: torch.device) -> Callable[[], None]:
    # The values matter to no codec's time, but zeros would be left out of what is sent.
    gradient = torch.linspace(-1.0, 1.0, numel, device=device)
    residual = torch.zeros(numel, device=device)
    if isinstance(codec, ScaledCodec):
        return _scaled(codec, gradient, residual, world_size)
    if isinstance(codec, CastCodec):
        return _cast(codec, gradient, residual, world_size)
    return _low_rank(codec, gradient, residual)


def _scaled(
    codec: ScaledCodec, gradient: torch.Tensor, residual: torch.Tensor, world_size: int
) -> Callable[[], None]:
    layout = Layout.build([Slot("sample", 0, gradient.numel())], codec.block)
    shard = layout.shard(0, -(-layout.num_blocks // world_size)).compact()
    payload = gradient.new_zeros(codec.wire_bytes(layout.num_blocks), dtype=torch.uint8)
    own = gradient.new_zeros(codec.wire_bytes(shard.num_blocks), dtype=torch.uint8)
    codec.encode(gradient, shard, residual[: shard.numel].clone(), own)
    arrived = own.repeat(world_size, 1)
    old, new = gradient.new_zeros(shard.numel), gradient.new_zeros(shard.numel)

    def turn() -> None:
        codec.encode(gradient, layout, residual, payload)
        codec.reduce(arrived, shard, old, own, new)
        codec.decode(payload, layout, gradient)

    return turn


def _cast(codec: CastCodec, gradient: torch.Tensor, residual: torch.Tensor, world_size: int) -> Callable[[], None]:
    layout = Layout.build([Slot("sample", 0, gradient.numel())], codec.block)
    sent = gradient.new_zeros(gradient.numel(), dtype=codec.dtype)
    received = torch.empty_like(sent)
    exponent, largest = gradient.new_zeros(1, dtype=torch.int32), gradient.new_zeros(1)

    def turn() -> None:
        codec.encode(gradient, layout, residual, sent, world_size, exponent, largest)
        received.copy_(sent)
        codec.decode(received, layout, gradient, exponent)

    return turn


def _low_rank(codec: LowRankCodec, gradient: torch.Tensor, residual: torch.Tensor) -> Callable[[], None]:
    kernels, matrix = dispatch.low_rank_kernels(), residual.view(_ROWS, -1)
    left, right = torch.zeros(codec.rank, _ROWS), torch.ones(codec.rank, matrix.shape[1])

    def turn() -> None:
        product = torch.zeros_like(left)
        kernels.sweep(matrix, (left, right), gradient, Multiply.COLUMNS, right, product)
        left.copy_(orthonormalise(product[None])[0])
        torch.mm(left, matrix, out=right)
        kernels.write(left, right, gradient)

    return turn
