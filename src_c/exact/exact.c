/* exact.c: a part's exact sums, as a state that merges by addition (state.h).
 *
 * Additions that round nothing may come in any order. So this code need not follow the walks of the
 * rounded sums. Terms are computed a strip at a time, in memory order, and added to the thread's
 * accumulator. At the end of a task, the accumulator is added to the state.
 *
 *     by rows   channels last, or short runs; a task has some columns of some rows
 *     by runs   all else; a task has some channels, or some elements of one channel
 *
 *     terms -> numbers of the accumulator -> its limbs -> the state's limbs
 *
 * Integers may be added to the state in any order; several threads add them atomically.
 */
#include "exact/exact.h"

#include "arrays/place.h"
#include "memory/memory.h"
#include "threads/pool.h"
#include "threads/schedule.h"

enum {
    ROW = BN_STRIP,            /* columns; narrower positions share a row if there are no gaps */
    SHORT_RUN = 16,            /* elements; shorter runs go by rows */
    TASKS_PER_THREAD = 4,      /* about, for several threads with enough to do */
    FEWEST_ROWS = 128,         /* of a task */
    MOST_ROWS = 1 << 16,       /* of a task; an accumulator's limbs hold their terms */
    FEWEST_ELEMENTS = 1 << 13, /* of a task by runs */
    MOST_ELEMENTS = 1 << 18,   /* likewise */
    BYTES_AHEAD = 512,         /* prefetch distance; shorter ones make kernels wait (measured) */
};

/* A task ends with its limbs carried, so each of its columns adds less than 2^40 to a limb of the
 * state. The state's limbs are carried only after the last task. Until then, the 63 bits of a limb
 * have room for 2^23 columns of MOST_ROWS terms. */
_Static_assert((int64_t)MOST_ROWS << (63 - BN_LIMB_BITS) >= (int64_t)1 << BN_LOG2_TERMS_OF_PART,
               "a part's limbs hold its terms");

/* A term adds less than 2^40 to an accumulator's limb. Limbs are carried at the end of a task. */
_Static_assert(MOST_ROWS <= 1 << (62 - BN_LIMB_BITS) && MOST_ELEMENTS <= 1 << (62 - BN_LIMB_BITS),
               "an accumulator's limbs hold a task's terms");

/* ---- the plan ------------------------------------------------------------------- */

static int64_t tasks_for(int threads) {
    return threads == 1 ? 1 : TASKS_PER_THREAD * threads;
}

static void plan_rows(bn_exact *e, int threads) {
    const int64_t own = e->problem->channels * e->problem->run;
    if (own < ROW && is_dense(e->problem))
        e->positions_per_row = at_most(ceil_div(ROW, own), e->problem->positions);
    e->columns = own * e->positions_per_row;
    e->panels = ceil_div(e->columns, BN_PANEL);
    const int64_t rows = e->problem->positions / e->positions_per_row;
    const int64_t tasks = ceil_div(tasks_for(threads), e->panels);
    e->rows_per_task = at_most(at_least(ceil_div(rows, tasks), FEWEST_ROWS), MOST_ROWS);
    e->tasks = e->panels * ceil_div(rows, e->rows_per_task);
    e->columns_per_task = at_most(round_up(e->columns, BN_STRIP), BN_PANEL);
}

static void plan_runs(bn_exact *e, int threads) {
    const int64_t own = e->problem->positions * e->problem->run, channels = e->problem->channels;
    const int64_t each = at_most(
        at_least(ceil_div(own * channels, tasks_for(threads)), FEWEST_ELEMENTS), MOST_ELEMENTS);
    e->channels_per_task = at_most(at_least(each / own, 1), BN_PANEL);
    e->columns_per_task = round_up(e->channels_per_task, BN_STRIP);
    const int64_t element_bytes = bn_dtype_table[e->problem->dtype].element_bytes;
    e->channels_ahead = ceil_div(BYTES_AHEAD, e->problem->run * element_bytes);
    e->tasks_per_channel = ceil_div(own, each);
    e->elements_per_task =
        at_most(round_up(ceil_div(own, e->tasks_per_channel), e->problem->run), MOST_ELEMENTS);
    e->tasks_per_channel = ceil_div(own, e->elements_per_task);
    e->tasks = ceil_div(channels, e->channels_per_task) * e->tasks_per_channel;
}

static bn_exact exact_of(const bn_problem *p, const bn_operation *operation, bn_kind_of_state kind,
                         int64_t *state, int threads) {
    bn_exact e = {
        .problem = p,
        .formula = bn_formula_of(operation->formulas[SUM], p),
        .number_bytes = bn_dtype_table[p->dtype].number_bytes,
        .operation = operation,
        .kernels = bn_kernels_current()->dtype[p->dtype],
        .channels = {.problem = p, .channels = p->channels},
        .state = state,
        .limbs = bn_limbs(p->dtype, kind),
        .alone = threads == 1,
        .positions_per_row = 1,
        .tasks_per_channel = 1,
    };
    e.lowest_touched = e.limbs;
    e.by_runs = p->run >= SHORT_RUN;
    if (e.by_runs)
        plan_runs(&e, threads);
    else
        plan_rows(&e, threads);
    e.in_order = e.by_runs || (e.columns == p->channels && !e.kernels->paired);
    return e;
}

