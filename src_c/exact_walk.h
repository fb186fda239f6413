/* exact_walk.h: how a part becomes blocks for exact sums. exact.c plans tasks; exact_rows.c and
 * exact_runs.c carry them out; here and in exact_walk.c stands what they share.
 */
#ifndef BN_EXACT_WALK_H
#define BN_EXACT_WALK_H

#include <string.h>

#include "axes.h"
#include "channel.h"
#include "exact.h"
#include "sizes.h"
#include "walk.h"

typedef struct {
    bn_plan plan; /* the shape alone */
    const bn_operation *operation;
    const bn_dtype_kernels *kernels;
    bn_channels channels;
    int64_t *state;
    int digits;
    bool by_runs;
    bool alone;    /* is there one thread? */
    bool in_order; /* is an accumulator's column a channel, and the next one the next? */
    int64_t tasks, columns_per_task;
    uint64_t touched; /* rows of the state that may not be zeros, as bits */

    bn_coefs coefs; /* of channels, or by columns of a row */

    /* By rows. */
    int64_t positions_per_row, columns, rows_per_task, panels;
    char *expanded; /* room for coefficients */

    /* By runs. */
    int64_t channels_per_task, tasks_per_channel, elements_per_task;
    int64_t channels_ahead; /* that memory is fetched */
} bn_exact;

/* A thread's own. */
typedef struct {
    bn_accumulator accumulator; /* of a task: columns of rows, or channels */
    bn_accumulator run;         /* of a channel, by runs */
    bn_strip strip;
    char *terms; /* of two sums, and a unit more */
} bn_exact_scratch;

/* The task of this number. */
void bn_exact_task_by_rows(bn_exact *e, bn_exact_scratch *s, int64_t index);
void bn_exact_task_by_runs(bn_exact *e, bn_exact_scratch *s, int64_t index);

/* ---- where things are ------------------------------------------------------- */

/* `cols` elements from `at` bytes behind an offset on, in each of `rows` rows, which are
 * `positions` positions apart. */
static inline bn_block block_at(const bn_exact *e, const int64_t offset[BN_OPERANDS], int64_t at,
                                int64_t cols, int64_t rows, int64_t positions) {
    const bn_problem *p = e->plan.problem;
    bn_block b = {.rows = (int)rows, .repeats = 1, .cols = cols};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = address(p->data[o], offset[o] + at);
        b.pitch[o] = p->n_outer ? positions * p->outer[0].stride[o] : 0;
        b.step[o] = rows * b.pitch[o];
    }
    return b;
}

/* Terms of each sum that there is room for. */
static inline int64_t numbers_of(const bn_exact *e) {
    return BN_TERMS_BYTES / e->plan.number_bytes;
}

/* ---- terms, accumulators, and the state --------------------------------------------- */

/* Begin a strip, to which kernels add blocks, of no more terms than there is room for. Then add it
 * to an accumulator's columns: returns whether that took no rounding; else nothing has changed. */
void bn_exact_begin_strip(bn_exact_scratch *s);
bool bn_exact_join_strip(const bn_exact *e, const bn_exact_scratch *s, bn_accumulator *a,
                         int64_t column);

/* Else store a block's terms as numbers `at` ... of the scratch, `pitch` from one row to the next;
 * then add `rows` rows of `columns` terms to an accumulator, as digits. */
void bn_exact_compute_terms(const bn_exact *e, const bn_exact_scratch *s, const bn_block *b,
                            const bn_coefs *coefs, int64_t at, int64_t pitch);
void bn_exact_deposit_terms(const bn_exact *e, const bn_exact_scratch *s, bn_accumulator *a,
                            int64_t column, int64_t columns, int64_t rows);

/* Add an accumulator's columns to the state: `first` is a column of a row, or by runs a channel. */
void bn_exact_add_to_state(bn_exact *e, bn_accumulator *a, int64_t first, int64_t columns);

#endif
