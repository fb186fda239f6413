/* engine.c: runs an operation over a problem. A task walks a chunk and keeps its sums. Once all of
 * a tile's chunks are summed, their sums are added in order and handed to the operation, which
 * turns them into coefficients.
 *
 *     plan -> memory -> prepare -> [ task: coefficients by columns -> walk -> sums of a chunk ]
 *                                    of a tile, in parts: chunks in order -> prepare -> finish
 *                                  [ task: coefficients by columns -> walk ]
 *
 * A channel that only one task sums is prepared by that task, so that threads share this work.
 *
 * Nothing here knows a formula: operations come as tables, and so do kernels, by formula.
 */
#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "dispatch.h"
#include "memory/memory.h"
#include "threads/pool.h"
#include "threads/schedule.h"
#include "walk/plan.h"
#include "walk/walk.h"

typedef struct {
    const bn_operation *operation;
    const bn_dtype_kernels *kernels;
    bn_passes passes;
    bn_plan plan; /* made once the number of threads is known; not for an empty problem */
    bn_channels channels;
    double *partial; /* (chunks, planes, channels); if there is one chunk, the sums themselves */
    int threads;
    bool given;           /* did the caller give the sums, over all parts? */
    bn_accumulator state; /* if sums are exact */
} engine;

/* ---- memory ------------------------------------------------------------- */

static size_t lay_out_channels(engine *e, char *memory) {
    size_t used = 0;
    const int64_t n = e->channels.channels;
    bn_channels *c = &e->channels;
    const int64_t number_bytes = bn_dtype_table[c->problem->dtype].number_bytes;
    c->coefs = lay_out(memory, &used, e->passes.coef_planes * n, number_bytes);
    c->sums = (bn_sums){lay_out(memory, &used, e->passes.sum_planes * n, sizeof(double)), n, NULL,
                        bn_sum_count(e->passes.formula[SUM])};
    for (int i = 0; i < e->operation->values; i++)
        c->value[i] = lay_out(memory, &used, n, sizeof(double));
    e->partial = c->sums.plane;
    if (e->passes.sums && e->plan.order.chunks > 1)
        e->partial =
            lay_out(memory, &used, e->plan.order.chunks * e->passes.sum_planes * n, sizeof(double));
    return used;
}

static size_t lay_out_scratch(engine *e, bn_scratch *s, char *memory) {
    const bn_plan *plan = &e->plan;
    size_t used = 0;
    lay_out(memory, &used, 1, sizeof *s);
    for (int pass = 0; pass < PASSES; pass++) {
        const int64_t ring = pass == WRITE && plan->ring ? plan->ring + LINE_BYTES : 0;
        s->from[pass] = -1;
        s->expanded[pass] =
            lay_out(memory, &used, plan->passes->coef_planes * at_least(plan->columns[pass], ring),
                    plan->number_bytes);
    }
    s->sums.stride = round_up(plan->columns[SUM] + BN_PAD, LINE_BYTES / sizeof(double));
    const int64_t columns = plan->passes->sums && plan->columns[SUM] ? s->sums.stride : 0;
    s->sums.plane = lay_out(memory, &used, plan->passes->sum_planes * columns, sizeof(double));
    s->sums.group = lay_out(memory, &used, bn_sum_count(plan->passes->formula[SUM]) * columns,
                            plan->number_bytes);
    s->sums.count = bn_sum_count(plan->passes->formula[SUM]);
    if (plan->passes->exact) {
        const formula f = bn_formula_of(e->operation->formulas[SUM], plan->problem);
        bn_lay_out_exact(&s->exact, plan->problem, f, plan->by_runs[SUM], exact_positions(plan),
                         plan->channels_per_tile, memory, &used);
        s->exact.state = &e->state;
        s->exact.alone = e->threads == 1;
    }
    return used;
}

static void start_thread(void *engine_, void *scratch) {
    lay_out_scratch(engine_, scratch, scratch);
}

/* Move the sums of the thread's last tile to the state. */
static void end_exact(void *engine_, void *scratch_) {
    bn_scratch *scratch = scratch_;
    (void)engine_;
    bn_take_tile(&scratch->exact, -1, 0);
}

/* ---- sums ---------------------------------------------------------------- */

static bn_sums partial_of(const engine *e, int64_t chunk) {
    const int64_t n = e->channels.channels;
    return (bn_sums){e->partial + chunk * e->passes.sum_planes * n, n, NULL,
                     bn_sum_count(e->passes.formula[SUM])};
}

