"""fp8 on tiles: scale = max |v| / 448, codes are e4m3 floats of a true division, rounded half to even.

Codes are handled as the float32 numbers that they stand for, so that every architecture computes alike.
"""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import MAGNITUDE, bits_of, magnitudes

# The exponent's bits of float32, and 2**-6: below it e4m3's steps stay what they are there.
EXPONENT = tl.constexpr(0x7F800000)
LEAST_NORMAL = tl.constexpr(0x3C800000)


@triton.jit
def scale(largest):
    """Return largest magnitude / 448."""
    return tl.div_rn(largest, tl.full(largest.shape, 448.0, tl.float32))


@triton.jit
def code(sums, scales):
    """Return the e4m3 numbers, -448 to 448, as float32."""
    quotients = tl.div_rn(sums, tl.broadcast_to(scales, sums.shape))
    bits = bits_of(tl.minimum(tl.maximum(quotients, -448.0), 448.0))
    magnitude = (bits & MAGNITUDE).to(tl.float32, bitcast=True)
    # Twenty powers of two above a number, float32's last bit is that of e4m3.
    anchor = (tl.maximum(bits & EXPONENT, LEAST_NORMAL) + (20 << 23)).to(tl.float32, bitcast=True)
    rounded = (magnitude + anchor) - anchor
    return (bits_of(rounded) | (bits & ~MAGNITUDE)).to(tl.float32, bitcast=True)


@triton.jit
def pack(codes):
    """Return one byte an element: sign, 4 bits of exponent with bias 7, 3 bits of fraction."""
    magnitude = magnitudes(codes)
    normal = (magnitude - 0x3C000000) >> 20
    denormal = (magnitude.to(tl.float32, bitcast=True) * 512.0).to(tl.int32)
    sign = (bits_of(codes) >> 24) & 0x80
    return (tl.where(magnitude < LEAST_NORMAL, denormal, normal) | sign).to(tl.uint8)


@triton.jit
def unpack(values):
    """Return the numbers behind the bytes."""
    code = values.to(tl.int32)
    magnitude = code & 0x7F
    normal = (magnitude << 20) + 0x3C000000
    denormal = bits_of(magnitude.to(tl.float32) * 0.001953125)
    return (tl.where(magnitude < 8, denormal, normal) | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)
