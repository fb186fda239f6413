/* backward.c: batch normalization backward, once per channel: what kernels need besides the
 * elements, and what becomes of the sums. The formula itself is in kernels/formulas.inc, element by
 * element, and in examples/plain_loop.py as a plain loop.
 *
 *     rstd = 1/sqrt(variance + epsilon)
 *     diff_beta  = sum(dy)                shift = diff_beta/M
 *     diff_gamma = rstd * sum(dy * xc)    slope = rstd*diff_gamma/M     scale = gamma*rstd
 *
 * If ReLU's gate is recomputed from src, offset is the shift of the forward pass (coefs.h), so that
 * kernels recompute exactly its results.
 *
 * For float64 data, coefficients should be rounded only once, so they are computed in pairs of
 * doubles. For other dtypes, doubles suffice: they are far finer than the floats that coefficients
 * become.
 */
#include <math.h>

#include "channel.h"
#include "operations/coefs.h"

/* What is kept per channel: the part of the mean that the arithmetic type does not hold; and rstd,
 * if it is computed before the sums. */
enum { MEAN_LOW, RSTD, RSTD_LOW, VALUES };
_Static_assert((int)VALUES <= (int)MOST_VALUES, "room for them");

/* Sums, in the order of formulas.inc. */
enum { SUM_DY, SUM_DY_XC };

static void prepare_sums(const bn_channels *c, int64_t from, int64_t n) {
    double mean[BN_BLOCK];
    bn_set_mean(c, from, n, mean, bn_has_low(c) ? c->value[MEAN_LOW] + from : NULL);
}

static void prepare_frozen(const bn_channels *c, int64_t from, int64_t n) {
    double scale[BN_BLOCK];
    bn_read_scale(c, from, n, c->value[RSTD] + from, c->value[RSTD_LOW] + from, scale);
}

/* ReLU's gate takes the results' scale, so here rstd is computed before the sums. */
static void prepare_gate(const bn_channels *c, int64_t from, int64_t n) {
    double mean[BN_BLOCK], scale[BN_BLOCK], beta[BN_BLOCK];
    prepare_sums(c, from, n);
    bn_read_scale(c, from, n, c->value[RSTD] + from, c->value[RSTD_LOW] + from, scale);
    vector_read(&c->problem->vector[BN_MEAN], from, n, mean);
    bn_set_shift(c, COEF_OFFSET, from, n, mean, scale, beta);
}

static bool refine(const bn_channels *c, int64_t from, int64_t n, int round) {
    const double *sum_dy = bn_plane(c, SUM_DY, from);
    double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from);
    const double *low = c->value[MEAN_LOW] + from;
    (void)round;
    for (int64_t i = 0; bn_has_low(c) && i < n; i++)
        sum_dy_xc[i] -= bn_times_low(sum_dy[i], low[i]);
    return false;
}

static inline void finish_with(const bn_channels *c, int64_t from, int64_t n, const double *rstd,
                               const double *rstd_low) {
    const bn_problem *p = c->problem;
    const double *sum_dy = bn_plane(c, SUM_DY, from);
    const double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from);
    double diff_gamma[BN_BLOCK], slope[BN_BLOCK], shift[BN_BLOCK];
    if (in_doubles(c))
        for (int64_t i = 0; i < n; i++) {
            const pair r = {rstd[i], rstd_low[i]};
            const pair exact = pair_times(pair_of(sum_dy_xc[i], 0), r);
            diff_gamma[i] = pair_round(exact);
            slope[i] = pair_round(pair_over(pair_times(exact, r), c->count));
        }
    else
        for (int64_t i = 0; i < n; i++) {
            diff_gamma[i] = rstd[i] * sum_dy_xc[i];
            slope[i] = rstd[i] * diff_gamma[i] / c->count;
        }
    for (int64_t i = 0; i < n; i++)
        shift[i] = sum_dy[i] / c->count;
    for (int64_t i = 0; bn_has_low(c) && i < n; i++)
        shift[i] -= bn_times_low(slope[i], c->value[MEAN_LOW][from + i]);
    bn_set_coefs(c, COEF_SLOPE, from, n, slope);
    bn_set_coefs(c, COEF_SHIFT, from, n, shift);
    vector_write(&p->vector[BN_DIFF_BETA], from, n, sum_dy);
    vector_write(&p->vector[BN_DIFF_GAMMA], from, n, diff_gamma);
}

static void finish(const bn_channels *c, int64_t from, int64_t n) {
    double rstd[BN_BLOCK], rstd_low[BN_BLOCK], scale[BN_BLOCK];
    bn_read_scale(c, from, n, rstd, rstd_low, scale);
    finish_with(c, from, n, rstd, rstd_low);
}

static void finish_prepared(const bn_channels *c, int64_t from, int64_t n) {
    finish_with(c, from, n, c->value[RSTD] + from, c->value[RSTD_LOW] + from);
}

/* ---- the operations -------------------------------------------------------- */

#define BOTH_GRADIENTS (1u << BN_DIFF_GAMMA | 1u << BN_DIFF_BETA)

#define BACKWARD_OF(needs_sums, sums, writes, first, second, last)                                 \
    {                                                                                              \
        .formulas = {sums, writes},                                                                \
        .writes_need_sums = (needs_sums),                                                          \
        .vectors = BOTH_GRADIENTS,                                                                 \
        .values = VALUES,                                                                          \
        .prepare = {first, second},                                                                \
        .refine = refine,                                                                          \
        .finish = (last),                                                                          \
    }
#define EACH_GATE(needs_sums, writes, ...)                                                         \
    {                                                                                              \
        [NO_GATE] = BACKWARD_OF(needs_sums, GRADIENTS, writes, prepare_sums, __VA_ARGS__),         \
        [FROM_SRC] = BACKWARD_OF(needs_sums, GRADIENTS_RELU, writes##_RELU, prepare_gate, NULL,    \
                                 finish_prepared),                                                 \
        [GATED] =                                                                                  \
            BACKWARD_OF(needs_sums, GRADIENTS_GATED, writes##_GATED, prepare_sums, __VA_ARGS__),   \
    }
/* Indexed by whether statistics are computed from the batch (training), and by the gate. */
const bn_operation BN_OF_LEVEL(bn_backward)[2][GATES] = {
    EACH_GATE(false, FROZEN, prepare_frozen, finish_prepared),
    EACH_GATE(true, BACKWARD, NULL, finish),
};
