/* forward.c: batch normalization forward, once per channel: statistics from sums, and coefficients
 * from statistics. The formulas themselves are in kernels/formulas.inc, element by element.
 *
 * Sums are of x - p, with a pivot p in place of the mean (Chan, Golub, LeVeque, "Algorithms for
 * computing the sample variance", 1983):
 *
 *     mean = p + sum(x - p)/M        sum(xc*xc) = sum((x - p)^2) - sum(x - p)^2/M
 *
 * The rounding error of sum(xc*xc) grows with ((p - mean)/std)^2. The pivot is close to the mean of
 * a few elements, spread over the channel by a rule that depends on shape and layout alone. If it
 * lies more than two standard deviations from the mean, its channel is summed again, about the mean
 * that was found. If squares overflow or vanish, their channel is summed again, scaled by a power
 * of two. A few neighboring channels are summed again together.
 *
 *     hi = mean, rounded     scale = gamma*rstd     shift = beta - scale*(mean - hi) */
#include <math.h>
#include <string.h>

#include "base/sizes.h"
#include "operations/coefs.h"

/* What is kept per channel. PIVOT is multiplied by POWER, a power of two, as the elements
 * are. SPREAD: the largest distance of a sampled element from the first one. */
enum { PIVOT, POWER, SPREAD, KEPT };
_Static_assert((int)KEPT <= (int)MOST_KEPT, "room for them");

/* Sums, in the order of formulas.inc; then what they become. */
enum { SUM_XC, SUM_XC_XC };
enum { STAT_MEAN, STAT_SQUARES, STAT_LOW };

/* ---- the pivot ------------------------------------------------------------ */

/* How many elements of a channel are sampled for its pivot. If elements are independent and normal,
 * the mean of eight misses the channel's mean by over two standard deviations once or twice in 10^8
 * channels. */
enum {
    SAMPLED_POSITIONS = 8, /* with runs of one element */
    SAMPLED_RUNS = 4,      /* with longer runs, which lie far apart */
    SAMPLED_NEIGHBORS = 2, /* in each sampled run */
};

/* Where samples lie in their parts, with runs of one element: the square roots of the first eight
 * primes, without their whole parts. Samples at equal distances would miss the mean of data that
 * repeat along the positions: of 8, 16, 24... images, each would be the same pixel. */
static const double within_part[SAMPLED_POSITIONS] = {0.41421, 0.73205, 0.23607, 0.64575,
                                                      0.31662, 0.60555, 0.12311, 0.35890};

/* The pivot `from` + by. What it moves by is rounded to a multiple of a unit, 1/32 to 1/16 of the
 * spread. So if elements have few bits, the pivot, the distances from it and their squares have few
 * bits too, and sums are exact. To be off by less than a unit does not make a pivot worse. Adding
 * and subtracting `large` rounds to multiples of its last place, a power of two. */
static double moved(const bn_channel_memory *c, double from, double by, double spread) {
    const double large = spread * 0x1p48, to = from + ((by + large) - large);
    return in_doubles(c->problem) ? to : (double)(float)to;
}

/* Add one sample of each channel: sum its distance from the first sample, and keep the largest
 * distance. */
static void add_sample(const double *first, int64_t n, const double *value, double *sum,
                       double *spread) {
    for (int64_t i = 0; i < n; i++) {
        const double off = value[i] - first[i], far = fabs(off);
        sum[i] += off;
        spread[i] = far > spread[i] ? far : spread[i];
    }
}

/* Cut the positions into `samples` equal parts, and the run likewise. For each i, sample a few
 * neighboring elements: at a position of part i, from an element of the run's part i on. */
