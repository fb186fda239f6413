/* entries.c: the functions of bn.h. They choose the operation that a problem asks for, and run all
 * of it or one half. */
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "dispatch.h"
#include "engine.h"
#include "exact/exact.h"
#include "memory/memory.h"
#include "operations/coefs.h"

/* ---- exact sums in between ------------------------------------------------------ */

/* Bytes of a channel's state. */
static int64_t state_bytes(const bn_problem *p, bn_kind_of_state kind) {
    return (bn_limbs(p->dtype, kind) + BN_MORE_ROWS) * BN_SUMS * (int64_t)sizeof(int64_t);
}

/* A copy of the problem with room for sums, and with a state of zeros; the caller frees *given.
 * NULL: there is not enough memory. */
static bn_problem *with_state(const bn_problem *p, bn_kind_of_state kind, char **given) {
    bn_problem *q = NULL;
    int64_t *state = NULL;
    double *sums = NULL;
    char *memory = NULL;
    for (int pass = 0; pass < 2; pass++) {
        size_t bytes = 0;
        q = lay_out(memory, &bytes, 1, sizeof *q);
        state = lay_out(memory, &bytes, p->channels, state_bytes(p, kind));
        sums = lay_out(memory, &bytes, p->channels, BN_SUMS * sizeof *sums);
        if (pass == 0 && !(memory = line_aligned(bytes, given)))
            return NULL;
    }
    *q = *p;
    q->state = state;
    q->sums = sums;
    q->count = (double)(p->positions * p->run);
    memset(state, 0, (size_t)(p->channels * state_bytes(p, kind)));
    return q;
}

/* Sum exactly, into the problem's state. */
static bn_status reduce_exactly(const bn_problem *p, const bn_operation *operation) {
    const bn_status status = bn_execute(&(bn_call){p, operation, false});
    if (status == BN_OK)
        bn_stamp_state(p->state, p, bn_kind_of_sums(operation->formulas[SUM]),
                       p->positions * p->run);
    return status;
}

/* ---- backward --------------------------------------------------------------- */

static const bn_operation *backward_of(const bn_problem *p, bool training) {
    return &bn_operations_current()->backward[p->data[BN_DIFF_SRC_1] != NULL][training];
}

bn_status bn_backward(const bn_problem *p) {
    return bn_execute(&(bn_call){p, backward_of(p, p->training), true});
}

bn_status bn_backward_reduce(const bn_problem *p) {
    return bn_execute(&(bn_call){p, backward_of(p, true), false});
}

bn_status bn_backward_reduce_exactly(const bn_problem *p) {
    return reduce_exactly(p, backward_of(p, true));
}

int64_t bn_backward_sums(const bn_problem *p) {
    const int64_t n = p->channels;
    const bn_channels c = {.problem = p, .channels = n};
    double *sums = p->sums;
    const int64_t wrong = bn_round_state(p->state, bn_limbs(p->dtype, BN_OF_GRADIENTS), n, sums);
    for (int64_t i = 0; wrong < 0 && bn_has_low(&c) && i < n; i++) {
        double mean;
        vector_read(&p->vector[BN_MEAN], i, 1, &mean);
        sums[n + i] -= bn_times_low(sums[i], bn_low_of(mean));
    }
    return wrong;
}

bn_status bn_backward_exactly(const bn_problem *p) {
    char *given;
    bn_problem *q = with_state(p, BN_OF_GRADIENTS, &given);
    bn_status status = q ? bn_backward_reduce_exactly(q) : BN_NO_MEMORY;
    if (status == BN_OK) {
        bn_backward_sums(q);
        status = bn_backward(q);
    }
    free(given);
    return status;
}

bn_status bn_double_backward(const bn_problem *p) {
    const bn_operation *operation = &bn_operations_current()->double_backward[p->training];
    return bn_execute(&(bn_call){p, operation, true});
}

/* ---- forward ---------------------------------------------------------------- */

bn_status bn_training(const bn_problem *p) {
    const bn_operation *operation = &bn_operations_current()->training[p->data[BN_SRC_1] != NULL];
    return bn_execute(&(bn_call){p, operation, true});
}

bn_status bn_training_reduce(const bn_problem *p) {
    const bn_operation *operation = &bn_operations_current()->training[false];
    return bn_execute(&(bn_call){p, operation, false});
}

bn_status bn_training_reduce_exactly(const bn_problem *p) {
    return reduce_exactly(p, bn_operations_current()->moments);
}

bn_status bn_training_exactly(const bn_problem *p) {
    char *given;
    bn_problem *q = with_state(p, BN_OF_MOMENTS, &given);
    bn_status status = q ? bn_training_reduce_exactly(q) : BN_NO_MEMORY;
    if (status == BN_OK) {
        bn_state_stats(q->state, bn_limbs(q->dtype, BN_OF_MOMENTS), q->channels, q->sums);
        status = bn_training(q);
    }
    free(given);
    return status;
}

bn_status bn_inference(const bn_problem *p) {
    const bn_operation *operation = &bn_operations_current()->inference[p->data[BN_SRC_1] != NULL];
    return bn_execute(&(bn_call){p, operation, true});
}
