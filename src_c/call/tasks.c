/* tasks.c: what threads do in a call. A task is made complete, with the coefficients of its
 * channels, then handed to sum.c or write.c. Once all of a tile's chunks are summed, the operation
 * turns the sums into coefficients.
 *
 *     prepare -> [ task: coefficients by columns -> sums of a chunk ]
 *                  of a tile, in slices: chunks in order -> prepare -> finish
 *                [ task: coefficients by columns -> results ]
 *
 * A channel that only one task sums is prepared by that task, so that threads share this work.
 *
 * Nothing here knows a formula: operations come as tables, and so do kernels, by formula. */
#include "call/tasks.h"

#include <string.h>

#include "call/task.h"

/* ---- coefficients ------------------------------------------------------------- */

/* By how many numbers a ring's planes are shifted, so that the first result on a cache-line
 * boundary has its coefficient on one too. Otherwise every load of coefficients may straddle two
 * lines, which takes up to 1.4 times as long. */
static int64_t ring_shift(const bn_plan *plan) {
    const int first = __builtin_ctz(bn_writes(plan->call->formula[WRITE]));
    const char *written =
        plan->copies.operands[WRITE] >> first & 1 ? NULL : plan->call->problem->data[first];
    const int64_t before = (int64_t)(-(uintptr_t)written % LINE_BYTES) / plan->call->element_bytes;
    return -(plan->call->kernels->paired ? before / 2 : before) &
           (LINE_BYTES / plan->call->number_bytes - 1);
}

/* The coefficients of the task's channels, laid out by columns or as a ring. */
static bn_coefs expanded(const bn_task *t, bn_pass pass) {
    const bn_plan *plan = t->plan;
    const bn_call *call = plan->call;
    const bool ring = pass == WRITE;
    const int64_t n = t->chunk.channels, run = call->problem->run;
    const char *channel = t->room->channels.coefs + t->chunk.channel * call->number_bytes;
    const int64_t columns = columns_of(call, n), period = columns << (columns & 1);
    if (columns == n && !ring)
        return (bn_coefs){channel, call->problem->channels, columns, false};
    const int64_t stride = ring ? plan->writing.ring : columns, shift = ring ? ring_shift(plan) : 0;
    char *to = t->scratch->expanded[pass] + shift * call->number_bytes;
    for (int i = 0; bn_takes(t->formula) >> i; i++) {
        const char *plane = channel + i * call->problem->channels * call->number_bytes;
        char *at = to + i * stride * call->number_bytes;
        if (bn_takes(t->formula) >> i & 1)
            call->kernels->expand_coefs(plane, n, run, stride, ring, at);
    }
    return (bn_coefs){to, stride, period, false};
}

/* A pass takes coefficients per channel, or laid out; a thread keeps a layout for its next task. */
static bn_coefs coefs_of(const bn_task *t, bn_pass pass) {
    const bn_plan *plan = t->plan;
    const bn_call *call = plan->call;
    const int64_t from = t->chunk.channel;
    if (plan->tiles.by_runs[pass])
        return (bn_coefs){t->room->channels.coefs + from * call->number_bytes,
                          call->problem->channels, 1, true};
    if (t->scratch->from[pass] != from)
        t->scratch->coefs[pass] = expanded(t, pass);
    t->scratch->from[pass] = from;
    return t->scratch->coefs[pass];
}

/* ---- tasks -------------------------------------------------------------------- */

static int64_t channels_of_tile(const bn_plan *plan, int64_t tile) {
    const int64_t each = plan->tiles.channels;
    return at_most(each, plan->call->problem->channels - tile * each);
}

static bn_chunk chunk_of_tile(const bn_plan *plan, int64_t tile, int64_t index) {
    return bn_chunk_of(plan->call->problem, &plan->call->order, index, tile * plan->tiles.channels,
                       channels_of_tile(plan, tile));
}

/* The rows of a joint write task, as a chunk. */
static bn_chunk joint_chunk(const bn_plan *plan, int64_t index) {
    const bn_problem *p = plan->call->problem;
    const int64_t each = plan->tiles.rows_per_write * plan->call->order.row_positions,
                  from = index * each;
    return (bn_chunk){
        .index = index,
        .position = from,
        .positions = at_most(each, p->positions - from),
        .channels = p->channels,
        .n = p->run,
    };
}

