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

/* Values that are kept per channel. TO_CONVERT: a value that is about to become a coefficient or a
 * vector's element. */
enum { RSTD, RSTD_LOW, MEAN_LOW, SLOPE, TO_CONVERT, OFFSET, VALUES };
_Static_assert((int)VALUES <= (int)MOST_VALUES, "room for them");

/* Sums, in the order of formulas.inc. */
enum { SUM_DY, SUM_DY_XC };

static void prepare_sums(const bn_channels *c, int64_t from, int64_t n) {
    bn_set_mean(c, from, n, c->value[TO_CONVERT] + from, c->value[MEAN_LOW] + from);
}

static void prepare_results(const bn_channels *c, int64_t from, int64_t n) {
    double *rstd = c->value[RSTD] + from, *scale = c->value[TO_CONVERT] + from;
    vector_read(&c->problem->vector[BN_VARIANCE], from, n, rstd);
    bn_set_scale(c, from, n, rstd, c->value[RSTD_LOW] + from, scale);
}

/* ReLU's gate takes the results' scale, so here prepare_results runs before the sums. */
static void prepare_gate(const bn_channels *c, int64_t from, int64_t n) {
    double *mean = c->value[SLOPE] + from; /* SLOPE is not computed yet: its room is free */
    const double *scale = c->value[TO_CONVERT] + from;
    prepare_sums(c, from, n);
    prepare_results(c, from, n);
    vector_read(&c->problem->vector[BN_MEAN], from, n, mean);
    bn_set_shift(c, COEF_OFFSET, from, n, mean, scale, c->value[OFFSET] + from);
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

static void finish(const bn_channels *c, int64_t from, int64_t n) {
    const bn_problem *p = c->problem;
    const double *sum_dy = bn_plane(c, SUM_DY, from);
    const double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from);
    const double *rstd = c->value[RSTD] + from, *rstd_low = c->value[RSTD_LOW] + from;
    double *slope = c->value[SLOPE] + from, *value = c->value[TO_CONVERT] + from;
    double *diff_gamma = value;
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
    bn_set_coefs(c, COEF_SLOPE, from, n, slope);
    vector_write(&p->vector[BN_DIFF_BETA], from, n, sum_dy);
    vector_write(&p->vector[BN_DIFF_GAMMA], from, n, diff_gamma);
    const double *low = c->value[MEAN_LOW] + from;
    double *shift = value;
    for (int64_t i = 0; i < n; i++)
        shift[i] = sum_dy[i] / c->count;
    for (int64_t i = 0; bn_has_low(c) && i < n; i++)
        shift[i] -= bn_times_low(slope[i], low[i]);
    bn_set_coefs(c, COEF_SHIFT, from, n, shift);
}

/* ---- the operations -------------------------------------------------------- */

#define BOTH_GRADIENTS (1u << BN_DIFF_GAMMA | 1u << BN_DIFF_BETA)

#define BACKWARD_OF(needs_sums, sums, writes, ...)                                                 \
    {                                                                                              \
        .formulas = {sums, writes},                                                                \
        .writes_need_sums = (needs_sums),                                                          \
        .vectors = BOTH_GRADIENTS,                                                                 \
        .values = VALUES,                                                                          \
        .prepare = {__VA_ARGS__},                                                                  \
        .refine = refine,                                                                          \
        .finish = finish,                                                                          \
    }
#define EACH_GATE(needs_sums, writes)                                                              \
    {                                                                                              \
        [NO_GATE] = BACKWARD_OF(needs_sums, GRADIENTS, writes, prepare_sums, prepare_results),     \
        [FROM_SRC] = BACKWARD_OF(needs_sums, GRADIENTS_RELU, writes##_RELU, prepare_gate, NULL),   \
        [GATED] = BACKWARD_OF(needs_sums, GRADIENTS_GATED, writes##_GATED, prepare_sums,           \
                              prepare_results),                                                    \
    }
/* Indexed by whether statistics are computed from the batch (training), and by the gate. */
const bn_operation BN_OF_LEVEL(bn_backward)[2][GATES] = {
    EACH_GATE(false, FROZEN),
    EACH_GATE(true, BACKWARD),
};
