/* sum.c: carries out what order.c decides: every addition of sums that are not exact. A channel's
 * sum is finished from top to bottom of this list.
 *
 *     1  blocks, groups     into a column's sum: kernels/sums/loops.inc; of runs that stay in
 * registers, 2 follows at once: kernels/sums/runs.inc 2  a chunk's columns  into its channels'
 * sums: add_positions, add_columns (kernels/sums/sums.inc) 3  chunks             in order, then
 * what rounding took from them: bn_add_chunks 4  the operation      finish_slice (tasks.c): refine;
 * then finish, with bn_set_coefs. Then `expanded` lays coefficients out for coefs_at
 * (kernels/writes/rings.inc)
 *
 * A chunk goes to a kernel as boxes: rows whose blocks follow each other. */
#include "call/task.h"

#include <math.h>
#include <string.h>

/* ---- the parts of sums ------------------------------------------------------- */

static bn_sums sums_from(const bn_sums *sums, int64_t column) {
    return (bn_sums){sums->plane + column, sums->stride, sums->group, sums->n};
}

/* A chunk's sums, from a channel on. */
static bn_sums sums_of_chunk(const bn_room *room, int64_t index, int64_t channel) {
    const int64_t n = room->plan->call->problem->channels;
    return (bn_sums){room->partial + index * room->plan->call->sum_planes * n + channel, n, NULL,
                     room->channels.sums.n};
}

/* ---- a chunk ------------------------------------------------------------------ */

/* A second box behind the first: fewer rows or shorter ones. Return how many boxes there are. */
static int add_box(bn_box box[BN_BOXES], int64_t rows, int64_t repeats, int64_t cols) {
    if (repeats == 0)
        return 1;
    box[1] = box[0];
    bn_move(&box[1].at, box->next_repeat, box->repeats);
    box[1].rows = (int)rows;
    box[1].repeats = repeats;
    box[1].cols = cols;
    return 2;
}

/* A chunk's rows, each of so many positions, as strands side by side: block g has row g of each
 * strand. The last strand may be shorter; where it has ended, blocks have one row fewer. */
static int boxes_of_strands(const bn_task *t, int64_t positions, int64_t cols,
                            bn_box box[BN_BOXES]) {
    const int64_t rows = t->chunk.positions / positions, length = ceil_div(rows, BN_ROWS);
    const int64_t strands = ceil_div(rows, length), last = rows - (strands - 1) * length;
    bn_set_first_row(box, t, cols);
    box->rows = (int)strands;
    box->repeats = last;
    for (int o = 0; o < BN_OPERANDS; o++) {
        box->next_repeat[o] = positions * t->next_position[o];
        box->next_row[o] = length * box->next_repeat[o];
    }
    return add_box(box, strands - 1, length - last, cols);
}

/* A single position's run: rows are four consecutive stretches; what is left of the run is one
 * row. */
static int boxes_of_stretches(const bn_task *t, bn_box box[BN_BOXES]) {
    const bn_call *call = t->plan->call;
    const int64_t stretch = call->order.stretch, block = BN_ROWS * stretch, n = t->chunk.n;
    bn_set_first_row(box, t, n);
    if (n < block)
        return 1;
    box->rows = BN_ROWS;
    box->repeats = n / block;
    box->cols = stretch;
    for (int o = 0; o < BN_OPERANDS; o++) {
        box->next_row[o] = stretch * bn_next_element(o, call->element_bytes);
        box->next_repeat[o] = BN_ROWS * box->next_row[o];
    }
    return add_box(box, 1, n % block > 0, n % block);
}

/* Each channel is summed in registers, with coefficients of its own. */
static void sum_by_runs(const bn_task *t, const bn_sums *to) {
    const formula f = t->formula;
    const bool long_runs = t->plan->call->order.form == LONG_RUNS;
    bn_box box[BN_BOXES];
    const int boxes = long_runs && t->chunk.positions == 1
                          ? boxes_of_stretches(t, box)
                          : boxes_of_strands(t, 1, t->chunk.n, box);
    for (int i = 0; i < boxes; i++) {
        box[i].channels = t->chunk.channels;
        box[i].folded = long_runs;
    }
    t->plan->call->kernels->sum_runs[f.base][f.gate](box, boxes, &t->coefs, to);
}

static void clear(const bn_sums *sums, int planes, int64_t columns) {
    for (int plane = 0; plane < planes; plane++)
        memset(sums->plane + plane * sums->stride, 0, (size_t)columns * sizeof(double));
}

/* With channels last, a channel has a column for each position of a row: add the upper half of
 * these positions to the lower half, until one is left. */
static void add_positions(const bn_task *t, const bn_sums *to) {
    const int64_t n = t->chunk.channels;
    const bn_sums *sums = &t->scratch->sums;
    for (int64_t m = t->plan->call->order.row_positions; m > 1; m -= m / 2) {
        const bn_sums upper = sums_from(sums, (m - m / 2) * n);
        t->plan->call->kernels->add_sums(sums, &upper, m / 2 * n);
    }
    for (int plane = 0; plane < t->plan->call->sum_planes; plane++)
        memcpy(to->plane + plane * to->stride, sums->plane + plane * sums->stride,
               (size_t)n * sizeof(double));
}

