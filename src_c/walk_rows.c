/* walk_rows.c: rows with columns of many channels (CHANNELS_LAST, SHORT_RUNS).
 *
 * A chunk's rows are cut into strands of q consecutive rows:
 *
 *     strand 0   rows 0 ... q-1        block g: row g of every strand. The last strand may be
 *     strand 1   rows q ... 2q-1       shorter, so blocks from its end on have one row fewer.
 *     ...
 *
 * Short runs at few positions are summed channel by channel, in the same order.
 *
 * If rows are a fixed pitch apart, one call of the kernel sums consecutive blocks. If not (in views
 * with several outer axes), blocks are gathered before they are summed.
 */
#include "walk.h"

#include <string.h>

/* Columns of a chunk that are one segment of each row. */
typedef struct {
    int64_t column;              /* in the row */
    int64_t cols;                /* how many */
    int64_t within;              /* the index of their position in the row */
    int64_t offset[BN_OPERANDS]; /* in bytes, at position 0 */
} segment;

static int64_t position_of(const bn_plan *plan, const segment *s, int64_t row) {
    return row * plan->row.positions + s->within;
}

/* Write n rows without a gap between them, as one span. If their operands are not in cache, they
 * may be written instead as four strands that begin at the same place of their cache lines,
 * followed by the rows that are left. */
static void write_dense(const bn_walk *walk, bn_span *span, int64_t n) {
    enum { SMALL_RING = 6 << 10 }; /* bytes of all planes: an eighth of a cache of 48 kB */
    const bn_plan *plan = walk->plan;
    const int64_t columns = plan->columns[WRITE], row = columns * plan->element_bytes;
    const int64_t lines = LINE_BYTES / greatest_common_divisor(row, LINE_BYTES);
    int64_t strand = n / BN_STRANDS / lines * lines;
    if (strand > lines && strand * row % PAGE_BYTES == 0)
        strand -= lines;
    /* Strands that start at the same place of their pages map to one set of the first-level cache.
     * Such strands pay only if coefficients take more than SMALL_RING bytes, because strands read
     * coefficients once for four rows. */
    const bool meet = strand * row % PAGE_BYTES == 0;
    const bool far = plan->far && !walk->sums; /* data that was just summed is near */
    if (!far || strand == 0 ||
        (meet && plan->coef_planes * plan->row.ring * plan->number_bytes <= SMALL_RING)) {
        span->cols = n * columns;
        walk->write(span, &walk->coefs[WRITE]);
        return;
    }
    span->cols = strand * columns;
    for (int o = 0; o < BN_OPERANDS; o++)
        span->pitch[o] = strand * row;
    bn_write_strands(walk, span, &walk->coefs[WRITE]);
    span->cols = (n - BN_STRANDS * strand) * columns;
    if (span->cols)
        walk->write(span, &walk->coefs[WRITE]);
}

/* Write rows row ... row + n - 1. */
static void write_rows(const bn_walk *walk, const segment *s, int64_t row, int64_t n) {
    const bn_plan *plan = walk->plan;
    if (plan->by_runs[WRITE]) {
        const int64_t run = plan->run_length, own = s->column / run;
        bn_write_runs(walk, own, at_least(s->cols / run, 1), row, n, s->column % run,
                      at_most(s->cols, run));
        return;
    }
    const int64_t together = plan->evenly ? n : 1;
    int64_t apart[BN_OPERANDS] = {0};
    for (int o = 0; o < BN_OPERANDS && together > 1; o++)
        apart[o] = plan->row.positions * plan->problem->outer[0].stride[o];
    for (int64_t done = 0; done < n; done += together) {
        int64_t offset[BN_OPERANDS];
        position_offset(plan, position_of(plan, s, row + done), offset);
        for (int o = 0; o < BN_OPERANDS; o++)
            offset[o] += s->offset[o];
        bn_span span = span_at(plan, offset, s->cols, s->column);
        if (plan->row.dense && s->cols == plan->columns[WRITE])
            write_dense(walk, &span, together);
        else
            bn_write_repeats(walk, &span, &walk->coefs[WRITE], apart, together, true);
    }
}

static void sum_block(const bn_walk *walk, const segment *s, const bn_block *b) {
    const bn_coefs coefs = coefs_from(walk->plan, &walk->coefs[SUM], s->column);
    const bn_sums sums = sums_from(&walk->scratch->sums, s->column);
    walk->kernels->sum[walk->sum](b, &coefs, &sums);
}

