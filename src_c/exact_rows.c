/* exact_rows.c: exact sums by rows: where channels are last, or runs short. A row is one or more
 * positions without a gap, a column has one channel.
 */
#include "exact_walk.h"

enum { BLOCK_ROWS = 128 }; /* added up at once, if no rounding shows */
_Static_assert((int)BLOCK_ROWS <= (int)BN_ROWS_AT_ONCE, "counts hold them");

/* So many rows from a position on, of them so many columns. */
static bn_block rows_at(const bn_exact *e, int64_t column, int64_t cols, int64_t position,
                        int64_t rows) {
    int64_t offset[BN_OPERANDS];
    offset_of(e, 0, position, offset);
    return block_at(e, offset, column * e->element_bytes, cols, rows, e->positions_per_row);
}

static bn_coefs coefs_by_columns(const bn_exact *e, int64_t column) {
    bn_coefs coefs = e->coefs;
    coefs.column = (const char *)coefs.column + column * e->number_bytes;
    return coefs;
}

/* Rows whose terms there is room for. */
static int64_t rows_of_terms(const bn_exact *e) {
    return numbers_of(e) / BN_STRIP;
}

/* So many rows of a strip. */
static void sum_strip(const bn_exact *e, bn_exact_scratch *s, int64_t first, int64_t x,
                      int64_t cols, int64_t position, int64_t rows) {
    bn_account *a = &s->account;
    const bn_coefs coefs = coefs_by_columns(e, first + x);
    for (int64_t row = 0, here; row < rows; row += here) {
        bn_block b = rows_at(e, first + x, cols, position + row * e->positions_per_row, rows);
        b.rows = (int)(rows - row); /* fetched are those as far behind as all of these reach */
        if (e->evenly && cols == BN_STRIP && bn_exact_add_quietly(e, a, x, &b, &coefs))
            return;
        here = at_most(rows_of_terms(e), rows - row);
        b.rows = e->evenly ? (int)here : 1;
        for (int64_t i = 0; i < here; i += b.rows) {
            if (i > 0)
                b = rows_at(e, first + x, cols, position + (row + i) * e->positions_per_row, 1);
            bn_exact_compute_terms(e, s, &b, &coefs, i * BN_STRIP, BN_STRIP);
        }
        bn_exact_add_terms(e, s, a, x, cols, here);
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
        if (s->account.squares && (row + here) % BN_SQUARES_ROWS == 0)
            e->kernels->settle(&s->account, round_up(columns, BN_STRIP));
    }
}

void bn_exact_task_by_rows(bn_exact *e, bn_exact_scratch *s, int64_t index) {
    const int64_t m = e->positions_per_row, whole = e->positions / m;
    const int64_t first = index % e->panels * BN_PANEL, from = index / e->panels * e->rows_per_task;
    const int64_t columns = at_most(BN_PANEL, e->columns - first);
    const int64_t rows = at_most(e->rows_per_task, whole - from);
    sum_panel(e, s, first, columns, from * m, rows);
    if (from + rows == whole) { /* positions that make no row, of which there is one panel */
        const int64_t left = e->positions % m * (e->columns / m);
        sum_panel(e, s, first, left, whole * m, 1);
    }
    bn_exact_publish(e, &s->account, first, columns);
}
