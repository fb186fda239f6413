/* plan.c: what a call computes, and how its work is divided, into tiles of channels and tasks for
 * threads (docs/design.md has the words). order.c, which bn_call_of asks, decides every bit; a plan
 * decides none. Its parts are made one after the other, each from those before it:
 *
 *     call -> tiles -> schedule -> copies -> writing */
#include "call/plan.h"

#include "base/machine.h"
#include "call/dispatch.h"

/* ---- a call ------------------------------------------------------------- */

static bool vectors_wanted(const bn_problem *p, const bn_operation *operation) {
    bool wanted = false;
    for (int v = 0; v < BN_VECTORS; v++)
        wanted = wanted || (operation->vectors >> v & 1 && p->vector[v].data);
    return wanted;
}

/* If the caller gives sums, or this part has no elements, nothing is summed. */
bn_call bn_call_of(const bn_problem *p, const bn_operation *operation, bool reduces,
                   const bn_parts *parts) {
    const base_formula again = operation->must_sum_again ? operation->again : NOTHING;
    const formula sum = bn_formula_of(operation->formulas[SUM], p);
    const formula write = bn_formula_of(operation->formulas[WRITE], p);
    const unsigned takes = bn_takes(sum) | bn_takes(write) | bn_takes(bn_formula_of(again, p));
    const bn_dtype_facts *dtype = &bn_dtype_table[p->dtype];
    const bool empty = bn_elements(p) == 0, exact = reduces && parts->state;
    const bool needs_sums = operation->writes_need_sums || vectors_wanted(p, operation);
    const bool sums = reduces || (!parts && needs_sums && !empty);
    unsigned strided = 0;
    for (int o = 0; o < BN_OPERANDS; o++)
        strided |= p->strided[o] ? 1u << o : 0;
    return (bn_call){
        .problem = p,
        .operation = operation,
        .parts = parts,
        .kernels = bn_level_current()->kernels[p->dtype],
        .runs = {sums, !reduces},
        .at_once = sums && !reduces && !operation->writes_need_sums,
        .exact = exact,
        .count = parts && !reduces ? parts->count : (double)p->positions * (double)p->run,
        .formula = {sum, write},
        .sum_planes = exact ? 0 : bn_sum_count(sum) * (dtype->compensated ? 2 : 1),
        .coef_planes = takes ? 32 - __builtin_clz(takes) : 0, /* up to the last that one takes */
        .element_bytes = dtype->element_bytes,
        .number_bytes = dtype->number_bytes,
        .strided = strided,
        .order = empty ? (bn_sum_order){.chunks = 0} : bn_sum_order_of(p),
    };
}

/* Of an element, in all operands that either pass reads. */
static int64_t bytes_read(const bn_call *call) {
    const formula *f = call->formula;
    return __builtin_popcount(ELEMENTS(bn_reads(f[SUM]) | bn_reads(f[WRITE]))) *
           call->element_bytes;
}

static int64_t all_bytes(const bn_call *call) {
    const unsigned tensors = bn_reads(call->formula[SUM]) | bn_touches(call->formula[WRITE]);
    return bn_elements(call->problem) * __builtin_popcount(ELEMENTS(tensors)) * call->element_bytes;
}

/* Bypassing the last-level cache pays if the tensors exceed three quarters of it: they would not
 * stay there, because the cache is shared (docs/how_it_is_fast.md). */
static bool exceeds_caches(const bn_call *call) {
    return call->runs[WRITE] && all_bytes(call) > bn_last_level_bytes() / 4 * 3;
}

/* Do views, whose parts are copied, come from memory, at least in part? */
static bool comes_from_memory(const bn_call *call) {
    return all_bytes(call) > bn_last_level_bytes() / 4;
}

/* ---- tiles ------------------------------------------------------------- */

