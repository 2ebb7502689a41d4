/* What all kernels share: number formats, one block's input, the defined order of summation. */

#ifndef GRADWIRE_BLOCK_H
#define GRADWIRE_BLOCK_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* The largest block that a plan may ask for, and the lanes of the defined order of summation. */
#define MAX_BLOCK 4096
#define NUM_LANES 32

#define ALWAYS static inline __attribute__((always_inline))

/* One function body, compiled for the baseline and for AVX2; the loader picks at start. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONED __attribute__((target_clones("default", "avx2")))
#else
#define CLONED
#endif

enum dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

/* Eight floats or their bits; the compiler splits them where registers are narrower. */
typedef float floats __attribute__((vector_size(32)));
typedef uint32_t words __attribute__((vector_size(32)));

#define SIGN 0x80000000u
#define MAGNITUDE 0x7fffffffu
#define INFINITY_BITS 0x7f800000u
#define NAN_BF16 0x7fc0u

ALWAYS uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

ALWAYS float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

ALWAYS float from_bf16(uint16_t half) { return from_bits((uint32_t)half << 16); }

/* Rounds half to even; what overflows becomes infinite, NaN stays NaN. */
ALWAYS uint16_t to_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bits & MAGNITUDE) > INFINITY_BITS ? NAN_BF16 : (uint16_t)rounded;
}

ALWAYS int is_finite_bf16(uint16_t half) { return (half & 0x7f80u) != 0x7f80u; }

ALWAYS float from_fp16(uint16_t half) {
    uint32_t shifted = (uint32_t)(half & 0x7fffu) << 13;
    /* 2**112 moves the exponent's bias; it also turns half's denormals into normal numbers. */
    float scaled = from_bits(shifted) * 0x1p112f;
    uint32_t bits = bits_of(scaled);
    bits = shifted >= 0x0f800000u ? bits | INFINITY_BITS : bits;
    return from_bits(bits | (uint32_t)(half & 0x8000u) << 16);
}

/* Rounds half to even. Adding a power of two lets the adder round denormals at the right bit. */
ALWAYS uint16_t to_fp16(float value) {
    uint32_t bits = bits_of(value), magnitude = bits & MAGNITUDE;
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t denormal = bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? denormal : normal;
    result = result > 0x7c00u || magnitude >= 0x47800000u ? 0x7c00u : result;
    result = magnitude > INFINITY_BITS ? 0x7e00u : result;
    return sign | (uint16_t)result;
}

/* Blocks of one shard; offsets are elements of the flat tensor. Compact vectors hold them one after the other. */
struct table {
    const int64_t *offsets;
    const int64_t *lengths;
    int64_t num_blocks;
    int64_t block;
    /* The bfloat16 numbers that a payload holds for each block; casts have none. */
    int64_t num_scales;
};

ALWAYS int64_t aligned(int64_t num_bytes) { return (num_bytes + 15) / 16 * 16; }

/* Returns the block as float32: the tensor itself where it is that already, else a copy in `scratch`. */
ALWAYS const float *read_block(const void *tensor, int dtype, int64_t offset, int64_t length, float *scratch) {
    if (dtype == FLOAT32) return (const float *)tensor + offset;
    const uint16_t *halves = (const uint16_t *)tensor + offset;
    if (dtype == BFLOAT16)
        for (int64_t i = 0; i < length; i++) scratch[i] = from_bf16(halves[i]);
    else
        for (int64_t i = 0; i < length; i++) scratch[i] = from_fp16(halves[i]);
    return scratch;
}

ALWAYS void write_block(void *tensor, int dtype, int64_t offset, int64_t length, const float *values) {
    if (dtype == FLOAT32) {
        memcpy((float *)tensor + offset, values, (size_t)length * 4);
        return;
    }
    uint16_t *halves = (uint16_t *)tensor + offset;
    if (dtype == BFLOAT16)
        for (int64_t i = 0; i < length; i++) halves[i] = to_bf16(values[i]);
    else
        for (int64_t i = 0; i < length; i++) halves[i] = to_fp16(values[i]);
}

