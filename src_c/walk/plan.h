/* plan.h: how the work of a call is divided. See plan.c. */
#ifndef BN_PLAN_H
#define BN_PLAN_H

#include "kernels/kernels.h"
#include "sizes.h"
#include "walk/order.h"

/* What a call's passes do. */
typedef struct {
    formula formula[PASSES];
    int sum_planes;  /* of sums, and of their compensations if there are any */
    int coef_planes; /* of coefficients that the operation's formulas take */
    bool sums;       /* is anything summed? */
    bool writes;     /* is anything written? */
    bool exact;      /* are the sums exact? */
    bool fused;      /* both in one pass, since what is written depends on no sum */
} bn_passes;

typedef struct {
    const bn_problem *problem;
    const bn_passes *passes; /* the caller keeps them */
    bn_sum_order order;
    int64_t element_bytes, number_bytes; /* a number has the arithmetic type */

    bool nontemporal;     /* do stores bypass the cache? */
    bool far;             /* do the tensors exceed the second-level cache? */
    bool by_runs[PASSES]; /* is each run done by itself, with coefficients ONE_FOR_ALL? */
    /* Of a row of the widest tile or, if written jointly, of all channels; 0 if by runs. */
    int64_t columns[PASSES];
    bool dense;   /* are the rows that a task writes contiguous? */
    int64_t ring; /* numbers per coefficient in the ring for writes; 0: no ring */

    int64_t channels_per_tile, tiles;
    bool joint;             /* does each write task span all tiles? */
    int64_t rows_per_write; /* of a joint task */
} bn_plan;

/* A plan for at most `threads` threads; `paired` is as in bn_dtype_kernels. */
bn_plan bn_plan_of(const bn_problem *p, const bn_passes *passes, bool paired, int threads);

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