/* Where a sum is Inf or NaN, its compensation has no meaning. */
static double compensated(double sum, double compensation) {
    return isnan(sum + compensation) ? sum : sum + compensation;
}

static int64_t channels_of_tile(const bn_plan *plan, int64_t tile) {
    const int64_t each = plan->channels_per_tile;
    return at_most(each, plan->problem->channels - tile * each);
}

/* Add up the chunks of n channels, in order. A single chunk's sums stay as they are: none is -0, so
 * adding them to 0 would change nothing. */
static void add_chunks(const engine *e, int64_t from, int64_t n) {
    const bn_plan *plan = &e->plan;
    const bn_sums sums = sums_from(&e->channels.sums, from);
    const int64_t chunks = plan->order.chunks > 1 ? plan->order.chunks : 0;
    for (int plane = 0; chunks && plane < plan->passes->sum_planes; plane++)
        memset(sums.plane + plane * sums.stride, 0, (size_t)n * sizeof(double));
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const bn_sums all = partial_of(e, chunk), terms = sums_from(&all, from);
        e->kernels->add(&sums, &terms, n);
    }
    for (int i = 0; plan->passes->sum_planes > bn_sum_count(plan->passes->formula[SUM]) &&
                    i < bn_sum_count(plan->passes->formula[SUM]);
         i++) {
        double *sum = sums.plane + i * sums.stride;
        const double *compensation = sum + bn_sum_count(plan->passes->formula[SUM]) * sums.stride;
        for (int64_t c = 0; c < n; c++)
            sum[c] = compensated(sum[c], compensation[c]);
    }
}

/* ---- tasks ---------------------------------------------------------------- */

/* By how many numbers a ring's planes are shifted, so that the first result on a cache-line
 * boundary has its coefficient on one too. Otherwise every load of coefficients may straddle two
 * lines, which takes up to 1.4 times as long. */
static int64_t ring_shift(const bn_plan *plan, bool paired) {
    const char *written =
        plan->problem->data[__builtin_ctz(bn_writes(plan->passes->formula[WRITE]))];
    const int64_t before = (int64_t)(-(uintptr_t)written % LINE_BYTES) / plan->element_bytes;
    return -(paired ? before / 2 : before) & (LINE_BYTES / plan->number_bytes - 1);
}

/* The coefficients that a pass takes, for n channels from `from` on, laid out by columns or as a
 * ring. */
static bn_coefs expanded(const engine *e, bn_scratch *s, bn_pass pass, unsigned takes, int64_t from,
                         int64_t n) {
    const bn_plan *plan = &e->plan;
    const bool ring = pass == WRITE && plan->ring;
    const char *channel = e->channels.coefs + from * plan->number_bytes;
    const int64_t columns = columns_of(plan, n), period = columns << (columns & 1);
    if (columns == n && !ring)
        return (bn_coefs){channel, plan->problem->channels, columns, BY_COLUMNS};
    const int64_t stride = ring ? plan->ring : columns;
    char *to = s->expanded[pass];
    if (ring)
        to += ring_shift(plan, e->kernels->paired) * plan->number_bytes;
    for (int i = 0; takes >> i; i++) {
        const char *plane = channel + i * plan->problem->channels * plan->number_bytes;
        char *at = to + i * stride * plan->number_bytes;
        if (!(takes >> i & 1))
            continue;
        if (ring)
            e->kernels->ring(plane, n, plan->problem->run, stride, at);
        else
            e->kernels->expand(plane, n, plan->problem->run, columns, at);
    }
    return (bn_coefs){to, stride, period, ring ? AS_RING : BY_COLUMNS};
}

/* A pass takes coefficients per channel, or laid out; a thread keeps a layout for its next task. */
static bn_coefs coefs_of(const engine *e, bn_scratch *s, bn_pass pass, formula f, int64_t from,
                         int64_t n) {
    const bn_plan *plan = &e->plan;
    if (plan->by_runs[pass])
        return (bn_coefs){e->channels.coefs + from * plan->number_bytes, plan->problem->channels, 1,
                          ONE_FOR_ALL};
    if (s->from[pass] != from)
        s->coefs[pass] = expanded(e, s, pass, bn_takes(f), from, n);
    s->from[pass] = from;
    return s->coefs[pass];
}

_Static_assert((int)SUM == FIRST_PASS && (int)WRITE == SECOND_PASS, "the schedule's order");

