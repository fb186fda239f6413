/* walk.c: from a chunk to boxes for the kernels: sums by columns, sums by runs, and writes. order.c
 * has the order of sums, and pictures of it. Writes need no order.
 */
#include "walk/walk.h"

#include <string.h>

#include "sizes.h"

/* ---- sums ---------------------------------------------------------------- */

/* Rows of one position or more, `positions` positions apart, as strands side by side: block g has
 * row g of each strand. The last strand may be shorter; where it has ended, blocks have one row
 * fewer. */
static bn_box box_of_strands(const bn_walk *walk, int64_t position, int64_t positions, int64_t rows,
                             int64_t x, int64_t cols) {
    const bn_problem *p = walk->plan->problem;
    const int64_t length = ceil_div(rows, BN_ROWS), strands = ceil_div(rows, length);
    const int64_t last = rows - (strands - 1) * length;
    bn_box box = box_at(p, place_of(p, position, walk->from, x), cols);
    box.rows = (int)strands;
    box.repeats = last;
    box.tail = (bn_tail){.rows = (int)strands - 1, .repeats = length - last, .cols = cols};
    for (int o = 0; o < BN_OPERANDS; o++) {
        box.step[o] = positions * p->pitch[o];
        box.pitch[o] = length * box.step[o];
    }
    return box;
}

/* A single position's run: rows are four consecutive stretches; what is left of the run is one
 * row. */
static bn_box box_of_stretches(const bn_walk *walk, const bn_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const int64_t stretch = plan->order.stretch, block = BN_ROWS * stretch, n = chunk->n;
    const bn_place place = place_of(plan->problem, chunk->position, walk->from, chunk->x);
    bn_box box = box_at(plan->problem, place, n);
    if (n < block)
        return box;
    box.rows = BN_ROWS;
    box.repeats = n / block;
    box.cols = stretch;
    box.tail = (bn_tail){.rows = 1, .repeats = n % block > 0, .cols = n % block};
    for (int o = 0; o < BN_OPERANDS; o++) {
        box.pitch[o] = stretch * (o == BN_GATE ? 1 : plan->element_bytes);
        box.step[o] = BN_ROWS * box.pitch[o];
    }
    return box;
}

/* Each channel is summed in registers, with coefficients of its own. */
static void sum_by_runs(const bn_walk *walk, const bn_chunk *chunk) {
    const bool long_runs = walk->plan->order.form == LONG_RUNS;
    bn_box box =
        long_runs && chunk->positions == 1
            ? box_of_stretches(walk, chunk)
            : box_of_strands(walk, chunk->position, 1, chunk->positions, chunk->x, chunk->n);
    box.channels = walk->channels;
    bn_sum_kernel *const(*kernels)[GATES] =
        long_runs ? walk->kernels->sum_long_runs : walk->kernels->sum_short_runs;
    kernels[walk->sum.base][walk->sum.gate](&box, &walk->coefs[SUM], &walk->kept);
}

static void clear_sums(const bn_walk *walk, int64_t columns) {
    const bn_sums *sums = &walk->scratch->sums;
    const size_t all = (size_t)(columns + BN_PAD);
    for (int plane = 0; plane < walk->plan->passes->sum_planes; plane++)
        memset(sums->plane + plane * sums->stride, 0, all * sizeof(double));
}

/* With channels last, a channel has a column for each position of a row: add the upper half of
 * these positions to the lower half, until one is left. */
static void keep_positions(const bn_walk *walk) {
    const int64_t n = walk->channels;
    const bn_sums *sums = &walk->scratch->sums, *kept = &walk->kept;
    for (int64_t m = walk->plan->order.row_positions; m > 1; m -= m / 2) {
        const bn_sums upper = sums_from(sums, (m - m / 2) * n);
        walk->kernels->add(sums, &upper, m / 2 * n);
    }
    for (int plane = 0; plane < walk->plan->passes->sum_planes; plane++)
        memcpy(kept->plane + plane * kept->stride, sums->plane + plane * sums->stride,
               (size_t)n * sizeof(double));
}

/* With runs, a channel's columns are adjacent: add them up. */
static void keep_columns(const bn_walk *walk) {
    const int64_t columns = walk->plan->order.run;
    for (int64_t c = 0; c < walk->channels; c++) {
        const bn_sums own = sums_from(&walk->scratch->sums, c * columns);
        const bn_sums to = sums_from(&walk->kept, c);
        walk->kernels->sum_columns(&own, columns, &to);
    }
}

static void sum_strands(const bn_walk *walk, int64_t position, int64_t positions, int64_t rows) {
    const int64_t columns = walk->channels * positions * walk->plan->order.run;
    const bn_box box = box_of_strands(walk, position, positions, rows, 0, columns);
    walk->kernels->sum[walk->sum.base][walk->sum.gate](&box, &walk->coefs[SUM],
                                                       &walk->scratch->sums);
}

static void sum_by_columns(const bn_walk *walk, const bn_chunk *chunk) {
    const int64_t each = walk->plan->order.row_positions;
    const int64_t rows = chunk->positions / each, left = chunk->positions % each;
    clear_sums(walk, columns_of(walk->plan, walk->channels));
    if (rows > 0)
        sum_strands(walk, chunk->position, each, rows);
    if (left > 0) /* the last row has fewer positions */
        sum_strands(walk, chunk->position + rows * each, left, 1);
    if (walk->plan->order.form == CHANNELS_LAST)
        keep_positions(walk);
    else
        keep_columns(walk);
}

