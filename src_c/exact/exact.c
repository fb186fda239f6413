/* exact.c: the exact sums of a box, and how they reach the state (state.h).
 *
 *     terms of a portion -> limbs of a tile -> the state's limbs
 *
 * A portion of a box at a time, terms are computed, then added to the limbs of the thread's tile.
 * A thread adds its limbs to the state when it takes another tile, and at the end.
 *
 *     by columns   channels last, or short runs: each column of the tile has limbs of its own
 *     by runs      all else: a portion has elements of one channel, whose limbs take all of them
 *
 * Additions that round nothing may come in any order, so nothing here decides a bit. */
#include "exact/exact.h"

#include "threads/team.h"

/* A portion (all measured). */
enum {
    PORTION_BYTES = 32768, /* of terms, for each sum */
    BYTES_AHEAD = 512,     /* the least distance from a channel to the one that is prefetched */
};

/* A term adds less than 2^44 to a limb between carries: at most six counts, each below 2^40, for
 * itself or its square, and for what rounding took from it (kernels/exact/exact.inc). */
enum { MOST_TERMS = 1 << 16, LOG2_OF_TERM = BN_LIMB_BITS + 4 };
_Static_assert((int64_t)(MOST_TERMS + PORTION_BYTES) <= (int64_t)1 << (62 - LOG2_OF_TERM),
               "limbs hold what is added between carries");
_Static_assert(PORTION_BYTES / 16 < 1 << 12, "lanes hold the counts of a portion"); /* exact.inc */

void bn_lay_out_exact(bn_exact *e, const bn_problem *p, const bn_dtype_kernels *kernels, formula f,
                      bool by_runs, int64_t positions, int64_t channels, bn_memory *memory) {
    const bn_format *format = bn_format_of_sums(p->dtype, f.base);
    const int64_t run = by_runs ? 1 : p->run,
                  all = round_up(positions * channels * run, BN_PORTION_COLUMNS);
    /* One cache line more: with a power of two as pitch, rows of limbs would share sets of the
     * first-level cache. */
    const int64_t pitch = BN_SUMS * all + LINE_BYTES / (int64_t)sizeof(int64_t);
    *e = (bn_exact){
        .kernels = kernels,
        .formula = f,
        .element_bytes = bn_dtype_table[p->dtype].element_bytes,
        .number_bytes = bn_dtype_table[p->dtype].number_bytes,
        .sums = {.columns = all,
                 .pitch = pitch,
                 .limbs = format->limbs,
                 .lowest = format->lowest,
                 .one_column = by_runs,
                 .squares = base_table[f.base].squares},
        .from = -1,
        .paired = kernels->paired && !by_runs,
        .portion_terms = PORTION_BYTES / bn_dtype_table[p->dtype].number_bytes,
        .positions = positions,
        .run = run,
    };
    e->sums.limb = lay_out(memory, (format->limbs + 1) * pitch, sizeof(int64_t));
    e->terms = lay_out(memory, BN_SUMS * (e->portion_terms + BN_PORTION_COLUMNS), e->number_bytes);
}

/* ---- from terms to limbs ----------------------------------------------------------- */

/* Add a portion's terms to the limbs from `column` on. */
static void add_portion(bn_exact *e, const bn_box *b, const bn_coefs *coefs, int64_t column) {
    const formula f = e->formula;
    const int64_t next_sum = e->portion_terms + BN_PORTION_COLUMNS, n = b->rows * b->cols;
    const int64_t columns = round_up(b->cols, e->paired ? 2 * e->kernels->lanes : 1);
    e->sums.terms += e->sums.one_column ? n : b->rows;
    if (e->sums.terms > MOST_TERMS)
        e->kernels->exact->carry(&e->sums);
    bn_terms terms = {
        e->terms, next_sum, e->sums.one_column ? b->cols : BN_PORTION_COLUMNS, {BN_NO_RANGE}};
    e->kernels->terms[f.base][f.gate](b, coefs, &terms);
    if (e->sums.one_column) /* zeros up to whole registers */
        for (int s = 0; s < BN_SUMS; s++)
            memset(e->terms + (s * next_sum + n) * e->number_bytes, 0,
                   BN_PORTION_COLUMNS * sizeof(float));
    e->kernels->exact->deposit_terms(&e->sums, column, columns, &terms, b->rows);
}

/* ---- portions ---------------------------------------------------------------------- */

/* The size when n items are split evenly into the fewest parts of at most `most`. */
static int64_t even_size(int64_t n, int64_t most) {
    return ceil_div(n, ceil_div(n, most));
}