/* Sum consecutive blocks: block i has row first + i of strand 0, and the row at the same place in
 * all other strands. Rows may be unevenly spaced, so each group of blocks is summed from a buffer,
 * a few columns at a time. */
static void sum_uneven(const bn_walk *walk, const segment *s, int64_t strand, int64_t first,
                       int rows, int64_t blocks) {
    enum { COLUMNS = PIECE_ELEMENTS / (BN_ROWS * BN_GROUP) };
    const bn_plan *plan = walk->plan;
    for (int64_t done = 0, here; done < blocks; done += here) {
        here = at_most(BN_GROUP, blocks - done);
        segment piece = *s;
        for (int64_t x = 0; x < s->cols; x += COLUMNS, piece.column += COLUMNS) {
            const bn_block b = bn_gathered_block(walk, rows, at_most(COLUMNS, s->cols - x), here);
            const int64_t bytes = b.cols * plan->element_bytes;
            for (int64_t i = 0; i < here * rows; i++) {
                const int64_t row = first + i % rows * strand + done + i / rows;
                int64_t offset[BN_OPERANDS];
                char *from[BN_OPERANDS];
                position_offset(plan, position_of(plan, s, row), offset);
                for (int o = 0; o < BN_OPERANDS; o++)
                    from[o] = address(plan->problem->data[o],
                                      s->offset[o] + offset[o] + x * plan->element_bytes);
                bn_gather(walk, from, i * bytes, bytes);
            }
            sum_block(walk, &piece, &b);
        }
    }
}

/* The blocks of sum_uneven as one block with repeats, if rows are a fixed distance apart. */
static bn_block even_block(const bn_plan *plan, const segment *s, int64_t strand, int64_t first,
                           int rows, int64_t blocks) {
    int64_t offset[BN_OPERANDS];
    position_offset(plan, position_of(plan, s, first), offset);
    bn_block b = {.rows = rows, .cols = s->cols, .repeats = blocks};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = address(plan->problem->data[o], s->offset[o] + offset[o]);
        if (plan->problem->n_outer)
            b.step[o] = plan->row.positions * plan->problem->outer[0].stride[o];
        b.pitch[o] = strand * b.step[o];
    }
    return b;
}

/* If results are written too, blocks are summed a piece at a time, and each piece is written while
 * it is in cache. */
static void walk_blocks(const bn_walk *walk, const segment *s, int64_t strand, int64_t first,
                        int rows, int64_t blocks) {
    const bn_plan *plan = walk->plan;
    const int64_t piece =
        walk->writes ? whole_groups(PIECE_BYTES / (rows * s->cols * bn_bytes_read(plan)), BN_GROUP)
                     : blocks;
    for (int64_t done = 0, here; done < blocks; done += here) {
        here = at_most(piece, blocks - done);
        if (plan->evenly) {
            const bn_block b = even_block(plan, s, strand, first + done, rows, here);
            sum_block(walk, s, &b);
        } else {
            sum_uneven(walk, s, strand, first + done, rows, here);
        }
        for (int k = 0; walk->writes && k < rows; k++)
            write_rows(walk, s, first + k * strand + done, here);
    }
}

/* Sum n rows: blocks with a row of each strand, then, if the last strand is shorter, blocks with
 * one row fewer. */
static void sum_segment(const bn_walk *walk, const segment *s, int64_t row, int64_t n) {
    const bn_strands strands = cut_strands(n, ceil_div(n, BN_ROWS));
    const int64_t length = strands.length, last = strands.last;
    walk_blocks(walk, s, length, row, (int)strands.n, last);
    if (last < length)
        walk_blocks(walk, s, length, row + last, (int)strands.n - 1, length - last);
}

/* Walk n rows of `positions` positions each, by segments: a tile's channels at one position or, if
 * the tile has all channels and rows have no gaps, whole rows. */
static void walk_positions(const bn_walk *walk, segment *s, int64_t row, int64_t n,
                           int64_t positions) {
    const int64_t channels = walk->channels;
    const bool contiguous = walk->plan->row.is_segment && channels == walk->plan->channels;
    s->cols = contiguous ? channels * positions : channels;
    for (int64_t within = 0; n > 0 && within < (contiguous ? 1 : positions); within++) {
        s->within = within;
        s->column = within * channels;
        (walk->sums ? sum_segment : write_rows)(walk, s, row, n);
    }
}

