"""The casts in Triton: (x + residual) / W times a power of two, rounded; what rounding lost is the residual.

The exponent lies on the device, where the ranks agree on it from one step to the next.
"""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import (
    INFINITY_BITS,
    INFINITY_HALF,
    block_places,
    from_half,
    magnitudes,
    read,
    to_half,
    unless,
    write,
)

# As float16.
INFINITY_FP16 = tl.constexpr(0x7C00)


@triton.jit
def _power_of_two(exponent):
    """Return 2**exponent, float32, for exponents of normal numbers."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _cast(values, IS_SCALED: tl.constexpr):
    """Return (bits in the low half of int32, what they stand for): float16 where scaled, else bfloat16."""
    if IS_SCALED:
        halves = values.to(tl.float16)
        bits, numbers = halves.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF, halves.to(tl.float32)
    else:
        bits = to_half(values)
        numbers = from_half(bits)
    return bits, numbers


@triton.jit
def _note_largest(sums, is_zero, largest):
    """Raise the largest magnitude, as bits, to that of the rows that are sent and finite."""
    magnitude = tl.max(magnitudes(sums), axis=1)
    tl.atomic_max(largest, tl.max(tl.where(is_zero | (magnitude >= INFINITY_BITS), 0, magnitude), axis=0))


@triton.jit(do_not_specialize=["num_blocks"])
def encode(x, table, num_blocks, residual, new_residual, wire, world_size, exponent, largest,
           IS_SCALED: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Cast x + residual, ROWS blocks a program; see `CastCodec.encode`.

    `world_size` is float32; `exponent` and `largest`, a float32's bits that begin at zero, are used where scaled.
    """
    _rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    gradient = read(x + offsets[:, None] + column, mask)
    old = tl.load(residual + places[:, None] + column, mask=mask, other=0.0)
    sums = gradient + old
    is_zero = tl.max(magnitudes(gradient), axis=1) == 0
    factor, unit = tl.div_rn(1.0, world_size), world_size
    if IS_SCALED:
        power = tl.load(exponent)
        factor, unit = factor * _power_of_two(power), unit * _power_of_two(-power)
        _note_largest(sums, is_zero, largest)
    bits, numbers = _cast(sums * factor, IS_SCALED)
    bits = tl.where(is_zero[:, None], 0, bits)
    is_bad = tl.max(bits & 0x7FFF, axis=1) >= (INFINITY_FP16 if IS_SCALED else INFINITY_HALF)
    new = tl.where((is_zero | is_bad)[:, None], old, sums - numbers * unit)
    halves = bits.to(tl.int16)
    if IS_SCALED:
        halves = halves.to(tl.float16, bitcast=True)
    tl.store(wire + places[:, None] + column, halves, mask=mask)
    tl.store(new_residual + places[:, None] + column, new, mask=mask)


@triton.jit(do_not_specialize=["num_blocks"])
def decode(wire, table, num_blocks, out, exponent, is_clean, IS_SCALED: tl.constexpr, IS_UNDO: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Write the elements of `wire` times 2**-exponent to their places in `out`, ROWS blocks a program."""
    if IS_UNDO:
        num_blocks = unless(is_clean, num_blocks)
    _rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    values = read(wire + places[:, None] + column, mask)
    if IS_SCALED:
        values *= _power_of_two(-tl.load(exponent))
    write(out + offsets[:, None] + column, values, mask)
