/* plan.c: makes a plan: formulas, the order of sums, and how the work is divided, into tiles of
 * channels and tasks for threads (docs/design.md has the words). order.c decides every bit, and
 * what follows its call decides none. */
#include "call/plan.h"

#include "base/machine.h"
#include "call/dispatch.h"

/* Of an element, in all operands that either pass reads. */
static int64_t bytes_read(const bn_plan *plan) {
    const formula *f = plan->formula;
    return __builtin_popcount(ELEMENTS(bn_reads(f[SUM]) | bn_reads(f[WRITE]))) *
           plan->element_bytes;
}

/* ---- tiles ------------------------------------------------------------- */

/* Strided operands whose channels are adjacent, as bits. With runs, tasks transpose these. */
static unsigned with_adjacent_channels(const bn_plan *plan) {
    const bn_problem *p = plan->problem;
    unsigned operands = 0;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (p->strided[o] && p->axes->channel >= 0 &&
            p->strided[o]->strides[p->axes->axis[p->axes->channel]] == plan->element_bytes)
            operands |= 1u << o;
    return operands;
}

/* Channels per tile, for one thread. What is read of a tile should stay in a core's own cache from
 * sum to write, and its columns in the first-level cache. But if channels share rows, only a tile's
 * part of each row is read at a time. Wide tiles are then faster even if only narrow ones would fit
 * the cache (measured: with NXC always, with NCX if narrow tiles had fewer than 1000 columns). If
 * nothing is summed, wide tiles are faster too, because more memory is contiguous. */
static int64_t tile_channels(const bn_plan *plan) {
    const bn_problem *p = plan->problem;
    const bn_sum_order *order = &plan->order;
    enum {
        LEAST_COLUMNS = 1024, /* measured: docs/how_it_is_fast.md, "Tiles" */
        LEAST_COPIED = 256,   /* of a chunk's copy; but in transposed ones, few channels would be
                                 parts of cache lines: up to five times as slow (measured) */
        TILE_COLUMNS = 2048,  /* their two sums of doubles are 32 kB, a first-level cache */
        WIDEST = 4096,        /* twice as many: 64 kB, a part of the second-level cache */
        EXACT_COLUMNS = 1024, /* of exact sums, which have several limbs each */
    };
    /* In a second-level cache of 2 MiB, tiles of 1 MiB take up to 1.3 times as long (measured). */
    enum { MOST_BYTES = 512 << 10 };
    if (order->row_positions > 1 || (!(plan->passes & SUMS) && plan->by_runs[WRITE]))
        return p->channels;
    /* Columns per channel; none if both passes read channels one by one. */
    const bool by_runs = plan->by_runs[SUM] && plan->by_runs[WRITE];
    const int64_t columns = by_runs ? 0 : p->run;
    const int64_t bytes = p->positions * p->run * bytes_read(plan);
    const bool copied = plan->strided && !with_adjacent_channels(plan);
    const int64_t least = copied ? LEAST_COPIED : LEAST_COLUMNS;
    int64_t width = at_most(bn_l2_bytes() / 2, MOST_BYTES) / bytes;
    if (copied && width * columns < least && p->channels * bytes > 4 * bn_l2_bytes())
        width = bn_l2_bytes() / 2 / bytes; /* better than copying twice; of many tiles (measured) */
    if (plan->exact && columns)
        return at_least(at_most(EXACT_COLUMNS / columns, p->channels), 1);
    if (!(plan->passes & SUMS) &&
        order->form == SHORT_RUNS) /* then only coefficients are read again */
        width = bn_l2_bytes() / 4 / (columns * plan->coef_planes * plan->number_bytes);
    else if (order->form == CHANNELS_LAST ||
             width * columns < at_most(least, p->channels * columns))
        width = WIDEST / columns;
    else if (columns)
        width = at_most(width, TILE_COLUMNS / columns);
    return at_least(at_most(width, p->channels), 1);
}

/* ---- threads ------------------------------------------------------------ */

