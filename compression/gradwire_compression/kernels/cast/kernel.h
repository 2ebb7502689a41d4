/* cast: bfloat16 of (x + residual) / W for a native all-reduce; the reference beside it is the truth. */

#ifndef GRADWIRE_CAST_H
#define GRADWIRE_CAST_H

#include "../block.h"

/* Casts x + residual times `factor`; the residual becomes what the cast lost, in gradient units. */
ALWAYS void cast_encode_block(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, float factor,
    float world_size, uint16_t *restrict values) {
    float sums[MAX_BLOCK + NUM_LANES];
    if (add_residual(x, residual, length, sums) == 0) {
        memset(values, 0, (size_t)length * 2);
        keep_residual(residual, new_residual, length);
        return;
    }
    uint32_t largest = 0;
    for (int64_t i = 0; i < length; i++) {
        values[i] = to_bf16(sums[i] * factor);
        uint32_t magnitude = values[i] & 0x7fffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7f80u) {
        keep_residual(residual, new_residual, length);
        return;
    }
    for (int64_t i = 0; i < length; i++) new_residual[i] = sums[i] - from_bf16(values[i]) * world_size;
}

#endif
