/* channel.h: what happens once per channel, one number at a time: reading and writing (C,)
 * vectors of any dtype, and arithmetic in pairs of doubles. */
#pragma once

#include <math.h>
#include <string.h>

#include "base/bn.h"

/* ---- dtypes ------------------------------------------------------------ */

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A float16's bits, shifted to the fields of a float, are 2^-112 times its value. Multiplying by
 * 2^112 is exact, for subnormals too. */
static inline double f16_to_double(uint16_t bits16) {
    const uint32_t magnitude = bits16 & 0x7fffu, sign = (bits16 & 0x8000u) << 16;
    const uint32_t bits = float_bits(float_from_bits(magnitude << 13) * 0x1p112f);
    return float_from_bits(bits | sign | (magnitude >= 0x7c00u ? 0x7f800000u : 0));
}

/* Round value to a float towards zero, and set the last bit if that is inexact. Return the bits. A
 * second rounding, to a type at least two bits shorter, then gives the same as rounding `value`
 * directly (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). */
static inline uint32_t float_bits_to_odd(double value) {
    const uint32_t bits = float_bits((float)value);
    const double rounded = float_from_bits(bits);
    return (bits - (fabs(rounded) > fabs(value))) | (rounded != value);
}

static inline uint16_t f16_from_double(double value) {
    const uint32_t bits = float_bits_to_odd(value);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* Adding 0.5f rounds to its last place, 2^-24, the spacing of subnormal float16 numbers. */
    const uint32_t small = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t finite = magnitude < 113u << 23 ? small : normal;
    const uint32_t narrow = magnitude >= 143u << 23 ? 0x7c00u : finite; /* 2^16 and beyond */
    return (uint16_t)(isnan(value) ? 0x7e00u : sign | narrow);
}

static inline uint16_t bf16_from_double(double value) {
    const uint32_t bits = float_bits_to_odd(value);
    return (uint16_t)(isnan(value) ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline double element_read(bn_dtype dtype, const char *at) {
    double value = 0;
    float single;
    uint16_t bits16;
    switch (dtype) {
    case BN_F64:
        memcpy(&value, at, sizeof value);
        break;
    case BN_F32:
        memcpy(&single, at, sizeof single);
        value = single;
        break;
    case BN_F16:
        memcpy(&bits16, at, sizeof bits16);
        value = f16_to_double(bits16);
        break;
    case BN_BF16:
        memcpy(&bits16, at, sizeof bits16);
        value = float_from_bits((uint32_t)bits16 << 16);
        break;
    case BN_DTYPES:
        break;
    }
    return value;
}

/* Write value, rounded once; every NaN becomes the canonical NaN. */
static inline void element_write(bn_dtype dtype, char *at, double value) {
    const double canonical = isnan(value) ? fabs((double)NAN) : value;
    const float narrow = (float)value;
    const float single = isnan(narrow) ? float_from_bits(0x7fc00000u) : narrow;
    uint16_t bits16;
    switch (dtype) {
    case BN_F64:
        memcpy(at, &canonical, sizeof canonical);
        break;
    case BN_F32:
        memcpy(at, &single, sizeof single);
        break;
    case BN_F16:
        bits16 = f16_from_double(value);
        memcpy(at, &bits16, sizeof bits16);
        break;
    case BN_BF16:
        bits16 = bf16_from_double(value);
        memcpy(at, &bits16, sizeof bits16);
        break;
    case BN_DTYPES:
        break;
    }
}

/* Contiguous elements have a loop of their own, which the compiler vectorizes: dtype and bytes are
 * constants. */
static inline __attribute__((always_inline)) void
read_each(bn_dtype dtype, int64_t bytes, const char *at, int64_t stride, int64_t n, double *to) {
    if (stride == bytes)
        for (int64_t i = 0; i < n; i++)
            to[i] = element_read(dtype, at + i * bytes);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = element_read(dtype, at + i * stride);
}

static inline __attribute__((always_inline)) void
write_each(bn_dtype dtype, int64_t bytes, char *at, int64_t stride, int64_t n, const double *from) {
    if (stride == bytes)
        for (int64_t i = 0; i < n; i++)
            element_write(dtype, at + i * bytes, from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            element_write(dtype, at + i * stride, from[i]);
}

/* The n elements from index `first` on, as doubles; ones if the vector is absent. */
static __attribute__((noinline, unused)) void vector_read(const bn_vector *v, int64_t first,
                                                          int64_t n, double *to) {
    if (!v->data) {
        for (int64_t i = 0; i < n; i++)
            to[i] = 1;
        return;
    }
    const char *at = v->data + first * v->stride;
#define READ(code, c_name, name, computed, bytes, ...)                                             \
    case code:                                                                                     \
        read_each(code, bytes, at, v->stride, n, to);                                              \
        break;
    switch (v->dtype) {
        BN_DTYPE_TABLE(READ)
    default:
        break;
    }
#undef READ
}

/* Write these doubles to the n elements from index `first` on; do nothing if the vector is
 * absent. */
static __attribute__((noinline, unused)) void vector_write(const bn_vector *v, int64_t first,
                                                           int64_t n, const double *from) {
    if (!v->data)
        return;
    char *at = v->data + first * v->stride;
#define WRITE_EACH(code, c_name, name, computed, bytes, ...)                                       \
    case code:                                                                                     \
        write_each(code, bytes, at, v->stride, n, from);                                           \
        break;
    switch (v->dtype) {
        BN_DTYPE_TABLE(WRITE_EACH)
    default:
        break;
    }
#undef WRITE_EACH
}

/* ---- pairs of doubles -------------------------------------------------- */

/* The number high + low; |low| is at most a few units of high's last place. If Inf, NaN or overflow
 * leaves no meaningful low part, low is 0, and high is what IEEE arithmetic on doubles gives. */
typedef struct {
    double high, low;
} pair;

static inline pair pair_of(double high, double low) {
    return (pair){high, isfinite(low) ? low : 0};
}

static inline double pair_round(pair a) {
    const double sum = a.high + a.low;
    return a.low == 0 ? a.high : sum; /* -0 + 0 is 0 */
}

static inline pair pair_sum(double a, double b) {
    const double sum = a + b, added = sum - a;
    return pair_of(sum, (a - (sum - added)) + (b - added));
}

/* Exact if nothing overflows or underflows (Dekker 1971): parts of Veltkamp's split have at most 26
 * bits, so their products are exact. */
static inline pair pair_product(double a, double b) {
    const double split = 134217729.0; /* 2^27 + 1 */
    const double ah = split * a - (split * a - a), al = a - ah;
    const double bh = split * b - (split * b - b), bl = b - bh;
    const double product = a * b;
    return pair_of(product, ((ah * bh - product) + ah * bl + al * bh) + al * bl);
}

static inline pair pair_times(pair a, pair b) {
    const pair p = pair_product(a.high, b.high);
    return pair_of(p.high, p.low + (a.high * b.low + a.low * b.high));
}

static inline pair pair_over(pair a, double b) {
    const double quotient = a.high / b;
    const pair back = pair_product(quotient, b);
    return pair_of(quotient, ((a.high - back.high) - back.low + a.low) / b);
}

/* 1/sqrt(a): a double, then one Newton step, whose residual is computed in pairs. */
static inline pair pair_rsqrt(pair a) {
    const double r = 1 / sqrt(a.high);
    const pair square = pair_product(r, r);
    const pair one = pair_times(a, square);
    return pair_of(r, r * ((1 - one.high) - one.low) / 2);
}