/* With runs, a channel's columns are adjacent: add them up. */
static void add_columns(const bn_task *t, const bn_sums *to) {
    const int64_t columns = t->plan->call->problem->run;
    for (int64_t c = 0; c < t->chunk.channels; c++) {
        const bn_sums own = sums_from(&t->scratch->sums, c * columns), one = sums_from(to, c);
        t->plan->call->kernels->sum_columns(&own, columns, &one);
    }
}

/* Sums a chunk's rows, each of so many positions. */
typedef void sum_of_rows(const bn_task *t, int64_t positions);

/* The last row may have fewer than `each` positions. */
static void sum_all_rows(const bn_task *t, int64_t each, sum_of_rows *sum) {
    const int64_t rest = t->chunk.positions % each;
    if (t->chunk.positions >= each)
        sum(t, each);
    if (rest > 0) {
        bn_task last = *t;
        last.chunk.positions = rest;
        bn_move(&last.at, t->next_position, t->chunk.positions - rest);
        sum(&last, rest);
    }
}

/* If a row's positions are spaced, each is summed by itself, but group by group, so that what is
 * fetched of a row is near in time, too: up to a fifth less time (measured). */
static void sum_strands(const bn_task *t, int64_t positions) {
    const formula f = t->formula;
    const bool spaced = t->plan->copies.spaced;
    const int64_t calls = spaced ? positions : 1, most = spaced ? BN_GROUP : INT64_MAX;
    const int64_t columns = t->chunk.channels * positions * t->plan->call->problem->run / calls;
    bn_box box[BN_BOXES];
    const int boxes = boxes_of_strands(t, positions, columns, box);
    for (int k = 0; k < boxes; k++)
        for (int64_t left = box[k].repeats; left > 0; left -= most) {
            bn_box part = box[k];
            part.repeats = at_most(left, most);
            for (int64_t i = 0; i < calls; i++) {
                const bn_sums sums = sums_from(&t->scratch->sums, i * columns);
                t->plan->call->kernels->sum[f.base][f.gate](&part, 1, &t->coefs, &sums);
                bn_move(&part.at, t->next_position, 1);
            }
            bn_move(&box[k].at, box[k].next_repeat, part.repeats);
        }
}

static void sum_by_columns(const bn_task *t, const bn_sums *to) {
    const bn_plan *plan = t->plan;
    const bn_call *call = plan->call;
    clear(&t->scratch->sums, call->sum_planes, columns_of(call, t->chunk.channels) + BN_PAD);
    sum_all_rows(t, call->order.row_positions, sum_strands);
    (call->order.form == CHANNELS_LAST ? add_positions : add_columns)(t, to);
}

/* Exact sums need no order: a box has all rows, one after the other. */
static void sum_rows_exactly(const bn_task *t, int64_t positions) {
    const bn_problem *p = t->plan->call->problem;
    const bool by_runs = t->plan->tiles.by_runs[SUM];
    bn_box box;
    bn_set_first_row(&box, t, by_runs ? t->chunk.n : t->chunk.channels * positions * p->run);
    box.rows = (int)(t->chunk.positions / positions);
    box.channels = by_runs ? t->chunk.channels : 1;
    for (int o = 0; o < BN_OPERANDS; o++)
        box.next_row[o] = positions * t->next_position[o];
    bn_sum_exactly(&t->scratch->exact, &box, &t->coefs);
}

void bn_sum(const bn_task *t) {
    const bn_plan *plan = t->plan;
    const bn_sums to = sums_of_chunk(t->room, t->chunk.index, t->chunk.channel);
    if (plan->call->exact) {
        bn_take_tile(&t->scratch->exact, t->chunk.channel, t->chunk.channels);
        sum_all_rows(t, exact_positions(plan->call), sum_rows_exactly);
    } else {
        (plan->tiles.by_runs[SUM] ? sum_by_runs : sum_by_columns)(t, &to);
    }
}

/* ---- chunks ------------------------------------------------------------------- */

/* Where a sum is Inf or NaN, its compensation has no meaning. */
static double with_compensation(double sum, double compensation) {
    return isnan(sum + compensation) ? sum : sum + compensation;
}

/* Called by the thread that finishes these channels, once all their chunks are summed; again only
 * after they were summed again, because compensations join the sums. A single chunk's sums are in
 * place: none is -0, so adding them to 0 would change nothing. */
void bn_add_chunks(const bn_room *room, int64_t from, int64_t n) {
    const bn_call *call = room->plan->call;
    const bn_sums sums = sums_from(&room->channels.sums, from);
    if (call->order.chunks > 1) {
        clear(&sums, call->sum_planes, n);
        for (int64_t chunk = 0; chunk < call->order.chunks; chunk++) {
            const bn_sums terms = sums_of_chunk(room, chunk, from);
            call->kernels->add_sums(&sums, &terms, n);
        }
    }
    for (int i = 0; i < call->sum_planes - sums.n; i++) {
        double *sum = sums.plane + i * sums.stride;
        const double *compensation = sum + sums.n * sums.stride;
        for (int64_t c = 0; c < n; c++)
            sum[c] = with_compensation(sum[c], compensation[c]);
    }
}
