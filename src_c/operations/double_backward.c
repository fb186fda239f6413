/* double_backward.c: the gradient of batch normalization backward, once per channel. With dy =
 * diff_dst, g = diff_diff_src, xhat = xc * rstd, and [...] for the mean over the M elements,
 *
 *     training  bent          = [g][dy] - [g dy] + 3 [dy xhat] [g xhat]
 *               diff_src      = gamma*rstd^2 * (xhat*bent + [g xhat] * ([dy] - dy)
 *                                                         + [dy xhat] * ([g] - g))
 *                             + diff_diff_gamma*rstd * (dy - [dy] - xhat*[dy xhat])
 *               diff_diff_dst = gamma*rstd * (g - [g] - xhat*[g xhat])
 *                             + diff_diff_gamma*xhat + diff_diff_beta
 *               diff_gamma    = M*rstd * ([g dy] - [g][dy] - [g xhat] [dy xhat])
 *
 *     frozen    diff_src      = diff_diff_gamma*rstd * dy
 *               diff_diff_dst = gamma*rstd * g + diff_diff_gamma*xhat + diff_diff_beta
 *               diff_gamma    = M*rstd * [g dy]
 *
 * diff_src and diff_diff_dst are linear in dy, g and xc, so kernels take a factor for each.
 *
 *     diff_src      = slope*dy + cross*g + bend*xc + offset
 *     diff_diff_dst = scale*g + slope*xc + shift
 *
 * Factors are computed in doubles, even for float64 data: their rounding errors are small next to
 * the errors that the sums of products already have (docs/numerics.md). */
#include "operations/coefs.h"

/* What is kept per channel: the part of the mean that the arithmetic type does not hold; and rstd,
 * if it is computed before the sums. */
enum { MEAN_LOW, RSTD, KEPT };
_Static_assert((int)KEPT <= (int)MOST_KEPT, "room for them");

/* Sums, in the order of formulas.inc. */
enum { SUM_DY, SUM_DY_XC, SUM_G, SUM_G_XC, SUM_DY_G };

static void prepare_sums(const bn_channel_memory *c, int64_t from, int64_t n) {
    channel_block mean;
    bn_set_mean(c, from, n, mean, c->kept[MEAN_LOW] + from);
}

static void prepare_frozen(const bn_channel_memory *c, int64_t from, int64_t n) {
    const double *low = c->kept[MEAN_LOW] + from;
    double *rstd = c->kept[RSTD] + from;
    channel_block rstd_low, scale, slope, shift;
    bn_read_scale(c, from, n, rstd, rstd_low, scale);
    bn_read_or_zeros(c, BN_DIFF_DIFF_GAMMA, from, n, slope);
    bn_read_or_zeros(c, BN_DIFF_DIFF_BETA, from, n, shift);
    for (int64_t i = 0; i < n; i++) {
        slope[i] *= rstd[i];
        shift[i] -= bn_times_low(slope[i], low[i]);
    }
    bn_set_coefs(c, COEF_SLOPE, from, n, slope);
    bn_set_coefs(c, COEF_SHIFT, from, n, shift);
}

static void finish_frozen(const bn_channel_memory *c, int64_t from, int64_t n) {
    const double *rstd = c->kept[RSTD] + from, *sum = bn_plane(c, SUM_DY_G, from);
    channel_block diff_gamma;
    for (int64_t i = 0; i < n; i++)
        diff_gamma[i] = rstd[i] * sum[i];
    vector_write(&c->problem->vector[BN_DIFF_GAMMA], from, n, diff_gamma);
}

/* The coefficients are set channel by channel: arrays of them all would not fit a small stack. */
static void finish(const bn_channel_memory *c, int64_t from, int64_t n) {
    const double m = c->count;
    const double *low = c->kept[MEAN_LOW] + from;
    const double *sum_dy = bn_plane(c, SUM_DY, from), *sum_g = bn_plane(c, SUM_G, from);
    const double *sum_dy_xc = bn_plane(c, SUM_DY_XC, from), *sum_g_xc = bn_plane(c, SUM_G_XC, from);
    const double *sum_dy_g = bn_plane(c, SUM_DY_G, from);
    channel_block rstd, rstd_low, scale, dd_gamma, dd_beta, diff_gamma;
    bn_read_scale(c, from, n, rstd, rstd_low, scale);
    bn_read_or_zeros(c, BN_DIFF_DIFF_GAMMA, from, n, dd_gamma);
    bn_read_or_zeros(c, BN_DIFF_DIFF_BETA, from, n, dd_beta);
    for (int64_t i = 0; i < n; i++) {
        const double r = rstd[i], dy = sum_dy[i] / m, g = sum_g[i] / m;
        const double dy_xc = sum_dy_xc[i] / m - bn_times_low(dy, low[i]);
        const double g_xc = sum_g_xc[i] / m - bn_times_low(g, low[i]);
        const double dy_xhat = r * dy_xc, g_xhat = r * g_xc;
        const double rest = sum_dy_g[i] / m - g * dy, both = dy_xhat * g_xhat;
        const double slope = r * (dd_gamma[i] - scale[i] * g_xhat);
        const double cross = r * (-scale[i] * dy_xhat);
        const double bend = r * (r * (scale[i] * (3 * both - rest) - dd_gamma[i] * dy_xhat));
        const double shift = dd_beta[i] - scale[i] * g - bn_times_low(slope, low[i]);
        const double offset = -bn_times_low(bend, low[i]) - (slope * dy + cross * g);
        bn_set_coefs(c, COEF_SHIFT, from + i, 1, &shift);
        bn_set_coefs(c, COEF_SLOPE, from + i, 1, &slope);
        bn_set_coefs(c, COEF_CROSS, from + i, 1, &cross);
        bn_set_coefs(c, COEF_BEND, from + i, 1, &bend);
        bn_set_coefs(c, COEF_OFFSET, from + i, 1, &offset);
        diff_gamma[i] = m * (r * (rest - both));
    }
    vector_write(&c->problem->vector[BN_DIFF_GAMMA], from, n, diff_gamma);
}

/* ---- the operations -------------------------------------------------------- */

const bn_operation BN_OF_LEVEL(bn_double_backward)[2] = {
    {
        .formulas = {DOUBLE_GRADIENTS, DOUBLE_FROZEN},
        .writes_need_sums = false,
        .vectors = 1u << BN_DIFF_GAMMA,
        .n_kept = KEPT,
        .prepare = {prepare_sums, prepare_frozen},
        .finish = finish_frozen,
    },
    {
        .formulas = {DOUBLE_GRADIENTS, DOUBLE_BACKWARD},
        .writes_need_sums = true,
        .vectors = 1u << BN_DIFF_GAMMA,
        .n_kept = KEPT,
        .prepare = {prepare_sums, NULL},
        .finish = finish,
    },
};
