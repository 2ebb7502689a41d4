"""What the Triton kernels share: number formats, block tables, and the rules that hold for every scaled codec.

A kernel works on tiles of [blocks, elements]. Results equal the references bit for bit, so that kernels divide with
`div_rn` and are launched with `enable_fp_fusion=False`; rounding to bfloat16 is spelled out, because Triton's
interpreter truncates.

Numbers travel in the pointers' types: float32, float16, and int16 for the bits of bfloat16.
"""

import triton
import triton.language as tl

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INFINITY_BITS = tl.constexpr(0x7F800000)
# As bfloat16.
INFINITY_HALF = tl.constexpr(0x7F80)
NAN_HALF = tl.constexpr(0x7FC0)


@triton.jit
def bits_of(values):
    """Return the bits of float32 `values` as int32."""
    return values.to(tl.int32, bitcast=True)


@triton.jit
def magnitudes(values):
    """Return the bits of |values| as int32: their order is the order of magnitude, with NaN above infinity."""
    return bits_of(values) & MAGNITUDE


@triton.jit
def from_half(halves):
    """Return bfloat16 bits, in the low half of int32, as float32."""
    return (halves << 16).to(tl.float32, bitcast=True)


@triton.jit
def to_half(values):
    """Return float32 `values` rounded half to even to bfloat16, its bits in the low half of int32."""
    bits = bits_of(values)
    # The shift repeats the sign, so that the low half is right for negative numbers, too.
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
    return tl.where((bits & MAGNITUDE) > INFINITY_BITS, NAN_HALF, rounded)


@triton.jit
def round_to_even(values):
    """Return float32 `values`, of magnitude below 2**22, rounded half to even, as int32."""
    # Adding 1.5 * 2**23 rounds and leaves the integer in the low bits.
    return bits_of(values + 12582912.0) - 0x4B400000


@triton.jit
def read(pointers, mask):
    """Return the elements as float32, zero where `mask` is not set."""
    values = tl.load(pointers, mask=mask, other=0)
    if pointers.dtype.element_ty == tl.int16:
        numbers = from_half(values.to(tl.int32))
    else:
        numbers = values.to(tl.float32)
    return numbers


@triton.jit
def write(pointers, values, mask):
    """Store float32 `values`, rounded half to even where the pointers' type is narrower."""
    if pointers.dtype.element_ty == tl.int16:
        tl.store(pointers, to_half(values).to(tl.int16), mask=mask)
    else:
        tl.store(pointers, values.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def unless(is_clean, num_blocks):
    """Return the blocks to work on: none where the flag, a byte on the device, is set."""
    return tl.where(tl.load(is_clean) != 0, 0, num_blocks)


@triton.jit
def block_places(table, num_blocks, first, ROWS: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Return (rows, where they begin in the flat tensor, where in the compact order, their lengths).

    Args:
        table: [3, num_blocks]: offsets, places in compact order, lengths.
        num_blocks: Rows beyond have the length 0.
        first: The first row.
        ROWS: Blocks of the tile.
        IS_ALIGNED: All numbers of the table are multiples of 4, which makes 16-byte loads and stores possible.
    """
    rows = first + tl.arange(0, ROWS)
    is_real = rows < num_blocks
    offsets = tl.load(table + rows, mask=is_real, other=0)
    places = tl.load(table + num_blocks + rows, mask=is_real, other=0)
    lengths = tl.load(table + 2 * num_blocks + rows, mask=is_real, other=0)
    if IS_ALIGNED:
        offsets, places = tl.multiple_of(offsets, 4), tl.multiple_of(places, 4)
        lengths = tl.multiple_of(lengths, 4)
    return rows, offsets, places, lengths


@triton.jit
def payload_parts(payloads, rows, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES: tl.constexpr,
                  NUM_SCALES: tl.constexpr = 1):  # fmt: skip
    """Return (pointers to the values of each row, pointers to its first scale)."""
    shards = (rows // shard_blocks).to(tl.int64)
    own = (rows % shard_blocks).to(tl.int64)
    bases = payloads + shards * shard_bytes
    scales = (bases + scales_begin + 2 * NUM_SCALES * own).to(tl.pointer_type(tl.int16))
    return bases + own * VALUE_BYTES, scales


@triton.jit
def write_padding(payloads, rows, num_blocks, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES: tl.constexpr,
                  NUM_SCALES: tl.constexpr = 1):  # fmt: skip
    """Write the zeros behind the values and behind the scales; the last block of a shard does it."""
    column = tl.arange(0, 16)
    shards = (rows // shard_blocks).to(tl.int64)
    is_last = (rows < num_blocks) & (rows % shard_blocks == shard_blocks - 1)
    values_end = (payloads + shards * shard_bytes)[:, None] + shard_blocks.to(tl.int64) * VALUE_BYTES + column
    num_values = scales_begin - shard_blocks * VALUE_BYTES
    tl.store(values_end, tl.zeros([1, 16], tl.uint8), mask=is_last[:, None] & (column < num_values))
    scales_bytes = 2 * NUM_SCALES * shard_blocks
    scales_end = (payloads + shards * shard_bytes)[:, None] + scales_begin + scales_bytes + column
    num_scales = shard_bytes - scales_begin - scales_bytes
    tl.store(scales_end, tl.zeros([1, 16], tl.uint8), mask=is_last[:, None] & (column < num_scales))


@triton.jit
def read_scales(scales, is_real):
    """Return the scales behind the pointers as float32, 0 where there is none."""
    return from_half(tl.load(scales, mask=is_real, other=0).to(tl.int32) & 0xFFFF)


@triton.jit
def settle_scale(scale, is_zero):
    """Round a block's scale and apply the rules of every scaled codec.

    Returns:
        (bfloat16 bits of the scale as int32, whether the block is sent, whether its residual stays what it was).
        A block whose gradient is exactly zero has the scale 0, one that is not finite NaN; both keep their
        residual. A scale that rounds to zero sends zero: the residual takes all of the sum.
    """
    half = to_half(scale)
    is_bad = ((half & INFINITY_HALF) == INFINITY_HALF) & ~is_zero
    half = tl.where(is_bad, NAN_HALF, half)
    half = tl.where(is_zero, 0, half)
    is_kept = is_zero | is_bad
    return half, ~is_kept & (half != 0), is_kept
