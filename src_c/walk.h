/* walk.h: how a chunk becomes blocks and spans for the kernels. walk_rows.c does it where a row has
 * columns of many channels, walk_runs.c for the long runs of one channel; here and in walk.c
 * stands what they share.
 */
#ifndef BN_WALK_H
#define BN_WALK_H

#include <stddef.h>

#include "plan.h"
#include "sizes.h"

/* A thread's own memory. A thread may alternate between the two passes, each on another tile,
 * so each pass keeps its own coefficients. */
typedef struct {
    int64_t from[PASSES]; /* the channel whose coefficients come first; -1: there are none yet */
    bn_coefs coefs[PASSES];
    char *expanded[PASSES]; /* room for them, where kernels lay them out */
    bn_sums sums;
    char *gathered[BN_OPERANDS]; /* a piece of each operand that is summed */
} bn_scratch;

/* What is done to a chunk. */
typedef struct {
    const bn_plan *plan;
    bn_scratch *scratch;
    bn_sum_kernel *sum;     /* NULL: nothing is summed */
    bn_write_kernel *write; /* NULL: nothing is written */
    bn_coefs coefs[PASSES];
} bn_walk;

/* A chunk of the n channels from `from` on; n is 1 where runs are long. */
typedef void bn_chunk_walk(const bn_walk *walk, int64_t from, int64_t n, int64_t chunk);
bn_chunk_walk bn_walk_channels_last, bn_walk_short_runs;
bn_chunk_walk bn_walk_long_runs, bn_walk_long_runs_abreast;

/* ---- where things are -------------------------------------------------- */

/* Addresses are computed as integers: what a pass does not touch may be NULL. */
static inline char *address(const char *from, int64_t bytes) {
    return (char *)((uintptr_t)from + (uintptr_t)bytes);
}

/* Add the offset of the index-th place along axes, the last of them fastest. */
static inline void add_offset(const bn_axis *axes, int n, int64_t index,
                              int64_t offset[BN_OPERANDS]) {
    for (int a = n - 1; a >= 0 && index; a--) {
        int64_t at = index;
        if (a > 0) {
            at = index % axes[a].size;
            index /= axes[a].size;
        }
        for (int o = 0; o < BN_OPERANDS; o++)
            offset[o] += at * axes[a].stride[o];
    }
}

static inline void position_offset(const bn_plan *plan, int64_t position,
                                   int64_t offset[BN_OPERANDS]) {
    for (int o = 0; o < BN_OPERANDS; o++)
        offset[o] = 0;
    add_offset(plan->problem->outer, plan->problem->n_outer, position, offset);
}

static inline void run_offset(const bn_plan *plan, int64_t channel, int64_t position,
                              int64_t offset[BN_OPERANDS]) {
    position_offset(plan, position, offset);
    add_offset(&plan->problem->channel, 1, channel, offset);
}

static inline void place_block(bn_block *b, const bn_plan *plan,
                               const int64_t offset[BN_OPERANDS]) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->data[o] = address(plan->problem->data[o], offset[o]);
}

/* All operands by the same number of bytes. */
static inline void advance_block(bn_block *b, int64_t bytes) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->data[o] = address(b->data[o], bytes);
}

/* Behind so many repeats. */
static inline void step_block(bn_block *b, int64_t repeats) {
    for (int o = 0; o < BN_OPERANDS; o++)
        b->data[o] = address(b->data[o], repeats * b->step[o]);
}

/* ---- what both walks do ------------------------------------------------- */

/* As many of n as make whole groups of so many each, but one at least: where a piece ends must not
 * decide what is added to what. */
static inline int64_t whole_groups(int64_t n, int64_t each) {
    return at_least(n / each, 1) * each;
}

static inline bn_sums sums_from(const bn_sums *sums, int64_t column) {
    return (bn_sums){sums->plane + column, sums->stride, sums->group};
}

/* How a chunk's rows, or its positions of runs abreast, are cut: n strands of `length` each, but
 * the last of `last`. */
typedef struct {
    int64_t length, n, last;
} bn_strands;

static inline bn_strands cut_strands(int64_t all, int64_t length) {
    const int64_t n = ceil_div(all, length);
    return (bn_strands){length, n, all - (n - 1) * length};
}

/* How many strands have a row g. */
static inline int64_t strands_with(const bn_strands *s, int64_t g) {
    return g < s->last ? s->n : s->n - 1;
}

/* A span without repeats, at the same offset in all operands: so many elements, the first of
 * this column. */
static inline bn_span span_at(const bn_plan *plan, const int64_t offset[BN_OPERANDS], int64_t cols,
                              int64_t column) {
    bn_span span = {.repeats = 1, .cols = cols, .first = column};
    span.nontemporal = plan->nontemporal;
    for (int o = 0; o < BN_OPERANDS; o++)
        span.data[o] = address(plan->problem->data[o], offset[o]);
    return span;
}

/* Write a span as strands, its pitches apart; it ends up behind them. */
void bn_write_strands(const bn_walk *walk, bn_span *span);

/* Write a span n times, each so many bytes behind the one before: side by side as strands where
 * that is asked for and can be, then what is left one after the other. */
void bn_write_repeats(const bn_walk *walk, bn_span *span, const int64_t apart[BN_OPERANDS],
                      int64_t n, bool strands);

/* The thread's buffer as a block: so many rows of n elements, one behind the other, and that so
 * many times. */
bn_block bn_gathered_block(const bn_walk *walk, int64_t rows, int64_t n, int64_t repeats);

/* Copy so many bytes of each operand that is summed into the buffer, `at` bytes from its start. */
void bn_gather(const bn_walk *walk, char *const from[BN_OPERANDS], int64_t at, int64_t bytes);

#endif
