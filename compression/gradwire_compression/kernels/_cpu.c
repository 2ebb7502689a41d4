/* gradwire_compression.kernels._cpu: the kernels for CPU tensors.
 *
 * Every function takes addresses and counts as integers; kernels/cpu.py checks tensors and is the only caller.
 * The GIL is released while a kernel runs.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "block.h"
#include "cast/kernel.h"
#include "fp8/kernel.h"
#include "int4/kernel.h"
#include "int8/kernel.h"
#include "low_rank/kernel.h"
#include "onebit/kernel.h"
#include "topk/kernel.h"

struct payload {
    uint8_t *values;
    uint16_t *scales;
};

ALWAYS struct payload payload_at(uint8_t *bytes, int64_t num_blocks, int64_t value_bytes) {
    struct payload payload = {bytes, (uint16_t *)(bytes + aligned(num_blocks * value_bytes))};
    return payload;
}

/* What lies between the parts of a payload is zero, so that equal input gives equal bytes. */
ALWAYS void clear_padding(struct payload payload, struct table table, int64_t value_bytes) {
    int64_t used = table.num_blocks * value_bytes;
    memset(payload.values + used, 0, (size_t)(aligned(used) - used));
    used = table.num_blocks * table.num_scales * 2;
    memset((uint8_t *)payload.scales + used, 0, (size_t)(aligned(used) - used));
}

ALWAYS void emit(
    void *out, int dtype, int64_t offset, int64_t length, const float *decoded, float weight, int accumulate,
    float *scratch) {
    if (accumulate) {
        float *target = (float *)out + offset;
        for (int64_t i = 0; i < length; i++) target[i] += weight * decoded[i];
        return;
    }
    if (weight != 1.0f) {
        for (int64_t i = 0; i < length; i++) scratch[i] = weight * decoded[i];
        decoded = scratch;
    }
    write_block(out, dtype, offset, length, decoded);
}

/* What a codec with one scale a block does with a block of a payload. */
#define ONE_SCALE(NAME)                                                                                              \
    ALWAYS void NAME##_encode_at(                                                                                    \
        const float *restrict x, const float *residual, float *new_residual, int64_t length, struct table table,     \
        uint8_t *restrict values, uint16_t *restrict scales) {                                                       \
        scales[0] = NAME##_encode_block(x, residual, new_residual, length, table.block, values);                     \
    }                                                                                                                \
    ALWAYS void NAME##_decode_at(                                                                                    \
        const uint8_t *restrict values, const uint16_t *restrict scales, struct table table, int64_t length,         \
        float *restrict out) {                                                                                       \
        (void)table;                                                                                                 \
        NAME##_decode_block(values, scales[0], length, out);                                                         \
    }

/* Encode, decode and reduce of a codec, from what it does with one block. */
#define SCALED_CODEC(NAME, VALUE_BYTES)                                                                              \
    CLONED static void NAME##_encode(                                                                                \
        const void *x, int dtype, struct table table, const float *residual, float *new_residual, uint8_t *bytes) {  \
        float scratch[MAX_BLOCK];                                                                                    \
        int64_t value_bytes = VALUE_BYTES, start = 0;                                                                \
        struct payload payload = payload_at(bytes, table.num_blocks, value_bytes);                                   \
        for (int64_t k = 0; k < table.num_blocks; k++) {                                                             \
            int64_t length = table.lengths[k];                                                                       \
            const float *input = read_block(x, dtype, table.offsets[k], length, scratch);                            \
            NAME##_encode_at(                                                                                        \
                input, residual + start, new_residual + start, length, table, payload.values + k * value_bytes,      \
                payload.scales + k * table.num_scales);                                                              \
            start += length;                                                                                         \
        }                                                                                                            \
        clear_padding(payload, table, value_bytes);                                                                  \
    }                                                                                                                \
                                                                                                                     \
    CLONED static void NAME##_decode(                                                                                \
        uint8_t *bytes, struct table table, void *out, int dtype, float weight, int accumulate) {                    \
        float decoded[MAX_BLOCK], scratch[MAX_BLOCK];                                                                \
        int64_t value_bytes = VALUE_BYTES;                                                                           \
        struct payload payload = payload_at(bytes, table.num_blocks, value_bytes);                                   \
        for (int64_t k = 0; k < table.num_blocks; k++) {                                                             \
            int64_t length = table.lengths[k];                                                                       \
            int is_direct = dtype == FLOAT32 && weight == 1.0f && !accumulate;                                       \
            float *target = is_direct ? (float *)out + table.offsets[k] : decoded;                                   \
            NAME##_decode_at(                                                                                        \
                payload.values + k * value_bytes, payload.scales + k * table.num_scales, table, length, target);     \
            if (!is_direct) emit(out, dtype, table.offsets[k], length, decoded, weight, accumulate, scratch);        \
        }                                                                                                            \
    }                                                                                                                \
                                                                                                                     \
    CLONED static void NAME##_reduce(                                                                                \
        uint8_t *payloads, int64_t stride, int64_t world_size, struct table table, const float *residual,            \
        float *new_residual, uint8_t *bytes) {                                                                       \
        float mean[MAX_BLOCK], decoded[MAX_BLOCK];                                                                   \
        int64_t value_bytes = VALUE_BYTES, start = 0;                                                                \
        struct payload payload = payload_at(bytes, table.num_blocks, value_bytes);                                   \
        for (int64_t k = 0; k < table.num_blocks; k++) {                                                             \
            int64_t length = table.lengths[k];                                                                       \
            for (int64_t rank = 0; rank < world_size; rank++) {                                                      \
                struct payload from = payload_at(payloads + rank * stride, table.num_blocks, value_bytes);           \
                float *target = rank == 0 ? mean : decoded;                                                          \
                NAME##_decode_at(                                                                                    \
                    from.values + k * value_bytes, from.scales + k * table.num_scales, table, length, target);       \
                if (rank > 0)                                                                                        \
                    for (int64_t i = 0; i < length; i++) mean[i] += decoded[i];                                      \
            }                                                                                                        \
            float divisor = (float)world_size;                                                                       \
            for (int64_t i = 0; i < length; i++) mean[i] /= divisor;                                                 \
            NAME##_encode_at(                                                                                        \
                mean, residual + start, new_residual + start, length, table, payload.values + k * value_bytes,       \
                payload.scales + k * table.num_scales);                                                              \
            start += length;                                                                                         \
        }                                                                                                            \
        clear_padding(payload, table, value_bytes);                                                                  \
    }