static bn_walk walk_of(const engine *e, bn_scratch *scratch, bn_pass pass, base_formula base,
                       const bn_chunk *chunk) {
    const formula f = bn_formula_of(base, e->channels.problem);
    return (bn_walk){
        .plan = &e->plan,
        .kernels = e->kernels,
        .scratch = scratch,
        .formula = f,
        .coefs = coefs_of(e, scratch, pass, f, chunk->channel, chunk->channels),
    };
}

static void sum_chunk(const engine *e, bn_scratch *scratch, base_formula base,
                      const bn_chunk *chunk, int64_t index) {
    const bn_sums partial = partial_of(e, index);
    bn_walk walk = walk_of(e, scratch, SUM, base, chunk);
    walk.kept = sums_from(&partial, chunk->channel);
    bn_walk_sums(&walk, chunk);
}

static void write_chunk(const engine *e, bn_scratch *scratch, const bn_chunk *chunk) {
    const bn_plan *plan = &e->plan;
    bn_walk walk = walk_of(e, scratch, WRITE, e->operation->formulas[WRITE], chunk);
    /* Data this far ahead may be prefetched. On one thread, it is the next tile. */
    const int64_t ahead = plan->channels_per_tile * e->threads;
    if (plan->passes->sums && !plan->joint &&
        chunk->channel + ahead + chunk->channels <= plan->problem->channels)
        walk.ahead = ahead;
    bn_walk_writes(&walk, chunk);
}

/* The rows of a joint write task, as a chunk. */
static bn_chunk joint_chunk(const bn_plan *plan, int64_t index) {
    const bn_problem *p = plan->problem;
    const int64_t each = plan->rows_per_write * plan->order.row_positions, from = index * each;
    return (bn_chunk){
        .position = from,
        .positions = at_most(each, p->positions - from),
        .channels = p->channels,
        .n = p->run,
    };
}

static void prepare(const engine *e, bn_pass pass, int64_t from, int64_t n) {
    if (pass == SUM || e->passes.writes)
        bn_for_channels(e->operation->prepare[pass], &e->channels, from, n);
}

static bool prepares_own(const engine *e) {
    return e->passes.sums && e->plan.order.chunks == 1;
}

/* What channels need before the first pass, which writes too if it is fused. */
static void prepare_first(const engine *e, int64_t from, int64_t n) {
    prepare(e, SUM, from, n);
    if (e->passes.fused)
        prepare(e, WRITE, from, n);
}

static void task(void *engine_, void *scratch, int pass, int64_t tile, int64_t index) {
    const engine *e = engine_;
    const bn_plan *plan = &e->plan;
    if (pass == WRITE && plan->joint) {
        const bn_chunk chunk = joint_chunk(plan, index);
        write_chunk(e, scratch, &chunk);
        return;
    }
    const int64_t from = tile * plan->channels_per_tile, n = channels_of_tile(plan, tile);
    const bn_chunk chunk = bn_chunk_of(plan->problem, &plan->order, index, from, n);
    if (pass == SUM && prepares_own(e))
        prepare_first(e, from, n);
    if (pass == SUM)
        sum_chunk(e, scratch, e->operation->formulas[SUM], &chunk, index);
    if (pass == WRITE || plan->passes->fused)
        write_chunk(e, scratch, &chunk);
}

/* Summing data again is rare, so the thread that finishes the channels does it alone. */
static void sum_again(const engine *e, bn_scratch *scratch, int64_t from, int64_t n) {
    const bn_plan *plan = &e->plan;
    scratch->from[SUM] = -1; /* the coefficients kept there are for other channels, or outdated */
    for (int64_t index = 0; index < plan->order.chunks; index++) {
        const bn_chunk chunk = bn_chunk_of(plan->problem, &plan->order, index, from, n);
        sum_chunk(e, scratch, e->operation->again, &chunk, index);
    }
}

/* If a channel must be summed again, so is the range of this many channels that it is in. Wide
 * ranges have such a channel more often; narrow ranges of interleaved channels are read slowly.
 * Rows of several positions are summed as a whole. */
enum { SUMMED_AGAIN = 64 };

static void repeat_sums(const engine *e, bn_scratch *scratch, int64_t from, int64_t n) {
    for (int round = 0; e->operation->must_repeat(&e->channels, from, n, round); round++) {
        sum_again(e, scratch, from, n);
        add_chunks(e, from, n);
    }
}

/* A tile is finished in parts, which threads share. A part has about SUMS_PER_PART sums, and whole
 * lines of coefficients. Other work per channel takes as long as OTHER_WORK sums (measured). */
enum { SUMS_PER_PART = 4096, OTHER_WORK = 3, CHANNELS_OF_LINE = LINE_BYTES / sizeof(float) };

