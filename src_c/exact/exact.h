/* exact.h: exact sums of a part. exact.c plans tasks, exact_walk.c carries them out. */
#ifndef BN_EXACT_H
#define BN_EXACT_H

#include "channel.h"
#include "operations/operation.h"
#include "exact/state.h"

typedef struct {
    const bn_problem *problem;
    formula formula; /* of the sums */
    int64_t number_bytes;
    const bn_operation *operation;
    const bn_dtype_kernels *kernels;
    bn_channels channels;
    int64_t *state;
    int limbs;
    int lowest_touched; /* row of the state */
    bool by_runs;
    bool alone;    /* is there one thread? */
    bool in_order; /* does each column of an accumulator hold one channel, in order? */
    int64_t tasks, columns_per_task;

    bn_coefs coefs; /* of channels, or by columns of a row */

    /* By rows. */
    int64_t positions_per_row, columns, rows_per_task, panels;
    char *expanded; /* room for coefficients */

    /* By runs. */
    int64_t channels_per_task, tasks_per_channel, elements_per_task;
    int64_t channels_ahead; /* how far ahead memory is prefetched */
} bn_exact;

/* A thread's own memory. */
typedef struct {
    bn_accumulator accumulator; /* of a task; columns are a row's columns or, by runs, channels */
    bn_accumulator run;         /* of one channel, when summing by runs */
    bn_strip strip;
    int untried; /* how many more portions (exact_walk.c) go straight to limbs */
    int backoff; /* what `untried` becomes when a portion does not fit in doubles */
    char *terms; /* for each sum, room for terms_of_sum + BN_STRIP terms */
} bn_exact_scratch;

/* The most terms of each sum in a portion (exact_walk.c). */
static inline int64_t terms_of_sum(const bn_exact *e) {
    return BN_TERMS_BYTES / e->number_bytes;
}

void bn_exact_task(void *exact, void *scratch, int pass, int64_t tile, int64_t index);

/* Add the two sums of an operation's formula to a state of zeros. */
bn_status bn_reduce_exactly(const bn_problem *p, const bn_operation *operation,
                            bn_kind_of_state kind, int64_t *state);

#endif
