/* call.c: the functions of call.h. A call chooses an operation; plan.c decides the rest, room.c
 * gets the memory, and tasks.c runs the tasks.
 *
 *     choose -> plan.c -> room.c -> tasks.c -> sums to the caller, if they are the result */
#include "call/call.h"

#include <stdlib.h>
#include <string.h>

#include "base/channel.h"
#include "base/memory.h"
#include "call/dispatch.h"
#include "call/tasks.h"
#include "exact/exact.h"
#include "operations/coefs.h"
#include "threads/pool.h"

/* ---- a call ----------------------------------------------------------------- */

/* What a call is worth, in elements of a gradient, which has OF_GRADIENT streams: it reads two
 * operands twice and writes one. A channel costs as much as OF_CHANNEL more elements, or as OF_RUNS
 * if its runs have several elements (measured). */
static int64_t worth_of(const bn_call *call) {
    enum { OF_CHANNEL = 8, OF_RUNS = 64, OF_GRADIENT = 5 };
    const bn_problem *p = call->problem;
    const formula *f = call->formula;
    const bool reads_again = !call->runs[SUM] || call->operation->writes_need_sums;
    const unsigned summed = call->runs[SUM] ? bn_reads(f[SUM]) : 0;
    const unsigned read = call->runs[WRITE] && reads_again ? bn_reads(f[WRITE]) : 0;
    const unsigned written = call->runs[WRITE] ? bn_writes(f[WRITE]) : 0;
    const int streams = call->exact
                            ? OF_GRADIENT /* exact sums take more time than memory does */
                            : __builtin_popcount(ELEMENTS(summed)) +
                                  __builtin_popcount(ELEMENTS(read)) + __builtin_popcount(written);
    const int64_t most = (int64_t)1 << 40; /* keeps the result within an int64 */
    const int64_t each = p->run > 1 ? OF_RUNS : OF_CHANNEL;
    return bn_elements(p) / OF_GRADIENT * streams + each * at_most(p->channels, most);
}

/* What no elements in any part give. A vector that nobody wants is not visited: without elements,
 * there may be any number of channels. */
static bn_status give_nothing(const bn_call *call) {
    const bn_problem *p = call->problem;
    if (call->runs[SUM] && !call->exact)
        memset(call->parts->sums, 0,
               (size_t)(bn_sum_count(call->formula[SUM]) * p->channels) * sizeof(double));
    if (call->runs[SUM])
        return BN_OK;
    for (int v = 0; v < BN_VECTORS; v++) {
        const bn_vector *vector = &p->vector[v];
        const bool wanted = call->operation->vectors >> v & 1 && vector->data;
        for (int64_t c = 0; c < (wanted ? p->channels : 0); c++)
            vector_write(vector, c, 1, &call->operation->if_empty);
    }
    return BN_OK;
}

/* Make the sums results: every NaN in them must be the canonical one; limbs must be carried. */
static void give_sums(const bn_room *room) {
    const bn_call *call = room->plan->call;
    const bn_problem *p = call->problem;
    const bn_vector to = {(char *)call->parts->sums, sizeof(double), BN_F64};
    const int rows_of_lows =
        bn_dtype_table[p->dtype].compensated ? call->operation->rows_of_lows : 0;
    if (call->exact)
        call->kernels->exact->carry(room->state);
    else
        vector_write(&to, 0, (room->channels.sums.n + rows_of_lows) * p->channels,
                     room->channels.sums.plane);
}

static bn_status execute(const bn_problem *p, const bn_operation *operation, bool reduces,
                         const bn_parts *parts) {
    const bn_call call = bn_call_of(p, operation, reduces, parts);
    if (call.count == 0)
        return give_nothing(&call);
    const int threads = bn_enter(p->num_threads, worth_of(&call));
    const bn_plan plan = bn_plan_of(&call, threads);
    bn_small_room small;
    bn_room room;
    const bool has_room = bn_take_room(&room, &plan, &small);
    if (has_room) {
        bn_run_tasks(&room);
        if (!call.runs[WRITE])
            give_sums(&room);
        free(room.to_free);
    }
    bn_leave(threads);
    return has_room ? BN_OK : BN_NO_MEMORY;
}

/* ---- exact sums --------------------------------------------------------------- */

static bn_status reduce_exactly(const bn_problem *p, const bn_operation *operation,
                                const bn_parts *parts) {
    const bn_status status = execute(p, operation, true, parts);
    if (status == BN_OK)
        bn_stamp_state(parts->state, bn_format_of_sums(p->dtype, operation->formulas[SUM]), p,
                       p->positions * p->run);
    return status;
}

