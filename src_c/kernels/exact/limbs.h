/* limbs.h: what kernels make and take of exact sums: terms, and the limbs they join. exact.c uses
 * the kernels; state.h says why there are so many limbs. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "base/bn.h"

enum {
    BN_LIMB_BITS = 40,
    f32_MOST_LIMBS = 17, /* of any format of sums in this arithmetic */
    f64_MOST_LIMBS = 108,
};
#define BN_LIMB_MASK         (((int64_t)1 << BN_LIMB_BITS) - 1)
#define BN_NAN_FLAG          ((int64_t)1)
#define BN_INF_FLAG          ((int64_t)1 << 20)
#define BN_NEGATIVE_INF_FLAG ((int64_t)1 << 40)

static inline double bn_power_of_2(int exponent) { /* of a normal double */
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Exact sums (exact.c) take a portion of a box at a time: rows of up to BN_PORTION_COLUMNS columns,
 * or elements of one channel, whose terms may join any column.
 *
 * Where terms go: the second sum's lie `next_sum` numbers past the first sum's, and each row lies
 * `pitch` numbers past the one before. A row that ends within a unit is padded with zeros to the
 * end of that unit. A sum of squares has no terms of its own: the first sum's terms are squared
 * later. */
enum { BN_PORTION_COLUMNS = 64 };

/* Numbers of at most 2^top that are multiples of 2^grain. */
typedef struct {
    int top, grain;
} bn_range;
#define BN_NO_RANGE ((bn_range){-(1 << 20), 1 << 20})

typedef struct {
    void *number;
    int64_t next_sum, pitch;
    bn_range seen[BN_SUMS]; /* the terms' */
} bn_terms;

/* Sums as limbs (state.h): an array (limbs and flags, BN_SUMS, columns) whose rows lie `pitch`
 * limbs apart. Only rows `lowest_touched` to `end_touched` - 1 are set, and flags only if
 * `flagged`. */
typedef struct {
    int64_t *limb;
    int64_t columns, pitch;
    int limbs, lowest; /* the format's */
    int lowest_touched, end_touched;
    bool flagged;
    bool one_column; /* does it take all lanes? else each lane has a column */
    bool squares;    /* does the second sum add squares of the first one's terms? */
    int64_t terms;   /* the most that joined a column since limbs were carried */
} bn_accumulator;

/* What exact sums need of an arithmetic type, for any formula. */
typedef struct {
    /* Add rows of terms to an accumulator's columns from `column` on. */
    void (*deposit_terms)(bn_accumulator *a, int64_t column, int64_t columns, const bn_terms *terms,
                          int64_t rows);
    /* Carry from each limb to the next. */
    void (*carry)(bn_accumulator *a);
} bn_exact_kernels;