enum { TASKS_PER_THREAD = 4 }; /* so that no thread waits long for the last tasks */

/* The fraction of time that threads are busy, if the work is cut into `tasks` tasks. The largest
 * task is the fraction `largest` of the work. */
static double busy(int threads, int64_t tasks, double largest) {
    return 1 / (largest * (double)ceil_div(tasks, threads) * threads);
}

static const double busy_enough = 0.95;

/* The largest chunk, as a fraction of a channel. */
static double largest_chunk(const bn_plan *plan) {
    const bn_sum_order *order = &plan->order;
    const int64_t rows = at_most(order->chunk_rows, order->rows), all = plan->problem->run;
    const int64_t run = at_most(order->chunk_run, all);
    return (double)rows / (double)order->rows * (double)run / (double)all;
}

/* Channels per tile: fewer than `widest` where there would be too few tasks for all threads, or
 * where too many threads would be idle during the last tasks. Otherwise, rows of interleaved
 * channels stay whole: narrow rows are slower, and slower still if they are also written. */
static int64_t channels_for(const bn_plan *plan, int64_t widest, int threads) {
    const bn_problem *p = plan->problem;
    const bn_sum_order *order = &plan->order;
    enum { LINE = 32 }; /* channels: a cache line of 16-bit elements */
    const bool interleaved = order->form == CHANNELS_LAST;
    const bool narrow_writes = interleaved && plan->at_once;
    const double worth = 1.1, of_rows = narrow_writes ? 0.6 : 0.875;
    const double enough = interleaved ? of_rows : busy_enough;
    const int64_t unit = interleaved ? LINE : 1;
    if (threads == 1 || (plan->joint && !(plan->passes & SUMS)) || order->row_positions > 1)
        return widest;
    int64_t tiles = ceil_div(p->channels, widest), best = widest;
    if (!interleaved)
        tiles = at_least(tiles, ceil_div(TASKS_PER_THREAD * threads, order->chunks));
    for (double most = 0; most < enough; tiles++) {
        const int64_t even = round_up(ceil_div(p->channels, tiles), unit);
        const int64_t width = at_most(even, widest);
        const double tile = (double)width / (double)p->channels;
        const double here =
            busy(threads, order->chunks * ceil_div(p->channels, width), largest_chunk(plan) * tile);
        if (here > worth * most || here >= enough) {
            best = width;
            most = here;
        }
        if (even <= unit)
            break;
    }
    return best;
}

/* Rows per joint task: a chunk's rows, which are still in the cache of the thread that summed them;
 * or, if chunks leave too many threads idle, a part of a thread's share. */
static int64_t rows_to_write(const bn_plan *plan, int threads) {
    const bn_sum_order *order = &plan->order;
    const int64_t rows = at_most(order->chunk_rows, order->rows);
    const int64_t chunks = ceil_div(order->rows, rows);
    if (busy(threads, chunks, (double)rows / (double)order->rows) >= busy_enough)
        return rows;
    const int64_t tasks = at_least(chunks, TASKS_PER_THREAD * threads);
    return ceil_div(order->rows, round_up(tasks, threads));
}

static int64_t all_bytes(const bn_plan *plan) {
    const unsigned tensors = bn_reads(plan->formula[SUM]) | bn_touches(plan->formula[WRITE]);
    return bn_elements(plan->problem) * __builtin_popcount(ELEMENTS(tensors)) * plan->element_bytes;
}

/* If runs are written one by one, a channel's coefficients stay in registers. They are neither read
 * for each element nor laid out; with few positions, laying out does not pay. But each run has two
 * ends, which are expensive if stores bypass the cache. */
