/* plan.c: from the shape of a problem to its form, chunks and tiles.
 *
 * The order of every sum is decided here, by the shape and the dtype alone; tiles and
 * nontemporal stores depend on the machine and decide no bit.
 *
 * Words:
 *
 *   position   an index along the outer axes
 *   run        what a channel has at one position: the elements of the inner axes
 *   segment    contiguous elements of a run or row; views have gaps between segments
 *   row        columns side by side, as a kernel reads them: contiguous, or gathered
 *   column     a place in a row; it belongs to one channel and keeps sums of its own
 *   block      up to four rows, whose terms a kernel adds as a tree, column by column
 *   stretch    128 bytes of elements: the columns to which a long run is folded
 *   group      up to eight successive blocks (or stretches of a block) whose trees are added
 *              before the total joins the sums
 *   span       contiguous elements that are written: a row or less, or many rows without gaps
 *   repeat     one of several blocks or spans, each a fixed step after the one before; one call of
 *              a kernel handles one or more
 *   strand     q = ceil(n/4) consecutive rows of a chunk's n rows (long runs: positions); the last
 *              strand may have fewer. A block takes one row from each strand; a span may be four
 *              strands side by side
 *   unit       columns of one register of elements; an edge has fewer: what a row or span has
 *              before its first whole unit, or after its last
 *   pack       a unit's elements of one row, as one or more registers of numbers (kernels.inc)
 *   ring       coefficients by columns, which wrap around from a row's last column to its first
 *   part       repeats with the same number of rows; a chunk of runs is one part, or two if its
 *              last blocks have fewer rows
 *   chunk      rows, or elements of runs, that one thread sums alone. There are several, so that
 *              threads share the work. Their size depends on the shape and the dtype alone, and
 *              their sums are added in order, so bits do not depend on threads
 *   piece      what is gathered at once, or what is summed and then written
 *   tile       channels that are worked on together
 *   task       a chunk of a tile, in one pass; joint tasks, as many as suit the threads, write
 *              rows (with runs: positions) of all tiles
 *
 * There are three forms:
 *
 *   CHANNELS_LAST      runs of one element (NXC). A row is one position's channels. Where
 *                      channels are few, several positions are read as one row, so that a
 *                      register is full; each column of the wide row keeps its own sums.
 *
 *                          position 0  c c c c c c c c     block: rows 0, q, 2q, 3q,
 *                          position 1  c c c c c c c c     then   rows 1, q + 1, ...
 *
 *   SHORT_RUNS         (NCX.) A row is the runs of neighboring channels at one position.
 *
 *                          position 0  c c c c d d d d     columns of one channel are summed
 *                          position 1  c c c c d d d d     at the end of a chunk; at few
 *                                                          positions, each channel is summed
 *                                                          by itself
 *
 *   LONG_RUNS          (NCX.) A row is the run of one channel at one position, which is folded:
 *                      element x joins column x mod stretch. A single position's run is read as
 *                      rows of one stretch each, one after the other.
 *
 *                          position 0  [c c c c c][c c c c c][c c        block: positions 0, q, ...
 *                          position 1  [c c c c c][c c c c c][c c        group: eight stretches
 *
 * Which four rows of a chunk are summed together depends on how memory is read fastest: stretches
 * of 128 bytes side by side, or rows far apart. Consecutive rows of 512 to 2048 bytes are read at
 * half the speed (measured). So a chunk's rows (or positions) are cut into four strands, and block
 * g holds row g of each strand. At few positions, it is faster to add up a row's columns
 * immediately than to keep them apart until the end of a chunk; hence the bound between the last
 * two forms.
 */
#include "plan.h"

#include "axes.h"
#include "machine.h"
#include "sizes.h"

/* How sums are split: each of these decides bits. Values marked as measured can be measured again
 * by `python -m benchmarks`, with shapes on either side of the bound. */
enum {
    WIDE_ENOUGH = 128,   /* channels of one position: 16-bit ones fill four 64-byte registers */
    ROW_COLUMNS = 256,   /* the fewest in a row of several positions: twice WIDE_ENOUGH ... */
    ROW_UNIT = 32,       /* ... and a multiple of this: 16-bit elements of the widest register */
    LONG_RUN = 48,       /* the fewest elements of a long run, or 16 per position if more ... */
    LONGEST_SHORT = 256, /* ... but at most this (both measured) */
    /* Rows of a strand: an odd number, because strands that start an even number of rows apart may
     * share cache sets; and no more than the hardware prefetcher can follow (both measured). */
    SHORTEST_STRAND = 33,
    LONGEST_STRAND = 129,
    /* The most bytes of a strand; rounding may add a row. SHORTEST_STRAND rows may take more. Four
     * strands: 512 kB. */
    STRAND_BYTES = 128 << 10,
    MOST_POSITIONS = BN_ROWS * SHORTEST_STRAND, /* of a chunk of long runs */
    SHORTEST_CHUNK = 4096, /* elements of a run in a chunk: a page or more, ... */
    LONGEST_CHUNK = 16384, /* ... but longer ones gain nothing (measured) */
    TASKS = 64,            /* of a large problem, on any machine: four for each of 16 threads */
};