/* ---- memory, and the call --------------------------------------------------------- */

static size_t lay_out_exact(bn_exact *e, char *memory) {
    size_t used = 0;
    const int64_t n = e->problem->channels, planes = bn_coef_planes(e->formula);
    e->channels.coefs = lay_out(memory, &used, planes * n, e->number_bytes);
    for (int i = 0; i < e->operation->values; i++)
        e->channels.value[i] = lay_out(memory, &used, n, sizeof(double));
    e->expanded = lay_out(memory, &used, planes * round_up(e->columns, BN_STRIP), e->number_bytes);
    return used;
}

static bn_accumulator lay_out_accumulator(const bn_exact *e, int64_t columns, bool one_channel,
                                          char *memory, size_t *used) {
    /* One cache line more: with a power of two as pitch, rows of limbs would share sets of the
     * first-level cache. */
    const int64_t pitch =
        one_channel ? BN_SUMS : BN_SUMS * columns + LINE_BYTES / (int64_t)sizeof(int64_t);
    return (bn_accumulator){
        .plane = lay_out(memory, used, BN_PLANES * columns, sizeof(double)),
        .limb = lay_out(memory, used, (e->limbs + 1) * pitch, sizeof(int64_t)),
        .columns = columns,
        .pitch = pitch,
        .limbs = e->limbs,
        .lowest = bn_lowest(e->limbs),
        .one_channel = one_channel,
        .squares = e->formula.base == MOMENTS,
    };
}

static size_t lay_out_exact_scratch(const bn_exact *e, bn_exact_scratch *s, char *memory) {
    size_t used = 0;
    lay_out(memory, &used, 1, sizeof *s);
    s->accumulator = lay_out_accumulator(e, e->columns_per_task, false, memory, &used);
    s->run = lay_out_accumulator(e, BN_STRIP, true, memory, &used);
    s->terms = lay_out(memory, &used, BN_SUMS * (terms_of_sum(e) + BN_STRIP), e->number_bytes);
    s->strip.plane = lay_out(memory, &used, BN_PLANES * BN_STRIP, sizeof(double));
    return used;
}

static void clear_numbers(bn_accumulator *a) {
    memset(a->plane, 0, (size_t)(BN_PLANES * a->columns) * sizeof(double));
    for (int64_t x = 0; x < a->columns; x += BN_STRIP)
        a->added[x / BN_STRIP] = bn_nothing_added();
}

static void start_thread(void *exact_, void *scratch) {
    bn_exact_scratch *s = scratch;
    lay_out_exact_scratch(exact_, s, scratch);
    s->untried = s->backoff = 0;
    s->strip.top[0] = s->strip.top[1] = 0;
    clear_numbers(&s->accumulator);
    clear_numbers(&s->run);
}

/* Lay out coefficients as kernels take them: one per channel by runs, one per column by rows. */
static void set_coefs(bn_exact *e) {
    const int64_t n = e->problem->channels, stride = round_up(e->columns, BN_STRIP);
    e->coefs = e->by_runs ? (bn_coefs){e->channels.coefs, n, 1, ONE_FOR_ALL}
                          : (bn_coefs){e->expanded, stride, 0, BY_COLUMNS};
    const unsigned takes = e->operation->prepare[SUM] ? bn_takes(e->formula) : 0;
    for (int i = 0; !e->by_runs && takes >> i; i++)
        if (takes >> i & 1)
            e->kernels->expand(e->channels.coefs + i * n * e->number_bytes, n, e->problem->run,
                               e->columns, e->expanded + i * stride * e->number_bytes);
}

static bn_status sum_on(bn_exact *e, int threads) {
    bn_exact_scratch counted;
    const bn_schedule schedule = {
        .tiles = 1,
        .tasks = e->tasks,
        .first = true,
        .task = bn_exact_task,
        .start = start_thread,
        .work = e,
        .scratch_bytes = lay_out_exact_scratch(e, &counted, NULL),
    };
    const size_t own = lay_out_exact(e, NULL);
    size_t all = own;
    lay_out(NULL, &all, 1, bn_schedule_bytes(&schedule, threads));
    char *given, *memory = line_aligned(all, &given);
    if (!memory)
        return BN_NO_MEMORY;
    lay_out_exact(e, memory);
    bn_for_channels(e->operation->prepare[SUM], &e->channels, 0, e->channels.channels);
    set_coefs(e);
    bn_schedule_execute(&schedule, threads, memory + own);
    free(given);
    return BN_OK;
}

bn_status bn_reduce_exactly(const bn_problem *p, const bn_operation *operation,
                            bn_kind_of_state kind, int64_t *state) {
    const int64_t count = p->positions * p->run;
    bn_status status = BN_OK;
    if (count > 0 && p->channels > 0) {
        const int threads = bn_enter(p->num_threads, count * p->channels);
        bn_exact e = exact_of(p, operation, kind, state, threads);
        status = sum_on(&e, threads);
        bn_leave(threads);
        const int64_t n = BN_SUMS * p->channels;
        const int first = e.lowest_touched; /* limbs below it are zeros */
        e.kernels->exact->carry(state + first * n, n, e.limbs - first, n);
    }
    if (status == BN_OK)
        bn_stamp_state(state, p, kind, count);
    return status;
}
