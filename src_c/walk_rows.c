/* walk_rows.c: rows with columns of many channels (CHANNELS_LAST, SHORT_RUNS).
 *
 * A chunk's rows are cut into strands of q consecutive rows:
 *
 *     strand 0   rows 0 ... q-1        block g: row g of every strand. The last strand may be
 *     strand 1   rows q ... 2q-1       shorter, so blocks from its end on have one row less.
 *     ...
 *
 * Where rows are a fixed distance apart, blocks that follow one another are one call of the
 * kernel. Where they are not (views with several outer axes), each block is gathered before
 * it is summed.
 */
#include "walk.h"

/* Columns of a chunk that are one segment of each row. */
typedef struct {
    int64_t column; /* in the row */
    int64_t cols;   /* how many */
    int64_t within; /* which of the row's positions they begin at */
    bn_block block; /* its cols, and their place at position 0 */
} segment;

static int64_t position_of(const bn_plan *plan, const segment *s, int64_t row) {
    return row * plan->positions_per_row + s->within;
}

/* Sum, write, or first the one and then the other: of so few repeats at a time that what was
 * summed is still in cache. */
static void sum_and_write(const bn_walk *walk, bn_block b, int64_t column) {
    const bn_plan *plan = walk->plan;
    const bn_coefs coefs = {(const char *)walk->coefs.column + column * plan->number_bytes,
                            walk->coefs.stride};
    const bn_sums sums = sums_from(&walk->scratch->sums, column);
    int64_t left = b.repeats;
    if (walk->sum && walk->write)
        b.repeats = at_least(PIECE_BYTES / (b.rows * b.cols * bn_bytes_read(plan)), 1);
    for (; left > 0; left -= b.repeats) {
        b.repeats = at_most(b.repeats, left);
        if (walk->sum)
            walk->sum(&b, &coefs, &sums);
        if (walk->write)
            write_block(walk, &b, &coefs);
        step_block(&b, b.repeats);
    }
}

/* n rows, each anywhere: summed from a buffer, a piece of their columns at a time; each written
 * by itself. */
static void uneven_block(const bn_walk *walk, const segment *s, const int64_t *row, int n) {
    const bn_plan *plan = walk->plan;
    bn_walk sum = *walk, write = *walk;
    sum.write = NULL;
    write.sum = NULL;
    int64_t offset[MOST_STRANDS][BN_OPERANDS];
    for (int k = 0; k < n; k++)
        position_offset(plan, position_of(plan, s, row[k]), offset[k]);
    for (int64_t done = 0; walk->sum && done < s->cols; done += PIECE) {
        const bn_block piece = bn_gathered_block(walk, n, at_most(PIECE, s->cols - done));
        const int64_t bytes = piece.cols * plan->element_bytes;
        for (int k = 0; k < n; k++) {
            char *from[BN_OPERANDS];
            for (int o = 0; o < BN_OPERANDS; o++)
                from[o] = address(s->block.data[o], offset[k][o] + done * plan->element_bytes);
            bn_gather(walk, from, k * bytes, bytes);
        }
        sum_and_write(&sum, piece, s->column + done);
    }
    for (int k = 0; walk->write && k < n; k++) {
        bn_block b = s->block;
        b.rows = 1;
        b.repeats = 1;
        b.nontemporal = plan->nontemporal;
        move_block(&b, offset[k]);
        sum_and_write(&write, b, s->column);
    }
}

/* n rows, `apart` bytes from one to the next, cut into strands. */
static bn_strands cut(const bn_walk *walk, int64_t n, const int64_t apart[BN_OPERANDS]) {
    const bn_plan *plan = walk->plan;
    const int64_t rows = ceil_div(n, walk->sum ? MOST_STRANDS : MOST_WRITE_STRANDS);
    /* Else they would meet register boundaries at different columns. */
    const bool together = walk->sum || !plan->nontemporal || lines_agree(plan, apart, rows);
    return cut_strands(n, together ? rows : n);
}

/* So many blocks, one behind the other: the first has the row `first`, and each row is the next
 * one of its strand. */
