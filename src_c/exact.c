/* exact.c: a part's exact sums, as a state that merges with others by + (state.h).
 *
 * What is added without rounding has no order. So nothing here need follow the walks of the other
 * sums: terms are computed a strip at a time, as memory lies, and added up by a thread's account,
 * which at the end of a task joins the state.
 *
 *     by rows   where channels are last, or runs short: a row is one or more positions without a
 *               gap, a column has one channel; a task has some columns of some rows
 *     by runs   a channel's elements, run after run, in any number of columns; a task has some
 *               channels, or some elements of one
 *
 *     terms -> numbers of the account -> its digits -> the state's digits
 *
 * Integers are added to the state in whatever order, by several threads atomically: no order
 * matters.
 */
#include <string.h>

#include "channel.h"
#include "exact.h"
#include "fp_mode.h"
#include "memory.h"
#include "pool.h"
#include "schedule.h"
#include "state.h"
#include "walk.h"

enum {
    PANEL = 256,           /* columns of a task by rows: four strips */
    ROW = BN_STRIP,        /* columns that positions side by side make, at least */
    SHORT_RUN = 16,        /* elements: shorter ones go by rows */
    TASKS_PER_THREAD = 4,  /* of several; at least, where there is enough to do */
    BLOCK_ROWS = 128,      /* added up at once, if no rounding shows */
    BLOCK_ELEMENTS = 8192, /* likewise, by runs */
    SQUARES_ROWS = 256,    /* that numbers hold, of squares: the larger sums are, the fewer terms
                              fit them, and of squares the exponents differ most (measured) */
    FEWEST_ROWS = 128,     /* of a task */
    MOST_ROWS = 1 << 16,   /* digits of an account hold what these may have */
    FEWEST_ELEMENTS = 1 << 13, /* of a task by runs */
    MOST_ELEMENTS = 1 << 18,   /* likewise */
    AT_ONCE = 128,             /* elements of a run: fewer wait for others (measured) */
    BYTES_AHEAD = 512,         /* of a run; what is fetched later is waited for (measured) */
};

/* Tasks add digits below 2^40 to the state's, which are carried when all are done: 2^23 times. */
_Static_assert((int64_t)MOST_ROWS << (63 - BN_DIGIT_BITS) >= (int64_t)1 << BN_LOG2_TERMS_OF_PART,
               "a part's digits hold its terms");

typedef struct {
    const bn_problem *problem;
    const bn_operation *operation;
    const formula_needs *needs;
    const bn_dtype_kernels *kernels;
    bn_channels channels;
    int64_t *state;
    int digits;
    int64_t element_bytes, number_bytes;
    int64_t positions, run_length;
    bool by_runs, evenly, flag_tells;
    bool alone;    /* is there one thread? */
    bool in_order; /* is an account's column a channel, and the next one the next? */
    int64_t tasks, columns_per_task;
    uint64_t touched; /* rows of the state that may not be zeros, as bits */

    /* By rows. */
    int64_t positions_per_row, columns, rows_per_task, panels;
    bn_coefs coefs; /* by columns of a row */
    char *expanded;

    /* By runs. */
    int64_t channels_per_task, tasks_per_channel, elements_per_task;
    int64_t channels_ahead; /* that memory is fetched */
} exact;

/* A thread's own. */
typedef struct {
    bn_account account; /* of a task: columns of rows, or channels */
    bn_account run;     /* of a channel, by runs */
    char *terms;        /* of two sums, and a unit more */
} exact_scratch;

/* ---- where things are ------------------------------------------------------- */

static void offset_of(const exact *e, int64_t channel, int64_t position,
                      int64_t offset[BN_OPERANDS]) {
    memset(offset, 0, BN_OPERANDS * sizeof *offset);
    add_offset(e->problem->outer, e->problem->n_outer, position, offset);
    add_offset(&e->problem->channel, 1, channel, offset);
}

/* So many elements from `at` bytes behind an offset on, and rows alike, `positions` positions from
 * one to the next. */
static bn_block block_at(const exact *e, const int64_t offset[BN_OPERANDS], int64_t at,
                         int64_t cols, int64_t rows, int64_t positions) {
    const bn_problem *p = e->problem;
    bn_block b = {.rows = (int)rows, .repeats = 1, .cols = cols};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = address(p->data[o], offset[o] + at);
        b.pitch[o] = p->n_outer ? positions * p->outer[0].stride[o] : 0;
        b.step[o] = rows * b.pitch[o];
    }
    return b;
}