static int64_t rows_of_task(const bn_walk *walk) {
    const bn_plan *plan = walk->plan;
    return plan->joint && !walk->sums ? plan->rows_per_write : plan->rows_per_chunk;
}

static int64_t rows_end(const bn_plan *plan, int64_t row, int64_t n) {
    return at_most(row + n, plan->rows);
}

/* A channel has a column for each position of a row: add the upper half of these positions to the
 * lower half, until one is left. */
static void keep_positions(const bn_walk *walk) {
    const int64_t n = walk->channels;
    const bn_sums *sums = &walk->scratch->sums, *kept = &walk->kept;
    for (int64_t m = walk->plan->row.positions; m > 1; m -= m / 2) {
        const bn_sums upper = sums_from(sums, (m - m / 2) * n);
        walk->kernels->add(sums, &upper, m / 2 * n);
    }
    for (int plane = 0; plane < walk->plan->planes; plane++)
        memcpy(kept->plane + plane * kept->stride, sums->plane + plane * sums->stride,
               (size_t)n * sizeof(double));
}

/* A channel's columns are adjacent: add them up. */
static void keep_columns(const bn_walk *walk) {
    const int64_t columns = walk->plan->run_length;
    for (int64_t c = 0; c < walk->channels; c++) {
        const bn_sums own = sums_from(&walk->scratch->sums, c * columns);
        const bn_sums to = sums_from(&walk->kept, c);
        walk->kernels->sum_columns(&own, columns, &to);
    }
}

void bn_walk_channels_last(const bn_walk *walk, int64_t task) {
    const bn_plan *plan = walk->plan;
    const int64_t rows = rows_of_task(walk);
    const int64_t row = task * rows, end = rows_end(plan, row, rows);
    const int64_t whole = at_most(end, plan->positions / plan->row.positions);
    segment s = {0};
    add_offset(&plan->problem->channel, 1, walk->from, s.offset);
    if (walk->sums)
        bn_clear_sums(walk, columns_of(plan, walk->channels));
    walk_positions(walk, &s, row, whole - row, plan->row.positions);
    if (whole < end) /* the last row has fewer positions */
        walk_positions(walk, &s, whole, 1, plan->positions - whole * plan->row.positions);
    if (walk->sums)
        keep_positions(walk);
}

/* Sum channel by channel, each with its own coefficients. */
static void sum_short_runs(const bn_walk *walk, int64_t row, int64_t rows) {
    const bn_plan *plan = walk->plan;
    segment s = {.cols = plan->run_length};
    add_offset(&plan->problem->channel, 1, walk->from, s.offset);
    const bn_strands strands = cut_strands(rows, ceil_div(rows, BN_ROWS));
    const int64_t length = strands.length, last = strands.last;
    bn_runs runs = {.channels = walk->channels, .parts = last < length ? 2 : 1};
    runs.part[0] = even_block(plan, &s, length, row, (int)strands.n, last);
    if (last < length)
        runs.part[1] = even_block(plan, &s, length, row + last, (int)strands.n - 1, length - last);
    for (int o = 0; o < BN_OPERANDS; o++)
        runs.apart[o] = plan->problem->channel.stride[o];
    walk->kernels->sum_runs[walk->sum](&runs, &walk->coefs[SUM], &walk->kept);
}

void bn_walk_short_runs(const bn_walk *walk, int64_t task) {
    const bn_plan *plan = walk->plan;
    const bn_problem *p = plan->problem;
    const int64_t n = walk->channels;
    const int64_t row = task * rows_of_task(walk),
                  rows = rows_end(plan, row, rows_of_task(walk)) - row;
    if (walk->sums && plan->by_runs[SUM]) {
        sum_short_runs(walk, row, rows);
        return;
    }
    const int64_t length =
        plan->row.is_segment ? n * plan->run_length : p->inner[p->n_inner - 1].size;
    const int64_t segments = plan->row.is_segment ? 1 : plan->run_length / length;
    if (walk->sums)
        bn_clear_sums(walk, columns_of(plan, n));
    for (int64_t c = 0; c < (plan->row.is_segment ? 1 : n); c++)
        for (int64_t i = 0; i < segments; i++) {
            segment s = {.column = c * plan->run_length + i * length, .cols = length};
            add_offset(&p->channel, 1, walk->from + c, s.offset);
            add_offset(p->inner, p->n_inner - 1, i, s.offset);
            (walk->sums ? sum_segment : write_rows)(walk, &s, row, rows);
        }
    if (walk->sums)
        keep_columns(walk);
}
