/* plan.h: what a call computes, and how its work is divided: all that is decided before its first
 * task. bn_call_of decides what, bn_plan_of how; from then on, nobody changes either. See plan.c.
 */
#pragma once

#include "base/sizes.h"
#include "call/order.h"
#include "operations/operation.h"
#include "threads/schedule.h"

/* What a call computes. */
typedef struct {
    const bn_problem *problem;
    const bn_operation *operation;
    const bn_parts *parts; /* the sums that it gives, or takes; NULL: neither */
    const bn_dtype_kernels *kernels;
    bool runs[PASSES]; /* without SUM, it takes sums, or needs none */
    bool at_once;      /* does a task write what it has summed? Then results depend on no sum */
    bool exact;        /* are the sums exact? */
    double count;      /* elements per channel, over all parts */
    formula formula[PASSES];
    int sum_planes;                      /* of sums, and of their compensations if there are any */
    int coef_planes;                     /* of coefficients that the operation's formulas take */
    int64_t element_bytes, number_bytes; /* a number has the arithmetic type */
    unsigned strided;                    /* operands, as bits */
    bn_sum_order order;                  /* if there are elements */
} bn_call;

bn_call bn_call_of(const bn_problem *p, const bn_operation *operation, bool reduces,
                   const bn_parts *parts);

/* How the work is cut: a tile of channels is finished in slices. */
typedef struct {
    /* Is each run done by itself, with one coefficient per channel? SUM then has another kernel,
     * with equal bits: of short runs, a chunk is one group (plan.c); long runs have no other. */
    bool by_runs[PASSES];
    bool joint;                       /* does each write task span all tiles? */
    int64_t channels, slice_channels; /* of a tile, of a slice */
    /* Of a row of the widest tile or, if written jointly, of all channels; 0 if by runs. */
    int64_t columns[PASSES];
    int64_t rows_per_write; /* of a joint task */
} bn_tiles;

/* How tasks walk strided operands. */
typedef struct {
    unsigned operands[PASSES]; /* of which tasks copy their parts, as bits */
    bool fetch;                /* do these come from memory? */
    bool spaced;               /* else: is each position of a row summed by itself, where it is? */
    int64_t range_positions, ranges; /* else, to write: so many adjacent positions at a time, and so
                                        many of these ranges equally far apart */
    int64_t elements, part, slots;   /* of a copy; at most written at a time; how many are kept */
} bn_copies;

/* How rows are written. */
typedef struct {
    bool nontemporal; /* do stores bypass the cache? */
    bool abreast;     /* are four rows written at a time? */
    bool dense;       /* else: are the rows that a task writes contiguous, and written as one? */
    int64_t ring;     /* numbers per coefficient in the ring; 0: no ring */
} bn_writing;

/* How a call is computed. All of it is for speed. */
typedef struct {
    const bn_call *call;
    bn_tiles tiles;
    bn_copies copies;
    bn_writing writing;
    bn_schedule schedule; /* no tasks if there are no elements */
} bn_plan;

/* A plan for at most so many threads. */
bn_plan bn_plan_of(const bn_call *call, int threads);

/* The positions of a row as exact sums read it: as few as fill a portion's. */
static inline int64_t exact_positions(const bn_call *call) {
    return at_most(call->order.row_positions,
                   ceil_div(BN_PORTION_COLUMNS, call->problem->channels));
}

/* Columns of a row of n channels. */
static inline int64_t columns_of(const bn_call *call, int64_t n) {
    return n * call->order.row_positions * call->problem->run;
}
