/* kernels.h: what a kernel is given, and the table of kernels that each instruction-set level
 * has. A kernel carries one pass of one formula over a block to sum, or a span to write, and its
 * repeats; it knows nothing of shapes. The gate's addresses are as in bits_at (vec.h).
 */
#ifndef BN_KERNELS_H
#define BN_KERNELS_H

#include "bn.h"
#include "kernels/formulas.h"

/* BN_ROWS: the leaves of the tree of loops.inc. BN_GROUP: repeats whose trees are added up before
 * they join the sums. BN_STRETCH_BYTES: two of the widest registers, at every level. All decide
 * bits. */
enum { BN_ROWS = 4, BN_GROUP = 8, BN_STRETCH_BYTES = 128 };

/* What is summed: up to BN_ROWS rows of the same number of columns, `pitch` bytes apart: `repeats`
 * times in all, each `step` bytes behind the one before. The elements of a row are contiguous, and
 * a kernel touches no byte outside of them. */
typedef struct {
    char *data[BN_OPERANDS];
    int64_t pitch[BN_OPERANDS];
    int64_t step[BN_OPERANDS];
    int64_t repeats, cols;
    int rows;
} bn_block;

/* What is summed of runs: `channels` channels, `apart` bytes from one to the next, each with these
 * blocks. Their rows are parts of a channel's runs and have any number of columns. Those of long
 * runs are `folded` to the columns of a stretch; short runs keep theirs to the end. */
enum { BN_PARTS = 2 };

typedef struct {
    bn_block part[BN_PARTS];
    int64_t apart[BN_OPERANDS];
    int64_t channels;
    int parts;
    bool folded;
} bn_runs;

/* What is written: `cols` contiguous elements, `repeats` times in all, each `step` bytes behind
 * the one before; with `strands`, BN_STRANDS of all that, `pitch` bytes apart. Element i belongs to
 * column first + i, which goes round where coefficients do. A kernel touches no byte outside. With
 * `nontemporal`, whole registers bypass the cache; with `fetches` as well, where coefficients are
 * ONE_FOR_ALL, what lies `ahead` bytes behind what is read is brought into it meanwhile. */
enum { BN_STRANDS = 4 };

typedef struct {
    char *data[BN_OPERANDS];
    int64_t step[BN_OPERANDS];
    int64_t apart[BN_OPERANDS];
    int64_t pitch[BN_OPERANDS];
    int64_t ahead[BN_OPERANDS];
    int64_t repeats, channels, cols, first;
    bool strands, nontemporal, fetches;
    bool relu; /* of what normalizes: does ReLU follow? */
} bn_span;

/* Numbers of a ring behind its period: those of a step, four units of 32. */
enum { BN_RING_PAD = 128 };

/* Coefficients: planes of `stride` numbers each, in the arithmetic type (double for BN_F64,
 * float for the others). What sums takes them by columns. What writes takes any layout, but not by
 * columns where the dtype is paired. */
typedef enum {
    BY_COLUMNS,
    AS_RING,     /* round after `period` columns, an even number */
    ONE_FOR_ALL, /* the first number of each plane */
} bn_layout;

typedef struct {
    const void *column;
    int64_t stride, period;
    bn_layout layout;
} bn_coefs;

/* Sums by columns, in planes of `stride` doubles each: `count` planes of sums, which are those of
 * the formula, and, behind them, as many of compensations, what rounding took from them (BN_F64
 * alone: the other types sum floats in doubles and lose nothing that matters). `group` is a
 * kernel's own: as many planes of sums in numbers, `stride` apart, with room for two units more
 * than the columns. BN_PAD: columns behind the last that kernels may add zeros to: more than those
 * of a unit, 32 at most (a register of 64 bytes, elements of two). */
enum { BN_PAD = 64 };

typedef struct {
    double *plane;
    int64_t stride;
    void *group;
    int count;
} bn_sums;

/* Exact sums, see exact.c: of a strip of up to BN_STRIP columns at a time, and of no more terms
 * than fill BN_TERMS_BYTES for each of the BN_SUMS sums.
 *
 * A block's `step` says how far behind its data lies what should be fetched meanwhile.
 *
 * Where terms go: `plane` numbers from those of one sum to the next, `pitch` from one row to the
 * next. Behind a row that fills no unit are zeros, of less than a unit. */
enum { BN_STRIP = 64, BN_TERMS_BYTES = 16384 };

typedef struct {
    void *number;
    int64_t plane, pitch;
} bn_terms;

/* Magnitudes but for 0: below 2^top, and 2^low or more. */
typedef struct {
    int top, low;
} bn_range;
#define BN_NO_RANGE ((bn_range){-(1 << 20), 1 << 20})

/* What was added up as numbers: terms in `range`, at most `adds` of them to a lane. */
typedef struct {
    bn_range range[BN_SUMS];
    int64_t adds;
} bn_added;
#define BN_NOTHING_ADDED ((bn_added){{BN_NO_RANGE, BN_NO_RANGE}, 0})

/* A block's sums, to which those of others can be added: BN_PLANES of BN_STRIP columns at most.
 * They are right if bn_fits says so. */
enum { BN_PLANES = 5 };

typedef struct {
    double *plane;
    int64_t columns;
    bn_added added;
} bn_strip;

/* What was summed of a panel of columns: by strips, numbers that hold it without having been
 * rounded; and what those could not hold, as limbs: (limbs and flags, BN_SUMS, columns), or,
 * where all columns are of one channel, (limbs and flags, BN_SUMS), `pitch` from one row of them
 * to the next. Only rows that are `touched` have been set. */
enum { BN_PANEL = 16 * BN_STRIP };

