/* onebit: one sign bit an element, scale = mean |v| as bfloat16; the reference beside it is the truth. */

#ifndef GRADWIRE_ONEBIT_H
#define GRADWIRE_ONEBIT_H

#include "../block.h"

ALWAYS int64_t onebit_value_bytes(int64_t block) { return (block + 7) / 8; }

/* Encodes x + residual; writes ceil(block / 8) bytes of signs and returns the scale. */
ALWAYS uint16_t onebit_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, int64_t block,
    uint8_t *restrict values) {
    float sums[MAX_BLOCK + NUM_LANES];
    uint32_t seen = add_residual(x, residual, length, sums);
    uint16_t half = 0;
    if (seen != 0) {
        half = to_bf16(sum_of_magnitudes(sums, length) / (float)length);
        if (!is_finite_bf16(half)) half = NAN_BF16;
    }
    memset(values, 0, (size_t)onebit_value_bytes(block));
    if (seen == 0 || half == NAN_BF16) {
        keep_residual(residual, new_residual, length);
        return half;
    }
    if (half == 0) {
        memcpy(new_residual, sums, (size_t)length * 4);
        return half;
    }
    uint32_t scale = (uint32_t)half << 16;
    for (int64_t i = 0; i < length; i++)
        new_residual[i] = sums[i] - from_bits(scale | (bits_of(sums[i]) & SIGN));
    int64_t num_bytes = onebit_value_bytes(length);
    for (int64_t i = 0; i < length; i += NUM_LANES) {
        uint32_t signs = signs_of(sums + i);
        int64_t left = num_bytes - i / 8;
        /* The lowest byte holds the first eight elements, whatever the machine's byte order. */
        for (int64_t k = 0; k < (left < 4 ? left : 4); k++) values[i / 8 + k] = (uint8_t)(signs >> (8 * k));
    }
    return half;
}

ALWAYS void onebit_decode_block(const uint8_t *restrict values, uint16_t half, int64_t length, float *restrict out) {
    static const words lane = {0, 1, 2, 3, 4, 5, 6, 7};
    uint32_t scale = (uint32_t)half << 16;
    int64_t whole = length / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8) {
        words byte = lane * 0 + values[i / 8];
        words decoded = ((byte >> lane) << 31) | scale;
        memcpy(out + i, &decoded, sizeof decoded);
    }
    for (int64_t i = whole; i < length; i++)
        out[i] = from_bits(scale | (uint32_t)(values[i / 8] >> (i % 8) & 1) << 31);
}

#endif
