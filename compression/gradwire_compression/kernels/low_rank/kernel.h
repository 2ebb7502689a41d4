/* A matrix of residuals beside its two factors; see kernels/low_rank/reference.py. */

#ifndef GRADWIRE_LOW_RANK_H
#define GRADWIRE_LOW_RANK_H

#include "../block.h"

/* So many columns at a time, with their part of a factor, stay in the cache while the rows go by. */
#define STRIP 1024

enum multiply { BY_NOTHING = 0, BY_COLUMNS = 1, BY_ROWS = 2 };
enum found { SOMETHING = 0, NOT_FINITE = 1, ALL_ZERO = 2 };

struct matrix {
    float *values;
    int64_t num_rows;
    int64_t num_columns;
    int64_t rank;
};

ALWAYS float sum_of(const floats *lanes) {
    floats eight = lanes[0] + lanes[1];
    return ((eight[0] + eight[4]) + (eight[2] + eight[6])) + ((eight[1] + eight[5]) + (eight[3] + eight[7]));
}

/* Adds the dot products of `values` with `count` strips, `stride` apart, to totals that are `step` apart. */
ALWAYS void add_dots(
    const float *restrict values, const float *restrict strips, int64_t stride, int count, int64_t length,
    float *restrict totals, int64_t step) {
    floats lanes[4][2] = {{{0.0f}}};
    int64_t whole = length - length % 16;
    for (int64_t i = 0; i < whole; i += 16)
        for (int half = 0; half < 2; half++) {
            floats given, value;
            memcpy(&value, values + i + 8 * half, sizeof value);
            for (int k = 0; k < count; k++) {
                memcpy(&given, strips + k * stride + i + 8 * half, sizeof given);
                lanes[k][half] += value * given;
            }
        }
    for (int k = 0; k < count; k++) {
        float total = sum_of(lanes[k]);
        for (int64_t i = whole; i < length; i++) total += values[i] * strips[k * stride + i];
        totals[k * step] += total;
    }
}

/* Factors first to first + 3 of one row, and their strips of columns. */
struct four {
    float factor[4];
    const float *strip[4];
};

ALWAYS struct four four_at(
    struct matrix m, const float *rows, const float *columns, int64_t row, int64_t first_column, int64_t first) {
    struct four four;
    for (int k = 0; k < 4; k++) {
        four.factor[k] = rows[(first + k) * m.num_rows + row];
        four.strip[k] = columns + (first + k) * m.num_columns + first_column;
    }
    return four;
}

/* Adds sign * rows^T columns of one row's strip to `sums`, factor after factor; four at a time stay in registers. */
ALWAYS void add_product(
    struct matrix m, const float *rows, const float *columns, int64_t row, int64_t first, int64_t length, float sign,
    float *restrict sums) {
    int64_t q = 0;
    for (; q + 4 <= m.rank; q += 4) {
        struct four f = four_at(m, rows, columns, row, first, q);
        float a = sign * f.factor[0], b = sign * f.factor[1], c = sign * f.factor[2], d = sign * f.factor[3];
        const float *restrict u = f.strip[0], *restrict v = f.strip[1], *restrict w = f.strip[2], *restrict x = f.strip[3];
        for (int64_t i = 0; i < length; i++) sums[i] = (((sums[i] + a * u[i]) + b * v[i]) + c * w[i]) + d * x[i];
    }
    for (; q < m.rank; q++) {
        float factor = sign * rows[q * m.num_rows + row];
        const float *restrict strip = columns + q * m.num_columns + first;
        for (int64_t i = 0; i < length; i++) sums[i] += factor * strip[i];
    }
}

/* Writes values - rows^T columns of one row's strip to `sums`. */
ALWAYS void settle_strip(
    const float *restrict values, struct matrix m, const float *rows, const float *columns, int64_t row, int64_t first,
    int64_t length, float *restrict sums) {
    memcpy(sums, values, (size_t)length * 4);
    if (rows) add_product(m, rows, columns, row, first, length, -1.0f, sums);
}

