/* coefs.h: what operations share, once per channel. */
#pragma once

#include "base/channel.h"
#include "operations/operation.h"

static inline bool in_doubles(const bn_problem *p) {
    return bn_dtype_table[p->dtype].number_bytes == sizeof(double);
}

static inline double *bn_plane(const bn_channel_memory *c, int sum, int64_t from) {
    return c->sums.plane + sum * c->sums.stride + from;
}

/* A vector's n elements from `from` on; zeros if it is absent. */
static inline void bn_read_or_zeros(const bn_channel_memory *c, int vector, int64_t from, int64_t n,
                                    double *to) {
    const bn_vector *v = &c->problem->vector[vector];
    if (v->data)
        vector_read(v, from, n, to);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

/* Set a coefficient of n channels from `from` on, rounded to the arithmetic type. */
static inline void bn_set_coefs(const bn_channel_memory *c, int coef, int64_t from, int64_t n,
                                const double *values) {
    const int64_t at = coef * c->problem->channels + from;
    if (in_doubles(c->problem))
        memcpy((double *)c->coefs + at, values, (size_t)n * sizeof *values);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)c->coefs)[at + i] = (float)values[i];
}

/* Can the given mean have a low part that the arithmetic type does not hold? */
static inline bool bn_has_low(const bn_problem *p) {
    return p->vector[BN_MEAN].dtype == BN_F64 && !in_doubles(p);
}

/* What rounding to a float takes from a number. */
static inline double bn_low_of(double value) {
    return value - (double)(float)value;
}

/* coef times the mean's low part. Kernels subtract only the high part, so their coef * (x - mean)
 * is too large by this product. Return 0 if it is not finite: the kernels' product is then not
 * finite either. */
static inline double bn_times_low(double coef, double low) {
    const double product = coef * low;
    return low != 0 && isfinite(product) ? product : 0;
}

/* For n channels from `from` on: read the given mean and set its coefficient; `low`, if not NULL,
 * gets the part that kernels do not see. */
static inline void bn_set_mean(const bn_channel_memory *c, int64_t from, int64_t n, double *mean,
                               double *low) {
    vector_read(&c->problem->vector[BN_MEAN], from, n, mean);
    bn_set_coefs(c, COEF_MEAN, from, n, mean);
    if (low)
        for (int64_t i = 0; i < n; i++)
            low[i] = bn_has_low(c->problem) ? bn_low_of(mean[i]) : 0;
}

/* Set rstd = 1/sqrt(variance + epsilon), and the scale, gamma * rstd. If the data is computed in
 * doubles, both are computed in pairs, and `low` gets the low part of rstd. */
static inline void bn_set_scale(const bn_channel_memory *c, int64_t from, int64_t n,
                                const double *variance, double *rstd, double *low, double *scale) {
    const double epsilon = c->problem->epsilon;
    channel_block gamma;
    vector_read(&c->problem->vector[BN_GAMMA], from, n, gamma);
    if (in_doubles(c->problem))
        for (int64_t i = 0; i < n; i++) {
            const pair r = pair_rsqrt(pair_sum(variance[i], epsilon));
            rstd[i] = r.high;
            low[i] = r.low;
            scale[i] = pair_round(pair_times(pair_of(gamma[i], 0), r));
        }
    else
        for (int64_t i = 0; i < n; i++) {
            rstd[i] = 1 / sqrt(variance[i] + epsilon);
            scale[i] = gamma[i] * rstd[i];
        }
    bn_set_coefs(c, COEF_SCALE, from, n, scale);
}

/* The same from the given variance. */
static inline void bn_read_scale(const bn_channel_memory *c, int64_t from, int64_t n, double *rstd,
                                 double *low, double *scale) {
    channel_block variance;
    vector_read(&c->problem->vector[BN_VARIANCE], from, n, variance);
    bn_set_scale(c, from, n, variance, rstd, low, scale);
}

/* The shift of the forward pass: beta - scale * (what rounding takes from the mean). */
static inline void bn_set_shift(const bn_channel_memory *c, int coef, int64_t from, int64_t n,
                                const double *mean, const double *scale, double *beta) {
    bn_read_or_zeros(c, BN_BETA, from, n, beta);
    if (!in_doubles(c->problem))
        for (int64_t i = 0; i < n; i++)
            beta[i] -= bn_times_low(scale[i], bn_low_of(mean[i]));
    bn_set_coefs(c, coef, from, n, beta);
}
