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
 * become. */
#include <math.h>

#include "base/channel.h"
#include "operations/coefs.h"

/* What is kept per channel: the part of the mean that the arithmetic type does not hold, and
 * rstd. */
enum { MEAN_LOW, RSTD, RSTD_LOW, KEPT };
_Static_assert((int)KEPT <= (int)MOST_KEPT, "room for them");

/* Sums, in the order of formulas.inc. */
enum { SUM_DY, SUM_DY_XC };

static void set_scale(const bn_channel_memory *c, int64_t from, int64_t n, double *scale) {
    bn_read_scale(c, from, n, c->kept[RSTD] + from, c->kept[RSTD_LOW] + from, scale);
}

/* To recompute ReLU's gate takes the results' scale and shift. */
static void prepare_sums(const bn_channel_memory *c, int64_t from, int64_t n) {
    channel_block mean, scale, beta;
    bn_set_mean(c, from, n, mean, bn_has_low(c->problem) ? c->kept[MEAN_LOW] + from : NULL);
    if (bn_formula_of(GRADIENTS, c->problem).gate == FROM_SRC) {
        set_scale(c, from, n, scale);
        bn_set_shift(c, COEF_OFFSET, from, n, mean, scale, beta);
    }
}

static void prepare_writes(const bn_channel_memory *c, int64_t from, int64_t n) {
    channel_block scale;
    if (bn_formula_of(GRADIENTS, c->problem).gate != FROM_SRC)
        set_scale(c, from, n, scale);
}

static void refine(const bn_channel_memory *c, int64_t from, int64_t n) {
    const double *sum_dy = bn_plane(c, SUM_DY, from);
    double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from);
    const double *low = c->kept[MEAN_LOW] + from;
    if (bn_has_low(c->problem))
        for (int64_t i = 0; i < n; i++)
            sum_dy_xc[i] -= bn_times_low(sum_dy[i], low[i]);
}

static void finish(const bn_channel_memory *c, int64_t from, int64_t n) {
    const bn_problem *p = c->problem;
    const double *rstd = c->kept[RSTD] + from, *rstd_low = c->kept[RSTD_LOW] + from;
    const double *sum_dy = bn_plane(c, SUM_DY, from);
    const double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from);
    channel_block diff_gamma, slope, shift;
    if (in_doubles(c->problem))
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
    if (bn_has_low(c->problem))
        for (int64_t i = 0; i < n; i++)
            shift[i] -= bn_times_low(slope[i], c->kept[MEAN_LOW][from + i]);
    bn_set_coefs(c, COEF_SLOPE, from, n, slope);
    bn_set_coefs(c, COEF_SHIFT, from, n, shift);
    vector_write(&p->vector[BN_DIFF_BETA], from, n, sum_dy);
    vector_write(&p->vector[BN_DIFF_GAMMA], from, n, diff_gamma);
}

/* ---- the operations -------------------------------------------------------- */

#define BACKWARD_OF(writes, needs_sums)                                                            \
    {                                                                                              \
        .formulas = {GRADIENTS, writes},                                                           \
        .writes_need_sums = (needs_sums),                                                          \
        .vectors = 1u << BN_DIFF_GAMMA | 1u << BN_DIFF_BETA,                                       \
        .n_kept = KEPT,                                                                            \
        .prepare = {prepare_sums, prepare_writes},                                                 \
        .refine = refine,                                                                          \
        .finish = finish,                                                                          \
    }
/* Indexed by whether diff_src_1 is written, then by whether statistics are computed from the batch
 * (training). */
const bn_operation BN_OF_LEVEL(bn_backward)[2][2] = {
    {BACKWARD_OF(FROZEN, false), BACKWARD_OF(BACKWARD, true)},
    {BACKWARD_OF(FROZEN_ADD, false), BACKWARD_OF(BACKWARD_ADD, true)},
};