/* What the task reads of a strided operand is copied, unless the thread still has it. */
static void copy_operand(bn_task *t, int o) {
    const bn_problem *p = t->plan->call->problem;
    const int64_t slot = t->chunk.index % t->plan->copies.slots;
    bn_chunk *copied = &t->scratch->copied[o][slot];
    char *copy =
        t->scratch->copy[o] + slot * t->plan->copies.elements * t->plan->call->element_bytes;
    if (bn_reads(t->formula) >> o & 1 && memcmp(copied, &t->chunk, sizeof *copied) != 0) {
        bn_copy_chunk(&t->room->strided[o], p, &t->chunk, copy);
        *copied = t->chunk;
    }
    t->at.data[o] = copy;
    t->next_channel[o] = t->chunk.n * t->plan->call->element_bytes;
    t->next_position[o] = t->chunk.channels * t->next_channel[o];
}

/* In place: to zero a task and to copy it takes a fiftieth of a small call (measured). */
static void set_task(bn_task *t, const bn_room *room, int me, bn_pass pass, formula f,
                     bn_chunk chunk) {
    const bn_plan *plan = t->plan = room->plan;
    const bn_call *call = plan->call;
    const bn_problem *p = call->problem;
    t->room = room;
    t->scratch = &room->scratch[me];
    t->formula = f;
    t->chunk = chunk;
    t->coefs = coefs_of(t, pass);
    t->at = bn_place_of(p, chunk.position);
    memcpy(t->next_position, p->next_position, sizeof t->next_position);
    memcpy(t->next_channel, p->next_channel, sizeof t->next_channel);
    bn_move(&t->at, t->next_channel, chunk.channel);
    bn_move_elements(&t->at, chunk.x, call->element_bytes);
    for (int o = 0; plan->copies.operands[pass] >> o; o++)
        if (plan->copies.operands[pass] >> o & 1)
            copy_operand(t, o);
}

static void sum_chunk(const bn_room *room, int me, formula f, bn_chunk chunk) {
    bn_task t;
    set_task(&t, room, me, SUM, f, chunk);
    bn_sum(&t);
}

static void write_part(const bn_room *room, int me, bn_chunk chunk) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    bn_task t;
    set_task(&t, room, me, WRITE, call->formula[WRITE], chunk);
    /* On one thread, what is prefetched is the next tile. */
    const int64_t next = plan->tiles.channels * plan->schedule.threads;
    const bool prefetches = call->runs[SUM] && plan->tiles.by_runs[WRITE] && !plan->tiles.joint &&
                            !call->strided &&
                            chunk.channel + next + chunk.channels <= call->problem->channels;
    t.prefetch_channels = prefetches ? next : 0;
    bn_write(&t);
    const unsigned written = plan->copies.operands[WRITE] & bn_writes(t.formula);
    for (int o = 0; written >> o; o++)
        if (written >> o & 1)
            bn_copy_chunk(&room->strided[o], call->problem, &chunk, t.at.data[o]);
}

/* A chunk is written in parts that fit the copies of strided operands. */
static void write_chunk(const bn_room *room, int me, bn_chunk chunk) {
    const bn_plan *plan = room->plan;
    const int64_t channels =
        plan->tiles.by_runs[WRITE] ? at_least(plan->copies.part / chunk.n, 1) : chunk.channels;
    const int64_t end = chunk.channel + chunk.channels, last = chunk.position + chunk.positions;
    bn_chunk part = chunk;
    for (; part.channel < end; part.channel += part.channels) {
        part.channels = at_most(channels, end - part.channel);
        const int64_t positions = at_least(plan->copies.part / (part.channels * chunk.n), 1);
        for (part.position = chunk.position; part.position < last;
             part.position += part.positions) {
            part.positions = at_most(positions, last - part.position);
            write_part(room, me, part);
        }
    }
}

static void prepare(const bn_room *room, bn_pass pass, int64_t from, int64_t n) {
    if (pass == SUM || room->plan->call->runs[WRITE])
        bn_for_channels(room->plan->call->operation->prepare[pass], &room->channels, from, n);
}

static bool prepares_own(const bn_plan *plan) {
    return plan->call->runs[SUM] && plan->call->order.chunks == 1;
}

/* What channels need before the first task, which may write, too. */
static void prepare_first(const bn_room *room, int64_t from, int64_t n) {
    prepare(room, SUM, from, n);
    if (room->plan->call->at_once)
        prepare(room, WRITE, from, n);
}