static bool by_runs_is_faster(const bn_plan *plan) {
    const bn_problem *p = plan->problem;
    enum { WORTH_ENDS = 384, OF_F16 = 480 };            /* bytes of a run (measured) ... */
    enum { WORTH_LAYING_OUT = 24, WORTH_POSITION = 8 }; /* ... and elements (measured) */
    const int64_t worth = plan->problem->dtype == BN_F16 ? OF_F16 : WORTH_ENDS;
    return p->run * plan->element_bytes >= worth ||
           p->run >= WORTH_LAYING_OUT + WORTH_POSITION * p->positions;
}

/* Likewise, sums by runs stay in registers and need no memory. But a run's columns are then read
 * unit by unit, each unit at all positions. */
static bool sums_by_runs_are_faster(const bn_problem *p) {
    enum { FEW = 8, WORTH_POSITION = 4 }; /* positions; a run's elements per position (measured) */
    _Static_assert(FEW <= BN_ROWS * BN_GROUP, "one group, so that bits are those by columns");
    return p->positions <= FEW && p->run >= WORTH_POSITION * p->positions;
}

/* Exact sums need a register's columns, at least. */
static bool exact_sums_go_by_runs(const bn_problem *p) {
    enum { LEAST_RUN = 16 };
    return p->run >= LEAST_RUN;
}

/* Are results written by joint tasks, over all tiles? With channels last, all rows of all channels
 * are one range of memory. With runs, a tile's channels are many ranges, far apart. So with runs,
 * writing tile by tile pays only if all tiles fit the second-level cache, or exceed the last-level
 * one (measured). */
static bool writes_jointly(const bn_plan *plan, int64_t widest, int threads) {
    const bn_problem *p = plan->problem;
    const bn_sum_order *order = &plan->order;
    if (!(plan->passes & RESULTS) || plan->at_once)
        return false;
    if (order->form == CHANNELS_LAST)
        return widest == p->channels;
    return !plan->strided && plan->by_runs[WRITE] && p->positions >= TASKS_PER_THREAD * threads &&
           (!(plan->passes & SUMS) ||
            (all_bytes(plan) > bn_l2_bytes() && !plan->nontemporal && widest < p->channels));
}

/* Are rows of short runs written four at a time? If coefficients take a good part of the
 * first-level cache, reading them once for four rows saves up to a third of the time (measured:
 * 16x512x7x7). */
static bool writes_abreast(const bn_plan *plan) {
    enum { MANY_BYTES = 6 << 10 }; /* of all planes */
    return plan->order.form == SHORT_RUNS && !plan->by_runs[WRITE] && !plan->nontemporal &&
           plan->columns[WRITE] * plan->coef_planes * plan->number_bytes > MANY_BYTES;
}

/* How many ranges of `each` positions are equally far apart, in all these operands? If `dense`,
 * there must be no gap between them. */
static int64_t ranges_in_line(const bn_plan *plan, unsigned operands, int64_t each, bool dense) {
    const bn_problem *p = plan->problem;
    const bn_view *view = plan->strided ? p->strided[__builtin_ctz(plan->strided)] : NULL;
    const int64_t bytes = each * p->channels * p->run * plan->element_bytes;
    int64_t inner = 1, ranges = 1;
    for (int k = view ? p->axes->channel - 1 : 0; k >= 0; k--) {
        const int64_t size = view ? view->shape[p->axes->axis[k]] : p->positions;
        for (int o = 0; inner >= each && ELEMENTS(operands) >> o; o++)
            if (ELEMENTS(operands) >> o & 1 &&
                bn_to_position(p, o, inner) !=
                    ranges * (dense ? bytes : bn_to_position(p, o, each)))
                return ranges;
        ranges *= inner >= each ? size : 1;
        inner *= size;
    }
    return ranges;
}

/* ---- tasks -------------------------------------------------------------- */

/* A tile is finished in slices, which threads share. One has about SUMS_PER_SLICE sums, and whole
 * lines of coefficients. Other work per channel takes as long as OTHER_WORK sums (measured). */
enum { SUMS_PER_SLICE = 4096, OTHER_WORK = 3, CHANNELS_OF_LINE = LINE_BYTES / sizeof(float) };

