"""int8 on tiles: scale = max |v| / 127, codes by a true division, rounding half to even."""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import round_to_even


@triton.jit
def scale(largest):
    """Return largest magnitude / 127."""
    return tl.div_rn(largest, tl.full(largest.shape, 127.0, tl.float32))


@triton.jit
def code(sums, scales):
    """Return the codes, -127 to 127."""
    quotients = tl.div_rn(sums, tl.broadcast_to(scales, sums.shape))
    return round_to_even(tl.minimum(tl.maximum(quotients, -127.0), 127.0)).to(tl.float32)


@triton.jit
def pack(codes):
    """Return one signed byte an element."""
    return codes.to(tl.int32).to(tl.uint8)


@triton.jit
def unpack(values):
    """Return the codes behind the bytes."""
    return values.to(tl.int8, bitcast=True).to(tl.float32)
