/* int8: one signed byte an element, scale = max |v| / 127 as bfloat16; the reference beside it is the truth. */

#ifndef GRADWIRE_INT8_H
#define GRADWIRE_INT8_H

#include "../block.h"

ALWAYS int64_t int8_value_bytes(int64_t block) { return block; }

/* Encodes x + residual; writes `block` bytes of values and returns the scale. */
ALWAYS uint16_t int8_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, int64_t block,
    uint8_t *restrict values) {
    float sums[MAX_BLOCK + NUM_LANES];
    uint16_t half = scale_by_largest(x, residual, new_residual, length, 127.0f, sums);
    if (!is_sent(half)) {
        memset(values, 0, (size_t)block);
        return half;
    }
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) {
        int32_t code = rounded(clamped(sums[i] / scale, 127.0f));
        values[i] = (uint8_t)code;
        new_residual[i] = sums[i] - (float)code * scale;
    }
    memset(values + length, 0, (size_t)(block - length));
    return half;
}

ALWAYS void int8_decode_block(const uint8_t *restrict values, uint16_t half, int64_t length, float *restrict out) {
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) out[i] = (float)(int8_t)values[i] * scale;
}

#endif