static void prepare_sums(const bn_channel_memory *c, int64_t from, int64_t n) {
    const bn_problem *p = c->problem;
    if (!c->summed)
        return;
    const int64_t positions = p->positions, run = p->run;
    const int64_t samples = at_most(positions, run == 1 ? SAMPLED_POSITIONS : SAMPLED_RUNS);
    double *spread = c->kept[SPREAD] + from;
    channel_block first, next, sum = {0};
    int64_t count = 0;
    memset(spread, 0, (size_t)n * sizeof *spread);
    for (int64_t i = 0; i < samples; i++) {
        const double part = ((double)i + (run == 1 ? within_part[i] : 0.5)) / (double)samples;
        const int64_t position = (int64_t)((double)positions * part);
        const int64_t x = (int64_t)((double)run * part);
        for (int64_t k = x; k < run && k < x + SAMPLED_NEIGHBORS; k++, count++) {
            const bn_vector at = {bn_element_at(p, BN_SRC, position, k), p->next_channel[BN_SRC],
                                  p->dtype};
            vector_read(&at, from, n, count ? next : first);
            if (count)
                add_sample(first, n, next, sum, spread);
        }
    }
    for (int64_t j = 0; j < n; j++) {
        const double pivot = moved(c, first[j], sum[j] / (double)count, spread[j]);
        c->kept[PIVOT][from + j] = isfinite(pivot) ? pivot : 0;
        c->kept[POWER][from + j] = 1;
    }
    bn_set_coefs(c, COEF_MEAN, from, n, c->kept[PIVOT] + from);
}

/* ---- statistics ------------------------------------------------------------- */

/* `down` and `up` are powers of two that scale numbers so that squares neither overflow nor vanish.
 * If the mean square is below `vanishing`, some squares may have vanished. */
typedef struct {
    double down, up, vanishing;
} powers;

static powers powers_of(const bn_channel_memory *c) {
    return in_doubles(c->problem) ? (powers){0x1p-600, 0x1p600, 0x1p-950}
                                  : (powers){0x1p-96, 0x1p96, 0x1p-100};
}

enum { MOST_ROUNDS = 3 }; /* one for the power, one for the pivot after an overflow, one to spare */

/* Must a channel be summed again? If so, change its pivot or power. */
static bool wants_another(const bn_channel_memory *c, int64_t i, double sum, double squares) {
    const powers by = powers_of(c);
    double *pivot = &c->kept[PIVOT][i], *power = &c->kept[POWER][i];
    const double off = sum / c->count, rest = squares - sum * off;
    if (!isfinite(squares) && *power == 1) {
        *power = by.down;
        *pivot = 0; /* in case it, or the distance from it, is too large */
        return true;
    }
    if (!isfinite(squares))
        return false;
    if (squares < c->count * by.vanishing && *power == 1 &&
        (squares > 0 || sum != 0 || c->kept[SPREAD][i] > 0)) {
        *power = by.up;
        *pivot *= by.up;
        return true;
    }
    if (sum * off > 4 * rest) {
        const double deviation = sqrt(rest > 0 ? rest / c->count : 0);
        const double better = moved(c, *pivot, off, deviation);
        const bool moves = better != *pivot;
        *pivot = better;
        return moves;
    }
    return false;
}

static bool must_sum_again(const bn_channel_memory *c, int64_t from, int64_t n, int round) {
    const double *sum = bn_plane(c, SUM_XC, from), *squares = bn_plane(c, SUM_XC_XC, from);
    bool again = false;
    for (int64_t i = 0; i < n && round < MOST_ROUNDS; i++)
        again |= wants_another(c, from + i, sum[i], squares[i]);
    if (again) {
        bn_set_coefs(c, COEF_MEAN, from, n, c->kept[PIVOT] + from);
        bn_set_coefs(c, COEF_SCALE, from, n, c->kept[POWER] + from);
    }
    return again;
}

static void refine(const bn_channel_memory *c, int64_t from, int64_t n) {
    double *sum = bn_plane(c, SUM_XC, from), *squares = bn_plane(c, SUM_XC_XC, from);
    const double *pivot = c->kept[PIVOT] + from, *power = c->kept[POWER] + from;
    const double inverse = 1 / bn_power_above(c->count);
    const bool has_low = bn_rows_of_statistics(c->problem->dtype) > STAT_LOW;
    double *low = has_low ? bn_plane(c, STAT_LOW, from) : NULL;
    for (int64_t i = 0; i < n; i++) {
        const double off = sum[i] / c->count, rest = squares[i] - sum[i] * off;
        const pair mean = pair_sum(pivot[i], off);
        sum[i] = mean.high / power[i];
        squares[i] = rest < 0 ? 0 : inverse * rest / power[i] / power[i];
        if (low)
            low[i] = mean.low / power[i];
    }
}