/* ---- shapes ------------------------------------------------------------ */

void bn_plan_shape(bn_plan *plan, const bn_problem *p, const formula formulas[PASSES]) {
    const bn_dtype_facts *dtype = &bn_dtype_table[p->dtype];
    plan->problem = p;
    plan->coef_planes = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        plan->needs[pass] = &formula_table[formulas[pass]];
        const int64_t planes = bn_coef_planes(formulas[pass]);
        plan->coef_planes = (int)at_least(plan->coef_planes, planes);
    }
    plan->element_bytes = dtype->element_bytes;
    plan->number_bytes = dtype->number_bytes;
    plan->planes = plan->needs[SUM]->sums * (dtype->loses ? 2 : 1);
    plan->channels = p->channel.size;
    plan->positions = count_of(p->outer, p->n_outer);
    plan->run_length = count_of(p->inner, p->n_inner);
    plan->evenly = p->n_outer <= 1;
    plan->run_is_segment = p->n_inner == 1;
}

int64_t bn_bytes_read(const bn_plan *plan) {
    const unsigned read = plan->needs[SUM]->reads | plan->needs[WRITE]->reads;
    return __builtin_popcount(ELEMENTS(read)) * plan->element_bytes;
}

static bool steps_over(const bn_plan *plan, const bn_axis *axis, int64_t elements,
                       unsigned operands) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (operands >> o & 1 && axis->stride[o] != elements * plan->element_bytes)
            return false;
    return true;
}

bool bn_is_dense(const bn_plan *plan, bool among_positions, unsigned operands) {
    const bn_problem *p = plan->problem;
    const int64_t n = plan->channels, run = plan->run_length;
    return p->n_inner <= 1 && (n == 1 || steps_over(plan, &p->channel, run, operands)) &&
           (!among_positions || p->n_outer == 0 ||
            (p->n_outer == 1 && steps_over(plan, &p->outer[0], n * run, operands)));
}

/* ---- forms and chunks -------------------------------------------------- */

/* CHANNELS_LAST: rows of each of a chunk's four strands. */
static int64_t strand_rows(const bn_plan *plan) {
    const int64_t row_bytes = plan->row.positions * plan->channels * plan->element_bytes;
    const int64_t share = plan->rows / (TASKS * BN_ROWS);
    const int64_t rows = at_most(at_most(STRAND_BYTES / row_bytes, share), LONGEST_STRAND);
    return at_least(rows, SHORTEST_STRAND) | 1;
}

static void plan_channels_last(bn_plan *plan) {
    plan->form = CHANNELS_LAST;
    plan->row.positions = 1;
    if (plan->channels < WIDE_ENOUGH) {
        const int64_t unit = ROW_UNIT / greatest_common_divisor(plan->channels, ROW_UNIT);
        const int64_t units = ceil_div(ROW_COLUMNS, unit * plan->channels);
        plan->row.positions = at_most(unit * units, plan->positions);
    }
    plan->rows = ceil_div(plan->positions, plan->row.positions);
    plan->row.is_segment = plan->row.positions == 1 || bn_is_dense(plan, true, ~0u);
    plan->rows_per_chunk = BN_ROWS * strand_rows(plan);
    plan->chunks = ceil_div(plan->rows, plan->rows_per_chunk);
}

static void plan_short_runs(bn_plan *plan) {
    plan->form = SHORT_RUNS;
    plan->row.positions = 1;
    plan->rows = plan->positions;
    plan->row.is_segment = bn_is_dense(plan, false, ~0u);
    plan->rows_per_chunk = BN_ROWS * SHORTEST_STRAND;
    plan->chunks = ceil_div(plan->rows, plan->rows_per_chunk);
}

static void plan_long_runs(bn_plan *plan) {
    plan->form = LONG_RUNS;
    plan->run.stretch = BN_STRETCH_BYTES / plan->element_bytes;
    plan->rows = plan->positions;
    plan->rows_per_chunk = at_most(plan->positions, MOST_POSITIONS);
    /* Chunks should be long, but a large problem needs enough tasks for many threads. */
    const int64_t tasks = ceil_div(TASKS, plan->channels);
    const int64_t shortest = at_least(SHORTEST_CHUNK, LONGEST_CHUNK / plan->positions);
    plan->run.elements_per_chunk =
        round_up(at_least(at_most(plan->run_length / tasks, LONGEST_CHUNK), shortest), PIECE);
    plan->run.chunks = ceil_div(plan->run_length, plan->run.elements_per_chunk);
    plan->chunks = ceil_div(plan->positions, plan->rows_per_chunk) * plan->run.chunks;
}

