/* state.c: a state's canonical form, its stamp, and its sums rounded. See state.h. */
#include "exact/columns.h"

#include <math.h>

#include "base/channel.h"
#include "base/sizes.h"

/* Terms are computed in f32 or f64; state.h says how many limbs hold their sums. */
#define f32_FORMATS(code)                                                                          \
    {{code, BN_OF_GRADIENTS, 8, -160, 128}, {code, BN_OF_MOMENTS, f32_MOST_LIMBS, -360, 256}}
#define f64_FORMATS(code)                                                                          \
    {{code, BN_OF_GRADIENTS, 54, -1080, 1024}, {code, BN_OF_MOMENTS, f64_MOST_LIMBS, -2200, 2048}}
#define FORMATS(code, c_name, name, computed, ...) [code] = computed##_FORMATS(code),
const bn_format bn_formats[BN_DTYPES][BN_KINDS_OF_STATE] = {BN_DTYPE_TABLE(FORMATS)};

/* ---- canonical ----------------------------------------------------------- */

static int64_t one_of_each(int64_t flags) {
    const int64_t field = BN_INF_FLAG - 1;
    return (flags & field ? BN_NAN_FLAG : 0) | (flags >> 20 & field ? BN_INF_FLAG : 0) |
           (flags >> 40 & field ? BN_NEGATIVE_INF_FLAG : 0);
}

/* In all columns, does a row of canonical limbs equal sign & mask? */
static bool is_sign(const bn_columns *b, int k, int64_t mask) {
    int64_t other = 0;
    for (int j = 0; j < COLUMNS; j++)
        other |= b->limb[k][j] ^ (b->limb[b->format->limbs - 1][j] >> 63 & mask);
    return other == 0;
}

static void find_range(bn_columns *b) {
    b->from = 0;
    b->end = b->format->limbs - 1;
    while (b->from < b->end && is_sign(b, b->from, 0))
        b->from++;
    while (b->end > b->from + 1 && is_sign(b, b->format->limbs - 1, -1) &&
           is_sign(b, b->end - 1, BN_LIMB_MASK))
        b->end--;
}

int64_t bn_take_columns(const int64_t *state, const bn_format *format, int64_t channels,
                        int64_t first, int64_t n, bn_columns *b) {
    const int limbs = format->limbs;
    const int shift = format->beyond - (format->lowest + BN_LIMB_BITS * (limbs - 1));
    const int64_t row = BN_SUMS * channels, *end = state + limbs * row;
    uint64_t carried[COLUMNS] = {0}, beyond[COLUMNS] = {0}; /* sign bit: is a limb out of bounds? */
    int64_t zeros[COLUMNS] = {0}, most[COLUMNS] = {0}, highest[COLUMNS] = {0},
            lowest[COLUMNS] = {0};
    if (n < COLUMNS)
        memset(b, 0, sizeof *b);
    b->format = format;
    for (int64_t j = 0; j < n; j++) {
        const int64_t channel = (first + j) % channels;
        const int64_t terms = end[BN_COUNT_AND_STAMP * row + channel];
        const int64_t parts = terms ? end[BN_PARTS_ADDED * row + channel] : 0;
        b->flags[j] = end[BN_FLAGS * row + first + j];
        beyond[j] = terms == 0 && b->flags[j] ? (uint64_t)1 << 63 : 0;
        most[j] = parts * BN_LIMB_MASK;
        highest[j] = shift < 0 ? terms >> -shift : terms << shift;
        lowest[j] = -highest[j] - parts;
    }
    for (int k = 0; k < limbs; k++) {
        memcpy(b->limb[k], state + k * row + first, (size_t)n * sizeof *state);
        const bool last = k == limbs - 1;
        const int64_t *least = last ? lowest : zeros, *greatest = last ? highest : most;
        for (int j = 0; j < COLUMNS; j++) {
            const uint64_t limb = (uint64_t)b->limb[k][j], d = limb + carried[j];
            beyond[j] |= (limb - (uint64_t)least[j]) | ((uint64_t)greatest[j] - limb);
            carried[j] = d >> BN_LIMB_BITS;
            b->limb[k][j] = (int64_t)(last ? d : d & BN_LIMB_MASK);
        }
    }
    find_range(b);
    for (int64_t j = 0; j < n; j++)
        if (beyond[j] >> 63)
            return (first + j) % channels;
    return -1;
}