/* Adds the gradient to `sums`; returns the OR of its bits without signs. NaN and infinity need not show in it. */
ALWAYS uint32_t add_strip(const float *restrict x, int64_t length, float *restrict sums) {
    uint32_t seen = 0;
    for (int64_t i = 0; i < length; i++) {
        sums[i] += x[i];
        seen |= bits_of(x[i]) & MAGNITUDE;
    }
    return seen;
}

ALWAYS void multiply_strip(
    const float *restrict sums, struct matrix m, enum multiply by, const float *given, float *product, int64_t row,
    int64_t first, int64_t length) {
    int64_t q = 0;
    const float *strips = given + first;
    for (; by == BY_COLUMNS && q + 4 <= m.rank; q += 4)
        add_dots(sums, strips + q * m.num_columns, m.num_columns, 4, length, product + q * m.num_rows + row, m.num_rows);
    for (; by == BY_COLUMNS && q < m.rank; q++)
        add_dots(sums, strips + q * m.num_columns, m.num_columns, 1, length, product + q * m.num_rows + row, m.num_rows);
    for (; by == BY_ROWS && q < m.rank; q++) {
        float factor = given[q * m.num_rows + row];
        float *restrict target = product + q * m.num_columns + first;
        for (int64_t i = 0; i < length; i++) target[i] += factor * sums[i];
    }
}

/* Takes the gradient out again wherever it was added before (last_first, last_row), in the order of the pass. */
ALWAYS void take_out(struct matrix m, const void *gradient, int dtype, int64_t last_first, int64_t last_row) {
    float scratch[STRIP];
    for (int64_t first = 0; first <= last_first; first += STRIP) {
        int64_t length = m.num_columns - first < STRIP ? m.num_columns - first : STRIP;
        int64_t end = first < last_first ? m.num_rows : last_row;
        for (int64_t row = 0; row < end; row++) {
            int64_t offset = row * m.num_columns + first;
            const float *x = read_block(gradient, dtype, offset, length, scratch);
            for (int64_t i = 0; i < length; i++) m.values[offset + i] -= x[i];
        }
    }
}

ALWAYS int64_t low_rank_sweep(
    struct matrix m, const float *rows, const float *columns, const void *gradient, int dtype, enum multiply by,
    const float *given, float *product) {
    float sums[STRIP], scratch[STRIP];
    uint32_t seen = 0;
    int is_finite = 1;
    int64_t bad_first = 0, bad_row = 0;
    for (int64_t first = 0; first < m.num_columns; first += STRIP) {
        int64_t length = m.num_columns - first < STRIP ? m.num_columns - first : STRIP;
        for (int64_t row = 0; row < m.num_rows; row++) {
            int64_t offset = row * m.num_columns + first;
            float *values = m.values + offset;
            settle_strip(values, m, rows, columns, row, first, length, sums);
            if (gradient && is_finite) {
                const float *x = read_block(gradient, dtype, offset, length, scratch);
                seen |= add_strip(x, length, sums);
                if (largest_magnitude(sums, length) >= INFINITY_BITS) {
                    is_finite = 0, bad_first = first, bad_row = row;
                    settle_strip(values, m, rows, columns, row, first, length, sums);
                }
            }
            if (gradient || rows) memcpy(values, sums, (size_t)length * 4);
            multiply_strip(sums, m, by, given, product, row, first, length);
        }
    }
    if (is_finite) return gradient && seen == 0 ? ALL_ZERO : SOMETHING;
    take_out(m, gradient, dtype, bad_first, bad_row);
    return NOT_FINITE;
}

/* Writes rows^T columns to the tensor, factor after factor. */
ALWAYS void low_rank_write(struct matrix m, const float *rows, const float *columns, void *out, int dtype) {
    float made[STRIP];
    for (int64_t first = 0; first < m.num_columns; first += STRIP) {
        int64_t length = m.num_columns - first < STRIP ? m.num_columns - first : STRIP;
        for (int64_t row = 0; row < m.num_rows; row++) {
            memset(made, 0, sizeof made);
            add_product(m, rows, columns, row, first, length, 1.0f, made);
            write_block(out, dtype, row * m.num_columns + first, length, made);
        }
    }
}

#endif
