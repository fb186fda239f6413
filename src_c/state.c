/* state.c: what is done with a state as a whole. See state.h. */
#include "state.h"

#include <math.h>
#include <string.h>

#include "channel.h"
#include "kernels/kernels.h"
#include "sizes.h"

/* ---- canonical ----------------------------------------------------------- */

static int64_t one_of_each(int64_t flags) {
    const int64_t field = BN_INF_FLAG - 1;
    return (flags & field ? BN_NAN_FLAG : 0) | (flags >> 20 & field ? BN_INF_FLAG : 0) |
           (flags >> 40 & field ? BN_NEGATIVE_INF_FLAG : 0);
}

void bn_carry(int64_t *state, int digits, uint64_t touched, int64_t channels) {
    const int64_t n = BN_SUMS * channels;
    const int first = touched ? __builtin_ctzll(touched) : digits;
    if (first < digits)
        bn_kernels_current()->carry(state + first * n, n, digits - first, n);
}

void bn_make_canonical(int64_t *state, int digits, int64_t channels) {
    const int64_t n = BN_SUMS * channels;
    bn_carry(state, digits, ~0ull, channels);
    int64_t *flags = bn_state_row(state, channels, digits + BN_FLAGS);
    for (int64_t i = 0; i < n; i++)
        flags[i] = one_of_each(flags[i]);
    int64_t *parts = bn_state_row(state, channels, digits + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++)
        parts[c] = parts[c] != 0;
}

/* ---- count and stamp ------------------------------------------------------- */

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Changes whenever a state means something else. */
enum { FORMAT = 1 };

/* Odd, so that no count but 0 times it is 0. */
static uint64_t hash_of(double mean, uint64_t what) {
    const double canonical = isnan(mean) ? (double)NAN : mean + 0.0; /* one 0, one NaN */
    uint64_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    return mixed(bits ^ what) | 1;
}

/* Channels whose hashes are computed at once. */
enum { HASHES = 64 };

/* Of the mean as far as terms depend on it: of gradients' sums its low part is taken into account
 * later. */
static void hashes_of(const bn_problem *p, bn_kind_of_state kind, int64_t first, int64_t n,
                      uint64_t hash[HASHES]) {
    const uint64_t what = mixed((uint64_t)FORMAT << 16 | (uint64_t)kind << 8 | (uint64_t)p->dtype);
    const bool in_floats = kind == BN_OF_MOMENTS && bn_digits(p->dtype) == f32_DIGITS;
    double mean[HASHES] = {0};
    if (p->vector[BN_MEAN].data)
        vector_read(&p->vector[BN_MEAN], first, n, mean);
    for (int64_t i = 0; i < n; i++)
        hash[i] = hash_of(in_floats ? (double)(float)mean[i] : mean[i], what);
}

void bn_sign_state(int64_t *state, const bn_problem *p, bn_kind_of_state kind, int64_t count) {
    const int digits = bn_digits(p->dtype);
    const int64_t channels = p->channel.size;
    int64_t *counts = bn_state_row(state, channels, digits + BN_COUNT_AND_STAMP);
    int64_t *parts = bn_state_row(state, channels, digits + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c += HASHES) {
        uint64_t hash[HASHES];
        const int64_t n = at_most(HASHES, channels - c);
        hashes_of(p, kind, c, n, hash);
        for (int64_t i = 0; i < n; i++) {
            counts[c + i] = count;
            counts[channels + c + i] = (int64_t)((uint64_t)count * hash[i]);
            parts[c + i] = 1;
        }
    }
}

