/* exact.h: exact sums of a part. exact.c plans tasks, exact_walk.c carries them out. */
#ifndef BN_EXACT_H
#define BN_EXACT_H

#include "channel.h"
#include "operations/operation.h"
#include "plan.h"
#include "state.h"

typedef struct {
    bn_plan plan; /* the shape alone */
    const bn_operation *operation;
    const bn_dtype_kernels *kernels;
    bn_channels channels;
    int64_t *state;
    int limbs;
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
    int untried; /* parts to come that are not tried as numbers */
    int backoff; /* such parts behind the next one that fails */
    char *terms; /* of two sums, terms_of_sum of each, and a strip more */
} bn_exact_scratch;

/* Terms of each sum that there is room for. */
static inline int64_t terms_of_sum(const bn_exact *e) {
    return BN_TERMS_BYTES / e->plan.number_bytes;
}

/* The schedule's: the task of this number. */
void bn_exact_task(void *exact, void *scratch, int pass, int64_t tile, int64_t index);

/* The two sums of an operation's formula, into a state of zeros. */
bn_status bn_reduce_exactly(const bn_problem *p, const bn_operation *operation,
                            bn_kind_of_state kind, int64_t *state);

#endif
