"""The bf16 cast as Triton kernels: (x + residual) / W rounded to bf16; the residual is what rounding lost."""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import (
    INFINITY_HALF,
    block_places,
    from_half,
    magnitudes,
    read,
    to_half,
    write,
)


@triton.jit(do_not_specialize=["num_blocks"])
def encode(x, table, num_blocks, residual, new_residual, wire, world_size,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Cast x + residual, ROWS blocks a program; see `CastCodec.encode`. `world_size` is float32."""
    _rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    gradient = read(x + offsets[:, None] + column, mask)
    old = tl.load(residual + places[:, None] + column, mask=mask, other=0.0)
    sums = gradient + old
    is_zero = (tl.max(magnitudes(gradient), axis=1) == 0)[:, None]
    cast = tl.where(is_zero, 0, to_half(sums * tl.div_rn(1.0, world_size)))
    is_bad = (tl.max(cast & 0x7FFF, axis=1) >= INFINITY_HALF)[:, None]
    new = tl.where(is_zero | is_bad, old, sums - from_half(cast) * world_size)
    tl.store(wire + places[:, None] + column, cast.to(tl.int16), mask=mask)
    tl.store(new_residual + places[:, None] + column, new, mask=mask)


@triton.jit(do_not_specialize=["num_blocks"])
def decode(wire, table, num_blocks, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Write the elements of `wire` to their places in `out`, ROWS blocks a program."""
    _rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    write(out + offsets[:, None] + column, read(wire + places[:, None] + column, mask), mask)