static int64_t numbers_of(const exact *e) {
    return BN_TERMS_BYTES / e->number_bytes;
}

static void compute_terms(const exact *e, const exact_scratch *s, const bn_block *b,
                          const bn_coefs *coefs, int64_t at, int64_t pitch) {
    const bn_terms to = {s->terms + at * e->number_bytes, numbers_of(e) + BN_STRIP, pitch};
    e->kernels->terms[e->operation->formulas[SUM]](b, coefs, &to);
}

/* Are terms computed and added up at once? */
static bool is_quiet(const exact *e, const bn_account *a) {
    return e->kernels->add_quietly[e->operation->formulas[SUM]] && a->flag_tells && !a->unclean &&
           (!a->wide || a->anchored);
}

static bool add_quietly(const exact *e, bn_account *a, int64_t column, const bn_block *b,
                        const bn_coefs *coefs) {
    if (!is_quiet(e, a))
        return false;
    const formula f = e->operation->formulas[SUM];
    if (!a->wide) {
        if (e->kernels->add_quietly[f](a, column, b, coefs))
            return true;
        if (!a->anchored)
            return false;
        e->kernels->settle(a, a->columns);
        a->wide = BN_WIDE;
    }
    a->wide--;
    return e->kernels->add_anchored[f](a, column, b, coefs);
}

static void add_terms(const exact *e, const exact_scratch *s, bn_account *a, int64_t column,
                      int64_t columns, int64_t rows) {
    const bn_terms terms = {s->terms, numbers_of(e) + BN_STRIP, BN_STRIP};
    const int64_t unit = e->kernels->paired ? 2 * e->kernels->lanes : 1;
    e->kernels->sum_exactly(a, column, round_up(columns, unit), &terms, rows);
}

/* ---- from an account to the state ---------------------------------------------- */

/* Columns of digits, or of flags, in the state; those of no channel are left out. */
static void join_digits(const exact *e, int k, const int64_t *digit, int64_t columns,
                        const int64_t *channel, int64_t *to) {
    const bool flags = k >= e->digits;
    for (int64_t j = 0; j < columns; j++) {
        if (channel[j] < 0 || digit[j] == 0)
            continue;
        if (flags)
            __atomic_fetch_or(to + channel[j], digit[j], __ATOMIC_RELAXED);
        else
            __atomic_fetch_add(to + channel[j], digit[j], __ATOMIC_RELAXED);
    }
}

/* Which column of a row an account's column is. */
static int64_t column_of(const exact *e, int64_t j) {
    const int64_t lanes = e->kernels->lanes, within = j % (2 * lanes);
    return e->kernels->paired && !e->by_runs ? j - within + 2 * (within % lanes) + within / lanes
                                             : j;
}

/* The channels of an account's columns: of so many of a row from the first on; -1: of none. */
static void channels_of(const exact *e, int64_t first, int64_t columns, int64_t all,
                        int64_t *channel) {
    const int64_t each = e->by_runs ? 1 : e->run_length;
    int64_t in_order[PANEL], c = first / each % e->channels.channels, left = each - first % each;
    for (int64_t j = 0; j < columns; j++) {
        in_order[j] = c;
        if (--left == 0) {
            left = each;
            c = c + 1 < e->channels.channels ? c + 1 : 0;
        }
    }
    for (int64_t j = 0; j < all; j++) {
        const int64_t own = column_of(e, j);
        channel[j] = own < columns ? in_order[own] : -1;
    }
}

/* What an account has of so many columns, the first of which is this one of a row, or this channel,
 * joins the state. */
static void publish(exact *e, bn_account *a, int64_t first, int64_t columns) {
    const int64_t channels = e->problem->channel.size;
    const int64_t all = round_up(columns, e->kernels->paired ? 2 * e->kernels->lanes : 1);
    const bool at_once = e->alone && e->in_order && !(a->touched >> e->digits);
    int64_t channel[PANEL];
    e->kernels->settle(a, round_up(columns, BN_STRIP));
    if (!at_once)
        channels_of(e, first, columns, all, channel);
    __atomic_fetch_or(&e->touched, a->touched, __ATOMIC_RELAXED);
    for (; a->touched; a->touched &= a->touched - 1) {
        const int k = __builtin_ctzll(a->touched);
        for (int s = 0; s < BN_SUMS; s++) {
            const int64_t *digit = a->digit + k * a->pitch + s * a->columns;
            int64_t *to = e->state + (k * BN_SUMS + s) * channels;
            if (at_once)
                for (int64_t j = 0; j < columns; j++)
                    to[first + j] += digit[j];
            else
                join_digits(e, k, digit, all, channel, to);
        }
    }
}

