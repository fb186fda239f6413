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
 * Nothing here knows a formula: operations come as tables, and so do kernels, by formula.
 */
#include "call/tasks.h"

#include "base/memory.h"
#include "call/sum.h"
#include "call/write.h"

/* ---- a thread ---------------------------------------------------------------- */

static size_t lay_out_scratch(const bn_plan *plan, bn_scratch *s, char *memory) {
    const int n = plan->channels.sums.n;
    size_t used = 0;
    lay_out(memory, &used, 1, sizeof *s);
    for (int pass = 0; pass < PASSES; pass++) {
        const int64_t ring = pass == WRITE && plan->ring ? plan->ring + LINE_BYTES : 0;
        s->from[pass] = -1;
        s->expanded[pass] =
            lay_out(memory, &used, plan->coef_planes * at_least(plan->columns[pass], ring),
                    plan->number_bytes);
    }
    s->sums.stride = round_up(plan->columns[SUM] + BN_PAD, LINE_BYTES / sizeof(double));
    const int64_t columns = plan->half & SUMS && plan->columns[SUM] ? s->sums.stride : 0;
    s->sums.plane = lay_out(memory, &used, plan->sum_planes * columns, sizeof(double));
    s->sums.group = lay_out(memory, &used, n * columns, plan->number_bytes);
    s->sums.n = n;
    if (plan->exact) {
        bn_lay_out_exact(&s->exact, plan->problem, plan->kernels, plan->formula[SUM],
                         plan->by_runs[SUM], exact_positions(plan), plan->channels_per_tile, memory,
                         &used);
        s->exact.state = plan->state;
        s->exact.alone = plan->threads == 1;
    }
    return used;
}

static void start_thread(const void *plan, void *scratch) {
    lay_out_scratch(plan, scratch, scratch);
}

/* Move the sums of the thread's last tile to the state. */
static void end_exact(const void *plan, void *scratch_) {
    bn_scratch *scratch = scratch_;
    (void)plan;
    bn_take_tile(&scratch->exact, -1, 0);
}

/* ---- coefficients ------------------------------------------------------------- */

/* By how many numbers a ring's planes are shifted, so that the first result on a cache-line
 * boundary has its coefficient on one too. Otherwise every load of coefficients may straddle two
 * lines, which takes up to 1.4 times as long. */
static int64_t ring_shift(const bn_plan *plan) {
    const char *written = plan->problem->data[__builtin_ctz(bn_writes(plan->formula[WRITE]))];
    const int64_t before = (int64_t)(-(uintptr_t)written % LINE_BYTES) / plan->element_bytes;
    return -(plan->kernels->paired ? before / 2 : before) & (LINE_BYTES / plan->number_bytes - 1);
}

/* The coefficients of the task's channels, laid out by columns or as a ring. */
static bn_coefs expanded(const bn_task *t, bn_pass pass) {
    const bn_plan *plan = t->plan;
    const bool ring = pass == WRITE && plan->ring;
    const int64_t n = t->chunk.channels, run = plan->problem->run;
    const char *channel = plan->channels.coefs + t->chunk.channel * plan->number_bytes;
    const int64_t columns = columns_of(plan, n), period = columns << (columns & 1);
    if (columns == n && !ring)
        return (bn_coefs){channel, plan->problem->channels, columns, BY_COLUMNS};
    const int64_t stride = ring ? plan->ring : columns;
    char *to = t->scratch->expanded[pass];
    if (ring)
        to += ring_shift(plan) * plan->number_bytes;
    for (int i = 0; bn_takes(t->formula) >> i; i++) {
        const char *plane = channel + i * plan->problem->channels * plan->number_bytes;
        char *at = to + i * stride * plan->number_bytes;
        if (bn_takes(t->formula) >> i & 1)
            (ring ? plan->kernels->ring : plan->kernels->expand)(plane, n, run, stride, at);
    }
    return (bn_coefs){to, stride, period, ring ? AS_RING : BY_COLUMNS};
}

/* A pass takes coefficients per channel, or laid out; a thread keeps a layout for its next task. */
static bn_coefs coefs_of(const bn_task *t, bn_pass pass) {
    const bn_plan *plan = t->plan;
    const int64_t from = t->chunk.channel;
    if (plan->by_runs[pass])
        return (bn_coefs){plan->channels.coefs + from * plan->number_bytes, plan->problem->channels,
                          1, ONE_FOR_ALL};
    if (t->scratch->from[pass] != from)
        t->scratch->coefs[pass] = expanded(t, pass);
    t->scratch->from[pass] = from;
    return t->scratch->coefs[pass];
}

/* ---- tasks -------------------------------------------------------------------- */

static int64_t channels_of_tile(const bn_plan *plan, int64_t tile) {
    const int64_t each = plan->channels_per_tile;
    return at_most(each, plan->problem->channels - tile * each);
}