/* Strided operands whose channels are adjacent, as bits. With runs, tasks transpose these. */
static unsigned with_adjacent_channels(const bn_call *call) {
    const bn_problem *p = call->problem;
    unsigned operands = 0;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (p->strided[o] && p->axes->channel >= 0 &&
            p->strided[o]->strides[p->axes->axis[p->axes->channel]] == call->element_bytes)
            operands |= 1u << o;
    return operands;
}

/* Channels per tile, for one thread. What is read of a tile should stay in a core's own cache from
 * sum to write, and its columns in the first-level cache. But if channels share rows, only a tile's
 * part of each row is read at a time. Wide tiles are then faster even if only narrow ones would fit
 * the cache (measured: with NXC always, with NCX if narrow tiles had fewer than 1000 columns). If
 * nothing is summed, wide tiles are faster too, because more memory is contiguous. */
static int64_t tile_channels(const bn_call *call, const bool by_runs[PASSES]) {
    const bn_problem *p = call->problem;
    const bn_sum_order *order = &call->order;
    enum {
        LEAST_COLUMNS = 1024, /* measured: docs/how_it_is_fast.md, "Tiles" */
        LEAST_COPIED = 256,   /* of a chunk's copy; but in transposed ones, few channels would be
                                 parts of cache lines: up to five times as slow (measured) */
        TILE_COLUMNS = 2048,  /* their two sums of doubles are 32 kB, a first-level cache */
        WIDEST = 4096,        /* twice as many: 64 kB, a part of the second-level cache */
        EXACT_COLUMNS = 1024, /* of exact sums, which have several limbs each */
    };
    /* In a second-level cache of 2 MiB, tiles of 1 MiB take up to 1.3 times as long; but from
     * memory copies are made faster of longer pieces, if they stay in the last-level cache
     * (measured). */
    enum { MOST_BYTES = 512 << 10, MOST_COPIED = 1 << 20 };
    if (order->row_positions > 1 || (!call->runs[SUM] && by_runs[WRITE]))
        return p->channels;
    /* Columns per channel; none if both passes read channels one by one. */
    const int64_t columns = by_runs[SUM] && by_runs[WRITE] ? 0 : p->run;
    const int64_t bytes = p->positions * p->run * bytes_read(call);
    const bool copied = call->strided && !with_adjacent_channels(call);
    const int64_t least = copied ? LEAST_COPIED : LEAST_COLUMNS;
    int64_t width = (copied && comes_from_memory(call) && !bn_last_level_is_far()
                         ? MOST_COPIED
                         : at_most(bn_l2_bytes() / 2, MOST_BYTES)) /
                    bytes;
    if (copied && width * columns < least && p->channels * bytes > 4 * bn_l2_bytes())
        width = bn_l2_bytes() / 2 / bytes; /* better than copying twice; of many tiles (measured) */
    if (call->exact && columns)
        return at_least(at_most(EXACT_COLUMNS / columns, p->channels), 1);
    if (!call->runs[SUM] && order->form == SHORT_RUNS) /* then only coefficients are read again */
        width = bn_l2_bytes() / 4 / (columns * call->coef_planes * call->number_bytes);
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
static double largest_chunk(const bn_call *call) {
    const bn_sum_order *order = &call->order;
    const int64_t rows = at_most(order->chunk_rows, order->rows), all = call->problem->run;
    const int64_t run = at_most(order->chunk_run, all);
    return (double)rows / (double)order->rows * (double)run / (double)all;
}

/* Channels per tile: fewer than `widest` where there would be too few tasks for all threads, or
 * where too many threads would be idle during the last tasks. Otherwise, rows of interleaved
 * channels stay whole: narrow rows are slower, and slower still if they are also written. */
static int64_t channels_for(const bn_call *call, int64_t widest, bool joint, int threads) {
    const bn_problem *p = call->problem;
    const bn_sum_order *order = &call->order;
    enum { LINE_CHANNELS = 32 }; /* a cache line of 16-bit elements */
    const bool interleaved = order->form == CHANNELS_LAST;
    const bool narrow_writes = interleaved && call->at_once;
    const double worth = 1.1, of_rows = narrow_writes ? 0.6 : 0.875;
    const double enough = interleaved ? of_rows : busy_enough;
    const int64_t unit = interleaved ? LINE_CHANNELS : 1;
    if (threads == 1 || (joint && !call->runs[SUM]) || order->row_positions > 1)
        return widest;
    int64_t tiles = ceil_div(p->channels, widest), best = widest;
    if (!interleaved)
        tiles = at_least(tiles, ceil_div(TASKS_PER_THREAD * threads, order->chunks));
    for (double most = 0; most < enough; tiles++) {
        const int64_t even = round_up(ceil_div(p->channels, tiles), unit);
        const int64_t width = at_most(even, widest);
        const double tile = (double)width / (double)p->channels;
        const double here =
            busy(threads, order->chunks * ceil_div(p->channels, width), largest_chunk(call) * tile);
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
static int64_t rows_to_write(const bn_call *call, int threads) {
    const bn_sum_order *order = &call->order;
    const int64_t rows = at_most(order->chunk_rows, order->rows);
    const int64_t chunks = ceil_div(order->rows, rows);
    if (busy(threads, chunks, (double)rows / (double)order->rows) >= busy_enough)
        return rows;
    const int64_t tasks = at_least(chunks, TASKS_PER_THREAD * threads);
    return ceil_div(order->rows, round_up(tasks, threads));
}

/* If runs are written one by one, a channel's coefficients stay in registers. They are neither read
 * for each element nor laid out; with few positions, laying out does not pay. But each run has two
 * ends, which are expensive if stores bypass the cache. */
static bool by_runs_is_faster(const bn_call *call) {
    const bn_problem *p = call->problem;
    enum { WORTH_ENDS = 384, OF_F16 = 480 };            /* bytes of a run (measured) ... */
    enum { WORTH_LAYING_OUT = 24, WORTH_POSITION = 8 }; /* ... and elements (measured) */
    const int64_t worth = call->problem->dtype == BN_F16 ? OF_F16 : WORTH_ENDS;
    return p->run * call->element_bytes >= worth ||
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
 * one, or if that one is far (measured: docs/how_it_is_fast.md, "Tiles"). */
static bool writes_jointly(const bn_call *call, bool by_runs, int64_t widest, int threads) {
    const bn_problem *p = call->problem;
    const bn_sum_order *order = &call->order;
    if (!call->runs[WRITE] || call->at_once)
        return false;
    if (order->form == CHANNELS_LAST)
        return widest == p->channels;
    return !call->strided && by_runs && p->positions >= TASKS_PER_THREAD * threads &&
           (!call->runs[SUM] || (all_bytes(call) > bn_l2_bytes() && !exceeds_caches(call) &&
                                 !bn_last_level_is_far() && widest < p->channels));
}

/* How many ranges of `each` positions are equally far apart, in all these operands? If `dense`,
 * there must be no gap between them. */
static int64_t ranges_in_line(const bn_call *call, unsigned operands, int64_t each, bool dense) {
    const bn_problem *p = call->problem;
    const bn_view *view = call->strided ? p->strided[__builtin_ctz(call->strided)] : NULL;
    const int64_t bytes = each * p->channels * p->run * call->element_bytes;
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

/* ---- tiles, for threads --------------------------------------------------- */

/* A tile is finished in slices, which threads share. One has about SUMS_PER_SLICE sums, and whole
 * lines of coefficients. Other work per channel takes as long as OTHER_WORK sums (measured). */
enum { SUMS_PER_SLICE = 4096, OTHER_WORK = 3, CHANNELS_OF_LINE = LINE_BYTES / sizeof(float) };

static int64_t slice_channels(const bn_call *call, int64_t tile) {
    if (call->order.row_positions > 1)
        return tile;
    return round_up(ceil_div(SUMS_PER_SLICE, call->order.chunks + OTHER_WORK), CHANNELS_OF_LINE);
}

static bn_tiles tiles_of(const bn_call *call, int threads) {
    const bn_problem *p = call->problem;
    const bn_form form = call->order.form;
    const bool by_runs[PASSES] = {
        call->exact ? exact_sums_go_by_runs(p)
                    : form == LONG_RUNS || (form == SHORT_RUNS && sums_by_runs_are_faster(p)),
        form == LONG_RUNS || by_runs_is_faster(call),
    };
    const int64_t widest = tile_channels(call, by_runs);
    const bool joint = writes_jointly(call, by_runs[WRITE], widest, threads);
    const int64_t channels = channels_for(call, widest, joint, threads);
    return (bn_tiles){
        .by_runs = {by_runs[SUM], by_runs[WRITE]},
        .joint = joint,
        .channels = channels,
        .slice_channels = slice_channels(call, channels),
        .columns = {by_runs[SUM] ? 0 : columns_of(call, channels),
                    by_runs[WRITE] ? 0 : columns_of(call, joint ? p->channels : channels)},
        .rows_per_write = joint ? rows_to_write(call, threads) : 0,
    };
}

static bn_schedule schedule_of(const bn_call *call, const bn_tiles *t, int threads) {
    const bn_problem *p = call->problem;
    const int64_t tiles = ceil_div(p->channels, t->channels), chunks = call->order.chunks;
    const int64_t joint_tasks = t->joint ? ceil_div(call->order.rows, t->rows_per_write) : 0;
    const int64_t most_tasks =
        at_least(call->runs[SUM] || !t->joint ? tiles * chunks : 0, joint_tasks);
    return (bn_schedule){
        .threads = (int)at_most(threads, most_tasks), /* more are of no use */
        .tiles = tiles,
        .tile_bytes = t->channels * p->positions * p->run * bytes_read(call),
        .tasks = chunks,
        .joint_tasks = joint_tasks,
        .most_tasks = most_tasks,
        .slices = call->exact ? 0 : ceil_div(t->channels, t->slice_channels),
        .has = {call->runs[SUM], call->runs[WRITE] && !call->at_once},
    };
}

/* ---- copies ------------------------------------------------------------- */

/* Bytes of a tile's copies that one of the threads keeps from sum to write: what fits its own
 * cache, or half of a last-level cache that is near. A far one does not pay (measured). */
static int64_t most_kept(int threads) {
    enum { MOST = 16 << 20 }; /* so that the C library keeps their memory from call to call */
    const int64_t near = bn_last_level_is_far() ? 0 : at_most(bn_last_level_bytes() / 2, MOST);
    return at_least(near / threads, bn_l2_bytes() / 4 * 3);
}

/* With channels last, rows that are dense in all operands are not copied: to be summed, if they are
 * equally far apart and whole cache lines, unless copies are faster, because they stay in a near
 * cache, or rows are short; to be written, if ranges of them are long, unless there are copies
 * already, in about a core's own cache (measured).
 *
 * To sum, a task copies its whole chunk; to write, which needs no order, a part at a time that
 * stays in a core's own cache. Copies that both passes need are kept if all of a tile's fit. */
static bn_copies copies_of(const bn_call *call, const bn_tiles *t, int threads, bool whole_rows) {
    enum { LONG_RANGE = 1024, PART_BYTES = 128 << 10, LONG_ROW = 4 * LINE_BYTES }; /* bytes */
    if (!call->strided)
        return (bn_copies){.part = INT64_MAX};
    const bn_problem *p = call->problem;
    const bn_sum_order *order = &call->order;
    const bool channels_last = order->form == CHANNELS_LAST;
    const unsigned read = bn_reads(call->formula[SUM]), all = bn_touches(call->formula[WRITE]);
    const unsigned sparse = call->strided & ~with_adjacent_channels(call);
    const int64_t row = p->channels * call->element_bytes;
    const int64_t adjacent = ranges_in_line(call, all, 1, true);
    const bool spaced = channels_last && call->strided & read && !(sparse & read) &&
                        row % LINE_BYTES == 0 && !(call->exact && exact_positions(call) > 1) &&
                        (bn_last_level_is_far() || (row >= LONG_ROW && exceeds_caches(call))) &&
                        ranges_in_line(call, read, 1, false) == p->positions;
    const unsigned summed = call->runs[SUM] && !spaced ? call->strided & read : 0;

    const int64_t positions = at_most(order->chunk_rows * order->row_positions, p->positions);
    const int64_t chunk = summed ? positions * t->channels * at_most(order->chunk_run, p->run) : 0;
    const int64_t copied = order->chunks * chunk * call->element_bytes * __builtin_popcount(summed);
    const bool fit = summed && copied <= most_kept(threads);
    const bool are_there =
        fit && copied <= 2 * bn_l2_bytes() && !(call->strided & bn_writes(call->formula[WRITE]));
    const bool in_ranges = channels_last && call->strided & all && !(sparse & all) &&
                           adjacent * row >= LONG_RANGE && whole_rows && !are_there;
    const unsigned written = call->runs[WRITE] && !in_ranges ? call->strided & all : 0;
    const bool stay = fit && summed & written;
    const int64_t least_part = at_least(t->columns[WRITE], stay ? chunk : 0);
    const int64_t part = at_least(PART_BYTES / call->element_bytes, least_part);
    return (bn_copies){
        .operands = {summed, written},
        .fetch = comes_from_memory(call),
        .spaced = spaced,
        .range_positions = in_ranges ? adjacent : 0,
        .ranges = in_ranges ? ranges_in_line(call, all, adjacent, false) : 0,
        .elements = at_least(chunk, written ? part : 0),
        .part = written ? part : INT64_MAX,
        .slots = stay ? order->chunks : 1,
    };
}

/* ---- a plan ------------------------------------------------------------- */

/* Are rows of short runs written four at a time? If coefficients take a good part of the
 * first-level cache, reading them once for four rows saves up to a third of the time (measured:
 * 16x512x7x7). */
static bool writes_abreast(const bn_call *call, const bn_tiles *t) {
    enum { MANY_BYTES = 6 << 10 }; /* of all planes */
    return call->order.form == SHORT_RUNS && !t->by_runs[WRITE] &&
           t->columns[WRITE] * call->coef_planes * call->number_bytes > MANY_BYTES;
}

static bn_writing writing_of(const bn_call *call, const bn_tiles *t, const bn_copies *c,
                             bool whole_rows) {
    const bool copied = c->operands[WRITE] & bn_writes(call->formula[WRITE]);
    const bool nontemporal = exceeds_caches(call) && !copied;
    const bool abreast = !nontemporal && writes_abreast(call, t);
    const unsigned walked = bn_touches(call->formula[WRITE]) & ~call->strided;
    const int64_t columns = t->columns[WRITE];
    return (bn_writing){
        .nontemporal = nontemporal,
        .abreast = abreast,
        .dense = whole_rows && call->order.form != LONG_RUNS && !abreast &&
                 ranges_in_line(call, walked, 1, true) == call->problem->positions,
        /* A ring's planes are whole cache lines; so are their halves if the dtype is paired. */
        .ring = call->runs[WRITE] && !t->by_runs[WRITE]
                    ? round_up((columns << (columns & 1)) + BN_RING_PAD, 32)
                    : 0,
    };
}

bn_plan bn_plan_of(const bn_call *call, int threads) {
    if (bn_elements(call->problem) == 0)
        return (bn_plan){.call = call};
    const bn_tiles tiles = tiles_of(call, threads);
    const bn_schedule schedule = schedule_of(call, &tiles, threads);
    const bool whole_rows = tiles.joint || schedule.tiles == 1; /* does a task write these? */
    const bn_copies copies = copies_of(call, &tiles, schedule.threads, whole_rows);
    const bn_writing writing = writing_of(call, &tiles, &copies, whole_rows);
    return (bn_plan){call, tiles, copies, writing, schedule};
}
