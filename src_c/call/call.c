/* call.c: the functions of call.h. A call chooses an operation and its passes, and threads; makes a
 * plan of them; gets the plan's memory, and runs its tasks.
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

/* ---- what is to be done ------------------------------------------------------------ */

static bool vectors_wanted(const bn_problem *p, const bn_operation *operation) {
    bool wanted = false;
    for (int v = 0; v < BN_VECTORS; v++)
        wanted = wanted || (operation->vectors >> v & 1 && p->vector[v].data);
    return wanted;
}

/* If the caller gives sums, or this part has no elements, nothing is summed. */
static bn_passes passes_of(const bn_problem *p, const bn_operation *operation, bn_passes asked) {
    const bool needed = operation->writes_need_sums || vectors_wanted(p, operation);
    if (asked == SUMS)
        return SUMS;
    return p->sums || !needed || bn_elements(p) == 0 ? RESULTS : WHOLE;
}

/* What a call is worth, in elements of a gradient, which has OF_GRADIENT streams: it reads two
 * operands twice and writes one. A channel costs as much as OF_CHANNEL more elements, or as OF_RUNS
 * if its runs have several elements (measured). */
static int64_t worth_of(const bn_problem *p, const bn_operation *operation, bn_passes passes) {
    enum { OF_CHANNEL = 8, OF_RUNS = 64, OF_GRADIENT = 5 };
    const formula sum = bn_formula_of(operation->formulas[SUM], p);
    const formula write = bn_formula_of(operation->formulas[WRITE], p);
    const bool reads_again = passes == RESULTS || operation->writes_need_sums;
    const unsigned summed = passes & SUMS ? bn_reads(sum) : 0;
    const unsigned read = passes & RESULTS && reads_again ? bn_reads(write) : 0;
    const unsigned written = passes & RESULTS ? bn_writes(write) : 0;
    const int streams = passes == SUMS && p->state
                            ? OF_GRADIENT /* exact sums take more time than memory does */
                            : __builtin_popcount(ELEMENTS(summed)) +
                                  __builtin_popcount(ELEMENTS(read)) + __builtin_popcount(written);
    const int64_t most = (int64_t)1 << 40; /* keeps the result within an int64 */
    const int64_t each = p->run > 1 ? OF_RUNS : OF_CHANNEL;
    return bn_elements(p) / OF_GRADIENT * streams + each * at_most(p->channels, most);
}

/* ---- a call ----------------------------------------------------------------- */

/* What no elements in any part give. A vector that nobody wants is not visited: without elements,
 * there may be any number of channels. */
static bn_status give_nothing(const bn_plan *plan) {
    const bn_problem *p = plan->problem;
    const bn_operation *operation = plan->operation;
    if (plan->passes == SUMS && !plan->exact)
        memset(p->sums, 0,
               (size_t)(bn_sum_count(plan->formula[SUM]) * p->channels) * sizeof *p->sums);
    if (plan->passes == SUMS)
        return BN_OK;
    for (int v = 0; v < BN_VECTORS; v++) {
        const bn_vector *vector = &p->vector[v];
        const bool wanted = operation->vectors >> v & 1 && vector->data;
        for (int64_t c = 0; c < (wanted ? p->channels : 0); c++)
            vector_write(vector, c, 1, &operation->of_nothing);
    }
    return BN_OK;
}

/* Make the sums results: every NaN in them must be the canonical one; limbs must be carried. */
static void give_sums(const bn_room *room) {
    const bn_problem *p = room->plan->problem;
    const bn_vector to = {(char *)p->sums, sizeof *p->sums, BN_F64};
    const int low_rows = bn_dtype_table[p->dtype].compensated ? room->plan->operation->low_rows : 0;
    if (room->plan->exact)
        room->plan->kernels->exact->carry(room->state);
    else
        vector_write(&to, 0, (room->channels.sums.n + low_rows) * p->channels,
                     room->channels.sums.plane);
}

static bn_status run(const bn_plan *plan) {
    bn_room room;
    if (plan->count == 0)
        return give_nothing(plan);
    if (!bn_take_room(&room, plan))
        return BN_NO_MEMORY;
    bn_run_tasks(&room);
    if (plan->passes == SUMS)
        give_sums(&room);
    free(room.to_free);
    return BN_OK;
}

