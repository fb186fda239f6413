/* fuzz_reference.c: training as plain loops in long doubles, and how near to them its results must
 * be: the bounds of docs/numerics.md. tests/reference.py and tests/bounds.py say the same for
 * Python, of all operations, and where the numbers come from. See fuzz.h. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

typedef long double wide;

/* ---- numbers ------------------------------------------------------------ */

static const struct {
    int digits, least, most; /* exponents: of the smallest number, of the largest power of two */
} formats[BN_DTYPES] = {
    [BN_F32] = {24, -149, 127},
    [BN_F64] = {53, -1074, 1023},
    [BN_F16] = {11, -24, 15},
    [BN_BF16] = {8, -133, 127},
};

static wide half_to_wide(unsigned bits) {
    const int exponent = (int)(bits >> 10 & 31), digits = (int)(bits & 1023);
    const wide size = exponent == 31 ? (digits ? (wide)NAN : (wide)INFINITY)
                      : exponent     ? ldexpl(1024 + digits, exponent - 25)
                                     : ldexpl(digits, -24);
    return bits >> 15 ? -size : size;
}

static wide number_at(bn_dtype dtype, const char *data, ptrdiff_t i) {
    const int size = bn_dtype_table[dtype].element_bytes;
    double f64;
    float f32;
    uint16_t short_bits;
    data += i * size;
    if (dtype == BN_F64)
        return memcpy(&f64, data, sizeof f64), f64;
    if (dtype == BN_F32)
        return memcpy(&f32, data, sizeof f32), f32;
    memcpy(&short_bits, data, sizeof short_bits);
    if (dtype == BN_F16)
        return half_to_wide(short_bits);
    const uint32_t bits = (uint32_t)short_bits << 16;
    return memcpy(&f32, &bits, sizeof f32), f32;
}

/* Is it, rounded to this type, within the bound? Where the true one has no meaning, anything is;
 * near the end of what the type has, any number. */
static bool is_near(bn_dtype dtype, wide got, wide want, wide bound) {
    if (!isfinite(want) || !isfinite(bound))
        return true;
    if (fabsl(want) + bound >= ldexpl(1, formats[dtype].most))
        return !isnan(got);
    int exponent;
    frexpl(want, &exponent);
    const int places = exponent - formats[dtype].digits, least = formats[dtype].least;
    return fabsl(got - want) <= bound + ldexpl(0.5L, places > least ? places : least);
}

/* Of the type that is computed in: half the spacing of 1, the smallest number, and what is neither
 * too large nor too small for the bounds to hold. */
typedef struct {
    wide u, smallest, moderate;
} arithmetic;

static arithmetic arithmetic_of(const tensor *t) {
    return t->dtype == BN_F64 ? (arithmetic){0x1p-53L, ldexpl(1, -1074), 0x1p150L}
                              : (arithmetic){0x1p-24L, 0x1p-149L, 0x1p18L};
}

static wide larger(wide a, wide b) {
    return a > b ? a : b;
}

/* ---- channels ----------------------------------------------------------- */

static ptrdiff_t per_channel(const tensor *t) {
    return t->outer * t->inner;
}

/* The m-th element of a channel. */
static wide element(const tensor *t, const plain *r, int operand, ptrdiff_t c, ptrdiff_t m) {
    const ptrdiff_t outer = m / t->inner, inner = m % t->inner;
    return number_at(t->dtype, r->data[operand], (outer * t->channels + c) * t->inner + inner);
}

static wide of_vector(const tensor *t, const plain *r, int vector, ptrdiff_t c, wide absent) {
    return r->vector[vector] ? number_at(t->vector[vector].dtype, r->vector[vector], c) : absent;
}

typedef struct {
    wide mean, squares; /* sum(xc * xc) */
    wide farthest;      /* max|x| */
    wide range;         /* max x - min x */
    bool finite;
} moments;

/* The first element is taken off, and the mean of the rest corrected: right at any mean/std. */
static moments moments_of(const tensor *t, const plain *r, ptrdiff_t c) {
    const ptrdiff_t count = per_channel(t);
    const wide first = element(t, r, BN_SRC, c, 0);
    moments found = {0, 0, fabsl(first), 0, isfinite(first)};
    wide low = first, high = first, sum = 0, left = 0;
    for (ptrdiff_t m = 0; m < count; m++) {
        const wide x = element(t, r, BN_SRC, c, m);
        found.finite = found.finite && isfinite(x);
        low = x < low ? x : low;
        high = larger(x, high);
        sum += x - first;
    }
    wide rest = sum / count;
    for (ptrdiff_t m = 0; m < count; m++)
        left += element(t, r, BN_SRC, c, m) - first - rest;
    rest += left / count;
    for (ptrdiff_t m = 0; m < count; m++) {
        const wide xc = element(t, r, BN_SRC, c, m) - first - rest;
        found.squares += xc * xc;
    }
    found.mean = first + rest;
    found.farthest = larger(-low, high);
    found.range = high - low;
    return found;
}

/* ---- forward ------------------------------------------------------------ */

/* In units of u, as in tests/bounds.py; UNDERFLOW in smallest numbers. */
static const wide MEAN = 23.4L, VARIANCE = 150.5L, UNDERFLOW = 8, PRODUCT = 4, SHIFT = 2;