static int64_t slice_channels(const bn_plan *plan) {
    if (plan->order.row_positions > 1)
        return plan->channels_per_tile;
    return round_up(ceil_div(SUMS_PER_SLICE, plan->order.chunks + OTHER_WORK), CHANNELS_OF_LINE);
}

static bn_schedule schedule_of(const bn_plan *plan, int threads) {
    const bn_problem *p = plan->problem;
    const int64_t tile = plan->channels_per_tile;
    bn_schedule s = {
        .tiles = ceil_div(p->channels, tile),
        .tile_bytes = tile * p->positions * p->run * bytes_read(plan),
        .tasks = plan->order.chunks,
        .joint = plan->joint ? ceil_div(plan->order.rows, plan->rows_per_write) : 0,
        .slices = plan->exact ? 0 : ceil_div(tile, plan->channels_per_slice),
        .has = {plan->passes & SUMS, plan->passes & RESULTS && !plan->at_once},
    };
    s.most = at_least(s.has[SUM] || !s.joint ? s.tiles * s.tasks : 0, s.joint);
    s.threads = (int)at_most(threads, s.most); /* more are of no use */
    return s;
}

/* With channels last, rows that are dense in all operands are not copied: to be summed, if they are
 * equally far apart and whole cache lines; to be written, if ranges of them are long (measured). */
static void choose_copies(bn_plan *plan) {
    enum { LONG_RANGE = 1024 }; /* bytes */
    const bn_problem *p = plan->problem;
    const unsigned read = bn_reads(plan->formula[SUM]), all = bn_touches(plan->formula[WRITE]);
    const unsigned sparse = plan->strided & ~with_adjacent_channels(plan);
    const int64_t row = p->channels * plan->element_bytes;
    const int64_t adjacent = ranges_in_line(plan, all, 1, true);
    const bool rows = plan->order.form == CHANNELS_LAST;
    plan->spaced = rows && plan->strided & read && !(sparse & read) && row % LINE_BYTES == 0 &&
                   !(plan->exact && exact_positions(plan) > 1) &&
                   ranges_in_line(plan, read, 1, false) == p->positions;
    plan->copies[SUM] = plan->passes & SUMS && !plan->spaced ? plan->strided & read : 0;
    plan->copies[WRITE] = plan->passes & RESULTS ? plan->strided & all : 0;
    if (rows && plan->strided & all && !(sparse & all) && adjacent * row >= LONG_RANGE &&
        (plan->joint || plan->schedule.tiles == 1)) {
        plan->copies[WRITE] = 0;
        plan->range_positions = adjacent;
        plan->ranges = ranges_in_line(plan, all, adjacent, false);
    }
    if (plan->copies[WRITE] & bn_writes(plan->formula[WRITE]))
        plan->nontemporal = false;
}

/* To sum, a task copies its whole chunk; to write, which needs no order, a part at a time that
 * stays in a core's own cache. Copies that both passes need are kept if all of a tile's fit there.
 * To keep copies in the last-level cache does not pay (measured). */
static void divide_copies(bn_plan *plan) {
    enum { PART_BYTES = 128 << 10 };
    const bn_sum_order *order = &plan->order;
    const bn_problem *p = plan->problem;
    choose_copies(plan);
    const int64_t positions = at_most(order->chunk_rows * order->row_positions, p->positions);
    const int64_t chunk = positions * plan->channels_per_tile * at_most(order->chunk_run, p->run);
    const int64_t summed = plan->copies[SUM] ? chunk : 0;
    const int64_t bytes = summed * plan->element_bytes * __builtin_popcount(plan->copies[SUM]);
    const bool stays =
        plan->copies[SUM] & plan->copies[WRITE] && order->chunks * bytes <= bn_l2_bytes() / 4 * 3;
    plan->slots = stays ? order->chunks : 1;
    plan->copied = summed;
    if (plan->copies[WRITE]) {
        plan->part = at_least(PART_BYTES / plan->element_bytes, plan->columns[WRITE]);
        plan->part = at_least(plan->part, stays ? summed : 0);
        plan->copied = at_least(plan->part, summed);
    }
}

