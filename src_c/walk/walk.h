/* walk.h: how a chunk becomes boxes for the kernels. See walk.c. */
#ifndef BN_WALK_H
#define BN_WALK_H

#include "arrays/place.h"
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

/* What to do with a chunk, for `channels` channels from `from` on. */
typedef struct {
    const bn_plan *plan;
    bn_scratch *scratch;
    const bn_dtype_kernels *kernels;
    formula sum;
    bn_write_kernel *write;
    int64_t from, channels;
    int64_t channels_ahead; /* distance to the tile that may be prefetched; 0: none */
    bn_coefs coefs[PASSES];
    bn_sums kept; /* where sums by channel go */
} bn_walk;

void bn_walk_sums(const bn_walk *walk, const bn_chunk *chunk);
void bn_walk_writes(const bn_walk *walk, const bn_chunk *chunk);

static inline bn_sums sums_from(const bn_sums *sums, int64_t column) {
    return (bn_sums){sums->plane + column, sums->stride, sums->group, sums->count};
}

#endif
