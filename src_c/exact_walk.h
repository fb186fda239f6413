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
    const bn_problem *problem;
    const bn_operation *operation;
    const formula_needs *needs;
    const bn_dtype_kernels *kernels;
    bn_channels channels;
    int64_t *state;
    int digits;
    int64_t element_bytes, number_bytes;
    int64_t positions, run_length;
    bool by_runs, evenly;
    bool alone;    /* is there one thread? */
    bool in_order; /* is an account's column a channel, and the next one the next? */
    int64_t tasks, columns_per_task;
    uint64_t touched; /* rows of the state that may not be zeros, as bits */

    /* By rows. */
    int64_t positions_per_row, columns, rows_per_task, panels;
    bn_coefs coefs; /* by columns of a row */
    char *expanded;

    /* By runs. */
    int64_t channels_per_task, tasks_per_channel, elements_per_task;
    int64_t channels_ahead; /* that memory is fetched */
} bn_exact;

/* A thread's own. */
typedef struct {
    bn_accumulator account; /* of a task: columns of rows, or channels */
    bn_accumulator run;     /* of a channel, by runs */
    bn_strip strip;
    char *terms; /* of two sums, and a unit more */
} bn_exact_scratch;

/* The task of this number. */
void bn_exact_task_by_rows(bn_exact *e, bn_exact_scratch *s, int64_t index);
void bn_exact_task_by_runs(bn_exact *e, bn_exact_scratch *s, int64_t index);

/* ---- where things are ------------------------------------------------------- */

static inline void offset_of(const bn_exact *e, int64_t channel, int64_t position,
                             int64_t offset[BN_OPERANDS]) {
    memset(offset, 0, BN_OPERANDS * sizeof *offset);
    add_offset(e->problem->outer, e->problem->n_outer, position, offset);
    add_offset(&e->problem->channel, 1, channel, offset);
}

/* So many elements from `at` bytes behind an offset on, and rows alike, `positions` positions from
 * one to the next. */
static inline bn_block block_at(const bn_exact *e, const int64_t offset[BN_OPERANDS], int64_t at,
                                int64_t cols, int64_t rows, int64_t positions) {
    const bn_problem *p = e->problem;
    bn_block b = {.rows = (int)rows, .repeats = 1, .cols = cols};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = address(p->data[o], offset[o] + at);
        b.pitch[o] = p->n_outer ? positions * p->outer[0].stride[o] : 0;
        b.step[o] = rows * b.pitch[o];
    }
    return b;
}

/* Of each sum, that there is room for. */
static inline int64_t numbers_of(const bn_exact *e) {
    return BN_TERMS_BYTES / e->number_bytes;
}

/* ---- terms, accounts, and the state --------------------------------------------- */

/* Blocks of no more terms than there is room for are added up in a strip, which then joins what an
 * account has from a column on. Returns whether that took no rounding; else nothing has changed. */
void bn_exact_begin_strip(bn_exact_scratch *s);
bool bn_exact_join_strip(const bn_exact *e, const bn_exact_scratch *s, bn_accumulator *a,
                         int64_t column);

/* If it did not: a block's terms become numbers `at` ... of the scratch, `pitch` from one row to
 * the next; rows of these, of so many columns each, become digits of an account. */
void bn_exact_compute_terms(const bn_exact *e, const bn_exact_scratch *s, const bn_block *b,
                            const bn_coefs *coefs, int64_t at, int64_t pitch);
void bn_exact_deposit_terms(const bn_exact *e, const bn_exact_scratch *s, bn_accumulator *a,
                            int64_t column, int64_t columns, int64_t rows);

/* What an account has of so many columns, the first of which is this one of a row, or this channel,
 * joins the state. */
void bn_exact_publish(bn_exact *e, bn_accumulator *a, int64_t first, int64_t columns);

#endif
