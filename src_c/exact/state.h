/* state.h: an exact sum as integers that merge by addition.
 *
 * A state is an int64 array of shape (rows, BN_SUMS, channels). Its first rows are limbs, the
 * lowest first. Limb k counts units of 2^(lowest + 40 k), so all limbs together are one integer,
 * the sum. A limb may be any int64 while states are added. Canonical limbs lie in [0, 2^40), except
 * for the highest one, which has the sign. After the limbs come:
 *
 *     flags            three fields of 20 bits for terms that no limb holds: NaN, Inf, -Inf. A part
 *                      has 1 in a field if it has a term of this kind.
 *     count, stamp     the number n of terms; and n * hash, modulo 2^64. The hash is of the format,
 *                      the dtype, the kind of sums and, for gradients, the mean. A total's stamp is
 *                      again n * hash if all parts with terms have this hash, else almost never.
 *     parts, 0         the number of parts that were added, at most BN_MOST_PARTS
 *
 * A sum has fewer than 2^BN_LOG2_TERMS terms. Float32 terms add up to a multiple of 2^-149 below
 * 2^(128 + 43), which 8 limbs hold. Float64 terms add up to a multiple of 2^-1074 below
 * 2^(1024 + 43), which 54 limbs hold. Moments are sums of elements and of their squares. Squares
 * have exponents twice as large, so moments take 17 and 108 limbs. The lowest limb's unit is a
 * power of 2^20, so that the 20-bit digits of a squared sum and of a sum of squares line up
 * (statistics.c). For moments, that unit lies at least 52 bits below the smallest square, because
 * all 53 bits of a double go to limbs, zero bits too (limbs.inc). Flags limit the number of parts:
 * a field counts up to 2^20 - 1. Limbs alone would allow 2^23 parts: the sum of 2^23 canonical
 * limbs, each below 2^40, fits 63 bits. */
#pragma once

#include "kernels/exact/limbs.h"

enum {
    BN_MOST_PARTS = (1 << 20) - 1,
    BN_LOG2_TERMS = 43,         /* a sum of parts has fewer than 2^43 */
    BN_LOG2_TERMS_OF_PART = 39, /* of a part: see exact.c */
    /* After the limbs. */
    BN_FLAGS = 0,
    BN_COUNT_AND_STAMP,
    BN_PARTS_ADDED,
    BN_MORE_ROWS,
};

/* Which two sums a state has. */
typedef enum { BN_OF_GRADIENTS, BN_OF_MOMENTS, BN_KINDS_OF_STATE } bn_kind_of_state;

/* The format of a state. Its lowest limb counts units of 2^lowest; every term is below 2^beyond. */
typedef struct {
    bn_dtype dtype;
    bn_kind_of_state kind;
    int limbs, lowest, beyond;
} bn_format;

extern const bn_format bn_formats[BN_DTYPES][BN_KINDS_OF_STATE];

static inline int64_t *bn_state_row(int64_t *state, int64_t channels, int row) {
    return state + row * BN_SUMS * channels;
}

/* The next three functions carry first. They return a channel whose limbs are
 * impossible for its counts of parts and terms, or which has flags but no terms (in a made-up
 * state), or -1. */

/* Carry, and set each flag to 0 or 1; the state then counts as one part. */
int64_t bn_make_canonical(int64_t *state, const bn_format *format, int64_t channels);

/* Each sum, rounded to a double once. */
int64_t bn_round_state(const int64_t *state, const bn_format *format, int64_t channels,
                       double *sums);

/* From a state of moments, set `stats` of shape (BN_SUMS, channels): the mean, and the sum of
 * squares about it over bn_power_above(terms); zeros if there are no terms. Also returns a channel
 * whose sum of squares is impossible for its sum. */
int64_t bn_state_stats(const int64_t *state, const bn_format *format, int64_t channels,
                       double *stats);

/* Set a part's count, stamp and number of parts (1). */
void bn_stamp_state(int64_t *state, const bn_format *format, const bn_problem *p, int64_t count);

/* The first channel whose stamp does not match the format and, for gradients, the problem's mean;
 * -1 if there is none. */
int64_t bn_state_mismatch(const int64_t *state, const bn_format *format, const bn_problem *p);