static void even_blocks(const bn_walk *walk, const segment *s, const int64_t apart[BN_OPERANDS],
                        int64_t strand_rows, int64_t first, int rows, int64_t repeats) {
    bn_block b = s->block;
    b.rows = rows;
    b.repeats = repeats;
    b.nontemporal = walk->plan->nontemporal;
    int64_t offset[BN_OPERANDS];
    position_offset(walk->plan, position_of(walk->plan, s, first), offset);
    move_block(&b, offset);
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.step[o] = apart[o];
        b.pitch[o] = strand_rows * apart[o];
    }
    sum_and_write(walk, b, s->column);
}

/* One segment of n rows from `row` on. */
static void walk_strands(const bn_walk *walk, const segment *s, int64_t row, int64_t n) {
    const bn_plan *plan = walk->plan;
    int64_t apart[BN_OPERANDS] = {0};
    for (int o = 0; o < BN_OPERANDS && plan->problem->n_outer == 1; o++)
        apart[o] = plan->problem->outer[0].stride[o] * plan->positions_per_row;
    const bn_strands strands = cut(walk, n, apart);
    const bool flushes = walk->sum && plan->floats;
    const bn_sums sums = sums_from(&walk->scratch->sums, s->column);
    for (int64_t g = 0, unflushed = 0, blocks; g < strands.length; g += blocks) {
        const int rows = (int)strands_with(&strands, g);
        blocks = plan->evenly ? (g < strands.last ? strands.last : strands.length) - g : 1;
        if (flushes)
            blocks = at_most(blocks, FLUSH_BLOCKS - unflushed);
        if (plan->evenly) {
            even_blocks(walk, s, apart, strands.length, row + g, rows, blocks);
        } else {
            int64_t uneven[MOST_STRANDS];
            for (int k = 0; k < rows; k++)
                uneven[k] = row + k * strands.length + g;
            uneven_block(walk, s, uneven, rows);
        }
        unflushed += blocks;
        if (flushes && (unflushed == FLUSH_BLOCKS || g + blocks == strands.length)) {
            walk->kernels->flush(&sums, s->cols);
            unflushed = 0;
        }
    }
}

/* n rows of so many positions each: all of a row at once, or position by position. */
static void walk_positions(const bn_walk *walk, segment *s, int64_t channels, int64_t row,
                           int64_t n, int64_t positions) {
    const bool whole_rows = walk->plan->row_is_segment;
    s->cols = whole_rows ? channels * positions : channels;
    s->block.cols = s->cols;
    for (int64_t within = 0; n > 0 && within < (whole_rows ? 1 : positions); within++) {
        s->within = within;
        s->column = within * channels;
        walk_strands(walk, s, row, n);
    }
}

static int64_t rows_end(const bn_plan *plan, int64_t row) {
    return at_most(row + plan->rows_per_chunk, plan->rows);
}

void bn_walk_channels_last(const bn_walk *walk, int64_t from, int64_t n, int64_t chunk) {
    const bn_plan *plan = walk->plan;
    const int64_t row = chunk * plan->rows_per_chunk, end = rows_end(plan, row);
    const int64_t whole = at_most(end, plan->positions / plan->positions_per_row);
    segment s = {.column = 0};
    int64_t offset[BN_OPERANDS] = {0};
    add_offset(&plan->problem->channel, 1, from, offset);
    place_block(&s.block, plan, offset);
    walk_positions(walk, &s, n, row, whole - row, plan->positions_per_row);
    if (whole < end) /* the last row has fewer */
        walk_positions(walk, &s, n, whole, 1, plan->positions - whole * plan->positions_per_row);
}

void bn_walk_short_runs(const bn_walk *walk, int64_t from, int64_t n, int64_t chunk) {
    const bn_plan *plan = walk->plan;
    const bn_problem *p = plan->problem;
    const int64_t row = chunk * plan->rows_per_chunk, rows = rows_end(plan, row) - row;
    const int64_t length =
        plan->row_is_segment ? n * plan->run_length : p->inner[p->n_inner - 1].size;
    const int64_t segments = plan->row_is_segment ? 1 : plan->run_length / length;
    segment s = {.cols = length, .block = {.cols = length}};
    for (int64_t c = 0; c < (plan->row_is_segment ? 1 : n); c++)
        for (int64_t i = 0; i < segments; i++) {
            int64_t offset[BN_OPERANDS] = {0};
            add_offset(&p->channel, 1, from + c, offset);
            add_offset(p->inner, p->n_inner - 1, i, offset);
            place_block(&s.block, plan, offset);
            s.column = c * plan->run_length + i * length;
            walk_strands(walk, &s, row, rows);
        }
}
