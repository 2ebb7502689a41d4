/* int4: half a byte an element, scale = max |v| / 7 as bfloat16; the reference beside it is the truth. */

#ifndef GRADWIRE_INT4_H
#define GRADWIRE_INT4_H

#include "../block.h"

ALWAYS int64_t int4_value_bytes(int64_t block) { return (block + 1) / 2; }

/* Encodes x + residual; writes ceil(block / 2) bytes of values and returns the scale. */
ALWAYS uint16_t int4_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, int64_t block,
    uint8_t *restrict values) {
    float sums[MAX_BLOCK + NUM_LANES];
    uint8_t codes[MAX_BLOCK + 1];
    uint16_t half = scale_by_largest(x, residual, new_residual, length, 7.0f, sums);
    if (!is_sent(half)) {
        memset(values, 0, (size_t)int4_value_bytes(block));
        return half;
    }
    float scale = from_bf16(half);
    for (int64_t i = 0; i < length; i++) {
        int32_t code = rounded(clamped(sums[i] / scale, 7.0f));
        codes[i] = (uint8_t)code;
        new_residual[i] = sums[i] - (float)code * scale;
    }
    codes[length] = 0;
    int64_t num_bytes = int4_value_bytes(length);
    for (int64_t i = 0; i < num_bytes; i++) {
        uint16_t pair;
        memcpy(&pair, codes + 2 * i, 2);
        values[i] = (uint8_t)((pair & 0x0fu) | (pair >> 4 & 0xf0u));
    }
    memset(values + num_bytes, 0, (size_t)(int4_value_bytes(block) - num_bytes));
    return half;
}

ALWAYS void int4_decode_block(const uint8_t *restrict values, uint16_t half, int64_t length, float *restrict out) {
    float scale = from_bf16(half);
    int8_t codes[MAX_BLOCK + 1];
    int64_t num_bytes = int4_value_bytes(length);
    for (int64_t i = 0; i < num_bytes; i++) {
        codes[2 * i] = (int8_t)(((values[i] & 15) ^ 8) - 8);
        codes[2 * i + 1] = (int8_t)((values[i] >> 4 ^ 8) - 8);
    }
    for (int64_t i = 0; i < length; i++) out[i] = (float)codes[i] * scale;
}

#endif
