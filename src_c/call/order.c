/* order.c: the form, rows, stretches and chunks of sums, from the shape and the dtype alone. sum.c
 * cuts a chunk into strands and blocks; kernels/sums/loops.inc and runs.inc add blocks up by
 * groups. docs/design.md has the words, and lists what else can change a bit. There are three
 * forms:
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
 *                          position 1  c c c c d d d d     at the end of a chunk
 *
 *   LONG_RUNS          (NCX.) A row is the run of one channel at one position, which is folded:
 *                      element x joins column x mod stretch. A single position's run is read as
 *                      rows of one stretch each, one after the other.
 *
 *                          position 0  [c c c c c][c c c c c][c c        block: positions 0, q, ...
 *                          position 1  [c c c c c][c c c c c][c c        group: eight stretches
 *
 * Four rows are added together as memory is read fastest: stretches side by side, or rows far
 * apart. At few positions, it is faster to add up a row's columns immediately than to keep them
 * apart until the end of a chunk; hence the bound between the last two forms. */
#include "call/order.h"

#include "base/sizes.h"
#include "kernels/kernels.h"

/* What was measured can be measured again, with benchmark rows on either side of the bound. */
enum {
    ROW_COLUMNS = 256, /* the fewest in a row of several positions: twice BN_FULL_ROW ... */
    ROW_UNIT = 32,     /* ... and a multiple of this: 16-bit elements of the widest register */
    LONG_RUN = 48,     /* the fewest elements of a long run, or LONG_POSITION per position if more,
                        * but at most BN_ALWAYS_LONG (all measured) */
    LONG_POSITION = 16,
    /* Rows of a whole chunk's strand: an odd number, because strands that start an even number of
     * rows apart may share cache sets; and no more than the hardware prefetcher can follow (both
     * measured). */
    SHORTEST_STRAND = 33,
    LONGEST_STRAND = 129,
    /* The most bytes of a strand; rounding may add a row. SHORTEST_STRAND rows may take more. Four
     * strands: 512 kB. */
    STRAND_BYTES = 128 << 10,
    FEW_ROWS = BN_ROWS * SHORTEST_STRAND, /* of a chunk of runs */
    SHORTEST_CHUNK = 4096,                /* elements of a run in a chunk: a page or more, ... */
    LONGEST_CHUNK = 16384,                /* ... but longer ones gain nothing (measured) */
    CHUNK_UNIT = 1024,                    /* elements: whole groups */
    TASKS = 64, /* of a large problem, on any machine: four for each of 16 threads */
};

static void order_channels_last(const bn_problem *p, bn_sum_order *s) {
    s->form = CHANNELS_LAST;
    if (p->channels < BN_FULL_ROW) {
        const int64_t unit = ROW_UNIT / at_most(p->channels & -p->channels, ROW_UNIT);
        const int64_t units = ceil_div(ROW_COLUMNS, unit * p->channels);
        s->row_positions = at_most(unit * units, p->positions);
    }
    s->rows = ceil_div(p->positions, s->row_positions);
    const int64_t row_bytes =
        s->row_positions * p->channels * bn_dtype_table[p->dtype].element_bytes;
    const int64_t fair = s->rows / (TASKS * BN_ROWS);
    const int64_t strand = at_most(at_most(STRAND_BYTES / row_bytes, fair), LONGEST_STRAND);
    s->chunk_rows = BN_ROWS * (at_least(strand, SHORTEST_STRAND) | 1);
}

static void order_long_runs(const bn_problem *p, bn_sum_order *s) {
    s->form = LONG_RUNS;
    s->stretch = BN_STRETCH_BYTES / bn_dtype_table[p->dtype].element_bytes;
    /* Chunks should be long, but a large problem needs enough tasks for many threads. */
    const int64_t tasks = ceil_div(TASKS, p->channels);
    const int64_t shortest = at_least(SHORTEST_CHUNK, LONGEST_CHUNK / p->positions);
    s->chunk_run = round_up(at_least(at_most(p->run / tasks, LONGEST_CHUNK), shortest), CHUNK_UNIT);
    s->run_chunks = ceil_div(p->run, s->chunk_run);
}

bn_sum_order bn_sum_order_of(const bn_problem *p) {
    bn_sum_order s = {
        .form = SHORT_RUNS,
        .row_positions = 1,
        .rows = p->positions,
        .chunk_rows = FEW_ROWS,
        .chunk_run = p->run,
        .run_chunks = 1,
    };
    const int64_t most = BN_ALWAYS_LONG / LONG_POSITION;
    const int64_t long_run = at_least(LONG_RUN, LONG_POSITION * at_most(p->positions, most));
    if (p->run == 1)
        order_channels_last(p, &s);
    else if (p->run >= long_run)
        order_long_runs(p, &s);
    s.chunks = ceil_div(s.rows, s.chunk_rows) * s.run_chunks;
    return s;
}
