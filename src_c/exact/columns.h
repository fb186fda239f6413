/* columns.h: a few columns of a state, and the sum that each is. See state.c. */
#pragma once

#include "exact/state.h"

/* Their limbs, canonical, and flags. */
enum { COLUMNS = 4 }; /* few: they lie on the caller's stack */
typedef struct {
    int64_t limb[f64_MOST_LIMBS][COLUMNS], flags[COLUMNS];
    const bn_format *format;
    int from, end; /* limbs `from` to end - 1 and the highest determine the sums */
} bn_columns;

/* Take n columns from `first` on, and carry. Return a channel whose limbs are out of bounds for its
 * parts and terms (carries may then overflow), or which has flags but no terms; or -1. Carrying
 * rounds the highest limb of each part down. So in a sum of n parts, the lower bound of the highest
 * limb is n lower. */
int64_t bn_take_columns(const int64_t *state, const bn_format *format, int64_t channels,
                        int64_t first, int64_t n, bn_columns *b);

/* A column's sum: the limbs of its magnitude, the lowest first. */
typedef struct {
    int64_t limb[f64_MOST_LIMBS];
    int limbs, lowest;
    bool negative;
    double special; /* NaN, Inf, -Inf; or 0 */
} bn_magnitude;

void bn_take_magnitude(const bn_columns *b, int64_t j, bn_magnitude *m);

/* x * 2^exponent, rounded at most once: x comes from limbs, so its own exponent is small, and the
 * first product is exact unless the result overflows. */
static inline double scaled(double x, int exponent) {
    const int all = exponent < -2000 ? -2000 : exponent > 2000 ? 2000 : exponent, first = all / 2;
    return x * bn_power_of_2(first) * bn_power_of_2(all - first);
}