/* Exact sums need no order: a box has all rows, one after the other. */
static void sum_exactly(const bn_walk *walk, const bn_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bn_problem *p = plan->problem;
    const bool by_runs = plan->by_runs[SUM];
    const int64_t each = exact_positions(plan), own = walk->channels * p->run;
    const int64_t rows = chunk->positions / each, left = chunk->positions % each;
    const bn_place place = place_of(p, chunk->position, walk->from, chunk->x);
    bn_box box = box_at(p, place, by_runs ? chunk->n : each * own);
    box.rows = (int)rows;
    box.channels = by_runs ? walk->channels : 1;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.pitch[o] = each * p->pitch[o];
    bn_take_tile(&walk->scratch->exact, walk->from, walk->channels);
    if (rows > 0)
        bn_sum_exactly(&walk->scratch->exact, &box, &walk->coefs[SUM]);
    if (left > 0) { /* the last row has fewer positions */
        box.at = place_in(&box, 0, rows, 0, plan->element_bytes);
        box.rows = 1;
        box.cols = left * own;
        bn_sum_exactly(&walk->scratch->exact, &box, &walk->coefs[SUM]);
    }
}

void bn_walk_sums(const bn_walk *walk, const bn_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    (plan->passes->exact  ? sum_exactly
     : plan->by_runs[SUM] ? sum_by_runs
                          : sum_by_columns)(walk, chunk);
}

/* ---- writes -------------------------------------------------------------- */

/* In all operands that are written, do strands of n steps start at the same place modulo `bytes`, a
 * cache line or a page? */
static bool strands_meet(const bn_walk *walk, const bn_box *box, int64_t n, int64_t bytes) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (walk->plan->passes->needs[WRITE].writes >> o & 1 && n * box->step[o] % bytes)
            return false;
    return true;
}

/* Write a box of one row as strands, so many steps apart; move it past them. */
static void write_strands(const bn_walk *walk, bn_box *box, int64_t steps) {
    for (int o = 0; o < BN_OPERANDS; o++)
        box->pitch[o] = steps * box->step[o];
    box->rows = BN_STRANDS;
    walk->write(box, &walk->coefs[WRITE]);
    box->rows = 1;
    box->at = place_in(box, 0, BN_STRANDS, 0, 0);
}

/* Write a box of one row, n times. With `strands`, write repeats side by side as strands if that is
 * possible; then write the rest one by one. */
static void write_repeats(const bn_walk *walk, bn_box *box, int64_t n, bool strands) {
    const int64_t length = n / BN_STRANDS;
    if (strands && length > 0 &&
        (!box->nontemporal || strands_meet(walk, box, length, LINE_BYTES))) {
        box->repeats = length;
        write_strands(walk, box, length);
        n %= BN_STRANDS;
    }
    box->repeats = n;
    if (n > 0)
        walk->write(box, &walk->coefs[WRITE]);
}

/* Write rows without a gap between them, as one row of `elements` elements. If their operands are
 * not in cache, they may be written instead as four strands that begin at the same place of their
 * cache lines, followed by what is left. */
static void write_dense(const bn_walk *walk, bn_box *box, int64_t elements) {
    enum { SMALL_RING = 6 << 10 }; /* bytes of all planes: an eighth of a cache of 48 kB */
    const bn_plan *plan = walk->plan;
    const int64_t columns = plan->columns[WRITE], row = columns * plan->element_bytes;
    const int64_t lines = LINE_BYTES / greatest_common_divisor(row, LINE_BYTES);
    int64_t strand = elements / columns / BN_STRANDS / lines * lines;
    if (strand > lines && strand * row % PAGE_BYTES == 0)
        strand -= lines;
    /* Strands that start at the same place of their pages map to one set of the first-level cache.
     * Such strands pay only if coefficients take more than SMALL_RING bytes, because strands read
     * coefficients once for four rows. */
    const bool meet = strand * row % PAGE_BYTES == 0;
    const bool small = plan->passes->coef_planes * plan->ring * plan->number_bytes <= SMALL_RING;
    if (plan->far && !plan->passes->fused && strand > 0 && !(meet && small)) {
        box->cols = strand * columns;
        write_strands(walk, box, strand * plan->order.row_positions);
        elements -= BN_STRANDS * strand * columns;
    }
    box->cols = elements;
    if (elements > 0)
        walk->write(box, &walk->coefs[WRITE]);
}

void bn_walk_writes(const bn_walk *walk, const bn_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bn_problem *p = plan->problem;
    const bool by_runs = plan->by_runs[WRITE];
    const int64_t n = chunk->positions, columns = walk->channels * plan->order.run;
    const bn_place place = place_of(p, chunk->position, walk->from, chunk->x);
    bn_box box = box_at(p, place, by_runs ? chunk->n : columns);
    box.nontemporal = plan->nontemporal;
    box.relu = p->relu;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.step[o] = p->pitch[o];
    if (!by_runs && plan->dense) {
        write_dense(walk, &box, n * columns);
        return;
    }
    if (by_runs) {
        box.channels = walk->channels;
        box.ahead = walk->channels_ahead;
    }
    /* Strands that start at the same place of their pages map to one set of the first-level cache.
     * For runs, such strands pay only if the data comes from memory (measured). */
    const bool strands =
        !by_runs || plan->nontemporal || !strands_meet(walk, &box, n / BN_STRANDS, PAGE_BYTES);
    write_repeats(walk, &box, n, strands);
}
