/* cast: bfloat16 or float16 of (x + residual) / W for a native all-reduce; the reference beside it is the truth. */

#ifndef GRADWIRE_CAST_H
#define GRADWIRE_CAST_H

#include "../block.h"

ALWAYS uint16_t to_half(float value, int kind) { return kind == FLOAT16 ? to_fp16(value) : to_bf16(value); }
ALWAYS float from_half(uint16_t half, int kind) { return kind == FLOAT16 ? from_fp16(half) : from_bf16(half); }

/* Casts x + residual times `factor`; the residual becomes what the cast lost, one of its steps being worth `unit`.
 * Returns the largest magnitude of x + residual as bits, 0 if nothing is sent or it is not finite. */
ALWAYS uint32_t cast_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, float factor, float unit,
    uint16_t *restrict values, int kind) {
    float sums[MAX_BLOCK + NUM_LANES];
    if (add_residual(x, residual, length, sums) == 0) {
        memset(values, 0, (size_t)length * 2);
        keep_residual(residual, new_residual, length);
        return 0;
    }
    uint32_t largest = 0, infinity = kind == FLOAT16 ? 0x7c00u : 0x7f80u;
    for (int64_t i = 0; i < length; i++) {
        values[i] = to_half(sums[i] * factor, kind);
        uint32_t magnitude = values[i] & 0x7fffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= infinity)
        keep_residual(residual, new_residual, length);
    else
        for (int64_t i = 0; i < length; i++) new_residual[i] = sums[i] - from_half(values[i], kind) * unit;
    uint32_t magnitude = largest_magnitude(sums, length);
    return magnitude < INFINITY_BITS ? magnitude : 0;
}

#endif