typedef struct {
    double *plane; /* BN_PLANES of `columns` */
    bn_added added[BN_PANEL / BN_STRIP];
    int64_t *limb;
    int64_t columns, pitch;
    uint64_t touched;
    bool one_channel;
    bool squares; /* is the second sum one of squares? */
} bn_accumulator;

/* What exact sums need of an arithmetic type, whatever is summed. */
typedef struct {
    int part_bits, square_part_bits; /* of what a term is cut into */
    int largest_top;                 /* of finite terms */

    /* Add rows of terms to an accumulator's columns from `column` on, as limbs. */
    void (*deposit_terms)(bn_accumulator *a, int64_t column, int64_t columns, const bn_terms *terms,
                          int64_t rows);
    /* Add a strip's sums to an accumulator's numbers, from a column on. */
    void (*add_strip)(bn_accumulator *a, int64_t column, const bn_strip *strip);
    /* Move the numbers of the strip from a column on to limbs; or all numbers, and carry. */
    void (*flush)(bn_accumulator *a, int64_t column);
    void (*flush_all)(bn_accumulator *a);
    /* Move an accumulator of one channel to an empty column of another. */
    void (*close_channel)(bn_accumulator *a, bn_accumulator *to, int64_t column);
    /* Carry from each of `rows` rows of n limbs to the next, `pitch` numbers behind it. */
    void (*carry)(int64_t *limb, int64_t pitch, int rows, int64_t n);
} bn_exact_kernels;

static inline int bn_log2(int64_t n) { /* rounded up; n >= 0 */
    return n > 1 ? 64 - __builtin_clzll((uint64_t)n - 1) : 0;
}

static inline bn_range bn_wider(bn_range a, bn_range b) {
    return (bn_range){a.top > b.top ? a.top : b.top, a.low < b.low ? a.low : b.low};
}
static inline bn_added bn_both(bn_added a, bn_added b) {
    return (bn_added){{bn_wider(a.range[0], b.range[0]), bn_wider(a.range[1], b.range[1])},
                      a.adds + b.adds};
}

/* Are sums of these terms exact, once `lanes` lanes are added to one? */
static inline bool bn_fits(const bn_exact_kernels *exact, bool squares, bn_added added,
                           int64_t lanes) {
    enum { DOUBLE_BITS = 53, LARGEST = 1022 };
    bool all = true;
    for (int s = 0; s < BN_SUMS; s++) {
        const int bits = squares && s == 1 ? exact->square_part_bits : exact->part_bits;
        const int top = added.range[s].top + bn_log2(added.adds * lanes);
        all = all && added.range[s].top <= exact->largest_top && top <= LARGEST &&
              top - added.range[s].low + bits - 1 <= DOUBLE_BITS;
    }
    return all;
}

typedef void bn_terms_kernel(const bn_block *block, const bn_coefs *coefs, const bn_terms *to);
typedef void bn_strip_kernel(const bn_block *block, const bn_coefs *coefs, bn_strip *to);
typedef void bn_sum_kernel(const bn_block *block, const bn_coefs *coefs, const bn_sums *sums);
typedef void bn_sum_runs_kernel(const bn_runs *runs, const bn_coefs *coefs, const bn_sums *sums);
typedef void bn_write_kernel(const bn_span *span, const bn_coefs *coefs);

typedef struct {
    bn_sum_kernel *sum[FORMULAS];

    /* Long runs, with coefficients ONE_FOR_ALL: add a block of one channel to a stretch's sums. Or
     * sum all of several channels: theirs are the columns of `sums`, which are set. */
    bn_sum_kernel *fold[FORMULAS];
    bn_sum_runs_kernel *sum_runs[FORMULAS];

    bn_write_kernel *write[FORMULAS];

    /* The terms of a block without repeats, coefficients by columns or ONE_FOR_ALL; and their
     * sums. */
    bn_terms_kernel *terms[FORMULAS];
    bn_strip_kernel *add_up[FORMULAS];
    const bn_exact_kernels *exact;

    /* The ReLU mask of n contiguous elements. */
    void (*relu_mask)(const char *from, int64_t n, uint64_t *to);

    /* Add n columns of sums to n others. */
    void (*add)(const bn_sums *to, const bn_sums *from, int64_t n);

    /* Sum n neighbouring columns to one, the first of `to`. */
    void (*sum_columns)(const bn_sums *sums, int64_t n, const bn_sums *to);

    /* Lay out one number per channel by columns: each channel's `each` times in a row, and from
     * the first channel again after the last, until there are n. */
    void (*expand)(const void *channel, int64_t channels, int64_t each, int64_t n, void *column);

    /* The same as a ring, in which what starts at any column can be read without a break: n is
     * even, the period and BN_RING_PAD or more. A paired dtype has even columns first and, from n /
     * 2 on, odd ones, since so its elements come out of memory. */
    void (*ring)(const void *channel, int64_t channels, int64_t each, int64_t n, void *column);
    bool paired;
    int lanes; /* numbers in a register: a paired dtype's terms, and an accumulator's columns, are
                  this many even elements, then as many odd ones, and so on */
} bn_dtype_kernels;

typedef struct {
    const char *name;
    const bn_dtype_kernels *dtype[BN_DTYPES];
} bn_kernels;

/* ---- dispatch ---------------------------------------------------------- */

int bn_isa_count(void);             /* levels this CPU can run, lowest first */
const char *bn_isa_name(int level); /* 0 <= level < bn_isa_count() */
int bn_isa_current(void);
void bn_isa_use(int level);
const bn_kernels *bn_kernels_of(int level);
const bn_kernels *bn_kernels_current(void);

#endif