ONE_SCALE(int8)
ONE_SCALE(fp8)
ONE_SCALE(int4)
ONE_SCALE(onebit)
SCALED_CODEC(int8, int8_value_bytes(table.block))
SCALED_CODEC(fp8, fp8_value_bytes(table.block))
SCALED_CODEC(int4, int4_value_bytes(table.block))
SCALED_CODEC(onebit, onebit_value_bytes(table.block))
SCALED_CODEC(topk, table.num_scales)

ALWAYS void cast_encode_blocks(
    const void *x, int dtype, struct table table, const float *residual, float *new_residual, uint16_t *values,
    float factor, float unit, float *largest, int kind) {
    float scratch[MAX_BLOCK];
    uint32_t seen = 0;
    int64_t start = 0;
    for (int64_t k = 0; k < table.num_blocks; k++) {
        int64_t length = table.lengths[k];
        const float *input = read_block(x, dtype, table.offsets[k], length, scratch);
        uint32_t magnitude = cast_encode_block(
            input, residual + start, new_residual + start, length, factor, unit, values + start, kind);
        seen = magnitude > seen ? magnitude : seen;
        start += length;
    }
    largest[0] = from_bits(seen);
}

CLONED static void cast_encode(
    const void *x, int dtype, struct table table, const float *residual, float *new_residual, uint16_t *values,
    int kind, int64_t world_size, int64_t exponent, float *largest) {
    float power = from_bits((uint32_t)(127 + exponent) << 23);
    float factor = 1.0f / (float)world_size * power, unit = (float)world_size / power;
    if (kind == FLOAT16)
        cast_encode_blocks(x, dtype, table, residual, new_residual, values, factor, unit, largest, FLOAT16);
    else
        cast_encode_blocks(x, dtype, table, residual, new_residual, values, factor, unit, largest, BFLOAT16);
}

CLONED static void cast_decode(
    const uint16_t *values, int kind, int64_t exponent, struct table table, void *out, int dtype) {
    float decoded[MAX_BLOCK];
    float unit = from_bits((uint32_t)(127 - exponent) << 23);
    int64_t start = 0;
    for (int64_t k = 0; k < table.num_blocks; k++) {
        int64_t length = table.lengths[k];
        if (kind == FLOAT16)
            for (int64_t i = 0; i < length; i++) decoded[i] = from_fp16(values[start + i]) * unit;
        else
            for (int64_t i = 0; i < length; i++) decoded[i] = from_bf16(values[start + i]) * unit;
        write_block(out, dtype, table.offsets[k], length, decoded);
        start += length;
    }
}

CLONED static int64_t sweep(
    struct matrix m, const float *rows, const float *columns, const void *gradient, int dtype, int by,
    const float *given, float *product) {
    return low_rank_sweep(m, rows, columns, gradient, dtype, (enum multiply)by, given, product);
}

CLONED static void write_product(struct matrix m, const float *rows, const float *columns, void *out, int dtype) {
    low_rank_write(m, rows, columns, out, dtype);
}