/* ---- by rows ------------------------------------------------------------------ */

/* So many rows from a position on, of them so many columns. */
static bn_block rows_at(const exact *e, int64_t column, int64_t cols, int64_t position,
                        int64_t rows) {
    int64_t offset[BN_OPERANDS];
    offset_of(e, 0, position, offset);
    return block_at(e, offset, column * e->element_bytes, cols, rows, e->positions_per_row);
}

static bn_coefs coefs_by_columns(const exact *e, int64_t column) {
    bn_coefs coefs = e->coefs;
    coefs.column = (const char *)coefs.column + column * e->number_bytes;
    return coefs;
}

/* Rows whose terms there is room for. */
static int64_t rows_of_terms(const exact *e) {
    return numbers_of(e) / BN_STRIP;
}

/* The same, of a strip. */
static void sum_strip(const exact *e, exact_scratch *s, int64_t first, int64_t x, int64_t cols,
                      int64_t position, int64_t rows) {
    bn_account *a = &s->account;
    const bn_coefs coefs = coefs_by_columns(e, first + x);
    for (int64_t row = 0, here; row < rows; row += here) {
        bn_block b = rows_at(e, first + x, cols, position + row * e->positions_per_row, rows - row);
        if (e->evenly && cols == BN_STRIP && add_quietly(e, a, x, &b, &coefs))
            return;
        here = at_most(rows_of_terms(e), rows - row);
        b.rows = e->evenly ? (int)here : 1;
        for (int64_t i = 0; i < here; i += b.rows) {
            if (i > 0)
                b = rows_at(e, first + x, cols, position + (row + i) * e->positions_per_row, 1);
            compute_terms(e, s, &b, &coefs, i * BN_STRIP, BN_STRIP);
        }
        add_terms(e, s, a, x, cols, here);
    }
}

/* So many rows of a panel. */
static void sum_panel(const exact *e, exact_scratch *s, int64_t first, int64_t columns,
                      int64_t position, int64_t rows) {
    for (int64_t row = 0, here; row < rows; row += here) {
        here = at_most(BLOCK_ROWS, rows - row);
        for (int64_t x = 0; x < columns; x += BN_STRIP)
            sum_strip(e, s, first, x, at_most(BN_STRIP, columns - x),
                      position + row * e->positions_per_row, here);
        if (s->account.squares && (row + here) % SQUARES_ROWS == 0)
            e->kernels->settle(&s->account, round_up(columns, BN_STRIP));
    }
}

static void task_by_rows(exact *e, exact_scratch *s, int64_t index) {
    const int64_t m = e->positions_per_row, whole = e->positions / m;
    const int64_t first = index % e->panels * PANEL, from = index / e->panels * e->rows_per_task;
    const int64_t columns = at_most(PANEL, e->columns - first);
    const int64_t rows = at_most(e->rows_per_task, whole - from);
    sum_panel(e, s, first, columns, from * m, rows);
    if (from + rows == whole) { /* positions that make no row */
        const int64_t left = e->positions % m * (e->columns / m) - first;
        sum_panel(e, s, first, at_most(columns, left), whole * m, 1);
    }
    publish(e, &s->account, first, columns);
}

/* ---- by runs ------------------------------------------------------------------- */

/* Where an element of a channel lies. */
static void element_offset(const exact *e, int64_t channel, int64_t element,
                           int64_t offset[BN_OPERANDS]) {
    const bn_problem *p = e->problem;
    offset_of(e, channel, element / e->run_length, offset);
    add_offset(p->inner, p->n_inner, element % e->run_length, offset);
}

/* Of n things in portions of at most so many, which are equal as far as they can be. */
static int64_t even_share(int64_t n, int64_t most) {
    return ceil_div(n, ceil_div(n, most));
}

/* As many elements of a channel, from one on, as are a segment, or segments of one length and a
 * fixed distance apart: so many at most. Meanwhile those behind are fetched, or, if these are the
 * task's last, those of a later channel from `first` on. */