/* ---- tiles ------------------------------------------------------------- */

/* Channels per tile, for one thread. What is read of a tile should stay in a core's own cache from
 * sum to write, and its columns in the first-level cache. But if channels share rows, only a tile's
 * part of each row is read at a time. Wide tiles are then faster even if only narrow ones would fit
 * the cache (measured: with NXC always, with NCX if narrow tiles had fewer than 1000 columns). If
 * nothing is summed, wide tiles are faster too, because more memory is contiguous. */
static int64_t tile_channels(const bn_plan *plan) {
    enum {
        LEAST_COLUMNS = 1024, /* measured: docs/how_it_is_fast.md, "Tiles" */
        TILE_COLUMNS = 2048,  /* their two sums of doubles are 32 kB, a first-level cache */
        WIDEST = 4096,        /* twice as many: 64 kB, a part of the second-level cache */
    };
    /* Half of a common second-level cache; in one of 2 MiB, tiles of 1 MiB took up to 1.3 times as
     * long (measured). */
    enum { MOST_BYTES = 512 << 10 };
    if (plan->row.positions > 1 || (!plan->sums && plan->by_runs[WRITE]))
        return plan->channels;
    /* Columns per channel; none if both passes read channels one by one. */
    const bool by_runs = plan->by_runs[SUM] && plan->by_runs[WRITE];
    const int64_t columns = by_runs ? 0 : plan->run_length;
    const int64_t bytes = plan->positions * plan->run_length * bn_bytes_read(plan);
    int64_t width = at_most(bn_l2_bytes() / 2, MOST_BYTES) / bytes;
    if (!plan->sums && plan->form == SHORT_RUNS) /* then only coefficients are read again */
        width = bn_l2_bytes() / 4 / (columns * plan->coef_planes * plan->number_bytes);
    else if (plan->form == CHANNELS_LAST ||
             width * columns < at_most(LEAST_COLUMNS, plan->channels * columns))
        width = WIDEST / columns;
    else if (columns)
        width = at_most(width, TILE_COLUMNS / columns);
    return at_least(at_most(width, plan->channels), 1);
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
    const double run = (double)plan->run_length, positions = (double)plan->positions;
    if (plan->form == LONG_RUNS)
        return (double)plan->rows_per_chunk / positions *
               (double)at_most(plan->run.elements_per_chunk, plan->run_length) / run;
    return (double)at_most(plan->rows_per_chunk, plan->rows) / (double)plan->rows;
}

/* Channels per tile: fewer than `widest` where there would be too few tasks for all threads, or
 * where too many threads would be idle during the last tasks. Otherwise, rows of interleaved
 * channels stay whole: narrow rows are slower, and slower still if they are also written. */
static int64_t channels_for(const bn_plan *plan, int64_t widest, int threads) {
    enum { LINE = 32 }; /* channels: a cache line of 16-bit elements */
    const bool interleaved = plan->form == CHANNELS_LAST;
    const bool narrow_writes = interleaved && plan->fused;
    const double worth = 1.1, of_rows = narrow_writes ? 0.6 : 0.875;
    const double enough = interleaved ? of_rows : busy_enough;
    const int64_t unit = interleaved ? LINE : 1;
    if (threads == 1 || (plan->joint && !plan->sums) || (narrow_writes && plan->row.positions > 1))
        return widest;
    int64_t tiles = ceil_div(plan->channels, widest), found = widest;
    if (!interleaved)
        tiles = at_least(tiles, ceil_div(TASKS_PER_THREAD * threads, plan->chunks));
    for (double most = 0; most < enough; tiles++) {
        const int64_t even = round_up(ceil_div(plan->channels, tiles), unit);
        const int64_t width = at_most(even, widest);
        const double part = (double)width / (double)plan->channels;
        const double here = busy(threads, plan->chunks * ceil_div(plan->channels, width),
                                 largest_chunk(plan) * part);
        if (here > worth * most || here >= enough) {
            found = width;
            most = here;
        }
        if (even <= unit)
            break;
    }
    return found;
}

/* Rows per joint task: a chunk's rows, which are still in the cache of the thread that summed them;
 * or, if chunks leave too many threads idle, a part of a thread's share. */
static int64_t rows_to_write(const bn_plan *plan, int threads) {
    const int64_t rows = at_most(plan->rows_per_chunk, plan->rows);
    const int64_t chunks = ceil_div(plan->rows, rows);
    if (busy(threads, chunks, (double)rows / (double)plan->rows) >= busy_enough)
        return rows;
    const int64_t tasks = at_least(chunks, TASKS_PER_THREAD * threads);
    return ceil_div(plan->rows, round_up(tasks, threads));
}

