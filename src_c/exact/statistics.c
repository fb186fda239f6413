/* statistics.c: mean and variance from a state of moments, as if computed without rounding. */
#include <math.h>

#include "base/channel.h"
#include "base/sizes.h"
#include "exact/columns.h"

/* Long integers in digits of half a limb: an int64 has room for the sum of all digits' products. */
enum {
    DIGIT_BITS = BN_LIMB_BITS / 2,
    DIGITS_OF_COUNT = 3,
    DIGITS_OF_SUM = 2 * (f64_MOST_LIMBS + 2),
    DIGITS = 2 * DIGITS_OF_SUM + 8,
};
#define DIGIT_MASK (((int64_t)1 << DIGIT_BITS) - 1)

typedef struct {
    int32_t digit[DIGITS_OF_SUM];
    int n, lowest; /* the exponent of the lowest digit's unit */
} digits;

/* A limb has two digits; the highest limb may have four. */
static void take_digits(digits *d, const bn_magnitude *m) {
    d->n = 0;
    d->lowest = m->lowest;
    for (int k = 0; k < m->limbs; k++)
        for (int i = 0; i < (k + 1 < m->limbs ? 2 : 4); i++)
            d->digit[d->n++] = (int32_t)(m->limb[k] >> DIGIT_BITS * i & DIGIT_MASK);
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
 * variance is 0, as that of one element is, and below 0 only if no data has these sums. Digits of q
 * and s^2 line up, because their units are powers of 2^DIGIT_BITS (state.h). */
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
static bool set_stats(const bn_magnitude *s, const bn_magnitude *q, int64_t count, double *mean,
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
    return !q->negative && (count == 1 ? spread.value.high == 0 : spread.value.high >= 0);
}

int64_t bn_state_stats(const int64_t *state, const bn_format *format, int64_t channels,
                       double *stats) {
    const int64_t *count = state + (format->limbs + BN_COUNT_AND_STAMP) * BN_SUMS * channels;
    for (int64_t i = 0; i < channels; i += COLUMNS) {
        const int64_t n = at_most(COLUMNS, channels - i);
        bn_columns of_s, of_q;
        int64_t wrong = bn_take_columns(state, format, channels, i, n, &of_s);
        if (wrong < 0)
            wrong = bn_take_columns(state, format, channels, channels + i, n, &of_q);
        if (wrong >= 0)
            return wrong;
        for (int64_t j = 0; j < n; j++) {
            double *own = stats + i + j;
            bn_magnitude s, q;
            own[0] = own[channels] = 0;
            if (count[i + j] == 0)
                continue;
            bn_take_magnitude(&of_s, j, &s);
            bn_take_magnitude(&of_q, j, &q);
            if (!set_stats(&s, &q, count[i + j], own, own + channels))
                return i + j;
        }
    }
    return -1;
}