static bn_block segments_at(const exact *e, int64_t channel, int64_t first, int64_t element,
                            int64_t to, int64_t most) {
    const bn_problem *p = e->problem;
    const int64_t length = p->n_inner ? p->inner[p->n_inner - 1].size : 1;
    const int64_t x = element % e->run_length;
    int64_t rows = 1, cols = at_most(length - x % length, most);
    int64_t offset[BN_OPERANDS], next[BN_OPERANDS];
    if (length == e->run_length && x == 0 && e->evenly && length <= most)
        rows = even_share((to - element) / length, most / length);
    element_offset(e, channel, element, offset);
    bn_block b = block_at(e, offset, 0, cols, rows, 1);
    const int64_t behind = element + rows * cols;
    if (behind < to)
        element_offset(e, channel, behind, next);
    else
        element_offset(e, at_most(channel + e->channels_ahead, e->channels.channels - 1), first,
                       next);
    for (int o = 0; o < BN_OPERANDS; o++)
        b.step[o] = next[o] - offset[o];
    return b;
}

static bn_coefs coefs_of(const exact *e, int64_t channel) {
    return (bn_coefs){e->channels.coefs + channel * e->number_bytes, e->channels.channels, 1,
                      ONE_FOR_ALL};
}

/* Segments from an element on, added up at once. Returns how many elements these were. */
static int64_t add_segments(const exact *e, exact_scratch *s, int64_t channel, int64_t first,
                            int64_t element, int64_t to) {
    const bn_coefs coefs = coefs_of(e, channel);
    const bn_block b =
        segments_at(e, channel, first, element, to, at_most(BLOCK_ELEMENTS, to - element));
    const int64_t n = b.rows * b.cols;
    return n >= AT_ONCE && add_quietly(e, &s->run, 0, &b, &coefs) ? n : 0;
}

/* The same by terms, as many as there is room for. */
static int64_t sum_segments(const exact *e, exact_scratch *s, int64_t channel, int64_t first,
                            int64_t element, int64_t to) {
    const bn_coefs coefs = coefs_of(e, channel);
    const int64_t room = numbers_of(e);
    int64_t have = 0;
    while (have < room && element + have < to) {
        const bn_block b = segments_at(e, channel, first, element + have, to,
                                       at_most(room - have, to - element - have));
        compute_terms(e, s, &b, &coefs, have, b.cols);
        have += b.rows * b.cols;
    }
    const int64_t whole = round_up(have, BN_STRIP);
    for (int k = 0; k < BN_SUMS; k++)
        memset(s->terms + (k * (room + BN_STRIP) + have) * e->number_bytes, 0,
               (size_t)((whole - have) * e->number_bytes));
    add_terms(e, s, &s->run, 0, BN_STRIP, whole / BN_STRIP);
    return have;
}

static void sum_channel(const exact *e, exact_scratch *s, int64_t channel, int64_t from,
                        int64_t to) {
    int64_t unsettled = 0;
    for (int64_t element = from, n; element < to; element += n) {
        n = add_segments(e, s, channel, from, element, to);
        if (n == 0)
            n = sum_segments(e, s, channel, from, element, to);
        unsettled += n;
        if (s->run.squares && unsettled >= SQUARES_ROWS * BN_STRIP) {
            e->kernels->settle(&s->run, BN_STRIP);
            unsettled = 0;
        }
    }
}

static void task_by_runs(exact *e, exact_scratch *s, int64_t index) {
    const int64_t all = e->positions * e->run_length;
    const int64_t channel = index / e->tasks_per_channel * e->channels_per_task;
    const int64_t from = index % e->tasks_per_channel * e->elements_per_task;
    const int64_t to = at_most(from + e->elements_per_task, all);
    const int64_t n = at_most(e->channels_per_task, e->channels.channels - channel);
    bn_block block = segments_at(e, channel, from, from, to, at_most(BLOCK_ELEMENTS, to - from));
    const bool whole = block.rows * block.cols == to - from && to - from >= AT_ONCE;
    for (int64_t c = 0; c < n; c++) {
        const bn_coefs coefs = coefs_of(e, channel + c);
        if (!whole || !add_quietly(e, &s->run, 0, &block, &coefs))
            sum_channel(e, s, channel + c, from, to);
        e->kernels->close(&s->run, &s->account, c);
        for (int o = 0; o < BN_OPERANDS; o++)
            block.data[o] = address(block.data[o], e->problem->channel.stride[o]);
    }
    publish(e, &s->account, channel, n);
}

