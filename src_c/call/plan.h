/* plan.h: everything about a call that no thread changes. See call.c, which makes a plan, and
 * plan.c, which divides the work. */
#ifndef BN_PLAN_H
#define BN_PLAN_H

#include "operations/operation.h"
#include "base/sizes.h"
#include "call/order.h"

/* The half of an operation that a call runs, or the whole. A half of results takes sums that the
 * caller gives, or needs none. */
typedef enum { SUMS = 1, RESULTS = 2, WHOLE = SUMS | RESULTS } bn_half;

typedef struct {
    const bn_problem *problem;
    const bn_operation *operation;
    const bn_dtype_kernels *kernels;
    bn_half half;
    bool exact; /* are the sums exact? */
    bool fused; /* both passes at once, since what is written depends on no sum */
    formula formula[PASSES];
    int sum_planes;                      /* of sums, and of their compensations if there are any */
    int coef_planes;                     /* of coefficients that the operation's formulas take */
    int64_t element_bytes, number_bytes; /* a number has the arithmetic type */
    bn_sum_order order;

    bn_channels channels;
    double *partial;       /* (chunks, planes, channels); if there is one chunk, channels.sums */
    bn_accumulator *state; /* of exact sums; threads add to it */

    int threads;          /* at most; the rest is for speed */
    bool nontemporal;     /* do stores bypass the cache? */
    bool far;             /* do the tensors exceed the second-level cache? */
    bool by_runs[PASSES]; /* is each run done by itself, with coefficients ONE_FOR_ALL? */
    /* Of a row of the widest tile or, if written jointly, of all channels; 0 if by runs. */
    int64_t columns[PASSES];
    bool abreast; /* are four rows written at a time? */
    bool dense;   /* else: are the rows that a task writes contiguous, and written as one? */
    int64_t ring; /* numbers per coefficient in the ring for writes; 0: no ring */

    int64_t channels_per_tile, tiles;
    bool joint;             /* does each write task span all tiles? */
    int64_t rows_per_write; /* of a joint task */
} bn_plan;

/* Divide the work of a plan, which has elements, among at most so many threads. */
void bn_divide(bn_plan *plan, int threads);

/* Bytes read per element, of all operands that either pass reads. */
int64_t bn_bytes_read(const bn_plan *plan);

/* The positions of a row as exact sums read it: as few as fill a strip. */
static inline int64_t exact_positions(const bn_plan *plan) {
    return at_most(plan->order.row_positions, ceil_div(BN_STRIP, plan->problem->channels));
}

/* Columns of a row of n channels. */
static inline int64_t columns_of(const bn_plan *plan, int64_t n) {
    return n * plan->order.row_positions * plan->problem->run;
}

#endif
