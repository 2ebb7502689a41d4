/* topk: the largest elements of a block, an index byte and a bfloat16 each; the reference beside it is the truth. */

#ifndef GRADWIRE_TOPK_H
#define GRADWIRE_TOPK_H

#include "../block.h"

/* An index is one byte. */
#define TOPK_BLOCK 256

/* Returns how many of the magnitudes, a multiple of 32, are at least `bound`. */
ALWAYS int32_t count_from(const int32_t *magnitudes, int64_t length, int32_t bound) {
    int32_t count = 0;
    for (int64_t i = 0; i < length; i++) count += magnitudes[i] >= bound;
    return count;
}

/* Returns a bound that `count` of the magnitudes reach, or else the count-th largest one, which more of them equal. */
ALWAYS int32_t topk_bound(const int32_t *magnitudes, int64_t length, int64_t count, uint32_t largest) {
    int32_t bound = 0;
    for (int32_t bit = largest == 0 ? 0 : 1 << (31 - __builtin_clz(largest)); bit != 0; bit >>= 1) {
        int32_t reached = count_from(magnitudes, length, bound | bit);
        if (reached >= count) bound |= bit;
        if (reached == count) break;
    }
    return bound;
}

/* Encodes x + residual; writes table.num_scales indices and as many numbers, in order of the index. */
ALWAYS void topk_encode_at(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, struct table table,
    uint8_t *restrict indices, uint16_t *restrict numbers) {
    float sums[TOPK_BLOCK + NUM_LANES];
    int32_t magnitudes[TOPK_BLOCK], below[NUM_LANES];
    int64_t count = table.num_scales < length ? table.num_scales : length;
    uint32_t seen = add_residual(x, residual, length, sums);
    uint32_t largest = largest_magnitude(sums, length);
    memset(indices, 0, (size_t)table.num_scales);
    memset(numbers, 0, (size_t)table.num_scales * 2);
    if (seen == 0 || !is_finite_bf16(to_bf16(from_bits(largest)))) {
        for (int64_t i = 0; seen != 0 && i < table.num_scales; i++) numbers[i] = NAN_BF16;
        keep_residual(residual, new_residual, length);
        return;
    }
    memcpy(new_residual, sums, (size_t)length * 4);
    int64_t padded = (length + NUM_LANES - 1) / NUM_LANES * NUM_LANES;
    for (int64_t i = 0; i < length; i++) magnitudes[i] = (int32_t)(bits_of(sums[i]) & MAGNITUDE);
    for (int64_t i = length; i < padded; i++) magnitudes[i] = -1;
    int32_t bound = topk_bound(magnitudes, padded, count, largest);
    int64_t num_ties = count - count_from(magnitudes, padded, bound + 1), used = 0;
    uint32_t sent = 0;
    for (int64_t begin = 0; begin < padded; begin += NUM_LANES) {
        for (int i = 0; i < NUM_LANES; i++) below[i] = bound - 1 - magnitudes[begin + i];
        for (uint32_t chosen = signs_of(below); chosen != 0; chosen &= chosen - 1) {
            int64_t i = begin + __builtin_ctz(chosen);
            /* Of equal magnitudes, those with the lower index are sent. */
            if (magnitudes[i] == bound && num_ties-- <= 0) continue;
            uint16_t half = to_bf16(sums[i]);
            /* What rounds to zero is sent without a sign. */
            if (half == 0x8000u) half = 0;
            new_residual[i] = sums[i] - from_bf16(half);
            indices[used] = (uint8_t)i;
            numbers[used++] = half;
            sent |= half & 0x7fffu;
        }
    }
    if (sent == 0) {
        memset(indices, 0, (size_t)table.num_scales);
        memset(numbers, 0, (size_t)table.num_scales * 2);
        memcpy(new_residual, sums, (size_t)length * 4);
    }
}

ALWAYS void topk_decode_at(
    const uint8_t *restrict indices, const uint16_t *restrict numbers, struct table table, int64_t length,
    float *restrict out) {
    int64_t count = table.num_scales < length ? table.num_scales : length;
    float rest = is_finite_bf16(numbers[0]) ? 0.0f : from_bf16(NAN_BF16);
    for (int64_t i = 0; i < length; i++) out[i] = rest;
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < length) out[indices[i]] = rest + from_bf16(numbers[i]);
}

#endif