/* ---- the plan ------------------------------------------------------------------- */

/* Are all elements of so many positions without a gap, in every operand that is read? */
static bool is_dense(const exact *e, bool among_positions) {
    const bn_problem *p = e->problem;
    const int64_t run = e->run_length * e->element_bytes;
    for (int o = 0; o < BN_OPERANDS; o++) {
        if (!(e->needs->reads >> o & 1))
            continue;
        if (p->n_inner > 1 || (p->n_inner && p->inner[0].stride[o] != e->element_bytes) ||
            (p->channel.size > 1 && p->channel.stride[o] != run))
            return false;
        if (among_positions && p->n_outer && p->outer[0].stride[o] != p->channel.size * run)
            return false;
    }
    return true;
}

static int64_t tasks_for(int threads) {
    return threads == 1 ? 1 : TASKS_PER_THREAD * threads;
}

static void plan_rows(exact *e, int threads) {
    const int64_t own = e->channels.channels * e->run_length;
    if (e->evenly && own < ROW && is_dense(e, true))
        e->positions_per_row = at_most(ceil_div(ROW, own), e->positions);
    e->columns = own * e->positions_per_row;
    e->panels = ceil_div(e->columns, PANEL);
    const int64_t rows = e->positions / e->positions_per_row;
    const int64_t tasks = ceil_div(tasks_for(threads), e->panels);
    e->rows_per_task = at_most(at_least(ceil_div(rows, tasks), FEWEST_ROWS), MOST_ROWS);
    e->tasks = e->panels * ceil_div(rows, e->rows_per_task);
    e->columns_per_task = at_most(round_up(e->columns, BN_STRIP), PANEL);
}

static void plan_runs(exact *e, int threads) {
    const int64_t own = e->positions * e->run_length, channels = e->channels.channels;
    const int64_t each = at_most(
        at_least(ceil_div(own * channels, tasks_for(threads)), FEWEST_ELEMENTS), MOST_ELEMENTS);
    e->channels_per_task = at_most(at_least(each / own, 1), PANEL);
    e->columns_per_task = round_up(e->channels_per_task, BN_STRIP);
    e->channels_ahead = ceil_div(BYTES_AHEAD, e->run_length * e->element_bytes);
    e->tasks_per_channel = ceil_div(own, each);
    e->elements_per_task =
        at_most(round_up(ceil_div(own, e->tasks_per_channel), e->run_length), MOST_ELEMENTS);
    e->tasks_per_channel = ceil_div(own, e->elements_per_task);
    e->tasks = ceil_div(channels, e->channels_per_task) * e->tasks_per_channel;
}

static exact exact_of(const bn_problem *p, const bn_operation *operation, int64_t *state,
                      int threads) {
    exact e = {
        .problem = p,
        .operation = operation,
        .needs = &formula_table[operation->formulas[SUM]],
        .kernels = &bn_kernels_current()->dtype[p->dtype],
        .channels = {.problem = p, .channels = p->channel.size},
        .state = state,
        .digits = bn_digits(p->dtype),
        .element_bytes = bn_dtype_table[p->dtype].element_bytes,
        .number_bytes = bn_dtype_table[p->dtype].number_bytes,
        .positions = count_of(p->outer, p->n_outer),
        .run_length = count_of(p->inner, p->n_inner),
        .evenly = p->n_outer <= 1,
        .flag_tells = fp_tells_inexact(),
        .alone = threads == 1,
        .positions_per_row = 1,
        .tasks_per_channel = 1,
    };
    e.by_runs = e.run_length >= SHORT_RUN || !is_dense(&e, false);
    if (e.by_runs)
        plan_runs(&e, threads);
    else
        plan_rows(&e, threads);
    e.in_order = e.by_runs || (e.columns == e.channels.channels && !e.kernels->paired);
    return e;
}

/* ---- memory, and the call --------------------------------------------------------- */

static size_t lay_out_exact(exact *e, char *memory) {
    size_t used = 0;
    const int64_t n = e->channels.channels, planes = bn_coef_planes(e->operation->formulas[SUM]);
    e->channels.coefs = lay_out(memory, &used, planes * n, e->number_bytes);
    for (int i = 0; i < e->operation->values; i++)
        e->channels.value[i] = lay_out(memory, &used, n, sizeof(double));
    e->expanded = lay_out(memory, &used, planes * round_up(e->columns, BN_STRIP), e->number_bytes);
    return used;
}

