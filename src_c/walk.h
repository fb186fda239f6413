/* walk.h: how a chunk becomes blocks and spans for the kernels. walk_rows.c does it for rows with
 * columns of many channels, walk_runs.c for long runs, each of one channel; this file and walk.c
 * have what both share.
 */
#ifndef BN_WALK_H
#define BN_WALK_H

#include <stddef.h>

#include "axes.h"
#include "plan.h"
#include "sizes.h"

/* A thread's own memory. A thread may alternate between the two passes, on different tiles, so each
 * pass keeps its own coefficients. */
typedef struct {
    int64_t from[PASSES]; /* the channel whose coefficients come first; -1: there are none yet */
    bn_coefs coefs[PASSES];
    char *expanded[PASSES]; /* room for coefficients that kernels lay out */
    bn_sums sums;
    char *gathered[BN_OPERANDS]; /* a piece of each operand that is summed */
} bn_scratch;

/* What to do with a chunk, for `channels` channels from `from` on. */
typedef struct {
    const bn_plan *plan;
    bn_scratch *scratch;
    const bn_dtype_kernels *kernels;
    formula sum;
    bn_write_kernel *write;
    int64_t from, channels;
    bool sums, writes;
    int64_t channels_ahead; /* distance to the tile that may be prefetched; 0: none */
    bn_coefs coefs[PASSES];
    bn_sums kept; /* where sums by channel go */
} bn_walk;

typedef void bn_task_walk(const bn_walk *walk, int64_t task);
bn_task_walk bn_walk_channels_last, bn_walk_short_runs, bn_walk_long_runs;

/* ---- where things are -------------------------------------------------- */

/* Addresses are computed as integers, because operands that a pass does not touch may be NULL. */
static inline char *address(const char *from, int64_t bytes) {
    return (char *)((uintptr_t)from + (uintptr_t)bytes);
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

/* ---- what both walks do ------------------------------------------------- */

/* The largest multiple of `each` up to n, but at least `each`: the end of a piece must not decide
 * which terms are added together. */
static inline int64_t whole_groups(int64_t n, int64_t each) {
    return at_least(n / each, 1) * each;
}

static inline bn_sums sums_from(const bn_sums *sums, int64_t column) {
    return (bn_sums){sums->plane + column, sums->stride, sums->group, sums->count};
}

static inline bn_coefs coefs_from(const bn_plan *plan, const bn_coefs *coefs, int64_t column) {
    const char *first = (const char *)coefs->column + column * plan->number_bytes;
    return (bn_coefs){first, coefs->stride, coefs->period, coefs->layout};
}

/* A chunk's rows (of long runs, its positions) are cut into n strands of `length` rows; the last
 * strand has `last`. */
typedef struct {
    int64_t length, n, last;
} bn_strands;

static inline bn_strands cut_strands(int64_t all, int64_t length) {
    const int64_t n = ceil_div(all, length);
    return (bn_strands){length, n, all - (n - 1) * length};
}

/* A span without repeats: `cols` elements from this column on, at an offset of its own in each
 * operand. */
static inline bn_span span_at(const bn_plan *plan, const int64_t offset[BN_OPERANDS], int64_t cols,
                              int64_t column) {
    bn_span span = {.repeats = 1, .channels = 1, .cols = cols, .first = column};
    span.nontemporal = plan->nontemporal;
    span.relu = plan->problem->relu;
    for (int o = 0; o < BN_OPERANDS; o++)
        span.data[o] = address(plan->problem->data[o], offset[o]);
    return span;
}

/* Write a span as strands, `pitch` bytes apart, and move the span past them. */
void bn_write_strands(const bn_walk *walk, bn_span *span, const bn_coefs *coefs);

/* Write a span n times, `apart` bytes apart. With `strands`, write repeats side by side as strands
 * if that is possible; then write the rest one by one. */
void bn_write_repeats(const bn_walk *walk, bn_span *span, const bn_coefs *coefs,
                      const int64_t apart[BN_OPERANDS], int64_t n, bool strands);

/* Write elements x ... x + n - 1 of runs, with coefficients ONE_FOR_ALL. The first channel is
 * number `own` of the walk's channels. */
void bn_write_runs(const bn_walk *walk, int64_t own, int64_t channels, int64_t position,
                   int64_t positions, int64_t x, int64_t n);

/* The segment at element x of a run that starts at `start`: set its offset, and return how many of
 * n elements it has. */
int64_t bn_segment_at(const bn_plan *plan, const int64_t start[BN_OPERANDS], int64_t x, int64_t n,
                      int64_t offset[BN_OPERANDS]);

void bn_clear_sums(const bn_walk *walk, int64_t columns);

/* The thread's buffer as a block: `repeats` times `rows` rows of n elements, side by side. */
bn_block bn_gathered_block(const bn_walk *walk, int64_t rows, int64_t n, int64_t repeats);

/* Copy into the buffer, `at` bytes from its start: `bytes` bytes of each operand that is summed. */
void bn_gather(const bn_walk *walk, char *const from[BN_OPERANDS], int64_t at, int64_t bytes);

#endif
