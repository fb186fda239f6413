/* state.c: functions of a whole state. See state.h. */
#include "state.h"

#include <math.h>
#include <string.h>

#include "channel.h"
#include "sizes.h"

/* ---- canonical ----------------------------------------------------------- */

static int64_t one_of_each(int64_t flags) {
    const int64_t field = BN_INF_FLAG - 1;
    return (flags & field ? BN_NAN_FLAG : 0) | (flags >> 20 & field ? BN_INF_FLAG : 0) |
           (flags >> 40 & field ? BN_NEGATIVE_INF_FLAG : 0);
}

/* Some columns of a state: their limbs, canonical, and flags. */
enum { BLOCK = 16 }; /* few: they lie on the caller's stack */
typedef struct {
    int64_t limb[f64_LIMBS][BLOCK], flags[BLOCK];
    int limbs, from, to; /* limbs below `from` are zeros, limbs above `to` only repeat the sign */
} columns;

/* The largest value of the highest limb in a sum of `terms` terms below 2^128, or 2^1024. */
static int64_t most_of_highest(int limbs, int64_t terms) {
    return limbs == f64_LIMBS ? terms >> 22 : terms << 8;
}

/* Take n columns from `first` on, and carry. Return a channel whose limbs no sum of its parts and
 * terms can have, since carries may overflow there; or -1. A part's limbs are canonical, so its
 * highest limb is rounded down. */
static int64_t take_columns(const int64_t *state, int limbs, int64_t channels, int64_t first,
                            int64_t n, columns *b) {
    const int64_t row = BN_SUMS * channels, *end = state + limbs * row;
    uint64_t carried[BLOCK] = {0}, beyond[BLOCK] = {0}; /* sign bit: is a limb out of bounds? */
    int64_t zeros[BLOCK] = {0}, most[BLOCK] = {0}, highest[BLOCK] = {0}, lowest[BLOCK] = {0};
    if (n < BLOCK)
        memset(b, 0, sizeof *b);
    b->limbs = limbs;
    for (int64_t j = 0; j < n; j++) {
        const int64_t channel = (first + j) % channels;
        const int64_t terms = end[BN_COUNT_AND_STAMP * row + channel];
        const int64_t parts = terms ? end[BN_PARTS_ADDED * row + channel] : 0;
        b->flags[j] = end[BN_FLAGS * row + first + j];
        most[j] = parts * BN_LIMB_MASK;
        highest[j] = most_of_highest(limbs, terms);
        lowest[j] = -highest[j] - parts;
    }
    for (int k = 0; k < limbs; k++) {
        memcpy(b->limb[k], state + k * row + first, (size_t)n * sizeof *state);
        const bool last = k == limbs - 1;
        const int64_t *least = last ? lowest : zeros, *greatest = last ? highest : most;
        for (int j = 0; j < BLOCK; j++) {
            const uint64_t given = (uint64_t)b->limb[k][j], d = given + carried[j];
            beyond[j] |= (given - (uint64_t)least[j]) | ((uint64_t)greatest[j] - given);
            carried[j] = d >> BN_LIMB_BITS;
            b->limb[k][j] = (int64_t)(last ? d : d & BN_LIMB_MASK);
        }
    }
    for (int64_t j = 0; j < n; j++)
        if (beyond[j] >> 63)
            return (first + j) % channels;
    return -1;
}

int64_t bn_make_canonical(int64_t *state, int limbs, int64_t channels) {
    const int64_t n = BN_SUMS * channels;
    for (int64_t i = 0; i < n; i += BLOCK) {
        columns b;
        const int64_t here = at_most(BLOCK, n - i);
        const int64_t wrong = take_columns(state, limbs, channels, i, here, &b);
        if (wrong >= 0)
            return wrong;
        for (int k = 0; k < limbs; k++)
            memcpy(state + k * n + i, b.limb[k], (size_t)here * sizeof *state);
        for (int64_t j = 0; j < here; j++)
            state[(limbs + BN_FLAGS) * n + i + j] = one_of_each(b.flags[j]);
    }
    int64_t *parts = bn_state_row(state, channels, limbs + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++)
        parts[c] = parts[c] != 0;
    return -1;
}