static int64_t channels_per_part(const bn_plan *plan) {
    if (plan->order.row_positions > 1)
        return plan->channels_per_tile;
    return round_up(ceil_div(SUMS_PER_PART, plan->order.chunks + OTHER_WORK), CHANNELS_OF_LINE);
}

static void finish_part(void *engine_, void *scratch, int64_t tile, int64_t part) {
    const engine *e = engine_;
    const bn_operation *operation = e->operation;
    const int64_t each = channels_per_part(&e->plan), before = part * each;
    const int64_t from = tile * e->plan.channels_per_tile + before;
    const int64_t n = at_most(each, channels_of_tile(&e->plan, tile) - before);
    if (n <= 0)
        return; /* the last tile may be narrower */
    if (e->passes.sums) {
        const int64_t again = e->plan.order.row_positions > 1 ? n : SUMMED_AGAIN;
        add_chunks(e, from, n);
        for (int64_t x = 0; operation->must_repeat && x < n; x += again)
            repeat_sums(e, scratch, from + x, at_most(again, n - x));
        bn_for_channels(operation->refine, &e->channels, from, n);
    }
    if (!e->passes.fused)
        prepare(e, WRITE, from, n);
    if (e->passes.writes && (e->passes.sums || e->given))
        bn_for_channels(operation->finish, &e->channels, from, n);
}

/* ---- a call ----------------------------------------------------------------- */

static size_t bytes_of_sums(const engine *e) {
    return (size_t)(bn_sum_count(e->passes.formula[SUM]) * e->channels.channels) * sizeof(double);
}

/* Make the sums results: every NaN in them must be the canonical one; limbs must be carried. */
static void give_sums(engine *e) {
    if (e->passes.exact) {
        e->kernels->exact->carry(&e->state);
        return;
    }
    double *sums = e->channels.problem->sums;
    const bn_vector to = {(char *)sums, sizeof *sums, BN_F64};
    const bool loses = bn_dtype_table[e->channels.problem->dtype].loses;
    const int rows = bn_sum_count(e->passes.formula[SUM]) + (loses ? e->operation->lows : 0);
    vector_write(&to, 0, rows * e->channels.channels, e->channels.sums.plane);
}

/* What is needed before the first task: coefficients, unless tasks prepare their own; and the sums
 * over all parts, if the caller gave them. */
static void begin(const engine *e) {
    if (!prepares_own(e))
        prepare_first(e, 0, e->channels.channels);
    if (e->given)
        memcpy(e->channels.sums.plane, e->channels.problem->sums, bytes_of_sums(e));
}

static bool vectors_wanted(const bn_problem *p, const bn_operation *operation) {
    bool wanted = false;
    for (int v = 0; v < BN_VECTORS; v++)
        wanted = wanted || (operation->vectors >> v & 1 && p->vector[v].data);
    return wanted;
}

/* If an empty problem is a part of a larger one, it writes the vectors of the whole. */
static bn_status execute_empty(engine *e) {
    const bn_problem *p = e->channels.problem;
    if (!e->passes.writes && !e->passes.exact)
        memset(p->sums, 0, bytes_of_sums(e));
    if (!e->passes.writes || !vectors_wanted(p, e->operation))
        return BN_OK;
    e->passes.sums = false;
    char *given, *memory = line_aligned(lay_out_channels(e, NULL), &given);
    if (!memory)
        return BN_NO_MEMORY;
    lay_out_channels(e, memory);
    if (e->given && e->channels.count > 0) {
        begin(e);
        prepare(e, WRITE, 0, e->channels.channels);
        bn_for_channels(e->operation->finish, &e->channels, 0, e->channels.channels);
    } else {
        for (int64_t c = 0; c < e->channels.channels; c++)
            e->channels.value[0][c] = e->operation->of_nothing;
        for (int v = 0; v < BN_VECTORS; v++)
            if (e->operation->vectors >> v & 1)
                vector_write(&p->vector[v], 0, e->channels.channels, e->channels.value[0]);
    }
    free(given);
    return BN_OK;
}