/* Writes x + residual to `sums`, zero-filled to whole lanes; returns the OR of x's bits without signs. */
ALWAYS uint32_t add_residual(const float *x, const float *residual, int64_t length, float *sums) {
    uint32_t seen = 0;
    for (int64_t i = 0; i < length; i++) {
        sums[i] = x[i] + residual[i];
        seen |= bits_of(x[i]) & MAGNITUDE;
    }
    for (int64_t i = length; i % NUM_LANES != 0; i++) sums[i] = 0.0f;
    return seen;
}

/* Lane j adds |elements| j, j + 32, ... in order; then the lanes are added by halves. Reads whole lanes. */
ALWAYS float sum_of_magnitudes(const float *values, int64_t length) {
    floats lanes[4] = {{0.0f}, {0.0f}, {0.0f}, {0.0f}};
    for (int64_t i = 0; i < length; i += NUM_LANES)
        for (int k = 0; k < 4; k++) {
            words loaded;
            memcpy(&loaded, values + i + 8 * k, sizeof loaded);
            lanes[k] += (floats)(loaded & MAGNITUDE);
        }
    floats half[2] = {lanes[0] + lanes[2], lanes[1] + lanes[3]};
    floats eight = half[0] + half[1];
    float four[4], two[2];
    for (int i = 0; i < 4; i++) four[i] = eight[i] + eight[i + 4];
    for (int i = 0; i < 2; i++) two[i] = four[i] + four[i + 2];
    return two[0] + two[1];
}

#if defined(__SSE2__)
/* Sign bits of 16 elements of four bytes: packing with saturation keeps signs and order. */
ALWAYS uint32_t signs_of_16(const void *values) {
    __m128i quarter[4];
    for (int i = 0; i < 4; i++) quarter[i] = _mm_loadu_si128((const __m128i *)values + i);
    __m128i low = _mm_packs_epi32(quarter[0], quarter[1]), high = _mm_packs_epi32(quarter[2], quarter[3]);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(low, high));
}
#else
ALWAYS uint32_t signs_of_16(const void *values) {
    uint32_t signs = 0, bits[16];
    memcpy(bits, values, sizeof bits);
    for (int i = 0; i < 16; i++) signs |= (bits[i] >> 31) << i;
    return signs;
}
#endif

/* Sign bits of 32 elements: element i is bit i. */
ALWAYS uint32_t signs_of(const void *values) {
    return signs_of_16(values) | signs_of_16((const uint8_t *)values + 64) << 16;
}

/* A block that sends nothing keeps its residual. */
ALWAYS void keep_residual(const float *residual, float *new_residual, int64_t length) {
    if (new_residual != residual) memcpy(new_residual, residual, (size_t)length * 4);
}

/* Largest magnitude as bits, where order of bits is order of magnitude and every NaN is above infinity. */
ALWAYS uint32_t largest_magnitude(const float *values, int64_t length) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < length; i++) {
        uint32_t magnitude = bits_of(values[i]) & MAGNITUDE;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

ALWAYS int is_sent(uint16_t scale) { return scale != 0 && scale != NAN_BF16; }

/* Writes x + residual to `sums` and returns the scale, largest magnitude / limit; 0 and NaN say that nothing is
 * sent, and then the residual is settled. */
ALWAYS uint16_t scale_by_largest(
    const float *restrict x, const float *residual, float *new_residual, int64_t length, float limit, float *sums) {
    if (add_residual(x, residual, length, sums) == 0) {
        keep_residual(residual, new_residual, length);
        return 0;
    }
    uint32_t largest = largest_magnitude(sums, length);
    uint16_t half = to_bf16(from_bits(largest) / limit);
    if (largest >= INFINITY_BITS || !is_finite_bf16(half)) {
        keep_residual(residual, new_residual, length);
        return NAN_BF16;
    }
    if (half == 0) memcpy(new_residual, sums, (size_t)length * 4);
    return half;
}

ALWAYS float clamped(float value, float limit) {
    value = value < -limit ? -limit : value;
    return value > limit ? limit : value;
}

/* Rounds a value below 2**22 half to even: adding 1.5 * 2**23 leaves the integer in the low bits. */
ALWAYS int32_t rounded(float value) { return (int32_t)(bits_of(value + 12582912.0f) - 0x4b400000u); }

#endif