static bn_account lay_out_account(const exact *e, int64_t columns, bool one_channel, char *memory,
                                  size_t *used) {
    /* Rows a line apart from a power of two do not meet in one set of the first-level cache. */
    const int64_t pitch =
        one_channel ? BN_SUMS : BN_SUMS * columns + LINE_BYTES / (int64_t)sizeof(int64_t);
    return (bn_account){
        .plane = lay_out(memory, used, BN_PLANES * columns, sizeof(double)),
        .digit = lay_out(memory, used, (e->digits + 1) * pitch, sizeof(int64_t)),
        .columns = columns,
        .pitch = pitch,
        .one_channel = one_channel,
        .squares = e->operation->formulas[SUM] == MOMENTS,
        .flag_tells = e->flag_tells,
    };
}

static size_t lay_out_exact_scratch(const exact *e, exact_scratch *s, char *memory) {
    size_t used = 0;
    lay_out(memory, &used, 1, sizeof *s);
    s->account = lay_out_account(e, e->columns_per_task, false, memory, &used);
    s->run = lay_out_account(e, BN_STRIP, true, memory, &used);
    s->terms = lay_out(memory, &used, BN_SUMS * (numbers_of(e) + BN_STRIP), e->number_bytes);
    return used;
}

static void clear_numbers(const bn_account *a) {
    memset(a->plane, 0, (size_t)(BN_PLANES * a->columns) * sizeof(double));
}

static void start_thread(void *exact_, void *scratch) {
    exact_scratch *s = scratch;
    lay_out_exact_scratch(exact_, s, scratch);
    clear_numbers(&s->account);
    clear_numbers(&s->run);
}

static void task(void *exact_, void *scratch, int pass, int64_t tile, int64_t index) {
    exact *e = exact_;
    (void)pass, (void)tile;
    if (e->by_runs)
        task_by_runs(e, scratch, index);
    else
        task_by_rows(e, scratch, index);
}

static void nothing_more(void *exact_, void *scratch, int64_t tile, int64_t part) {
    (void)exact_, (void)scratch, (void)tile, (void)part;
}

/* Coefficients by columns of a row. */
static void expand(exact *e) {
    const int64_t n = e->channels.channels, stride = round_up(e->columns, BN_STRIP);
    e->coefs = (bn_coefs){e->expanded, stride, 0, BY_COLUMNS};
    for (int i = 0; !e->by_runs && e->needs->takes >> i; i++)
        if (e->needs->takes >> i & 1)
            e->kernels->expand(e->channels.coefs + i * n * e->number_bytes, n, e->run_length,
                               e->columns, e->expanded + i * stride * e->number_bytes);
}

static bn_status sum_on(exact *e, int threads) {
    exact_scratch counted;
    const bn_schedule schedule = {
        .tiles = 1,
        .tasks = e->tasks,
        .parts = 1,
        .first = true,
        .task = task,
        .finish = nothing_more,
        .start = start_thread,
        .work = e,
        .scratch_bytes = lay_out_exact_scratch(e, &counted, NULL),
    };
    const size_t own = lay_out_exact(e, NULL);
    size_t all = own;
    lay_out(NULL, &all, 1, bn_schedule_bytes(&schedule, threads));
    char *given, *memory = line_aligned(all, &given);
    if (!memory)
        return BN_NO_MEMORY;
    lay_out_exact(e, memory);
    e->operation->prepare[SUM](&e->channels);
    expand(e);
    bn_schedule_execute(&schedule, threads, memory + own);
    free(given);
    return BN_OK;
}

bn_status bn_reduce_exactly(const bn_problem *p, const bn_operation *operation,
                            bn_kind_of_state kind, int64_t *state) {
    const int64_t count = count_of(p->outer, p->n_outer) * count_of(p->inner, p->n_inner);
    const uint64_t mode = fp_mode_enter();
    bn_status status = BN_OK;
    if (count > 0 && p->channel.size > 0) {
        const int threads = bn_enter(p->num_threads, count * p->channel.size);
        exact e = exact_of(p, operation, state, threads);
        status = sum_on(&e, threads);
        bn_leave(threads);
        bn_carry(state, e.digits, e.touched, p->channel.size);
    }
    if (status == BN_OK)
        bn_sign_state(state, p, kind, count);
    fp_mode_leave(mode);
    return status;
}
