/* fp8: one e4m3 float an element, scale = max |v| / 448 as bfloat16; the reference beside it is the truth. */

#ifndef GRADWIRE_FP8_H
#define GRADWIRE_FP8_H

#include "../block.h"

ALWAYS int64_t fp8_value_bytes(int64_t block) { return block; }

/* One sign, four exponent bits with bias 7, three bits behind the point; below 2**-6 the steps stay at 2**-9.
 * Returns the code of a magnitude of at most 448, rounded half to even, and what it decodes to. */
ALWAYS int32_t to_e4m3(float magnitude, float *decoded) {
    int32_t exponent = (int32_t)(bits_of(magnitude) & 0x7f800000u);
    exponent = exponent > 0x3c800000 ? exponent : 0x3c800000;
    /* Twenty powers of two above the value, the last bit is the code's last bit. */
    int32_t anchor = exponent + (20 << 23);
    float sum = magnitude + from_bits((uint32_t)anchor);
    *decoded = sum - from_bits((uint32_t)anchor);
    return (int32_t)bits_of(sum) - anchor + (exponent >> 20) - (121 << 3);
}

ALWAYS float from_e4m3(uint32_t code) {
    int32_t magnitude = (int32_t)(code & 0x7fu);
    uint32_t normal = ((uint32_t)magnitude << 20) + 0x3c000000u;
    uint32_t denormal = bits_of((float)magnitude * 0x1p-9f);
    return from_bits((magnitude < 8 ? denormal : normal) | (code & 0x80u) << 24);
}

/* Encodes x + residual; writes `block` bytes of values and returns the scale. */
ALWAYS uint16_t fp8_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, int64_t block,
    uint8_t *restrict values) {
    float sums[MAX_BLOCK + NUM_LANES];
    uint16_t half = scale_by_largest(x, residual, new_residual, length, 448.0f, sums);
    if (!is_sent(half)) {
        memset(values, 0, (size_t)block);
        return half;
    }
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) {
        float decoded, quotient = clamped(sums[i] / scale, 448.0f);
        uint32_t sign = bits_of(quotient) & SIGN;
        int32_t code = to_e4m3(from_bits(bits_of(quotient) ^ sign), &decoded);
        values[i] = (uint8_t)((uint32_t)code | sign >> 24);
        new_residual[i] = sums[i] - from_bits(bits_of(decoded) | sign) * scale;
    }
    memset(values + length, 0, (size_t)(block - length));
    return half;
}

ALWAYS void fp8_decode_block(const uint8_t *restrict values, uint16_t half, int64_t length, float *restrict out) {
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) out[i] = from_e4m3(values[i]) * scale;
}

#endif
