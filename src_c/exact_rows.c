/* exact_rows.c: exact sums by rows: where channels are last, or runs short. A row is one or more
 * positions without a gap, a column has one channel.
 */
#include "exact_walk.h"

enum { BLOCK_ROWS = 32 }; /* of all strips, before the next ones (measured) */

/* `rows` rows from a position on, `cols` columns of each. */
static bn_block rows_at(const bn_exact *e, int64_t column, int64_t cols, int64_t position,
                        int64_t rows) {
    int64_t offset[BN_OPERANDS];
    position_offset(&e->plan, position, offset);
    return block_at(e, offset, column * e->plan.element_bytes, cols, rows, e->positions_per_row);
}

/* Rows whose terms there is room for. */
static int64_t rows_of_terms(const bn_exact *e) {
    return numbers_of(e) / BN_STRIP;
}

/* Rows of a strip whose terms there is room for: add them up, or store their terms. */
static void walk_rows(const bn_exact *e, bn_exact_scratch *s, int64_t column, int64_t cols,
                      int64_t position, int64_t rows, bool sums) {
    const bn_coefs coefs = coefs_from(&e->plan, &e->coefs, column);
    const int64_t each = e->plan.evenly ? rows : 1;
    for (int64_t row = 0; row < rows; row += each) {
        bn_block b = rows_at(e, column, cols, position + row * e->positions_per_row, BLOCK_ROWS);
        b.rows = (int)each; /* what is fetched lies a block behind */
        if (sums)
            e->kernels->add_up[e->operation->formulas[SUM]](&b, &coefs, &s->strip);
        else
            bn_exact_compute_terms(e, s, &b, &coefs, row * BN_STRIP, BN_STRIP);
    }
}

/* All rows of a strip, of the panel's columns from x on. */
static void sum_strip(const bn_exact *e, bn_exact_scratch *s, int64_t first, int64_t x,
                      int64_t cols, int64_t position, int64_t rows) {
    for (int64_t row = 0, here; row < rows; row += here) {
        const int64_t at = position + row * e->positions_per_row;
        here = at_most(rows_of_terms(e), rows - row);
        bn_exact_begin_strip(s);
        walk_rows(e, s, first + x, cols, at, here, true);
        if (bn_exact_join_strip(e, s, &s->accumulator, x))
            continue;
        walk_rows(e, s, first + x, cols, at, here, false);
        bn_exact_deposit_terms(e, s, &s->accumulator, x, cols, here);
    }
}

/* The same of a panel. */
static void sum_panel(const bn_exact *e, bn_exact_scratch *s, int64_t first, int64_t columns,
                      int64_t position, int64_t rows) {
    for (int64_t row = 0, here; row < rows; row += here) {
        here = at_most(BLOCK_ROWS, rows - row);
        for (int64_t x = 0; x < columns; x += BN_STRIP)
            sum_strip(e, s, first, x, at_most(BN_STRIP, columns - x),
                      position + row * e->positions_per_row, here);
    }
}

void bn_exact_task_by_rows(bn_exact *e, bn_exact_scratch *s, int64_t index) {
    const int64_t m = e->positions_per_row, whole = e->plan.positions / m;
    const int64_t first = index % e->panels * BN_PANEL, from = index / e->panels * e->rows_per_task;
    const int64_t columns = at_most(BN_PANEL, e->columns - first);
    const int64_t rows = at_most(e->rows_per_task, whole - from);
    sum_panel(e, s, first, columns, from * m, rows);
    if (from + rows == whole) { /* positions that make no row, of which there is one panel */
        const int64_t left = e->plan.positions % m * (e->columns / m);
        sum_panel(e, s, first, left, whole * m, 1);
    }
    bn_exact_add_to_state(e, &s->accumulator, first, columns);
}