static bn_passes passes_of(const bn_call *call, bool given) {
    const bn_operation *operation = call->operation;
    const bn_problem *p = call->problem;
    const base_formula formulas[] = {operation->formulas[SUM], operation->formulas[WRITE],
                                     operation->again};
    bn_passes passes = {.writes = call->writes};
    for (int pass = 0; pass < PASSES; pass++)
        passes.formula[pass] = bn_formula_of(formulas[pass], p);
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        passes.coef_planes =
            (int)at_least(passes.coef_planes, bn_coef_planes(bn_formula_of(formulas[i], p)));
    passes.exact = !call->writes && p->state;
    if (!passes.exact)
        passes.sum_planes =
            bn_sum_count(passes.formula[SUM]) * (bn_dtype_table[p->dtype].loses ? 2 : 1);
    passes.sums =
        !given && (!call->writes || operation->writes_need_sums || vectors_wanted(p, operation));
    passes.fused = passes.sums && passes.writes && !operation->writes_need_sums;
    return passes;
}

static engine engine_of(const bn_call *call) {
    const bn_problem *p = call->problem;
    engine e = {
        .operation = call->operation,
        .kernels = bn_kernels_current()->dtype[p->dtype],
        .given = call->writes && p->sums,
    };
    e.passes = passes_of(call, e.given);
    if (e.passes.exact)
        e.state = bn_state_sums(
            p->state, bn_limbs(p->dtype, bn_kind_of_sums(e.operation->formulas[SUM])), p->channels);
    const double own = (double)p->positions * (double)p->run;
    e.channels = (bn_channels){
        .problem = p,
        .channels = p->channels,
        .count = e.given ? p->count : own,
        .summed = e.passes.sums,
    };
    return e;
}

static bn_schedule schedule_of(engine *e, int threads) {
    e->threads = threads;
    e->plan = bn_plan_of(e->channels.problem, &e->passes, e->kernels->paired, threads);
    const bn_plan *plan = &e->plan;
    bn_scratch counted;
    return (bn_schedule){
        .tiles = plan->tiles,
        .tasks = plan->order.chunks,
        .joint = plan->joint ? ceil_div(plan->order.rows, plan->rows_per_write) : 0,
        .parts =
            plan->passes->exact ? 0 : ceil_div(plan->channels_per_tile, channels_per_part(plan)),
        .tile_bytes = plan->channels_per_tile * plan->problem->positions * plan->problem->run *
                      bn_bytes_read(plan),
        .first = plan->passes->sums,
        .second = plan->passes->writes && !plan->passes->fused,
        .task = task,
        .finish = finish_part,
        .start = start_thread,
        .end = plan->passes->exact ? end_exact : NULL,
        .work = e,
        .scratch_bytes = lay_out_scratch(e, &counted, NULL),
    };
}

/* What a call is worth, in elements of a gradient, which has OF_GRADIENT streams: it reads two
 * operands twice and writes one. A channel costs as much as OF_CHANNEL more elements, or as OF_RUNS
 * if its runs have several elements (measured). */
static int64_t worth_of(const bn_problem *p, const bn_passes *passes) {
    enum { OF_CHANNEL = 8, OF_RUNS = 64, OF_GRADIENT = 5 };
    const formula sum = passes->formula[SUM], write = passes->formula[WRITE];
    const unsigned summed = passes->sums ? bn_reads(sum) : 0;
    const unsigned read = passes->writes && !passes->fused ? bn_reads(write) : 0;
    const unsigned written = passes->writes ? bn_writes(write) : 0;
    const int streams = passes->exact
                            ? OF_GRADIENT /* exact sums take more time than memory does */
                            : __builtin_popcount(ELEMENTS(summed)) +
                                  __builtin_popcount(ELEMENTS(read)) + __builtin_popcount(written);
    const int64_t most = (int64_t)1 << 40; /* keeps the result within an int64 */
    const int64_t each = p->run > 1 ? OF_RUNS : OF_CHANNEL;
    return bn_elements(p) / OF_GRADIENT * streams + each * at_most(p->channels, most);
}

/* All memory is one allocation: with two large ones, the C library might return the pages to the
 * system at every call. */
bn_status bn_execute(const bn_call *call) {
    const bn_problem *p = call->problem;
    engine e = engine_of(call);
    if (bn_elements(p) == 0)
        return execute_empty(&e);
    const int threads = bn_enter(p->num_threads, worth_of(p, &e.passes));
    const bn_schedule s = schedule_of(&e, threads);
    size_t bytes = lay_out_channels(&e, NULL);
    lay_out(NULL, &bytes, 1, bn_schedule_bytes(&s, threads));
    char *given, *memory = line_aligned(bytes, &given);
    if (memory) {
        const size_t own = lay_out_channels(&e, memory);
        begin(&e);
        bn_schedule_execute(&s, threads, memory + own);
        if (!call->writes)
            give_sums(&e);
    }
    free(given);
    bn_leave(threads);
    return memory ? BN_OK : BN_NO_MEMORY;
}
