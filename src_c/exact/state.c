/* state.c: functions of a whole state. See state.h. */
#include "exact/state.h"

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
enum { COLUMNS = 4 }; /* few: they lie on the caller's stack */
typedef struct {
    int64_t limb[f64_SQUARE_LIMBS][COLUMNS], flags[COLUMNS];
    int limbs, from, to; /* limbs below `from` are zeros, limbs above `to` only repeat the sign */
} columns;

/* The largest value of the highest limb in a sum of `terms` terms. */
static int64_t most_of_highest(int limbs, int64_t terms) {
    const int shift = bn_beyond(limbs) - (bn_lowest(limbs) + BN_LIMB_BITS * (limbs - 1));
    return shift < 0 ? terms >> -shift : terms << shift;
}

/* Take n columns from `first` on, and carry. Return a channel whose limbs are out of bounds for its
 * parts and terms (carries may then overflow), or which has flags but no terms; or -1. Carrying
 * rounds the highest limb of each part down. So in a sum of n parts, the lower bound of the highest
 * limb is n lower. */
static int64_t take_columns(const int64_t *state, int limbs, int64_t channels, int64_t first,
                            int64_t n, columns *b) {
    const int64_t row = BN_SUMS * channels, *end = state + limbs * row;
    uint64_t carried[COLUMNS] = {0}, beyond[COLUMNS] = {0}; /* sign bit: is a limb out of bounds? */
    int64_t zeros[COLUMNS] = {0}, most[COLUMNS] = {0}, highest[COLUMNS] = {0},
            lowest[COLUMNS] = {0};
    if (n < COLUMNS)
        memset(b, 0, sizeof *b);
    b->limbs = limbs;
    for (int64_t j = 0; j < n; j++) {
        const int64_t channel = (first + j) % channels;
        const int64_t terms = end[BN_COUNT_AND_STAMP * row + channel];
        const int64_t parts = terms ? end[BN_PARTS_ADDED * row + channel] : 0;
        b->flags[j] = end[BN_FLAGS * row + first + j];
        beyond[j] = terms == 0 && b->flags[j] ? (uint64_t)1 << 63 : 0;
        most[j] = parts * BN_LIMB_MASK;
        highest[j] = most_of_highest(limbs, terms);
        lowest[j] = -highest[j] - parts;
    }
    for (int k = 0; k < limbs; k++) {
        memcpy(b->limb[k], state + k * row + first, (size_t)n * sizeof *state);
        const bool last = k == limbs - 1;
        const int64_t *least = last ? lowest : zeros, *greatest = last ? highest : most;
        for (int j = 0; j < COLUMNS; j++) {
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
    for (int64_t i = 0; i < n; i += COLUMNS) {
        columns b;
        const int64_t here = at_most(COLUMNS, n - i);
        const int64_t wrong = take_columns(state, limbs, channels, i, here, &b);
        if (wrong >= 0)
            return wrong;
        for (int k = 0; k < limbs; k++)
            memcpy(state + k * n + i, b.limb[k], (size_t)here * sizeof *state);
        for (int64_t j = 0; j < here; j++)
            state[(limbs + BN_FLAGS) * n + i + j] = one_of_each(b.flags[j]);
    }
    int64_t *parts = bn_state_row(state, channels, limbs + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++) {
        parts[c] = parts[c] != 0;
        parts[channels + c] = 0;
    }
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
enum { FORMAT = 2 };

/* For gradients, all bits of the mean are hashed, because its low part (coefs.h) is used later. The
 * hash is odd, so that count * hash is 0 only if the count is 0. */
static uint64_t hash_of(const bn_problem *p, bn_kind_of_state kind, int64_t channel) {
    const uint64_t what = mixed((uint64_t)FORMAT << 16 | (uint64_t)kind << 8 | (uint64_t)p->dtype);
    double mean = 0;
    uint64_t bits;
    if (kind == BN_OF_GRADIENTS)
        vector_read(&p->vector[BN_MEAN], channel, 1, &mean);
    mean = isnan(mean) ? (double)NAN : mean + 0.0; /* one kind of 0, one kind of NaN */
    memcpy(&bits, &mean, sizeof bits);
    return mixed(bits ^ what) | 1;
}

void bn_stamp_state(int64_t *state, const bn_problem *p, bn_kind_of_state kind, int64_t count) {
    const int limbs = bn_limbs(p->dtype, kind);
    const int64_t channels = p->channels;
    int64_t *counts = bn_state_row(state, channels, limbs + BN_COUNT_AND_STAMP);
    int64_t *parts = bn_state_row(state, channels, limbs + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++) {
        counts[c] = count;
        counts[channels + c] = (int64_t)((uint64_t)count * hash_of(p, kind, c));
        parts[c] = 1;
    }
}

int64_t bn_state_mismatch(const int64_t *state, const bn_problem *p, bn_kind_of_state kind) {
    const int64_t channels = p->channels;
    const int limbs = bn_limbs(p->dtype, kind);
    const int64_t *counts = state + (limbs + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
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

/* x * 2^exponent, rounded at most once: x comes from limbs, so its own exponent is small, and the
 * first product is exact unless the result overflows. */
static double scaled(double x, int exponent) {
    const int all = exponent < -2000 ? -2000 : exponent > 2000 ? 2000 : exponent, half = all / 2;
    return x * bn_power_of_2(half) * bn_power_of_2(all - half);
}

/* A column's sum: the limbs of its magnitude, the lowest first. */
typedef struct {
    int64_t limb[f64_SQUARE_LIMBS + 1];
    int limbs, lowest;
    bool negative;
    double special; /* NaN, Inf, -Inf; or 0 */
} magnitude;

/* Drop the last `bits` bits of an integer, at most 64, rounding to nearest even. */
static uint64_t without_last(uint64_t number, int bits) {
    const uint64_t half = (uint64_t)1 << (bits - 1), rest = number & (2 * half - 1);
    const uint64_t kept = bits < 64 ? number >> bits : 0;
    return kept + (rest > half || (rest == half && (kept & 1)));
}

/* Round to nearest even, from the whole integer: limb by limb, the sum would be rounded more than
 * once. The last of the 64 leading bits is also set if any later bit is. These 64 bits are 11 more
 * than a double has, so rounding them gives the same as rounding the whole sum. */
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
    leading |= more != 0;
    enum { LEAST = -1074, DOUBLE_BITS = 53 };
    const int beyond = LEAST - exponent;            /* how many bits lie below 2^LEAST */
    if (beyond > at_least(have - DOUBLE_BITS, 0)) { /* if not, rounding to 53 bits drops them */
        leading = beyond <= 64 ? without_last(leading, beyond) : 0;
        exponent = LEAST;
    }
    const double sum = scaled((double)leading, exponent);
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

/* In all columns, does a row of canonical limbs equal sign & mask? */
static bool is_sign(const int64_t *row, const int64_t *sign, int64_t mask) {
    int64_t other = 0;
    for (int j = 0; j < COLUMNS; j++)
        other |= row[j] ^ (sign[j] & mask);
    return other == 0;
}

/* Find the limbs, from `from` to `to`, that determine all sums. */
static void find_range(columns *b) {
    int from = 0, to = b->limbs - 1;
    int64_t sign[COLUMNS];
    for (int j = 0; j < COLUMNS; j++)
        sign[j] = b->limb[to][j] >> 63;
    while (from < to && is_sign(b->limb[from], sign, 0))
        from++;
    if (is_sign(b->limb[to], sign, -1))
        for (to--; to > from && is_sign(b->limb[to], sign, BN_LIMB_MASK); to--)
            ;
    b->from = from;
    b->to = to;
}

int64_t bn_round_state(const int64_t *state, int limbs, int64_t channels, double *sums) {
    for (int64_t i = 0; i < BN_SUMS * channels; i += COLUMNS) {
        const int64_t n = at_most(COLUMNS, BN_SUMS * channels - i);
        columns b;
        const int64_t wrong = take_columns(state, limbs, channels, i, n, &b);
        if (wrong >= 0)
            return wrong;
        find_range(&b);
        for (int64_t j = 0; j < n; j++) {
            magnitude m;
            take_magnitude(&b, j, &m);
            sums[i + j] = rounded(&m);
        }
    }
    return -1;
}

/* ---- statistics ---------------------------------------------------------------- */

/* Long integers in digits of half a limb: an int64 has room for the sum of all digits' products. */
enum {
    DIGIT_BITS = BN_LIMB_BITS / 2,
    DIGITS_OF_COUNT = 3,
    DIGITS_OF_SUM = 2 * (f64_SQUARE_LIMBS + 2),
    DIGITS = 2 * DIGITS_OF_SUM + 8,
};
#define DIGIT_MASK (((int64_t)1 << DIGIT_BITS) - 1)

typedef struct {
    int32_t digit[DIGITS_OF_SUM];
    int n, lowest; /* the exponent of the lowest digit's unit */
} digits;

static void append(digits *d, int64_t number, int n) {
    for (int i = 0; i < n; i++, number >>= DIGIT_BITS)
        d->digit[d->n++] = (int32_t)(number & DIGIT_MASK);
}

/* A limb has two digits; the highest limb may have four. */
static void take_digits(digits *d, const magnitude *m) {
    d->n = 0;
    d->lowest = m->lowest;
    for (int k = 0; k < m->limbs; k++)
        append(d, m->limb[k], k + 1 < m->limbs ? 2 : 4);
    while (d->n > 0 && d->digit[d->n - 1] == 0)
        d->n--;
}

/* Add factor * a * 2^(DIGIT_BITS * at), without carrying. */
static void add_multiple(int64_t *to, int at, int64_t factor, const digits *a) {
    for (int i = 0; i < a->n; i++)
        to[at + i] += factor * a->digit[i];
}

/* value * 2^exponent, for sums that no double holds. The value is below 2^90. */
typedef struct {
    pair value;
    int exponent;
} scaled_pair;

/* An n-digit sum from its six leading digits, which have at least 101 bits. */
static scaled_pair scaled_pair_of(const double of[6], int n, int lowest) {
    const pair two = pair_sum(0x1p60 * of[0] + 0x1p40 * of[1], 0x1p20 * of[2] + of[3]);
    const double more = 0x1p-20 * of[4] + 0x1p-40 * of[5];
    return (scaled_pair){pair_sum(two.high, two.low + more), lowest + DIGIT_BITS * (n - 4)};
}

/* n * q - s^2, which is n^2 times the variance. As an integer it is exact. It is 0 only if the
 * variance is 0, and below 0 only if somebody made up the state. Digits of q and s^2 line up,
 * because their units are powers of 2^DIGIT_BITS (bn_lowest). */
static scaled_pair spread_of(const digits *s, const digits *q, int64_t n) {
    int64_t all[DIGITS];
    double leading[6];
    const int lowest = (int)at_most(2 * s->lowest, q->lowest);
    const int of_s = (2 * s->lowest - lowest) / DIGIT_BITS,
              of_q = (q->lowest - lowest) / DIGIT_BITS;
    int end = (int)at_least(of_s + 2 * s->n, of_q + q->n + DIGITS_OF_COUNT);
    memset(all, 0, (size_t)(end + 1) * sizeof *all);
    for (int i = 0; i < s->n; i++)
        add_multiple(all, of_s + i, -s->digit[i], s);
    for (int i = 0; i < DIGITS_OF_COUNT; i++, n >>= DIGIT_BITS)
        add_multiple(all, of_q + i, n & DIGIT_MASK, q);
    for (int i = 0; i < end; i++) {
        all[i + 1] += all[i] >> DIGIT_BITS;
        all[i] &= DIGIT_MASK;
    }
    while (end > 0 && all[end] == 0)
        end--;
    for (int i = 0; i < 6; i++)
        leading[i] = i <= end ? (double)all[end - i] : 0;
    return scaled_pair_of(leading, end + 1, lowest);
}

/* a / n, rounded. */
static double over(scaled_pair a, int64_t n) {
    const pair quotient = pair_over(a.value, (double)n);
    return scaled(pair_round(quotient), a.exponent);
}

/* Statistics from s, the sum of elements, and q, the sum of their squares. Return whether elements
 * can have these sums. */
static bool set_stats(const magnitude *s, const magnitude *q, int64_t count, double *mean,
                      double *squares) {
    digits of_s, of_q;
    double leading[6];
    *mean = s->special;
    *squares = fabs((double)NAN);
    if (s->special != 0 || q->special != 0)
        return s->special != 0 && q->special != 0;
    take_digits(&of_s, s);
    take_digits(&of_q, q);
    for (int i = 0; i < 6; i++)
        leading[i] = i < of_s.n ? of_s.digit[of_s.n - 1 - i] : 0;
    const double size = over(scaled_pair_of(leading, of_s.n, of_s.lowest), count);
    scaled_pair spread = spread_of(&of_s, &of_q, count);
    spread.exponent -= ilogb(bn_power_above((double)count));
    *mean = s->negative && size != 0 ? -size : size;
    *squares = over(spread, count);
    return !q->negative && spread.value.high >= 0;
}

int64_t bn_state_stats(const int64_t *state, int limbs, int64_t channels, double *stats) {
    const int64_t *count = state + (limbs + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
    for (int64_t i = 0; i < channels; i += COLUMNS) {
        const int64_t n = at_most(COLUMNS, channels - i);
        columns of_s, of_q;
        int64_t wrong = take_columns(state, limbs, channels, i, n, &of_s);
        if (wrong < 0)
            wrong = take_columns(state, limbs, channels, channels + i, n, &of_q);
        if (wrong >= 0)
            return wrong;
        find_range(&of_s);
        find_range(&of_q);
        for (int64_t j = 0; j < n; j++) {
            double *own = stats + i + j;
            magnitude s, q;
            own[0] = own[channels] = 0;
            if (count[i + j] == 0)
                continue;
            take_magnitude(&of_s, j, &s);
            take_magnitude(&of_q, j, &q);
            if (!set_stats(&s, &q, count[i + j], own, own + channels))
                return i + j;
        }
    }
    return -1;
}
