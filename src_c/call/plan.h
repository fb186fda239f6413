/* plan.h: all that is decided of a call before its first task. bn_plan_of makes a plan; from then
 * on, nobody changes it. See plan.c. */
#pragma once

#include "base/sizes.h"
#include "call/order.h"
#include "operations/operation.h"
#include "threads/schedule.h"

/* The passes that a call runs. To write only, it takes the caller's sums, or needs none. */
typedef enum { SUMS = 1 << SUM, RESULTS = 1 << WRITE, WHOLE = SUMS | RESULTS } bn_passes;

typedef struct {
    const bn_problem *problem;
    const bn_operation *operation;
    const bn_dtype_kernels *kernels;
    bn_passes passes;
    bool at_once; /* does a task write what it has summed? Then results depend on no sum */
    bool exact;   /* are the sums exact? */
    double count; /* elements per channel, over all parts */
    formula formula[PASSES];
    int sum_planes;                      /* of sums, and of their compensations if there are any */
    int coef_planes;                     /* of coefficients that the operation's formulas take */
    int64_t element_bytes, number_bytes; /* a number has the arithmetic type */
    unsigned strided;                    /* operands, as bits */
    bn_sum_order order;

    /* The rest is for speed. */
    bool nontemporal; /* do stores bypass the cache? */
    /* Is each run done by itself, with one coefficient per channel? SUM then has another kernel,
     * with equal bits: of short runs, a chunk is one group (plan.c); long runs have no other. */
    bool by_runs[PASSES];
    /* Of a row of the widest tile or, if written jointly, of all channels; 0 if by runs. */
    int64_t columns[PASSES];
    bool abreast; /* are four rows written at a time? */
    bool dense;   /* else: are the rows that a task writes contiguous, and written as one? */
    unsigned copies[PASSES]; /* strided operands of which tasks copy their parts, as bits */
    bool spaced;             /* else: is each position of a row summed by itself, where it is? */
    int64_t range_positions, ranges; /* else, to write: so many adjacent positions at a time, and so
                                        many of these ranges equally far apart */
    int64_t ring;              /* numbers per coefficient in the ring for writes; 0: no ring */
    int64_t channels_per_tile; /* a tile is finished in slices */
    int64_t channels_per_slice;
    bool joint;                  /* does each write task span all tiles? */
    int64_t rows_per_write;      /* of a joint task */
    int64_t copied, part, slots; /* copies: elements of one, at most written at a time, how many */
    bn_schedule schedule;        /* no tasks if there are no elements */
} bn_plan;

/* A plan for at most so many threads. */
bn_plan bn_plan_of(const bn_problem *p, const bn_operation *operation, bn_passes passes,
                   int threads);

/* The positions of a row as exact sums read it: as few as fill a portion's. */
static inline int64_t exact_positions(const bn_plan *plan) {
    return at_most(plan->order.row_positions,
                   ceil_div(BN_PORTION_COLUMNS, plan->problem->channels));
}

/* Columns of a row of n channels. */
static inline int64_t columns_of(const bn_plan *plan, int64_t n) {
    return n * plan->order.row_positions * plan->problem->run;
}