int64_t bn_make_canonical(int64_t *state, const bn_format *format, int64_t channels) {
    const int64_t n = BN_SUMS * channels;
    for (int64_t i = 0; i < n; i += COLUMNS) {
        bn_columns b;
        const int64_t here = at_most(COLUMNS, n - i);
        const int64_t wrong = bn_take_columns(state, format, channels, i, here, &b);
        if (wrong >= 0)
            return wrong;
        for (int k = 0; k < format->limbs; k++)
            memcpy(state + k * n + i, b.limb[k], (size_t)here * sizeof *state);
        for (int64_t j = 0; j < here; j++)
            state[(format->limbs + BN_FLAGS) * n + i + j] = one_of_each(b.flags[j]);
    }
    int64_t *parts = bn_state_row(state, channels, format->limbs + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++) {
        parts[c] = parts[c] != 0;
        parts[channels + c] = 0;
    }
    return -1;
}

/* ---- count and stamp ------------------------------------------------------- */

/* Changes whenever a state's meaning does. */
enum { VERSION = 2 };

/* For gradients, all bits of the mean are hashed, because its low part (coefs.h) is used later. The
 * hash is odd, so that count * hash is 0 only if the count is 0. */
static uint64_t hash_of(const bn_format *format, const bn_problem *p, int64_t channel) {
    const uint64_t kind = format->kind, dtype = format->dtype;
    const uint64_t what = mixed((uint64_t)VERSION << 16 | kind << 8 | dtype);
    double mean = 0;
    uint64_t bits;
    if (format->kind == BN_OF_GRADIENTS)
        vector_read(&p->vector[BN_MEAN], channel, 1, &mean);
    mean = isnan(mean) ? (double)NAN : mean + 0.0; /* one kind of 0, one kind of NaN */
    memcpy(&bits, &mean, sizeof bits);
    return mixed(bits ^ what) | 1;
}

void bn_stamp_state(int64_t *state, const bn_format *format, const bn_problem *p, int64_t count) {
    const int64_t channels = p->channels;
    int64_t *counts = bn_state_row(state, channels, format->limbs + BN_COUNT_AND_STAMP);
    int64_t *parts = bn_state_row(state, channels, format->limbs + BN_PARTS_ADDED);
    for (int64_t c = 0; c < channels; c++) {
        counts[c] = count;
        counts[channels + c] = (int64_t)((uint64_t)count * hash_of(format, p, c));
        parts[c] = 1;
    }
}

int64_t bn_state_mismatch(const int64_t *state, const bn_format *format, const bn_problem *p) {
    const int64_t channels = p->channels;
    const int64_t *counts = state + (format->limbs + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
    for (int64_t c = 0; c < channels; c++)
        if ((uint64_t)counts[c] * hash_of(format, p, c) != (uint64_t)counts[channels + c])
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

/* Drop the last `bits` bits of an integer, at most 64, rounding to nearest even. */
static uint64_t without_last(uint64_t number, int bits) {
    const uint64_t tie = (uint64_t)1 << (bits - 1), rest = number & (2 * tie - 1);
    const uint64_t kept = bits < 64 ? number >> bits : 0;
    return kept + (rest > tie || (rest == tie && (kept & 1)));
}

/* Round to nearest even, from the whole integer: limb by limb, the sum would be rounded more than
 * once. The last of the 64 leading bits is also set if any later bit is. These 64 bits are 11 more
 * than a double has, so rounding them gives the same as rounding the whole sum. */
static double rounded(const bn_magnitude *m) {
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

void bn_take_magnitude(const bn_columns *b, int64_t j, bn_magnitude *m) {
    m->limbs = 0;
    for (int k = b->from; k < b->end; k++)
        m->limb[m->limbs++] = b->limb[k][j];
    /* If limbs are left out, the highest one is the sign. */
    m->limb[m->limbs++] = b->limb[b->format->limbs - 1][j];
    m->lowest = b->format->lowest + BN_LIMB_BITS * b->from;
    m->negative = magnitude_of(m->limb, m->limbs);
    m->special = special_of(b->flags[j]);
}

int64_t bn_round_state(const int64_t *state, const bn_format *format, int64_t channels,
                       double *sums) {
    for (int64_t i = 0; i < BN_SUMS * channels; i += COLUMNS) {
        const int64_t n = at_most(COLUMNS, BN_SUMS * channels - i);
        bn_columns b;
        const int64_t wrong = bn_take_columns(state, format, channels, i, n, &b);
        if (wrong >= 0)
            return wrong;
        for (int64_t j = 0; j < n; j++) {
            bn_magnitude m;
            bn_take_magnitude(&b, j, &m);
            sums[i + j] = rounded(&m);
        }
    }
    return -1;
}