/* Room for the whole data's sums, and a state of zeros; false if there is no memory. The caller
 * frees *to_free. */
static bool take_parts(const bn_problem *p, const bn_format *format, bn_parts *parts,
                       char **to_free) {
    const int64_t n = p->channels, rows = (format->limbs + BN_MORE_ROWS) * BN_SUMS;
    bn_memory memory = {NULL, 0, 0};
    lay_out(&memory, n, (rows + BN_SUMS) * (int64_t)sizeof(int64_t));
    int64_t *state = (int64_t *)line_aligned(memory.used, to_free);
    if (!state)
        return false;
    memset(state, 0, (size_t)(n * rows) * sizeof *state);
    *parts = (bn_parts){(double *)(state + n * rows), state, (double)(p->positions * p->run)};
    return true;
}

/* ---- backward --------------------------------------------------------------- */

static const bn_operation *backward_of(const bn_problem *p, bool training) {
    return &bn_level_current()->backward[p->data[BN_DIFF_SRC_1] != NULL][training];
}

bn_status bn_backward(const bn_problem *p) {
    return execute(p, backward_of(p, p->training), false, NULL);
}

bn_status bn_backward_reduce(const bn_problem *p, const bn_parts *parts) {
    return execute(p, backward_of(p, true), true, parts);
}

bn_status bn_backward_finish(const bn_problem *p, const bn_parts *parts) {
    return execute(p, backward_of(p, p->training), false, parts);
}

bn_status bn_backward_reduce_exactly(const bn_problem *p, const bn_parts *parts) {
    return reduce_exactly(p, backward_of(p, true), parts);
}

int64_t bn_backward_round(const bn_problem *p, const bn_parts *parts) {
    const int64_t n = p->channels;
    const bn_format *format = &bn_formats[p->dtype][BN_OF_GRADIENTS];
    const int64_t wrong = bn_round_state(parts->state, format, n, parts->sums);
    for (int64_t i = 0; wrong < 0 && bn_has_low(p) && i < n; i++) {
        double mean;
        vector_read(&p->vector[BN_MEAN], i, 1, &mean);
        parts->sums[n + i] -= bn_times_low(parts->sums[i], bn_low_of(mean));
    }
    return wrong;
}

bn_status bn_backward_exactly(const bn_problem *p) {
    bn_parts whole;
    char *to_free;
    if (!take_parts(p, &bn_formats[p->dtype][BN_OF_GRADIENTS], &whole, &to_free))
        return BN_NO_MEMORY;
    bn_status status = bn_backward_reduce_exactly(p, &whole);
    if (status == BN_OK) {
        bn_backward_round(p, &whole);
        status = bn_backward_finish(p, &whole);
    }
    free(to_free);
    return status;
}

bn_status bn_double_backward(const bn_problem *p) {
    return execute(p, &bn_level_current()->double_backward[p->training], false, NULL);
}

/* ---- forward ---------------------------------------------------------------- */

static const bn_operation *training_of(const bn_problem *p) {
    return &bn_level_current()->training[p->data[BN_SRC_1] != NULL];
}

bn_status bn_training(const bn_problem *p) {
    return execute(p, training_of(p), false, NULL);
}

bn_status bn_training_reduce(const bn_problem *p, const bn_parts *parts) {
    return execute(p, training_of(p), true, parts);
}

bn_status bn_training_finish(const bn_problem *p, const bn_parts *parts) {
    return execute(p, training_of(p), false, parts);
}

bn_status bn_training_reduce_exactly(const bn_problem *p, const bn_parts *parts) {
    return reduce_exactly(p, bn_level_current()->moments, parts);
}

bn_status bn_training_exactly(const bn_problem *p) {
    const bn_format *format = &bn_formats[p->dtype][BN_OF_MOMENTS];
    bn_parts whole;
    char *to_free;
    if (!take_parts(p, format, &whole, &to_free))
        return BN_NO_MEMORY;
    bn_status status = bn_training_reduce_exactly(p, &whole);
    if (status == BN_OK) {
        bn_state_stats(whole.state, format, p->channels, whole.sums);
        status = bn_training_finish(p, &whole);
    }
    free(to_free);
    return status;
}

bn_status bn_inference(const bn_problem *p) {
    return execute(p, &bn_level_current()->inference[p->data[BN_SRC_1] != NULL], false, NULL);
}