/* ---- count and stamp ------------------------------------------------------- */

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Changes whenever a state's meaning does. */
enum { FORMAT = 1 };

/* Hash only the part of the mean that matters. Moments in floats depend on the mean as a float; for
 * gradients all of it matters, because its low part is used later. The hash is odd, so that count *
 * hash is 0 only if the count is 0. */
static uint64_t hash_of(const bn_problem *p, bn_kind_of_state kind, int64_t channel) {
    const uint64_t what = mixed((uint64_t)FORMAT << 16 | (uint64_t)kind << 8 | (uint64_t)p->dtype);
    const bool in_floats = kind == BN_OF_MOMENTS && bn_limbs(p->dtype) == f32_LIMBS;
    double mean = 0;
    uint64_t bits;
    if (p->vector[BN_MEAN].data)
        vector_read(&p->vector[BN_MEAN], channel, 1, &mean);
    mean = in_floats ? (double)(float)mean : mean;
    mean = isnan(mean) ? (double)NAN : mean + 0.0; /* one kind of 0, one kind of NaN */
    memcpy(&bits, &mean, sizeof bits);
    return mixed(bits ^ what) | 1;
}

void bn_stamp_state(int64_t *state, const bn_problem *p, bn_kind_of_state kind, int64_t count) {
    const int limbs = bn_limbs(p->dtype);
    const int64_t channels = p->channel.size;
    int64_t *counts = bn_state_row(state, channels, limbs + BN_COUNT_AND_STAMP);
    int64_t *parts = bn_state_row(state, channels, limbs + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++) {
        counts[c] = count;
        counts[channels + c] = (int64_t)((uint64_t)count * hash_of(p, kind, c));
        parts[c] = 1;
    }
}

