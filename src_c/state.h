/* state.h: an exact sum as integers that merge by addition.
 *
 * A state is int64, (rows, BN_SUMS, channels). Its first rows are limbs, the lowest first. Limb k
 * counts units of 2^(lowest + 40 k), so all limbs together are one integer, the sum. A limb may be
 * any int64 while states are added. Canonical limbs lie in [0, 2^40), except for the highest one,
 * which has the sign. After the limbs:
 *
 *     flags            terms that no limb holds, a field of 20 bits each: NaN, Inf, -Inf. A part
 *                      has 1 in a field if it has any such term.
 *     count, stamp     the number of terms; and this number times a hash of what terms depend on
 *                      besides the data, modulo 2^64. Totals agree only if all hashes do.
 *     parts, 0         the number of parts that were added, at most BN_MOST_PARTS
 *
 * With fewer than 2^BN_LOG2_TERMS terms, the sum of float32 terms is a multiple of 2^-149 below
 * 2^(128 + 43), and that of float64 terms is a multiple of 2^-1074 below 2^(1024 + 43): 8 and 54
 * limbs hold them. Moments are sums of elements and of their squares, whose exponents are twice as
 * large: 17 and 108 limbs. The lowest limb's unit is a power of 2^20, so that a sum's square lines
 * up with a sum of squares, digit by digit (state.c). The smallest square is a single bit. Below
 * it, there is room for 52 bits, because all 53 of a double become limbs, even zeros
 * (limbs.inc). Flags limit the number of parts: a field holds 2^20 - 1, and one more would be a
 * flag of the next field. (A canonical limb is below 2^40, so 2^23 of them fit 63 bits.)
 */
#ifndef BN_STATE_H
#define BN_STATE_H

#include <stdint.h>
#include <string.h>

#include "bn.h"

enum {
    BN_LIMB_BITS = 40,
    f32_LIMBS = 8,
    f32_SQUARE_LIMBS = 17,
    f64_LIMBS = 54,
    f64_SQUARE_LIMBS = 108,
    BN_MOST_PARTS = (1 << 20) - 1,
    BN_LOG2_TERMS = 43,         /* a sum of parts has fewer than 2^43 */
    BN_LOG2_TERMS_OF_PART = 39, /* of a part: see exact.c */
    /* After the limbs. */
    BN_FLAGS = 0,
    BN_COUNT_AND_STAMP,
    BN_PARTS_ADDED,
    BN_MORE_ROWS,
};
#define BN_LIMB_MASK         (((int64_t)1 << BN_LIMB_BITS) - 1)
#define BN_NAN_FLAG          ((int64_t)1)
#define BN_INF_FLAG          ((int64_t)1 << 20)
#define BN_NEGATIVE_INF_FLAG ((int64_t)1 << 40)

/* Which two sums a state has. */
typedef enum { BN_OF_GRADIENTS, BN_OF_MOMENTS } bn_kind_of_state;

/* The number of limbs. */
static inline int bn_limbs(bn_dtype dtype, bn_kind_of_state kind) {
    const bool in_doubles = bn_dtype_table[dtype].number_bytes == sizeof(double);
    if (kind == BN_OF_GRADIENTS)
        return in_doubles ? f64_LIMBS : f32_LIMBS;
    return in_doubles ? f64_SQUARE_LIMBS : f32_SQUARE_LIMBS;
}

/* The exponents of the lowest limb's unit and of the bound on every term. */
static inline int bn_lowest(int limbs) {
    return limbs == f32_LIMBS          ? -160
           : limbs == f32_SQUARE_LIMBS ? -360
           : limbs == f64_LIMBS        ? -1080
                                       : -2200;
}
static inline int bn_beyond(int limbs) {
    return limbs == f32_LIMBS          ? 128
           : limbs == f32_SQUARE_LIMBS ? 256
           : limbs == f64_LIMBS        ? 1024
                                       : 2048;
}
static inline double bn_power_of_2(int exponent) { /* of a normal double */
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}
static inline int64_t *bn_state_row(int64_t *state, int64_t channels, int row) {
    return state + row * BN_SUMS * channels;
}

/* The functions below carry first. A made-up state may have limbs beyond what its counts of parts
 * and terms allow: these functions return the first channel that has such limbs, or -1. */

/* Carry, and set each flag to 0 or 1; the state then counts as one part. */
int64_t bn_make_canonical(int64_t *state, int limbs, int64_t channels);

/* Each sum, rounded to a double once. */
int64_t bn_round_state(const int64_t *state, int limbs, int64_t channels, double *sums);

/* (BN_SUMS, channels): the mean, and the sum of squares about it; zeros if there are no terms. For
 * a state of moments; also returns a channel whose sum of squares is impossible for its sum. */
int64_t bn_state_stats(const int64_t *state, int limbs, int64_t channels, double *stats);

/* Stamp a part: its count of terms, and the hash of what they depend on. */
void bn_stamp_state(int64_t *state, const bn_problem *p, bn_kind_of_state kind, int64_t count);

/* The first channel in which some part was not summed as this kind, with the problem's dtype and
 * mean (if absent, zeros); or -1. */
int64_t bn_state_mismatch(const int64_t *state, const bn_problem *p, bn_kind_of_state kind);

#endif