static void sum_task(const void *room_, int me, int64_t tile, int64_t index) {
    const bn_room *room = room_;
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    const bn_chunk chunk = chunk_of_tile(plan, tile, index);
    if (prepares_own(plan))
        prepare_first(room, chunk.channel, chunk.channels);
    sum_chunk(room, me, call->formula[SUM], chunk);
    if (call->at_once)
        write_chunk(room, me, chunk);
}

static void write_task(const void *room_, int me, int64_t tile, int64_t index) {
    const bn_room *room = room_;
    const bn_plan *plan = room->plan;
    write_chunk(room, me,
                plan->tiles.joint ? joint_chunk(plan, index) : chunk_of_tile(plan, tile, index));
}

/* Exact: move the sums of the thread's last tile to the state. */
static void end_tasks(const void *room_, int me) {
    const bn_room *room = room_;
    if (room->plan->call->exact)
        bn_take_tile(&room->scratch[me].exact, -1, 0);
}

/* ---- what follows from sums --------------------------------------------------- */

/* Summing data again is rare, so the thread that finishes the channels does it alone. */
static void sum_again(const bn_room *room, int me, int64_t from, int64_t n) {
    const bn_call *call = room->plan->call;
    const formula again = bn_formula_of(call->operation->again, call->problem);
    room->scratch[me].from[SUM] = -1; /* coefficients kept there: of other channels, or outdated */
    for (int64_t index = 0; index < call->order.chunks; index++)
        sum_chunk(room, me, again, bn_chunk_of(call->problem, &call->order, index, from, n));
}

/* If a channel must be summed again, so is the range of this many channels that it is in. Wide
 * ranges have such a channel more often; narrow ranges of interleaved channels are read slowly.
 * Rows of several positions are summed as a whole. */
enum { SUMMED_AGAIN = 64 };

static void sum_again_if_needed(const bn_room *room, int me, int64_t from, int64_t n) {
    const bn_operation *operation = room->plan->call->operation;
    for (int round = 0; operation->must_sum_again(&room->channels, from, n, round); round++) {
        sum_again(room, me, from, n);
        bn_add_chunks(room, from, n);
    }
}

static bool takes_sums(const bn_call *call) {
    return call->parts && !call->runs[SUM];
}

/* Make all that follows from the sums of n channels from `from` on. */
static void finish_channels(const bn_room *room, int64_t from, int64_t n) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    if (!call->at_once)
        prepare(room, WRITE, from, n);
    if ((call->runs[SUM] && call->runs[WRITE]) || takes_sums(call))
        bn_for_channels(call->operation->finish, &room->channels, from, n);
}

static void finish_slice(const void *room_, int me, int64_t tile, int64_t slice) {
    const bn_room *room = room_;
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    const bn_operation *operation = call->operation;
    const int64_t each = plan->tiles.slice_channels, before = slice * each;
    const int64_t from = tile * plan->tiles.channels + before;
    const int64_t n = at_most(each, channels_of_tile(plan, tile) - before);
    if (n <= 0)
        return; /* the last tile may be narrower */
    if (call->runs[SUM]) {
        const int64_t again = call->order.row_positions > 1 ? n : SUMMED_AGAIN;
        bn_add_chunks(room, from, n);
        if (operation->must_sum_again)
            for (int64_t x = 0; x < n; x += again)
                sum_again_if_needed(room, me, from + x, at_most(again, n - x));
        bn_for_channels(operation->refine, &room->channels, from, n);
    }
    finish_channels(room, from, n);
}

/* ---- all of them ---------------------------------------------------------------- */

static const bn_stages stages = {{sum_task, write_task}, finish_slice, end_tasks};

void bn_run_tasks(const bn_room *room) {
    const bn_plan *plan = room->plan;
    const bn_call *call = plan->call;
    const bn_problem *p = call->problem;
    const bn_sums *sums = &room->channels.sums;
    if (takes_sums(call))
        memcpy(sums->plane, call->parts->sums,
               (size_t)(sums->n * p->channels) * sizeof *sums->plane);
    if (!prepares_own(plan))
        prepare_first(room, 0, p->channels);
    if (bn_elements(p) > 0)
        bn_schedule_execute(&plan->schedule, &stages, room, room->progress);
    else /* results follow from the sums of other parts */
        finish_channels(room, 0, p->channels);
}