static int64_t all_bytes(const bn_plan *plan) {
    const formula_needs *sum = plan->needs[SUM], *write = plan->needs[WRITE];
    const int tensors = __builtin_popcount(ELEMENTS(sum->reads | write->reads | write->writes));
    return plan->channels * plan->positions * plan->run_length * tensors * plan->element_bytes;
}

/* Bypassing the last-level cache pays if the tensors exceed three quarters of it: they would not
 * stay there, because the cache is shared (docs/how_it_is_fast.md, "Stores that bypass the
 * cache"). */
static bool past_the_cache(const bn_plan *plan) {
    return all_bytes(plan) > bn_last_level_bytes() / 4 * 3;
}

/* If runs are written one by one, a channel's coefficients stay in registers. They are neither read
 * for each element nor laid out; with few positions, laying out does not pay. But each run has two
 * ends, which are expensive if stores bypass the cache. */
static bool by_runs_is_faster(const bn_plan *plan) {
    enum { WORTH_ENDS = 384, OF_F16 = 480 };            /* bytes of a run (measured) ... */
    enum { WORTH_LAYING_OUT = 24, WORTH_POSITION = 8 }; /* ... and elements (measured) */
    const int64_t worth = plan->problem->dtype == BN_F16 ? OF_F16 : WORTH_ENDS;
    return plan->run_length * plan->element_bytes >= worth ||
           (plan->evenly &&
            plan->run_length >= WORTH_LAYING_OUT + WORTH_POSITION * plan->positions);
}

/* Likewise, sums by runs stay in registers and need no memory. But a run's columns are then read
 * unit by unit, each unit at all positions. */
static bool sums_by_runs_are_faster(const bn_plan *plan) {
    enum { FEW = 8, WORTH_POSITION = 4 }; /* positions; a run's elements per position (measured) */
    return plan->positions <= FEW && plan->run_length >= WORTH_POSITION * plan->positions &&
           plan->evenly && plan->run_is_segment && !plan->fused;
}

/* Are results written by joint tasks, over all tiles? With channels last, all rows of all channels
 * are one range of memory. With runs, a tile's channels are many ranges, far apart. So with runs,
 * writing tile by tile pays only if all tiles fit the second-level cache, or exceed the last-level
 * one (measured). */
static bool writes_jointly(const bn_plan *plan, int64_t widest, int threads) {
    if (!plan->writes || plan->fused)
        return false;
    if (plan->form == CHANNELS_LAST)
        return widest == plan->channels;
    return plan->by_runs[WRITE] && plan->run_is_segment && plan->evenly &&
           plan->positions >= TASKS_PER_THREAD * threads &&
           (!plan->sums || (plan->far && !plan->nontemporal && widest < plan->channels));
}

void bn_make_plan(bn_plan *plan, int threads, bool paired) {
    const int64_t long_run = at_least(LONG_RUN, 16 * at_most(plan->positions, LONGEST_SHORT / 16));
    if (plan->run_length == 1)
        plan_channels_last(plan);
    else if (plan->run_length < long_run)
        plan_short_runs(plan);
    else
        plan_long_runs(plan);
    plan->gathers = !plan->evenly || (plan->form == LONG_RUNS && !plan->run_is_segment);
    plan->nontemporal = plan->writes && past_the_cache(plan);
    plan->far = all_bytes(plan) > bn_l2_bytes();
    plan->by_runs[SUM] =
        plan->form == LONG_RUNS || (plan->form == SHORT_RUNS && sums_by_runs_are_faster(plan));
    plan->by_runs[WRITE] = plan->form == LONG_RUNS || by_runs_is_faster(plan);
    const int64_t widest = tile_channels(plan);
    plan->joint = writes_jointly(plan, widest, threads);
    plan->channels_per_tile = channels_for(plan, widest, threads);
    plan->tiles = ceil_div(plan->channels, plan->channels_per_tile);
    const bool in_registers = plan->form == SHORT_RUNS && plan->by_runs[SUM];
    plan->columns[SUM] = in_registers ? 0 : columns_of(plan, plan->channels_per_tile);
    plan->columns[WRITE] = columns_of(plan, plan->joint ? plan->channels : plan->channels_per_tile);
    if (plan->joint)
        plan->rows_per_write = rows_to_write(plan, threads);
    plan->row.dense =
        (plan->joint || plan->tiles == 1) && plan->form < LONG_RUNS && bn_is_dense(plan, true, ~0u);
    /* A ring's planes are whole cache lines; so are their halves if the dtype is paired. */
    if (plan->writes && !plan->by_runs[WRITE] && (paired || (plan->row.dense && plan->rows > 1)))
        plan->row.ring =
            round_up((plan->columns[WRITE] << (plan->columns[WRITE] & 1)) + BN_RING_PAD, 32);
}
