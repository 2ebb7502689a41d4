"""int4 on tiles: scale = max |v| / 7, codes by a true division, rounding half to even, two codes a byte."""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import round_to_even


@triton.jit
def scale(largest):
    """Return largest magnitude / 7."""
    return tl.div_rn(largest, tl.full(largest.shape, 7.0, tl.float32))


@triton.jit
def code(sums, scales):
    """Return the codes, -7 to 7."""
    quotients = tl.div_rn(sums, tl.broadcast_to(scales, sums.shape))
    return round_to_even(tl.minimum(tl.maximum(quotients, -7.0), 7.0)).to(tl.float32)


@triton.jit
def pack(codes):
    """Return bytes in two's complement: element 2 i is the low half of byte i, 2 i + 1 the high."""
    halves = codes.to(tl.int32) & 15
    pairs = tl.reshape(halves, [halves.shape[0], halves.shape[1] // 2, 2])
    low, high = tl.split(pairs)
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def unpack(values):
    """Return the codes behind the bytes."""
    halves = tl.join(values & 15, values >> 4)
    flat = tl.reshape(halves, [values.shape[0], 2 * values.shape[1]])
    return ((flat ^ 8).to(tl.int32) - 8).to(tl.float32)