/* Reads `count` integers from the arguments; returns -1 with an exception set if they are not that. */
static int read_integers(PyObject *const *args, Py_ssize_t got, Py_ssize_t count, long long *values) {
    if (got != count) {
        PyErr_Format(PyExc_TypeError, "got %zd arguments; wanted: %zd integers", got, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = PyLong_AsLongLong(args[i]);
        if (values[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static int read_table(const long long *values, struct table *table) {
    *table = (struct table){
        (const int64_t *)(intptr_t)values[0], (const int64_t *)(intptr_t)values[1], values[2], values[3], 0};
    if (table->block < 1 || table->block > MAX_BLOCK) {
        PyErr_Format(PyExc_ValueError, "block is %lld; wanted: 1 to %d", values[3], MAX_BLOCK);
        return -1;
    }
    return 0;
}

#define ADDRESS(TYPE, INDEX) ((TYPE *)(intptr_t)values[INDEX])

/* Arguments of every function: addresses of offsets and lengths, num_blocks, block, then its own. */
#define FUNCTION(NAME, COUNT, CALL)                                                                                  \
    static PyObject *py_##NAME(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {                         \
        (void)self;                                                                                                  \
        long long values[4 + (COUNT)];                                                                               \
        struct table table;                                                                                          \
        if (read_integers(args, num_args, 4 + (COUNT), values) < 0 || read_table(values, &table) < 0) return NULL;   \
        Py_BEGIN_ALLOW_THREADS CALL;                                                                                 \
        Py_END_ALLOW_THREADS Py_RETURN_NONE;                                                                         \
    }

/* The weight travels as the bits of a float32; the last argument is num_scales. */
#define SCALED_FUNCTIONS(NAME)                                                                                       \
    FUNCTION(NAME##_encode, 6, table.num_scales = values[9];                                                         \
             NAME##_encode(ADDRESS(void, 4), (int)values[5], table, ADDRESS(float, 6), ADDRESS(float, 7),            \
                           ADDRESS(uint8_t, 8)))                                                                     \
    FUNCTION(NAME##_decode, 6, table.num_scales = values[9];                                                         \
             NAME##_decode(ADDRESS(uint8_t, 4), table, ADDRESS(void, 5), (int)values[6],                             \
                           from_bits((uint32_t)values[7]), (int)values[8]))                                          \
    FUNCTION(NAME##_reduce, 7, table.num_scales = values[10];                                                        \
             NAME##_reduce(ADDRESS(uint8_t, 4), values[5], values[6], table, ADDRESS(float, 7), ADDRESS(float, 8),   \
                           ADDRESS(uint8_t, 9)))

SCALED_FUNCTIONS(int8)
SCALED_FUNCTIONS(fp8)
SCALED_FUNCTIONS(int4)
SCALED_FUNCTIONS(onebit)
SCALED_FUNCTIONS(topk)
FUNCTION(cast_encode, 9,
         cast_encode(ADDRESS(void, 4), (int)values[5], table, ADDRESS(float, 6), ADDRESS(float, 7),
                     ADDRESS(uint16_t, 8), (int)values[9], values[10], values[11], ADDRESS(float, 12)))
FUNCTION(cast_decode, 5,
         cast_decode(ADDRESS(uint16_t, 4), (int)values[5], values[6], table, ADDRESS(void, 7), (int)values[8]))

static PyObject *py_low_rank_sweep(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    (void)self;
    long long values[11];
    if (read_integers(args, num_args, 11, values) < 0) return NULL;
    struct matrix m = {ADDRESS(float, 0), values[1], values[2], values[3]};
    int64_t found;
    Py_BEGIN_ALLOW_THREADS found = sweep(
        m, ADDRESS(float, 4), ADDRESS(float, 5), ADDRESS(void, 6), (int)values[7], (int)values[8], ADDRESS(float, 9),
        ADDRESS(float, 10));
    Py_END_ALLOW_THREADS return PyLong_FromLongLong(found);
}

static PyObject *py_low_rank_write(PyObject *self, PyObject *const *args, Py_ssize_t num_args) {
    (void)self;
    long long values[7];
    if (read_integers(args, num_args, 7, values) < 0) return NULL;
    struct matrix m = {NULL, values[0], values[1], values[2]};
    Py_BEGIN_ALLOW_THREADS write_product(
        m, ADDRESS(float, 3), ADDRESS(float, 4), ADDRESS(void, 5), (int)values[6]);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

#define ENTRY(NAME) {#NAME, (PyCFunction)(void (*)(void))py_##NAME, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    ENTRY(int8_encode),   ENTRY(int8_decode),   ENTRY(int8_reduce),
    ENTRY(fp8_encode),    ENTRY(fp8_decode),    ENTRY(fp8_reduce),
    ENTRY(int4_encode),   ENTRY(int4_decode),   ENTRY(int4_reduce),
    ENTRY(onebit_encode), ENTRY(onebit_decode), ENTRY(onebit_reduce),
    ENTRY(topk_encode),   ENTRY(topk_decode),   ENTRY(topk_reduce),
    ENTRY(cast_encode),   ENTRY(cast_decode),   ENTRY(low_rank_sweep), ENTRY(low_rank_write),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cpu", "Kernels for CPU tensors; see kernels/cpu.py.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) { return PyModule_Create(&module); }
