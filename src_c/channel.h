/* channel.h: what happens once per channel, one number at a time: reading and writing (C,)
 * vectors of any dtype, and arithmetic in pairs of doubles. */
#ifndef BN_CHANNEL_H
#define BN_CHANNEL_H

#include <math.h>
#include <string.h>

#include "bn.h"

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

static inline double f16_to_double(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    double magnitude;
    if (exponent == 31)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, -24);
    else
        magnitude = ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

/* The n elements from index `first` on, as doubles; ones where the vector is absent. */
static inline void vector_read(const bn_vector *v, int64_t first, int64_t n, double *to) {
    if (!v->data) {
        for (int64_t i = 0; i < n; i++)
            to[i] = 1;
        return;
    }
    const char *at = v->data + first * v->stride;
    uint16_t bits16;
    float single;
    if (v->dtype == BN_F64) {
        for (int64_t i = 0; i < n; i++, at += v->stride)
            memcpy(&to[i], at, sizeof *to);
    } else if (v->dtype == BN_F32) {
        if (v->stride == sizeof single) /* the usual case, as a loop that fills registers */
            for (int64_t i = 0; i < n; i++) {
                memcpy(&single, at + i * (int64_t)sizeof single, sizeof single);
                to[i] = single;
            }
        else
            for (int64_t i = 0; i < n; i++, at += v->stride) {
                memcpy(&single, at, sizeof single);
                to[i] = single;
            }
    } else {
        for (int64_t i = 0; i < n; i++, at += v->stride) {
            memcpy(&bits16, at, sizeof bits16);
            to[i] = v->dtype == BN_F16 ? f16_to_double(bits16)
                                       : float_from_bits((uint32_t)bits16 << 16);
        }
    }
}

/* The bits of value rounded towards zero to a float, the last one set if that is
 * inexact. A second rounding, to a type at least two bits shorter, then gives what
 * rounding value itself would (Boldo and Melquiond, "Emulation of FMA and correctly
 * rounded sums", 2008). */
static inline uint32_t float_bits_to_odd(double value) {
    uint32_t bits = float_bits((float)value);
    const double rounded = float_from_bits(bits);
    if (rounded == value)
        return bits;
    if (fabs(rounded) > fabs(value))
        bits--;
    return bits | 1;
}

static inline uint16_t f16_from_double(double value) {
    if (isnan(value))
        return 0x7e00;
    const uint32_t bits = float_bits_to_odd(value);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude >= 143u << 23)
        half = 0x7c00;               /* 2^16 and beyond */
    else if (magnitude < 113u << 23) /* subnormals: 0.5f's last place is their spacing */
        half = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
    else
        half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    return (uint16_t)(sign | half);
}

static inline uint16_t bf16_from_double(double value) {
    if (isnan(value))
        return 0x7fc0;
    const uint32_t bits = float_bits_to_odd(value);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* The n elements from index `first` on become these doubles, rounded once, every NaN the
 * canonical one. */
static inline void vector_write(const bn_vector *v, int64_t first, int64_t n, const double *from) {
    char *at = v->data + first * v->stride;
    if (v->dtype == BN_F64) {
        for (int64_t i = 0; i < n; i++, at += v->stride) {
            const double value = isnan(from[i]) ? fabs((double)NAN) : from[i];
            memcpy(at, &value, sizeof value);
        }
    } else if (v->dtype == BN_F32) {
        for (int64_t i = 0; i < n; i++, at += v->stride) {
            const float value = isnan(from[i]) ? float_from_bits(0x7fc00000u) : (float)from[i];
            memcpy(at, &value, sizeof value);
        }
    } else {
        for (int64_t i = 0; i < n; i++, at += v->stride) {
            const uint16_t bits16 =
                v->dtype == BN_F16 ? f16_from_double(from[i]) : bf16_from_double(from[i]);
            memcpy(at, &bits16, sizeof bits16);
        }
    }
}

/* ---- pairs of doubles -------------------------------------------------- */

/* high + low, |low| at most half a unit of high's last place. Where Inf, NaN or
 * overflow leave no meaningful low part, it is 0 and high is what IEEE
 * arithmetic on doubles gives. */
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

/* Exact (Dekker 1971): the two parts of Veltkamp's split have 26 bits at most. */
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

/* 1/sqrt(a): one Newton step on the double result, the residual in pairs. */
static inline pair pair_rsqrt(pair a) {
    const double r = 1 / sqrt(a.high);
    const pair square = pair_product(r, r);
    const pair one = pair_times(a, square);
    return pair_of(r, r * ((1 - one.high) - one.low) / 2);
}

#endif