/* dst of a channel, from its own statistics. */
static void check_dst(const tensor *t, const bn_problem *p, const plain *r, ptrdiff_t c, wide mean,
                      wide variance) {
    const arithmetic is = arithmetic_of(t);
    const wide spread = variance + p->epsilon, deviation = sqrtl(variance);
    const wide gamma = of_vector(t, r, BN_GAMMA, c, 1), beta = of_vector(t, r, BN_BETA, c, 0);
    const wide scale = gamma / sqrtl(spread), share = spread > 0 ? variance / spread : 1;
    const wide near = t->dtype == BN_F64 ? (wide)(double)mean : (wide)(float)mean;
    const wide shift = beta - scale * (mean - near);
    const bool added = r->data[BN_SRC_1];
    const wide largest = larger(larger(fabsl(scale), fabsl(beta)),
                                larger(larger(fabsl(mean), deviation), fabsl(gamma)));
    /* A variance may lose this much when squares underflow; if that is all of it, so may rstd. */
    const wide lost = UNDERFLOW * is.smallest / spread;
    if (!(largest <= is.moderate) || !(lost < 0.5L))
        return;
    for (ptrdiff_t m = 0; m < per_channel(t); m++) {
        const wide x = element(t, r, BN_SRC, c, m), product = scale * (x - near);
        const wide more = added ? element(t, r, BN_SRC_1, c, m) : 0;
        if (!(larger(fabsl(x), fabsl(more)) <= is.moderate))
            continue;
        wide want = product + shift + more;
        wide bound = (PRODUCT + added) * fabsl(product);
        bound += (SHIFT + added) * (fabsl(shift) + fabsl(more));
        bound += MEAN * fabsl(scale) * deviation + VARIANCE / 2 * share * fabsl(product);
        bound += lost / is.u * fabsl(product);
        if (t->dtype == BN_F64) /* the mean is one double */
            bound += fabsl(scale * mean);
        bound = bound * is.u * (1 + 8 * is.u) + UNDERFLOW * is.smallest * (1 + fabsl(scale));
        want = p->relu && want <= 0 ? 0 : want;
        demand(is_near(t->dtype, element(t, r, BN_DST, c, m), want, bound), "far off: dst", t);
    }
}

/* A vector that was what the tensor's still is. */
static void check_running(const tensor *t, const bn_problem *p, const plain *r, int vector,
                          ptrdiff_t c, wide batch, wide bound) {
    /* The sum of squares is a double: Inf, which no factor makes finite, where it overflows. */
    const bool overflows = fabsl(batch) * per_channel(t) >= DBL_MAX / 2;
    if (!r->vector[vector] || overflows)
        return;
    const bn_dtype dtype = t->vector[vector].dtype;
    const wide factor = p->exponential_avg_factor;
    char *given = allocate(t->channels * t->vector[vector].view.itemsize);
    gather_vector(t, vector, given);
    const wide old = factor == 1 ? 0 : (1 - factor) * number_at(dtype, given, c);
    const wide sizes = fabsl(old) + fabsl(factor * batch);
    demand(is_near(dtype, of_vector(t, r, vector, c, 0), old + factor * batch,
                   factor * bound + 4 * 0x1p-53L * sizes),
           "far off: running statistics", t);
    free(given);
}

/* Must a channel have been summed again? Some square overflows, or all nearly vanish, wherever
 * among its elements the pivot lies. */
static bool needs_another(const tensor *t, const moments *x) {
    const bool is_double = t->dtype == BN_F64;
    const wide overflows = is_double ? 0x1p514L : 0x1p66L;
    const wide vanishes = is_double ? 0x1p-480L : 0x1p-56L,
               visible = is_double ? 0x1p-530L : 0x1p-70L;
    return x->finite && (x->range > overflows || (x->range < vanishes && x->range > visible));
}

void check_training(const tensor *t, const bn_problem *p, const plain *r, long summed_again) {
    const arithmetic is = arithmetic_of(t);
    const ptrdiff_t count = per_channel(t);
    for (ptrdiff_t c = 0; c < t->channels; c++) {
        const wide mean = r->sums[c], squares = r->sums[t->channels + c];
        const moments x = moments_of(t, r, c);
        if (!x.finite) {
            demand(!isfinite(mean) && !isfinite(squares), "statistics of what is not finite", t);
            continue;
        }
        demand(summed_again || !needs_another(t, &x), "not summed again", t);
        const wide variance = x.squares / count, of_mean = MEAN * is.u * sqrtl(variance),
                   of_variance = VARIANCE * is.u * variance,
                   mean_bound = of_mean + UNDERFLOW * is.smallest,
                   variance_bound = of_variance + UNDERFLOW * is.smallest;
        demand(is_near(BN_F64, mean, x.mean, mean_bound), "far off: the mean", t);
        demand(is_near(BN_F64, squares, x.squares, variance_bound * count), "far off: squares", t);
        demand(is_near(t->vector[BN_MEAN].dtype, of_vector(t, r, BN_MEAN, c, x.mean), x.mean,
                       mean_bound),
               "far off: mean", t);
        demand(is_near(t->vector[BN_VARIANCE].dtype, of_vector(t, r, BN_VARIANCE, c, variance),
                       variance, variance_bound),
               "far off: variance", t);
        check_running(t, p, r, BN_RUNNING_MEAN, c, x.mean, mean_bound);
        if (count > p->correction)
            check_running(t, p, r, BN_RUNNING_VARIANCE, c, x.squares / (count - p->correction),
                          variance_bound * count / (count - p->correction));
        check_dst(t, p, r, c, x.mean, variance);
    }
}