int64_t bn_state_mismatch(const int64_t *state, const bn_problem *p, bn_kind_of_state kind) {
    const int64_t channels = p->channel.size;
    const int64_t *counts = state + (bn_limbs(p->dtype) + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
    for (int64_t c = 0; c < channels; c++)
        if ((uint64_t)counts[c] * hash_of(p, kind, c) != (uint64_t)counts[channels + c])
            return c;
    return -1;
}

/* ---- rounding ---------------------------------------------------------------- */

/* Replace canonical limbs by their magnitude; return whether they were negative. */
static bool magnitude_of(int64_t *limb, int limbs) {
    if (limb[limbs - 1] >= 0)
        return false;
    int64_t borrow = 0;
    for (int k = 0; k < limbs; k++) {
        const int64_t d = -limb[k] - borrow;
        const bool last = k == limbs - 1;
        limb[k] = last ? d : d & BN_LIMB_MASK;
        borrow = last ? 0 : -(d >> BN_LIMB_BITS);
    }
    return true;
}

/* x * 2^exponent, rounded at most once: x comes from limbs, so its exponent is far from the ends of
 * the range. */
static double scaled(double x, int exponent) {
    const int all = exponent < -2000 ? -2000 : exponent > 2000 ? 2000 : exponent, half = all / 2;
    return x * bn_power_of_2(half) * bn_power_of_2(all - half);
}

/* A column's sum: the limbs of its magnitude, the lowest first. */
typedef struct {
    int64_t limb[f64_LIMBS + 1];
    int limbs, lowest;
    bool negative;
    double special; /* NaN, Inf, -Inf; or 0 */
} magnitude;

/* Round to nearest even, from the whole integer: rounding limb by limb would depend on the parts.
 * The last of the 64 leading bits also says whether any bit after them is set. These 64 bits are 11
 * more than a double has, so rounding them gives the same as rounding the whole sum. A subnormal
 * result has fewer than 53 bits and is exact, because no term is finer. */
static double rounded(const magnitude *m) {
    const int64_t *limb = m->limb;
    int top = m->limbs - 1;
    while (top > 0 && limb[top] == 0)
        top--;
    uint64_t leading = (uint64_t)limb[top], more = 0;
    if (m->special != 0 || leading == 0)
        return m->special;
    int have = 64 - __builtin_clzll(leading), k = top - 1,
        exponent = m->lowest + BN_LIMB_BITS * top;
    for (; k >= 0 && have < 64; k--) {
        const int taken = (int)at_most(64 - have, BN_LIMB_BITS), left = BN_LIMB_BITS - taken;
        leading = leading << taken | (uint64_t)limb[k] >> left;
        more |= (uint64_t)limb[k] & (((uint64_t)1 << left) - 1);
        have += taken;
        exponent -= taken;
    }
    for (; k >= 0; k--)
        more |= (uint64_t)limb[k];
    const double sum = scaled((double)(leading | (more != 0)), exponent);
    return m->negative ? -sum : sum;
}

static double special_of(int64_t flags) {
    const int64_t each = one_of_each(flags);
    const bool inf = each & BN_INF_FLAG, negative_inf = each & BN_NEGATIVE_INF_FLAG;
    if ((each & BN_NAN_FLAG) || (inf && negative_inf))
        return fabs((double)NAN);
    return inf ? (double)INFINITY : negative_inf ? -(double)INFINITY : 0;
}

static void take_magnitude(const columns *b, int64_t j, magnitude *m) {
    m->limbs = 0;
    for (int k = b->from; k <= b->to; k++)
        m->limb[m->limbs++] = b->limb[k][j];
    if (b->to + 1 < b->limbs)
        m->limb[m->limbs++] = b->limb[b->limbs - 1][j] >> 63;
    m->lowest = bn_lowest(b->limbs) + BN_LIMB_BITS * b->from;
    m->negative = magnitude_of(m->limb, m->limbs);
    m->special = special_of(b->flags[j]);
}

/* In all columns, does a row of canonical limbs hold only bits of the sign or, with a mask of 0,
 * only zeros? */
static bool is_sign(const int64_t *row, const int64_t *sign, int64_t mask) {
    int64_t other = 0;
    for (int j = 0; j < BLOCK; j++)
        other |= row[j] ^ (sign[j] & mask);
    return other == 0;
}

/* Find the limbs, from `from` to `to`, that determine all sums. */
static void find_range(columns *b) {
    int from = 0, to = b->limbs - 1;
    int64_t sign[BLOCK];
    for (int j = 0; j < BLOCK; j++)
        sign[j] = b->limb[to][j] >> 63;
    while (from < to && is_sign(b->limb[from], sign, 0))
        from++;
    if (is_sign(b->limb[to], sign, -1))
        for (to--; to > from && is_sign(b->limb[to], sign, BN_LIMB_MASK); to--)
            ;
    b->from = from;
    b->to = to;
}

/* Take n columns from `first` on, at most BLOCK, and hand over their magnitudes one at a time: a
 * block of magnitudes is too much for a small stack. */
typedef void use_magnitude(void *to, int64_t j, const magnitude *m);

static int64_t take_magnitudes(const int64_t *state, int limbs, int64_t channels, int64_t first,
                               int64_t n, use_magnitude *use, void *to) {
    columns b;
    magnitude m;
    const int64_t wrong = take_columns(state, limbs, channels, first, n, &b);
    find_range(&b);
    for (int64_t j = 0; wrong < 0 && j < n; j++) {
        take_magnitude(&b, j, &m);
        use(to, j, &m);
    }
    return wrong;
}

static void put_rounded(void *sums, int64_t j, const magnitude *m) {
    ((double *)sums)[j] = rounded(m);
}

int64_t bn_round_state(const int64_t *state, int limbs, int64_t channels, double *sums) {
    int64_t wrong = -1;
    for (int64_t i = 0; wrong < 0 && i < BN_SUMS * channels; i += BLOCK)
        wrong = take_magnitudes(state, limbs, channels, i, at_most(BLOCK, BN_SUMS * channels - i),
                                put_rounded, sums + i);
    return wrong;
}

/* ---- statistics ---------------------------------------------------------------- */

/* value * 2^exponent: sums that no double holds. The value is below 2^93; or NaN, or infinite. */
typedef struct {
    pair value;
    int exponent;
} wide;

/* From the four leading limbs, which have at least 121 bits. */
static wide wide_of(const magnitude *m) {
    int top = m->limbs - 1;
    while (top > 0 && m->limb[top] == 0)
        top--;
    if (m->special != 0)
        return (wide){pair_of(m->special, 0), 0};
    double limb[4] = {0};
    for (int k = 0; k < 4 && k <= top; k++)
        limb[k] = (double)(m->negative ? -m->limb[top - k] : m->limb[top - k]);
    const pair two = pair_sum(0x1p40 * limb[0], limb[1]);
    const double more = 0x1p-40 * limb[2] + 0x1p-80 * limb[3];
    return (wide){pair_sum(two.high, two.low + more), m->lowest + BN_LIMB_BITS * (top - 1)};
}

/* Statistics from the sums s of x - p and q of its square. If a mean was given, p is that mean as
 * kernels took it. If the sums cannot tell the given mean from their own, it is kept: it is right
 * to more places. */
static void set_stats(wide s, wide q, double count, const double *given, bool in_doubles,
                      double *mean, double *squares) {
    const double p = !given ? 0 : in_doubles ? *given : (double)(float)*given;
    const pair quotient = pair_over(s.value, count);
    const pair off = pair_sum(quotient.high, quotient.low); /* the high part is both, rounded */
    const double deviation = sqrt(scaled(q.value.high / count, q.exponent));
    /* What rounding the differences may change in the mean, even if squares of deviations
     * vanish. */
    const double lost =
        in_doubles ? 0x1p-52 * (deviation + 0x1p-537) : 0x1p-23 * (deviation + 0x1p-75);
    *mean = p + scaled(off.high, s.exponent);
    if (given && (!isfinite(*given) || fabs(*mean - *given) <= lost))
        *mean = isnan(*given) ? fabs((double)NAN) : *given;

    const int apart = 2 * s.exponent - q.exponent;
    const pair common = pair_times(off, s.value);
    const pair rest = pair_sum(q.value.high, -scaled(common.high, apart));
    double left = rest.high + (rest.low + (q.value.low - scaled(common.low, apart)));
    if (!isfinite(q.value.high))
        left = q.value.high - s.value.high * s.value.high;
    *squares = isnan(left) ? fabs((double)NAN) : left > 0 ? scaled(left, q.exponent) : 0;
}

static void put_wide(void *to, int64_t j, const magnitude *m) {
    ((wide *)to)[j] = wide_of(m);
}

int64_t bn_state_stats(const int64_t *state, int limbs, int64_t channels, const double *mean,
                       double *stats) {
    const int64_t *count = state + (limbs + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
    for (int64_t i = 0; i < channels; i += BLOCK) {
        const int64_t n = at_most(BLOCK, channels - i);
        wide s[BLOCK], q[BLOCK];
        int64_t wrong = take_magnitudes(state, limbs, channels, i, n, put_wide, s);
        if (wrong < 0)
            wrong = take_magnitudes(state, limbs, channels, channels + i, n, put_wide, q);
        if (wrong >= 0)
            return wrong;
        for (int64_t j = 0; j < n; j++) {
            double *own = stats + i + j;
            own[0] = own[channels] = 0;
            if (count[i + j])
                set_stats(s[j], q[j], (double)count[i + j], mean ? mean + i + j : NULL,
                          limbs == f64_LIMBS, own, own + channels);
        }
    }
    return -1;
}