/* ---- coefficients ----------------------------------------------------------- */

/* Set all coefficients from the mean and the variance. */
static void set_results(const bn_channel_memory *c, int64_t from, int64_t n, const double *mean,
                        const double *variance) {
    channel_block rstd, rstd_low, scale, beta;
    bn_set_coefs(c, COEF_MEAN, from, n, mean);
    bn_set_scale(c, from, n, variance, rstd, rstd_low, scale);
    bn_set_shift(c, COEF_SHIFT, from, n, mean, scale, beta);
}

/* A factor of 1 ignores the old value, even if that is NaN or Inf. */
static void update(const bn_channel_memory *c, int vector, int64_t from, int64_t n,
                   const double *batch) {
    const bn_vector *v = &c->problem->vector[vector];
    const double factor = c->problem->exponential_avg_factor;
    channel_block running;
    if (!v->data)
        return;
    vector_read(v, from, n, running);
    for (int64_t i = 0; i < n; i++)
        running[i] = factor == 1 ? batch[i] : (1 - factor) * running[i] + factor * batch[i];
    vector_write(v, from, n, running);
}

static void finish(const bn_channel_memory *c, int64_t from, int64_t n) {
    const bn_problem *p = c->problem;
    const double *mean = bn_plane(c, STAT_MEAN, from);
    const double *squares = bn_plane(c, STAT_SQUARES, from);
    const double inverse = 1 / bn_power_above(c->count);
    channel_block variance, unbiased;
    if (n <= 0) /* never (operation.h); else gcc believes that variance may not be set */
        return;
    for (int64_t i = 0; i < n; i++) {
        unbiased[i] = squares[i] / (inverse * (c->count - p->correction));
        variance[i] = squares[i] / (inverse * c->count);
    }
    vector_write(&p->vector[BN_MEAN], from, n, mean);
    vector_write(&p->vector[BN_VARIANCE], from, n, variance);
    update(c, BN_RUNNING_MEAN, from, n, mean);
    update(c, BN_RUNNING_VARIANCE, from, n, unbiased);
    set_results(c, from, n, mean, variance);
}

/* ---- inference -------------------------------------------------------------- */

static void prepare_inference(const bn_channel_memory *c, int64_t from, int64_t n) {
    const bn_problem *p = c->problem;
    channel_block mean, variance;
    vector_read(&p->vector[BN_MEAN], from, n, mean);
    vector_read(&p->vector[BN_VARIANCE], from, n, variance);
    set_results(c, from, n, mean, variance);
}

/* ---- the operations -------------------------------------------------------- */

/* Indexed by whether src_1 is added. */
#define TRAINING(writes)                                                                           \
    {                                                                                              \
        .formulas = {MOMENTS, writes},                                                             \
        .again = SCALED_MOMENTS,                                                                   \
        .writes_need_sums = true,                                                                  \
        .vectors = 1u << BN_MEAN | 1u << BN_VARIANCE,                                              \
        .if_empty = NAN,                                                                           \
        .n_kept = KEPT,                                                                            \
        .prepare = {prepare_sums, NULL},                                                           \
        .must_sum_again = must_sum_again,                                                          \
        .refine = refine,                                                                          \
        .rows_of_lows = 1,                                                                         \
        .finish = finish,                                                                          \
    }
const bn_operation BN_OF_LEVEL(bn_training)[2] = {TRAINING(NORMALIZE), TRAINING(NORMALIZE_ADD)};

#define INFERENCE(writes)                                                                          \
    {                                                                                              \
        .formulas = {NOTHING, writes},                                                             \
        .n_kept = KEPT,                                                                            \
        .prepare = {NULL, prepare_inference},                                                      \
    }
const bn_operation BN_OF_LEVEL(bn_inference)[2] = {INFERENCE(NORMALIZE), INFERENCE(NORMALIZE_ADD)};

/* For exact sums, which need no pivot. */
const bn_operation BN_OF_LEVEL(bn_moments) = {.formulas = {RAW_MOMENTS, NOTHING}};
