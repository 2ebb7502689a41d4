/* int8: one signed byte an element, scale = max |v| / 127 as bfloat16; the reference beside it is the truth. */

#ifndef GRADWIRE_INT8_H
#define GRADWIRE_INT8_H

#include "../block.h"

ALWAYS int64_t int8_value_bytes(int64_t block) { return block; }

/* Largest magnitude as bits, where order of bits is order of magnitude and every NaN is above infinity. */
ALWAYS uint32_t largest_magnitude(const float *values, int64_t length) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < length; i++) {
        uint32_t magnitude = bits_of(values[i]) & MAGNITUDE;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* Encodes x + residual; writes `block` bytes of values and returns the scale. */
ALWAYS uint16_t int8_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, int64_t block,
    uint8_t *restrict values) {
    float sums[MAX_BLOCK + NUM_LANES];
    uint32_t seen = add_residual(x, residual, length, sums);
    uint32_t largest = largest_magnitude(sums, length);
    uint16_t half = to_bf16(from_bits(largest) / 127.0f);
    if (seen == 0) half = 0;
    else if (largest >= INFINITY_BITS || !is_finite_bf16(half)) half = NAN_BF16;
    if (seen == 0 || half == NAN_BF16) {
        memset(values, 0, (size_t)block);
        keep_residual(residual, new_residual, length);
        return half;
    }
    if (half == 0) {
        memset(values, 0, (size_t)block);
        memcpy(new_residual, sums, (size_t)length * 4);
        return half;
    }
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) {
        float code = sums[i] / scale;
        code = code < -127.0f ? -127.0f : code;
        code = code > 127.0f ? 127.0f : code;
        /* Adding 1.5 * 2**23 rounds half to even and leaves the integer in the low bits. */
        int32_t rounded = (int32_t)(bits_of(code + 12582912.0f) - 0x4b400000u);
        values[i] = (uint8_t)rounded;
        new_residual[i] = sums[i] - (float)rounded * scale;
    }
    memset(values + length, 0, (size_t)(block - length));
    return half;
}

ALWAYS void int8_decode_block(const uint8_t *restrict values, uint16_t half, int64_t length, float *restrict out) {
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) out[i] = (float)(int8_t)values[i] * scale;
}

#endif