int64_t bn_stranger(const int64_t *state, const bn_problem *p, bn_kind_of_state kind) {
    const int64_t channels = p->channel.size;
    const int64_t *counts = state + (bn_digits(p->dtype) + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
    for (int64_t c = 0; c < channels; c += HASHES) {
        uint64_t hash[HASHES];
        const int64_t n = at_most(HASHES, channels - c);
        hashes_of(p, kind, c, n, hash);
        for (int64_t i = 0; i < n; i++)
            if ((uint64_t)counts[c + i] * hash[i] != (uint64_t)counts[channels + c + i])
                return c + i;
    }
    return -1;
}

/* ---- rounding ---------------------------------------------------------------- */

/* The magnitude of canonical digits; returns whether they are negative. */
static bool magnitude_of(int64_t *digit, int digits) {
    if (digit[digits - 1] >= 0)
        return false;
    int64_t borrow = 0;
    for (int k = 0; k < digits; k++) {
        const int64_t d = -digit[k] - borrow;
        const bool last = k == digits - 1;
        digit[k] = last ? d : d & BN_DIGIT_MASK;
        borrow = last ? 0 : -(d >> BN_DIGIT_BITS);
    }
    return true;
}

/* x * 2^exponent. */
static double scaled(double x, int exponent) {
    if (exponent < -1022 || exponent > 1023)
        return ldexp(x, exponent);
    return x * bn_power_of_2(exponent);
}

/* To nearest even, from integers: rounding digits one by one would depend on the parts. The leading
 * 64 bits, of which the last says whether anything is behind them, have 11 more than a double's: a
 * second rounding of those is that of the whole. A subnormal result has fewer bits than 53, and is
 * exact: no term is finer. */
static double rounded(const int64_t *digit, int digits, int lowest) {
    int top = digits - 1;
    while (top > 0 && digit[top] == 0)
        top--;
    uint64_t leading = (uint64_t)digit[top];
    if (leading == 0)
        return 0;
    int have = 64 - __builtin_clzll(leading), k = top - 1, exponent = lowest + BN_DIGIT_BITS * top;
    bool more = false;
    for (; k >= 0 && have < 64; k--) {
        const int taken = (int)(64 - have < BN_DIGIT_BITS ? 64 - have : BN_DIGIT_BITS);
        const int left = BN_DIGIT_BITS - taken;
        leading = leading << taken | (uint64_t)digit[k] >> left;
        more |= digit[k] & (((int64_t)1 << left) - 1);
        have += taken;
        exponent -= taken;
    }
    for (; k >= 0; k--)
        more |= digit[k] != 0;
    const int drop = have > 53 ? have - 53 : 0;
    const uint64_t kept = leading >> drop, rest = leading & (((uint64_t)1 << drop) - 1);
    const uint64_t half = drop ? (uint64_t)1 << (drop - 1) : 0;
    const bool up = drop && (rest > half || (rest == half && (more || (kept & 1))));
    return scaled((double)(kept + up), exponent + drop);
}

static double rounded_sum(int64_t *digit, int digits, int lowest, int64_t flags) {
    const int64_t each = one_of_each(flags);
    const bool inf = each & BN_INF_FLAG, negative_inf = each & BN_NEGATIVE_INF_FLAG;
    if ((each & BN_NAN_FLAG) || (inf && negative_inf))
        return fabs((double)NAN);
    if (inf || negative_inf)
        return inf ? (double)INFINITY : -(double)INFINITY;
    const bool negative = magnitude_of(digit, digits);
    const double sum = rounded(digit, digits, lowest);
    return negative ? -sum : sum;
}

/* Columns of a state at a time. */
enum { BLOCK = 32 };

/* Is a row of canonical digits but the sign, or with a mask of 0 nothing at all, in all columns? */
static bool is_sign(const int64_t *row, const int64_t *sign, int64_t mask) {
    int64_t other = 0;
    for (int j = 0; j < BLOCK; j++)
        other |= row[j] ^ (sign[j] & mask);
    return other == 0;
}

/* Sums of a block, from the digits `from` to `to`: all others are zeros, or signs. */
static void round_block(const int64_t (*digit)[BLOCK], int from, int to, int digits,
                        const int64_t *flags, int64_t n, double *sums) {
    const int lowest = bn_lowest(digits) + BN_DIGIT_BITS * from;
    for (int64_t j = 0; j < n; j++) {
        int64_t own[f64_DIGITS + 1];
        int count = 0;
        for (int k = from; k <= to; k++)
            own[count++] = digit[k][j];
        if (to + 1 < digits)
            own[count++] = digit[digits - 1][j] >> 63;
        sums[j] = rounded_sum(own, count, lowest, flags[j]);
    }
}

void bn_round_state(const int64_t *state, int digits, int64_t channels, double *sums) {
    const int64_t n = BN_SUMS * channels, *flags = state + (digits + BN_FLAGS) * n;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t digit[f64_DIGITS][BLOCK] = {{0}};
        const int64_t here = at_most(BLOCK, n - i);
        for (int k = 0; k < digits; k++)
            memcpy(digit[k], state + k * n + i, (size_t)here * sizeof *state);
        bn_kernels_current()->carry(digit[0], BLOCK, digits, BLOCK);
        int from = 0, to = digits - 1;
        int64_t sign[BLOCK];
        for (int j = 0; j < BLOCK; j++)
            sign[j] = digit[to][j] >> 63;
        while (from < to && is_sign(digit[from], sign, 0))
            from++;
        if (is_sign(digit[to], sign, -1))
            for (to--; to > from && is_sign(digit[to], sign, BN_DIGIT_MASK); to--)
                ;
        round_block((const int64_t (*)[BLOCK])digit, from, to, digits, flags + i, here, sums + i);
    }
}
