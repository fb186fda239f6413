/* statistics.h: mean and variance from a state of moments. See statistics.c. */
#ifndef BN_STATISTICS_H
#define BN_STATISTICS_H

#include <stdint.h>

/* From a state of moments, set `stats` of shape (BN_SUMS, channels): the mean, and the sum of
 * squares about it over bn_power_above(terms); zeros if there are no terms. Carry first; return a
 * channel whose limbs are impossible, as bn_round_state does, or whose sum of squares is impossible
 * for its sum, or -1. */
int64_t bn_state_stats(const int64_t *state, int limbs, int64_t channels, double *stats);

#endif