static bn_chunk chunk_of_tile(const bn_plan *plan, int64_t tile, int64_t index) {
    return bn_chunk_of(plan->problem, &plan->order, index, tile * plan->channels_per_tile,
                       channels_of_tile(plan, tile));
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

static void sum_chunk(const bn_plan *plan, bn_scratch *scratch, formula f, bn_chunk chunk,
                      int64_t index) {
    bn_task t = {.plan = plan, .scratch = scratch, .formula = f, .chunk = chunk, .index = index};
    t.coefs = coefs_of(&t, SUM);
    bn_sum(&t);
}

static void write_chunk(const bn_plan *plan, bn_scratch *scratch, bn_chunk chunk) {
    bn_task t = {.plan = plan, .scratch = scratch, .formula = plan->formula[WRITE], .chunk = chunk};
    t.coefs = coefs_of(&t, WRITE);
    /* Data this far ahead may be prefetched. On one thread, it is the next tile. */
    const int64_t ahead = plan->channels_per_tile * plan->threads;
    if (plan->half == WHOLE && plan->by_runs[WRITE] && !plan->joint &&
        chunk.channel + ahead + chunk.channels <= plan->problem->channels)
        t.ahead = ahead;
    bn_write(&t);
}

static void prepare(const bn_plan *plan, bn_pass pass, int64_t from, int64_t n) {
    if (pass == SUM || plan->half & RESULTS)
        bn_for_channels(plan->operation->prepare[pass], &plan->channels, from, n);
}

static bool prepares_own(const bn_plan *plan) {
    return plan->half & SUMS && plan->order.chunks == 1;
}

/* What channels need before the first pass, which writes too if it is fused. */
static void prepare_first(const bn_plan *plan, int64_t from, int64_t n) {
    prepare(plan, SUM, from, n);
    if (plan->fused)
        prepare(plan, WRITE, from, n);
}

void bn_begin(const bn_plan *plan) {
    if (!prepares_own(plan))
        prepare_first(plan, 0, plan->problem->channels);
}

static void first_task(const void *plan_, void *scratch, int64_t tile, int64_t index) {
    const bn_plan *plan = plan_;
    const bn_chunk chunk = chunk_of_tile(plan, tile, index);
    if (prepares_own(plan))
        prepare_first(plan, chunk.channel, chunk.channels);
    sum_chunk(plan, scratch, plan->formula[SUM], chunk, index);
    if (plan->fused)
        write_chunk(plan, scratch, chunk);
}

static void second_task(const void *plan_, void *scratch, int64_t tile, int64_t index) {
    const bn_plan *plan = plan_;
    write_chunk(plan, scratch,
                plan->joint ? joint_chunk(plan, index) : chunk_of_tile(plan, tile, index));
}

/* ---- what follows from sums --------------------------------------------------- */

/* Summing data again is rare, so the thread that finishes the channels does it alone. */
static void sum_again(const bn_plan *plan, bn_scratch *scratch, int64_t from, int64_t n) {
    const formula again = bn_formula_of(plan->operation->again, plan->problem);
    scratch->from[SUM] = -1; /* the coefficients kept there are for other channels, or outdated */
    for (int64_t index = 0; index < plan->order.chunks; index++)
        sum_chunk(plan, scratch, again, bn_chunk_of(plan->problem, &plan->order, index, from, n),
                  index);
}

/* If a channel must be summed again, so is the range of this many channels that it is in. Wide
 * ranges have such a channel more often; narrow ranges of interleaved channels are read slowly.
 * Rows of several positions are summed as a whole. */
enum { SUMMED_AGAIN = 64 };

static void repeat_sums(const bn_plan *plan, bn_scratch *scratch, int64_t from, int64_t n) {
    for (int round = 0; plan->operation->must_repeat(&plan->channels, from, n, round); round++) {
        sum_again(plan, scratch, from, n);
        bn_add_chunks(plan, from, n);
    }
}

void bn_finish(const bn_plan *plan, int64_t from, int64_t n) {
    if (!plan->fused)
        prepare(plan, WRITE, from, n);
    if (plan->half == WHOLE || (plan->half == RESULTS && plan->problem->sums))
        bn_for_channels(plan->operation->finish, &plan->channels, from, n);
}

/* A tile is finished in slices, which threads share. One has about SUMS_PER_SLICE sums, and whole
 * lines of coefficients. Other work per channel takes as long as OTHER_WORK sums (measured). */
enum { SUMS_PER_SLICE = 4096, OTHER_WORK = 3, CHANNELS_OF_LINE = LINE_BYTES / sizeof(float) };

static int64_t channels_per_slice(const bn_plan *plan) {
    if (plan->order.row_positions > 1)
        return plan->channels_per_tile;
    return round_up(ceil_div(SUMS_PER_SLICE, plan->order.chunks + OTHER_WORK), CHANNELS_OF_LINE);
}

static void finish_slice(const void *plan_, void *scratch, int64_t tile, int64_t slice) {
    const bn_plan *plan = plan_;
    const bn_operation *operation = plan->operation;
    const int64_t each = channels_per_slice(plan), before = slice * each;
    const int64_t from = tile * plan->channels_per_tile + before;
    const int64_t n = at_most(each, channels_of_tile(plan, tile) - before);
    if (n <= 0)
        return; /* the last tile may be narrower */
    if (plan->half & SUMS) {
        const int64_t again = plan->order.row_positions > 1 ? n : SUMMED_AGAIN;
        bn_add_chunks(plan, from, n);
        for (int64_t x = 0; operation->must_repeat && x < n; x += again)
            repeat_sums(plan, scratch, from + x, at_most(again, n - x));
        bn_for_channels(operation->refine, &plan->channels, from, n);
    }
    bn_finish(plan, from, n);
}

bn_schedule bn_schedule_of(const bn_plan *plan) {
    const int64_t elements =
        plan->channels_per_tile * plan->problem->positions * plan->problem->run;
    bn_scratch counted;
    return (bn_schedule){
        .tiles = plan->tiles,
        .tasks = plan->order.chunks,
        .joint = plan->joint ? ceil_div(plan->order.rows, plan->rows_per_write) : 0,
        .slices = plan->exact ? 0 : ceil_div(plan->channels_per_tile, channels_per_slice(plan)),
        .tile_bytes = elements * bn_bytes_read(plan),
        .first = plan->half & SUMS ? first_task : NULL,
        .second = plan->half & RESULTS && !plan->fused ? second_task : NULL,
        .finish = finish_slice,
        .start = start_thread,
        .end = plan->exact ? end_exact : NULL,
        .work = plan,
        .scratch_bytes = lay_out_scratch(plan, &counted, NULL),
    };
}