/* ---- a plan ------------------------------------------------------------- */

static void divide(bn_plan *plan, int threads) {
    const bn_problem *p = plan->problem;
    const bn_sum_order *order = &plan->order;
    const bool short_runs = order->form == SHORT_RUNS, long_runs = order->form == LONG_RUNS;
    /* Bypassing the last-level cache pays if the tensors exceed three quarters of it: they would
     * not stay there, because the cache is shared (docs/how_it_is_fast.md). */
    plan->nontemporal = plan->passes & RESULTS && all_bytes(plan) > bn_last_level_bytes() / 4 * 3;
    plan->by_runs[SUM] = plan->exact ? exact_sums_go_by_runs(p)
                                     : long_runs || (short_runs && sums_by_runs_are_faster(p));
    plan->by_runs[WRITE] = long_runs || by_runs_is_faster(plan);
    const int64_t widest = tile_channels(plan);
    plan->joint = writes_jointly(plan, widest, threads);
    plan->channels_per_tile = channels_for(plan, widest, threads);
    plan->channels_per_slice = slice_channels(plan);
    const int64_t written = plan->joint ? p->channels : plan->channels_per_tile;
    plan->columns[SUM] = plan->by_runs[SUM] ? 0 : columns_of(plan, plan->channels_per_tile);
    plan->columns[WRITE] = plan->by_runs[WRITE] ? 0 : columns_of(plan, written);
    plan->rows_per_write = plan->joint ? rows_to_write(plan, threads) : 0;
    plan->schedule = schedule_of(plan, threads);
    plan->part = INT64_MAX;
    if (plan->strided)
        divide_copies(plan);
    plan->abreast = writes_abreast(plan);
    plan->dense = (plan->joint || plan->schedule.tiles == 1) && !long_runs && !plan->abreast &&
                  ranges_in_line(plan, bn_touches(plan->formula[WRITE]) & ~plan->strided, 1,
                                 true) == p->positions;
    /* A ring's planes are whole cache lines; so are their halves if the dtype is paired. */
    if (plan->passes & RESULTS && !plan->by_runs[WRITE])
        plan->ring =
            round_up((plan->columns[WRITE] << (plan->columns[WRITE] & 1)) + BN_RING_PAD, 32);
}

bn_plan bn_plan_of(const bn_problem *p, const bn_operation *operation, bn_passes passes,
                   int threads) {
    const base_formula again = operation->must_sum_again ? operation->again : NOTHING;
    const formula sum = bn_formula_of(operation->formulas[SUM], p);
    const formula write = bn_formula_of(operation->formulas[WRITE], p);
    const unsigned takes = bn_takes(sum) | bn_takes(write) | bn_takes(bn_formula_of(again, p));
    const bn_dtype_facts *dtype = &bn_dtype_table[p->dtype];
    bn_plan plan = {
        .problem = p,
        .operation = operation,
        .kernels = bn_level_current()->kernels[p->dtype],
        .passes = passes,
        .at_once = passes == WHOLE && !operation->writes_need_sums,
        .exact = passes == SUMS && p->state,
        .count = passes != SUMS && p->sums ? p->count : (double)p->positions * (double)p->run,
        .formula = {sum, write},
        .coef_planes = takes ? 32 - __builtin_clz(takes) : 0, /* up to the last that one takes */
        .element_bytes = dtype->element_bytes,
        .number_bytes = dtype->number_bytes,
    };
    if (!plan.exact)
        plan.sum_planes = bn_sum_count(sum) * (dtype->compensated ? 2 : 1);
    for (int o = 0; o < BN_OPERANDS; o++)
        plan.strided |= p->strided[o] ? 1u << o : 0;
    if (bn_elements(p) > 0) {
        plan.order = bn_sum_order_of(p);
        divide(&plan, threads);
    }
    return plan;
}
