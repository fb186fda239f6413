/* walk.h: how a chunk becomes boxes for the kernels. See walk.c. */
#ifndef BN_WALK_H
#define BN_WALK_H

#include "exact/exact.h"
#include "walk/plan.h"

/* A thread's own memory. A thread may alternate between the two passes, on different tiles, so each
 * pass keeps its own coefficients. */
typedef struct {
    int64_t from[PASSES]; /* the channel whose coefficients come first; -1: there are none yet */
    bn_coefs coefs[PASSES];
    char *expanded[PASSES]; /* room for coefficients that kernels lay out */
    bn_sums sums;
    bn_exact exact;
} bn_scratch;

/* How chunks are walked. */
typedef struct {
    const bn_plan *plan;
    const bn_dtype_kernels *kernels;
    bn_scratch *scratch;
    formula formula;
    bn_coefs coefs; /* of the chunk's channels */
    bn_sums kept;   /* where sums by channel go */
    int64_t ahead;  /* channels to the tile that may be prefetched; 0: none */
} bn_walk;

void bn_walk_sums(const bn_walk *walk, const bn_chunk *chunk);
void bn_walk_writes(const bn_walk *walk, const bn_chunk *chunk);

static inline bn_sums sums_from(const bn_sums *sums, int64_t column) {
    return (bn_sums){sums->plane + column, sums->stride, sums->group, sums->count};
}

#endif