static bn_status execute(const bn_problem *p, const bn_operation *operation, bn_passes asked) {
    const bn_passes passes = passes_of(p, operation, asked);
    const int threads = bn_enter(p->num_threads, worth_of(p, operation, passes));
    const bn_plan plan = bn_plan_of(p, operation, passes, threads);
    const bn_status status = run(&plan);
    bn_leave(threads);
    return status;
}

/* Sum exactly, into the problem's state. */
static bn_status reduce_exactly(const bn_problem *p, const bn_operation *operation) {
    const bn_status status = execute(p, operation, SUMS);
    if (status == BN_OK)
        bn_stamp_state(p->state, bn_format_of_sums(p->dtype, operation->formulas[SUM]), p,
                       p->positions * p->run);
    return status;
}

/* ---- backward --------------------------------------------------------------- */

static const bn_operation *backward_of(const bn_problem *p, bool training) {
    return &bn_level_current()->backward[p->data[BN_DIFF_SRC_1] != NULL][training];
}

bn_status bn_backward(const bn_problem *p) {
    return execute(p, backward_of(p, p->training), WHOLE);
}

bn_status bn_backward_reduce(const bn_problem *p) {
    return execute(p, backward_of(p, true), SUMS);
}

bn_status bn_backward_reduce_exactly(const bn_problem *p) {
    return reduce_exactly(p, backward_of(p, true));
}

int64_t bn_backward_sums(const bn_problem *p) {
    const int64_t n = p->channels;
    double *sums = p->sums;
    const bn_format *format = &bn_formats[p->dtype][BN_OF_GRADIENTS];
    const int64_t wrong = bn_round_state(p->state, format, n, sums);
    for (int64_t i = 0; wrong < 0 && bn_has_low(p) && i < n; i++) {
        double mean;
        vector_read(&p->vector[BN_MEAN], i, 1, &mean);
        sums[n + i] -= bn_times_low(sums[i], bn_low_of(mean));
    }
    return wrong;
}

bn_status bn_double_backward(const bn_problem *p) {
    const bn_operation *operation = &bn_level_current()->double_backward[p->training];
    return execute(p, operation, WHOLE);
}

/* ---- forward ---------------------------------------------------------------- */

bn_status bn_training(const bn_problem *p) {
    const bn_operation *operation = &bn_level_current()->training[p->data[BN_SRC_1] != NULL];
    return execute(p, operation, WHOLE);
}

bn_status bn_training_reduce(const bn_problem *p) {
    const bn_operation *operation = &bn_level_current()->training[false];
    return execute(p, operation, SUMS);
}

bn_status bn_training_reduce_exactly(const bn_problem *p) {
    return reduce_exactly(p, bn_level_current()->moments);
}

bn_status bn_inference(const bn_problem *p) {
    const bn_operation *operation = &bn_level_current()->inference[p->data[BN_SRC_1] != NULL];
    return execute(p, operation, WHOLE);
}

/* ---- exact sums in between ------------------------------------------------------ */

/* Sum exactly, round the sums, then go on from these. */
static bn_status from_exact_sums(const bn_problem *p, bn_kind_of_state kind) {
    const bool moments = kind == BN_OF_MOMENTS;
    const bn_format *format = &bn_formats[p->dtype][kind];
    const int64_t n = p->channels, rows = (format->limbs + BN_MORE_ROWS) * BN_SUMS;
    bn_problem q = *p;
    size_t bytes = 0;
    char *to_free;
    lay_out(NULL, &bytes, n, (rows + BN_SUMS) * (int64_t)sizeof *q.state);
    q.state = (int64_t *)line_aligned(bytes, &to_free);
    if (!q.state)
        return BN_NO_MEMORY;
    q.sums = (double *)(q.state + n * rows);
    memset(q.state, 0, (size_t)(n * rows) * sizeof *q.state);
    q.count = (double)(p->positions * p->run);
    bn_status status = (moments ? bn_training_reduce_exactly : bn_backward_reduce_exactly)(&q);
    if (status == BN_OK) {
        if (moments)
            bn_state_stats(q.state, format, n, q.sums);
        else
            bn_backward_sums(&q);
        status = (moments ? bn_training : bn_backward)(&q);
    }
    free(to_free);
    return status;
}

bn_status bn_backward_exactly(const bn_problem *p) {
    return from_exact_sums(p, BN_OF_GRADIENTS);
}

bn_status bn_training_exactly(const bn_problem *p) {
    return from_exact_sums(p, BN_OF_MOMENTS);
}
