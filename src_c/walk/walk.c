/* walk.c: from a chunk to boxes for the kernels: sums by columns, sums by runs, and writes. order.c
 * has the order of sums, and pictures of it. Writes need no order.
 */
#include "walk/walk.h"

#include <string.h>

#include "sizes.h"

/* A box of one row, where a chunk begins. */
static bn_box box_at(const bn_problem *p, const bn_chunk *chunk, int64_t cols) {
    bn_box box = {.repeats = 1, .channels = 1, .rows = 1, .cols = cols};
    int64_t by[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++) {
        box.at.data[o] = p->data[o];
        box.apart[o] = p->apart[o];
        by[o] = chunk->position * p->pitch[o] + chunk->channel * p->apart[o] +
                chunk->x * bn_element_step(o, bn_dtype_table[p->dtype].element_bytes);
    }
    bn_move(&box.at, by);
    return box;
}

/* Move a box by so many repeats. */
static void pass_repeats(bn_box *box, int64_t repeats) {
    int64_t by[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        by[o] = repeats * box->step[o];
    bn_move(&box->at, by);
}

/* ---- sums ---------------------------------------------------------------- */

/* A second box behind the first: fewer rows or shorter ones. Return how many boxes there are. */
static int add_box(bn_box box[BN_BOXES], int64_t rows, int64_t repeats, int64_t cols) {
    if (repeats == 0)
        return 1;
    box[1] = box[0];
    pass_repeats(&box[1], box->repeats);
    box[1].rows = (int)rows;
    box[1].repeats = repeats;
    box[1].cols = cols;
    return 2;
}

/* A chunk's rows, each of so many positions, as strands side by side: block g has row g of each
 * strand. The last strand may be shorter; where it has ended, blocks have one row fewer. */
static int boxes_of_strands(const bn_walk *walk, const bn_chunk *chunk, int64_t positions,
                            int64_t cols, bn_box box[BN_BOXES]) {
    const bn_problem *p = walk->plan->problem;
    const int64_t rows = chunk->positions / positions, length = ceil_div(rows, BN_ROWS);
    const int64_t strands = ceil_div(rows, length), last = rows - (strands - 1) * length;
    *box = box_at(p, chunk, cols);
    box->rows = (int)strands;
    box->repeats = last;
    for (int o = 0; o < BN_OPERANDS; o++) {
        box->step[o] = positions * p->pitch[o];
        box->pitch[o] = length * box->step[o];
    }
    return add_box(box, strands - 1, length - last, cols);
}

/* A single position's run: rows are four consecutive stretches; what is left of the run is one
 * row. */
static int boxes_of_stretches(const bn_walk *walk, const bn_chunk *chunk, bn_box box[BN_BOXES]) {
    const bn_plan *plan = walk->plan;
    const int64_t stretch = plan->order.stretch, block = BN_ROWS * stretch, n = chunk->n;
    *box = box_at(plan->problem, chunk, n);
    if (n < block)
        return 1;
    box->rows = BN_ROWS;
    box->repeats = n / block;
    box->cols = stretch;
    for (int o = 0; o < BN_OPERANDS; o++) {
        box->pitch[o] = stretch * bn_element_step(o, plan->element_bytes);
        box->step[o] = BN_ROWS * box->pitch[o];
    }
    return add_box(box, 1, n % block > 0, n % block);
}

/* Each channel is summed in registers, with coefficients of its own. */
static void sum_by_runs(const bn_walk *walk, const bn_chunk *chunk) {
    const bool long_runs = walk->plan->order.form == LONG_RUNS;
    const formula f = walk->formula;
    bn_box box[BN_BOXES];
    const int boxes = long_runs && chunk->positions == 1
                          ? boxes_of_stretches(walk, chunk, box)
                          : boxes_of_strands(walk, chunk, 1, chunk->n, box);
    for (int i = 0; i < boxes; i++)
        box[i].channels = chunk->channels;
    bn_sum_kernel *const(*kernels)[GATES] =
        long_runs ? walk->kernels->sum_long_runs : walk->kernels->sum_short_runs;
    kernels[f.base][f.gate](box, boxes, &walk->coefs, &walk->kept);
}

static void clear_sums(const bn_walk *walk, int64_t columns) {
    const bn_sums *sums = &walk->scratch->sums;
    const size_t all = (size_t)(columns + BN_PAD);
    for (int plane = 0; plane < walk->plan->passes->sum_planes; plane++)
        memset(sums->plane + plane * sums->stride, 0, all * sizeof(double));
}

/* With channels last, a channel has a column for each position of a row: add the upper half of
 * these positions to the lower half, until one is left. */
static void keep_positions(const bn_walk *walk, int64_t n) {
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
static void keep_columns(const bn_walk *walk, int64_t n) {
    const int64_t columns = walk->plan->problem->run;
    for (int64_t c = 0; c < n; c++) {
        const bn_sums own = sums_from(&walk->scratch->sums, c * columns);
        const bn_sums to = sums_from(&walk->kept, c);
        walk->kernels->sum_columns(&own, columns, &to);
    }
}

/* Sums a chunk's rows, each of so many positions. */
typedef void sum_of_rows(const bn_walk *walk, const bn_chunk *chunk, int64_t positions);

/* The last row may have fewer than `each` positions. */
static void sum_all_rows(const bn_walk *walk, const bn_chunk *chunk, int64_t each,
                         sum_of_rows *sum) {
    bn_chunk left = *chunk;
    left.positions = chunk->positions % each;
    left.position += chunk->positions - left.positions;
    if (chunk->positions >= each)
        sum(walk, chunk, each);
    if (left.positions > 0)
        sum(walk, &left, left.positions);
}

static void sum_rows(const bn_walk *walk, const bn_chunk *chunk, int64_t positions) {
    const formula f = walk->formula;
    const int64_t columns = chunk->channels * positions * walk->plan->problem->run;
    bn_box box[BN_BOXES];
    const int boxes = boxes_of_strands(walk, chunk, positions, columns, box);
    walk->kernels->sum[f.base][f.gate](box, boxes, &walk->coefs, &walk->scratch->sums);
}

static void sum_by_columns(const bn_walk *walk, const bn_chunk *chunk) {
    const bn_sum_order *order = &walk->plan->order;
    clear_sums(walk, columns_of(walk->plan, chunk->channels));
    sum_all_rows(walk, chunk, order->row_positions, sum_rows);
    if (order->form == CHANNELS_LAST)
        keep_positions(walk, chunk->channels);
    else
        keep_columns(walk, chunk->channels);
}

/* Exact sums need no order: a box has all rows, one after the other. */
static void sum_rows_exactly(const bn_walk *walk, const bn_chunk *chunk, int64_t positions) {
    const bn_problem *p = walk->plan->problem;
    const bool by_runs = walk->plan->by_runs[SUM];
    bn_box box = box_at(p, chunk, by_runs ? chunk->n : chunk->channels * positions * p->run);
    box.rows = (int)(chunk->positions / positions);
    box.channels = by_runs ? chunk->channels : 1;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.pitch[o] = positions * p->pitch[o];
    bn_sum_exactly(&walk->scratch->exact, &box, &walk->coefs);
}

static void sum_exactly(const bn_walk *walk, const bn_chunk *chunk) {
    bn_take_tile(&walk->scratch->exact, chunk->channel, chunk->channels);
    sum_all_rows(walk, chunk, exact_positions(walk->plan), sum_rows_exactly);
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
        if (bn_writes(walk->plan->passes->formula[WRITE]) >> o & 1 && n * box->step[o] % bytes)
            return false;
    return true;
}

static void write_box(const bn_walk *walk, const bn_box *box) {
    walk->kernels->write[walk->formula.base][walk->formula.gate](box, &walk->coefs);
}

/* Write a box of one row as strands, so many steps apart; move it past them. */
static void write_strands(const bn_walk *walk, bn_box *box, int64_t steps) {
    for (int o = 0; o < BN_OPERANDS; o++)
        box->pitch[o] = steps * box->step[o];
    box->rows = BN_STRANDS;
    write_box(walk, box);
    box->rows = 1;
    pass_repeats(box, BN_STRANDS * steps);
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
        write_box(walk, box);
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
        write_box(walk, box);
}

void bn_walk_writes(const bn_walk *walk, const bn_chunk *chunk) {
    const bn_plan *plan = walk->plan;
    const bn_problem *p = plan->problem;
    const bool by_runs = plan->by_runs[WRITE];
    const int64_t n = chunk->positions, columns = chunk->channels * p->run;
    bn_box box = box_at(p, chunk, by_runs ? chunk->n : columns);
    box.nontemporal = plan->nontemporal;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.step[o] = p->pitch[o];
    if (!by_runs && plan->dense) {
        write_dense(walk, &box, n * columns);
        return;
    }
    if (by_runs) {
        box.channels = chunk->channels;
        box.ahead = walk->ahead;
    }
    /* For runs, strands that start at the same place of their pages (see write_dense) pay only if
     * the data comes from memory (measured). */
    const bool strands =
        !by_runs || plan->nontemporal || !strands_meet(walk, &box, n / BN_STRANDS, PAGE_BYTES);
    write_repeats(walk, &box, n, strands);
}
