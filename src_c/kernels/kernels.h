/* kernels.h: what a kernel is given, and the table of kernels that each instruction-set level has.
 * A kernel runs one pass of one formula over a box; docs/design.md has the words. It knows no
 * shapes, scalars, threads or plans. It may touch:
 *
 *     of operands      the bytes of the box's elements, and eight bytes more of the gate; it may
 *                      prefetch any address
 *     of coefficients  the box's columns; of a ring, BN_RING_PAD numbers past its period
 *     of sums          the box's columns, BN_PAD more that stay 0, and `group` as scratch */
#pragma once

#include "base/bn.h"
#include "base/sizes.h"
#include "kernels/exact/limbs.h"
#include "kernels/formulas.h"

/* How a kernel adds. BN_ROWS: the rows of a block. BN_GROUP: the blocks (or stretches) of a group.
 * BN_STRETCH_BYTES: at every level, the size of two of the widest registers. SUBSUMS: where
 * neighboring columns are added up, column i joins subsum i % SUBSUMS, so that several chains of
 * additions run side by side; then a tree adds up the subsums. */
enum { BN_ROWS = 4, BN_GROUP = 8, BN_STRETCH_BYTES = 128, SUBSUMS = 8 };

/* Where a box begins in each operand; of the gate, `data` is its first byte and `bit` the number of
 * a bit, counted from there. */
typedef struct {
    char *data[BN_OPERANDS];
    int64_t bit;
} bn_place;

/* What a kernel sums or writes: `rows` rows of `cols` contiguous elements; this `repeats` times,
 * for each of `channels` channels. Distances are in bytes; the gate's are in bits.
 *
 * To sum: a block is one repeat of up to BN_ROWS rows. If the last blocks have fewer rows, or
 * shorter ones, they are a second box, which follows the first; it has the same distances. A long
 * run is `folded` to the columns of a stretch. In other runs, each element keeps a column of its
 * own until all rows are added, and neither box has more than BN_GROUP repeats. For exact sums, a
 * box has any number of rows and no repeats; a kernel prefetches what lies `prefetch_bytes`
 * further.
 *
 * To write: there is one row or, if coefficients are a ring, there may be BN_ABREAST,
 * which are written side by side, so that coefficients are read once. Element i of a row belongs to
 * column i; if coefficients are a ring, columns wrap around. With `nontemporal`, whole registers of
 * a single row bypass the cache; a kernel then prefetches what lies `prefetch_bytes` further of
 * what it reads, unless that is 0. */
enum { BN_ABREAST = 4, BN_BOXES = 2 };

typedef struct {
    bn_place at;
    int64_t next_row[BN_OPERANDS];
    int64_t next_repeat[BN_OPERANDS];
    int64_t next_channel[BN_OPERANDS];
    int64_t repeats, channels, cols;
    int rows;
    int64_t prefetch_bytes[BN_OPERANDS];
    bool folded, nontemporal;
} bn_box;

/* The distance from an element to the next: of the gate, a bit. */
static inline int64_t bn_next_element(int operand, int64_t element_bytes) {
    return operand == BN_GATE ? 1 : element_bytes;
}

/* Move a place `times` times a distance of each operand. Addresses are computed as integers,
 * because operands that a pass does not touch may be NULL. */
static inline void bn_move(bn_place *at, const int64_t by[BN_OPERANDS], int64_t times) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (o != BN_GATE)
            at->data[o] = (char *)((uintptr_t)at->data[o] + (uintptr_t)(times * by[o]));
    at->bit += times * by[BN_GATE];
}

static inline void bn_move_elements(bn_place *at, int64_t elements, int64_t element_bytes) {
    int64_t by[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        by[o] = bn_next_element(o, element_bytes);
    bn_move(at, by, elements);
}

/* Numbers of a ring past its period: enough for a step of spans.inc, at most four units of 32. */
enum { BN_RING_PAD = 128 };

/* Coefficients: for each, a plane of `stride` numbers in the arithmetic type (double for BN_F64,
 * else float). To sum, a plane has a number for each column; to write, these are a ring, which
 * wraps around after `period` columns, an even number. Or, for runs of one channel, a plane has
 * `one_per_channel`. */
typedef struct {
    const void *column;
    int64_t stride, period;
    bool one_per_channel;
} bn_coefs;

/* Sums by columns, in planes of `stride` doubles: `n` planes, one for each sum of the formula. For
 * BN_F64 only, `n` planes of compensations follow; they hold what rounding took from the sums. (The
 * other types sum floats in doubles and lose nothing that matters.) `group` is scratch for a
 * kernel: `n` planes in the arithmetic type, `stride` numbers apart, with room for a unit more than
 * the columns. BN_PAD is more than a unit, which has at most 32 columns (2-byte elements in a
 * register of 64 bytes). */
enum { BN_PAD = 64 };

typedef struct {
    double *plane;
    int64_t stride;
    void *group;
    int n;
} bn_sums;

typedef void bn_terms_kernel(const bn_box *box, const bn_coefs *coefs, bn_terms *to);
typedef void bn_sum_kernel(const bn_box *box, int boxes, const bn_coefs *coefs,
                           const bn_sums *sums);
typedef void bn_write_kernel(const bn_box *box, const bn_coefs *coefs);

typedef struct {
    /* Add to the sums of columns; coefficients are by columns. */
    bn_sum_kernel *sum[FORMULAS][GATES];
    /* Set each channel's sums, one column of `sums`; coefficients are one per channel. */
    bn_sum_kernel *sum_runs[FORMULAS][GATES];

    bn_write_kernel *write[FORMULAS][GATES];

    /* Store a portion's terms, with coefficients by columns or one per channel. */
    bn_terms_kernel *terms[FORMULAS][GATES];
    const bn_exact_kernels *exact;

    /* The ReLU mask of n contiguous elements. */
    void (*relu_mask)(const char *from, int64_t n, uint64_t *to);

    /* Add n columns of sums to n others. */
    void (*add_sums)(const bn_sums *to, const bn_sums *from, int64_t n);

    /* Sum n neighboring columns to one, the first of `to`. */
    void (*sum_columns)(const bn_sums *sums, int64_t n, const bn_sums *to);

    /* Lay out one number per channel by columns: `each` copies of every channel's number. Begin
     * again with the first channel until there are n numbers. In a `ring`, a step can be read from
     * any column without a break: n is even, and at least the period plus BN_RING_PAD. Its even
     * columns come first for a `paired` dtype and, from n / 2 on, the odd ones, because elements
     * are loaded in that order. */
    void (*expand_coefs)(const void *channel, int64_t channels, int64_t each, int64_t n, bool ring,
                         void *column);
    bool paired;

    /* Numbers in a register. If exact sums go by columns, a paired dtype's terms are in the order
     * of packs: `lanes` even columns, `lanes` odd ones, and so on. The columns of its accumulator
     * have the same order. */
    int lanes;
} bn_dtype_kernels;
