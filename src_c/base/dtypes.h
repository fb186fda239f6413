/* dtypes.h: the types an element may have, a line each. channel.h reads and writes one element. */
#pragma once

#include <stdbool.h>

/* X(code, name in C, name in NumPy, arithmetic type, bytes, do sums need compensations?, what else
 * is given). Sums are doubles; a compensation holds what rounding took from a sum. */
#define BN_DTYPE_TABLE(X, ...)                                                                     \
    X(BN_F32, f32, "float32", f32, 4, false, __VA_ARGS__)                                          \
    X(BN_F64, f64, "float64", f64, 8, true, __VA_ARGS__)                                           \
    X(BN_F16, f16, "float16", f32, 2, false, __VA_ARGS__)                                          \
    X(BN_BF16, bf16, "bfloat16", f32, 2, false, __VA_ARGS__)

#define ENUMERATED(code, ...) code,
typedef enum { BN_DTYPE_TABLE(ENUMERATED) BN_DTYPES } bn_dtype;
#undef ENUMERATED

typedef struct {
    const char *name;
    int element_bytes;
    int number_bytes; /* of the arithmetic type */
    bool compensated; /* do sums need compensations? */
} bn_dtype_facts;

/* f32_BYTES, f32_COMPENSATED, ... */
#define FACTS(code, c_name, name, computed, bytes, compensated, ...)                               \
    c_name##_BYTES = bytes, c_name##_COMPENSATED = compensated,
enum { BN_DTYPE_TABLE(FACTS) };
#undef FACTS

enum { f32_NUMBER_BYTES = 4, f64_NUMBER_BYTES = 8 };
#define FACTS(code, c_name, name, computed, bytes, compensated, ...)                               \
    [code] = {name, bytes, computed##_NUMBER_BYTES, compensated},
static const bn_dtype_facts bn_dtype_table[BN_DTYPES] = {BN_DTYPE_TABLE(FACTS)};
#undef FACTS