void bn_sum_exactly(bn_exact *e, const bn_box *box, const bn_coefs *coefs) {
    const bool by_runs = e->sums.one_column;
    const int64_t most = e->portion_terms, all = box->cols;
    const int64_t cols = !by_runs      ? BN_PORTION_COLUMNS
                         : all <= most ? all
                                       : round_up(even_size(all, most), BN_PORTION_COLUMNS);
    const int64_t rows = even_size(box->rows, at_least(most / cols, 1));
    const int64_t ahead = ceil_div(BYTES_AHEAD, all * e->element_bytes);
    for (int64_t c = 0; c < box->channels; c++)
        for (int64_t row = 0; row < box->rows; row += rows)
            for (int64_t x = 0; x < all; x += cols) {
                bn_box b = *box;
                b.rows = (int)at_most(rows, box->rows - row);
                b.cols = at_most(cols, all - x);
                /* The data to prefetch: further columns, then rows, then a later channel. */
                const bool more = x + cols < all, last = by_runs && row + rows >= box->rows;
                const int64_t next = more ? cols : -x, down = more ? 0 : last ? -row : rows;
                for (int o = 0; o < BN_OPERANDS; o++)
                    b.prefetch_bytes[o] = next * e->element_bytes + down * box->next_row[o] +
                                          (last && !more ? ahead * box->next_channel[o] : 0);
                bn_move(&b.at, box->next_channel, c);
                bn_move(&b.at, box->next_row, row);
                bn_move_elements(&b.at, x, e->element_bytes);
                const int64_t column = by_runs ? c : x;
                const bn_coefs own = {(const char *)coefs->column + column * e->number_bytes,
                                      coefs->stride, coefs->period, coefs->one_per_channel};
                add_portion(e, &b, &own, column);
            }
}

/* ---- from a tile to the state ------------------------------------------------------- */

bn_accumulator bn_state_sums(bn_dtype dtype, base_formula f, int64_t *state, int64_t n) {
    const int limbs = bn_format_of_sums(dtype, f)->limbs;
    return (bn_accumulator){.limb = state,
                            .columns = n,
                            .pitch = BN_SUMS * n,
                            .limbs = limbs,
                            .lowest_touched = limbs,
                            .end_touched = limbs};
}

/* The channel of column j of the tile's limbs, or -1. Columns go round all of the tile's channels,
 * once for each position of a row; if the dtype is paired, a register of even columns is followed
 * by one of odd columns. */
static int64_t channel_of(const bn_exact *e, int64_t j) {
    const int64_t lanes = e->kernels->lanes, within = j & (2 * lanes - 1);
    if (e->paired)
        j += 2 * (within % lanes) + within / lanes - within;
    const uint32_t run = (uint32_t)e->run, channels = (uint32_t)e->channels; /* quick to divide */
    return j < e->columns ? e->from + (uint32_t)j / run % channels : -1;
}

/* Add n columns of a row of limbs or flags to the state's channels. */
static void add_row(const int64_t *limb, int64_t n, const int64_t *channel, int64_t *to, bool flags,
                    bool alone) {
    for (int64_t j = 0; j < n; j++) {
        if (channel[j] < 0 || limb[j] == 0)
            continue;
        if (flags)
            __atomic_fetch_or(to + channel[j], limb[j], __ATOMIC_RELAXED);
        else if (alone)
            to[channel[j]] += limb[j];
        else
            __atomic_fetch_add(to + channel[j], limb[j], __ATOMIC_RELAXED);
    }
}

static void touch(bn_accumulator *state, int row) {
    int lowest = __atomic_load_n(&state->lowest_touched, __ATOMIC_RELAXED);
    while (row < lowest && !__atomic_compare_exchange_n(&state->lowest_touched, &lowest, row, true,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* A tile's carried limbs add less than 2^40 for each of a channel's columns, of which rows have at
 * most BN_PORTION_COLUMNS, or 15 if there are several tiles. A thread comes to a tile once in each
 * share of tasks (schedule.c) that has some of the tile's; if there are several tiles, that is half
 * of the shares, and two. So the state's limbs, of 63 bits, need no carries before the end. */
_Static_assert(15 * (BN_MOST_THREADS / 2 + 2) * BN_MOST_THREADS < 1 << (63 - BN_LIMB_BITS) &&
                   BN_PORTION_COLUMNS * BN_MOST_THREADS < 1 << (63 - BN_LIMB_BITS),
               "the state's limbs hold all that threads add");

static void add_to_state(bn_exact *e) {
    bn_accumulator *a = &e->sums, *state = e->state;
    const int64_t all = round_up(e->columns, e->paired ? 2 * e->kernels->lanes : 1);
    /* A thread alone comes to each tile once, so even its flags may be added. */
    const bool in_order = e->alone && all == e->channels && !e->paired;
    e->kernels->exact->carry(a);
    touch(state, a->lowest_touched < a->end_touched ? a->lowest_touched : state->limbs);
    for (int64_t x = 0; x < all; x += BN_PORTION_COLUMNS) {
        int64_t channel[BN_PORTION_COLUMNS];
        const int64_t n = at_most(BN_PORTION_COLUMNS, all - x);
        if (!in_order)
            for (int64_t j = 0; j < n; j++)
                channel[j] = channel_of(e, x + j);
        for (int i = 0; i < BN_SUMS * (a->end_touched - a->lowest_touched + a->flagged); i++) {
            const int row = a->lowest_touched + i / BN_SUMS, s = i % BN_SUMS;
            const bool flags = row == a->end_touched; /* they are the last row */
            const int k = flags ? a->limbs : row;
            const int64_t *limb = a->limb + k * a->pitch + s * a->columns + x;
            int64_t *to = state->limb + k * state->pitch + s * state->columns;
            if (!in_order)
                add_row(limb, n, channel, to, flags, e->alone);
            else
                for (int64_t j = 0; j < n; j++)
                    to[e->from + x + j] += limb[j];
        }
    }
    a->lowest_touched = a->end_touched = 0;
    a->flagged = false;
}

void bn_take_tile(bn_exact *e, int64_t from, int64_t n) {
    if (from == e->from)
        return;
    if (e->from >= 0)
        add_to_state(e);
    e->from = from;
    e->channels = n;
    e->columns = e->positions * e->run * n;
}
