/* backward.c: batch normalization backward, once per channel: what kernels need besides the
 * elements, and what becomes of the sums. The formula itself, element by element, stands in
 * kernels/formulas.inc; as a plain loop, in examples/plain_loop.py.
 *
 *     rstd = 1/sqrt(variance + epsilon)
 *     diff_beta  = sum(dy)                shift = diff_beta/M
 *     diff_gamma = rstd * sum(dy * xc)    slope = rstd*diff_gamma/M     scale = gamma*rstd
 *
 * Where the gate of ReLU is recomputed from src, offset is the shift of the forward pass
 * (coefs.h), so that kernels find the very same y.
 *
 * Double data deserves coefficients that are rounded once, so those go through pairs of
 * doubles; for the rest, doubles are far finer than the float they end as.
 */
#include <math.h>

#include "channel.h"
#include "engine.h"
#include "exact.h"
#include "operations/coefs.h"

/* Values that are kept per channel. TO_CONVERT: one on its way to a coefficient or a vector. */
enum { RSTD, RSTD_LOW, MEAN_LOW, SLOPE, TO_CONVERT, OFFSET, VALUES };
_Static_assert((int)VALUES <= (int)MOST_VALUES, "room for them");

/* Sums, in the order of formulas.inc. */
enum { SUM_DY, SUM_DY_XC };

static void prepare_sums(const bn_channels *c) {
    bn_set_mean(c, c->value[TO_CONVERT], c->value[MEAN_LOW]);
}

static void prepare_results(const bn_channels *c) {
    const bn_problem *p = c->problem;
    const int64_t n = c->channels;
    double *scale = c->value[TO_CONVERT];
    vector_read(&p->vector[BN_VARIANCE], 0, n, c->value[RSTD]);
    vector_read(&p->vector[BN_GAMMA], 0, n, scale);
    bn_rstd_and_scale(c, n, c->value[RSTD], c->value[RSTD_LOW], scale);
    bn_set_coefs(c, COEF_SCALE, 0, n, scale);
}

/* All of it before sums, since ReLU's gate takes it. */
static void prepare_gate(const bn_channels *c) {
    const int64_t n = c->channels;
    double *mean = c->value[SLOPE]; /* which is not there yet */
    prepare_sums(c);
    prepare_results(c);
    vector_read(&c->problem->vector[BN_MEAN], 0, n, mean);
    bn_set_shift(c, COEF_OFFSET, 0, n, mean, c->value[TO_CONVERT], c->value[OFFSET]);
}

/* About the mean itself, not its high part. */
static bool settle(const bn_channels *c, int64_t from, int64_t n, int round) {
    const double *sum_dy = bn_plane(c, SUM_DY, from);
    double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from);
    const double *low = c->value[MEAN_LOW] + from;
    (void)round;
    for (int64_t i = 0; bn_has_low(c) && i < n; i++)
        sum_dy_xc[i] -= low[i] != 0 ? low[i] * sum_dy[i] : 0;
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
    if (p->vector[BN_DIFF_BETA].data)
        vector_write(&p->vector[BN_DIFF_BETA], from, n, sum_dy);
    if (p->vector[BN_DIFF_GAMMA].data)
        vector_write(&p->vector[BN_DIFF_GAMMA], from, n, diff_gamma);
    const double *low = c->value[MEAN_LOW] + from;
    double *shift = value;
    for (int64_t i = 0; i < n; i++)
        shift[i] = sum_dy[i] / c->count;
    for (int64_t i = 0; bn_has_low(c) && i < n; i++)
        shift[i] -= low[i] != 0 ? low[i] * slope[i] : 0;
    bn_set_coefs(c, COEF_SHIFT, from, n, shift);
}

/* ---- the operations, and the entries ----------------------------------- */

#define BOTH_GRADIENTS (1u << BN_DIFF_GAMMA | 1u << BN_DIFF_BETA)

/* How the gradient comes through ReLU: there is none, its gate is recomputed from src, or given;
 * then what passes may be a result too. */
enum { NO_GATE, FROM_SRC, GIVEN, GIVEN_ADD, GATES };

#define BACKWARD_OF(needs_sums, sums, writes, ...)                                                 \
    {                                                                                              \
        .formulas = {sums, writes},                                                                \
        .writes_need_sums = (needs_sums),                                                          \
        .vectors = BOTH_GRADIENTS,                                                                 \
        .values = VALUES,                                                                          \
        .prepare = {__VA_ARGS__},                                                                  \
        .settle = settle,                                                                          \
        .finish = finish,                                                                          \
    }
#define EACH_GATE(needs_sums, writes)                                                              \
    {                                                                                              \
        [NO_GATE] = BACKWARD_OF(needs_sums, GRADIENTS, writes, prepare_sums, prepare_results),     \
        [FROM_SRC] = BACKWARD_OF(needs_sums, GRADIENTS_RELU, writes##_RELU, prepare_gate, NULL),   \
        [GIVEN] = BACKWARD_OF(needs_sums, GRADIENTS_GATED, writes##_GATED, prepare_sums,           \
                              prepare_results),                                                    \
        [GIVEN_ADD] = BACKWARD_OF(needs_sums, GRADIENTS_GATED, writes##_GATED_ADD, prepare_sums,   \
                                  prepare_results),                                                \
    }
static const bn_operation training[GATES] = EACH_GATE(true, BACKWARD);
static const bn_operation frozen[GATES] = EACH_GATE(false, FROZEN);

static int gate_of(const bn_problem *p) {
    if (!p->relu)
        return NO_GATE;
    if (!p->data[BN_GATE])
        return FROM_SRC;
    return p->data[BN_DIFF_SRC_1] ? GIVEN_ADD : GIVEN;
}

static const bn_operation *operation_of(const bn_problem *p) {
    return p->training ? &training[gate_of(p)] : &frozen[gate_of(p)];
}

bn_status bn_backward(const bn_problem *p) {
    return bn_execute(&(bn_call){p, operation_of(p), .writes = true});
}

bn_status bn_backward_reduce(const bn_problem *p, double *sums) {
    return bn_execute(&(bn_call){p, &training[gate_of(p)], .sums_out = sums});
}

bn_status bn_backward_apply(const bn_problem *p, const double *sums, double count) {
    return bn_execute(
        &(bn_call){p, operation_of(p), .writes = true, .sums_in = sums, .count = count});
}

bn_status bn_backward_reduce_exactly(const bn_problem *p, int64_t *state) {
    return bn_reduce_exactly(p, &training[gate_of(p)], BN_OF_GRADIENTS, state);
}

void bn_backward_sums(const bn_problem *p, const int64_t *state, double *sums) {
    const int64_t n = p->channel.size;
    const bn_channels c = {.problem = p, .channels = n};
    bn_round_state(state, bn_digits(p->dtype), n, sums);
    for (int64_t i = 0; bn_has_low(&c) && i < n; i++) {
        double mean;
        vector_read(&p->vector[BN_MEAN], i, 1, &mean);
        const double low = bn_low_of(mean);
        sums[n + i] -= low != 0 ? low * sums[i] : 0;
    }
}

void bn_backward_outline(const bn_problem *p, int threads, bn_plan *plan, bn_schedule *schedule) {
    bn_outline(&(bn_call){p, operation_of(p), .writes = true}, threads, plan, schedule);
}
