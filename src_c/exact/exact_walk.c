/* exact_walk.c: the tasks of exact sums: from terms to an accumulator, then to the state.
 *
 * By rows (channels last, or short runs), a row is one or more positions without a gap, and each
 * column belongs to one channel. By runs, a channel's elements are taken run after run, and any
 * column may take any element.
 */
#include "arrays/place.h"
#include "exact/exact.h"
#include "sizes.h"

enum {
    BLOCK_ROWS = 32,   /* rows summed in every strip before the next rows (measured) */
    MOST_UNTRIED = 15, /* the most successive portions for which doubles are not tried */
};
_Static_assert(BLOCK_ROWS * BN_STRIP * sizeof(double) <= BN_TERMS_BYTES, "room for their terms");

/* ---- blocks ------------------------------------------------------------------------ */

/* What is added up at a time: a strip of rows, or elements of a channel. */
typedef struct {
    int64_t column;    /* the first of the rows; by runs, the channel */
    int64_t columns;   /* of the rows; by runs, BN_STRIP */
    int64_t from;      /* the first position; by runs, the first element */
    int64_t terms;     /* by rows, rows * BN_STRIP; by runs, elements */
    int64_t first, to; /* by runs: the channel's elements first ... to - 1 are the task's */
} portion;

/* Rows of `cols` elements each, `positions` positions apart. */
static bn_box box_of(const bn_exact *e, bn_place place, int64_t cols, int64_t rows,
                     int64_t positions) {
    bn_box b = box_at(e->problem, place, cols);
    b.rows = (int)rows;
    for (int o = 0; o < BN_OPERANDS; o++)
        b.pitch[o] = positions * e->problem->pitch[o];
    return b;
}

/* The portion's rows. The data to prefetch lies BLOCK_ROWS rows further on. */
static bn_box rows_of(const bn_exact *e, const portion *p) {
    const bn_place place = place_of(e->problem, p->from, 0, p->column);
    bn_box b = box_of(e, place, p->columns, p->terms / BN_STRIP, e->positions_per_row);
    for (int o = 0; o < BN_OPERANDS; o++)
        b.step[o] = BLOCK_ROWS * b.pitch[o];
    return b;
}

static bn_place place_of_element(const bn_exact *e, int64_t channel, int64_t element) {
    const int64_t run = e->problem->run;
    return place_of(e->problem, element / run, channel, element % run);
}

/* The rest of the channel's run after `done` terms, or several whole runs. Kernels prefetch the
 * data that follows or, after the task's last run, the first elements of a later channel. */
static bn_box runs_at(const bn_exact *e, const portion *p, int64_t done) {
    const int64_t length = e->problem->run;
    const int64_t element = p->from + done, x = element % length;
    const int64_t most = p->terms - done, cols = at_most(length - x, most);
    const int64_t rows = x == 0 && length <= most ? most / length : 1;
    const int64_t behind = element + rows * cols, last = e->problem->channels - 1;
    const bn_place next =
        behind < p->to
            ? place_of_element(e, p->column, behind)
            : place_of_element(e, at_most(p->column + e->channels_ahead, last), p->first);
    bn_box b = box_of(e, place_of_element(e, p->column, element), cols, rows, 1);
    for (int o = 0; o < BN_OPERANDS; o++)
        b.step[o] = (int64_t)((uintptr_t)next.data[o] - (uintptr_t)b.at.data[o]);
    return b;
}

/* ---- from terms to an accumulator --------------------------------------------------- */

/* Add a portion's terms to the thread's strip if `sums`, else store them. */
static void walk(const bn_exact *e, bn_exact_scratch *s, const portion *p, bool sums) {
    const formula f = e->formula;
    const char *first = (const char *)e->coefs.column + p->column * e->number_bytes;
    const bn_coefs coefs = {first, e->coefs.stride, e->coefs.period, e->coefs.layout};
    for (int64_t done = 0, here; done < p->terms; done += here) {
        const bn_box b = e->by_runs ? runs_at(e, p, done) : rows_of(e, p);
        const bn_terms to = {s->terms + done * e->number_bytes, terms_of_sum(e) + BN_STRIP,
                             e->by_runs ? b.cols : BN_STRIP};
        here = b.rows * to.pitch;
        if (sums)
            e->kernels->add_up[f.base][f.gate](&b, &coefs, &s->strip);
        else
            e->kernels->terms[f.base][f.gate](&b, &coefs, &to);
    }
}

/* Add a portion's terms to an accumulator's columns from `column` on, as limbs. The terms of runs
 * are padded with zeros to whole strips. */
static void deposit(const bn_exact *e, bn_exact_scratch *s, bn_accumulator *a, int64_t column,
                    const portion *p) {
    const bn_terms terms = {s->terms, terms_of_sum(e) + BN_STRIP, BN_STRIP};
    const int64_t unit = e->kernels->lanes * (e->kernels->paired ? 2 : 1);
    const int64_t rows = ceil_div(p->terms, BN_STRIP), bytes = e->number_bytes;
    walk(e, s, p, false);
    for (int k = 0; k < BN_SUMS; k++)
        memset(s->terms + (k * terms.plane + p->terms) * bytes, 0,
               (size_t)((rows * BN_STRIP - p->terms) * bytes));
    e->kernels->exact->deposit_terms(a, column, round_up(p->columns, unit), &terms, rows);
}

/* Add a portion up as the strip's doubles. Return whether that was exact. */
static bool add_up(const bn_exact *e, bn_exact_scratch *s, bool squares, const portion *p,
                   bn_added *added) {
    memset(s->strip.plane, 0, BN_PLANES * BN_STRIP * sizeof(double));
    s->strip.seen[0] = s->strip.seen[1] = BN_NO_RANGE;
    s->strip.adds = 0;
    walk(e, s, p, true);
    *added = e->kernels->exact->added(&s->strip, squares, s->strip.top);
    return bn_fits(added, 1);
}

/* Would the strip's sums be exact if terms were cut (exact.inc) for the range that was seen? */
static bool would_fit(const bn_exact *e, bool squares, const bn_strip *strip) {
    const int top[BN_SUMS] = {strip->seen[0].top, strip->seen[1].top};
    const bn_added added = e->kernels->exact->added(strip, squares, top);
    return bn_fits(&added, 1);
}

/* Add a portion to an accumulator's columns: as doubles if that rounds nothing, else as limbs.
 * First cut terms (exact.inc) as for the previous portion, by bn_strip.top. If sums are then
 * rounded, but would be exact with cuts for this portion's range, cut again. */
static void add_portion(const bn_exact *e, bn_exact_scratch *s, bn_accumulator *a, int64_t column,
                        const portion *p) {
    bn_added *own = &a->added[column / BN_STRIP], added;
    if (s->untried > 0) {
        s->untried--;
        deposit(e, s, a, column, p);
        return;
    }
    bool fits = add_up(e, s, a->squares, p, &added);
    if (!fits && would_fit(e, a->squares, &s->strip)) {
        for (int k = 0; k < BN_SUMS; k++)
            s->strip.top[k] = s->strip.seen[k].top;
        fits = add_up(e, s, a->squares, p, &added);
    }
    if (!fits) {
        s->untried = s->backoff;
        s->backoff = (int)at_most(2 * s->backoff + 1, MOST_UNTRIED);
        deposit(e, s, a, column, p);
        return;
    }
    s->backoff = 0;
    bn_added both = bn_both(own, &added);
    if (!bn_fits(&both, 1)) {
        e->kernels->exact->flush(a, column); /* the accumulator's doubles at `column` are now 0 */
        both = added;
    }
    e->kernels->exact->add_strip(a, column, &s->strip);
    *own = both;
}

/* ---- from an accumulator to the state ---------------------------------------------- */

/* Add columns of limbs, or of flags, to the state; a column without a channel is left out. */
static void join_limbs(const bn_exact *e, int k, const int64_t *limb, int64_t columns,
                       const int64_t *channel, int64_t *to) {
    const bool flags = k >= e->limbs;
    for (int64_t j = 0; j < columns; j++) {
        if (channel[j] < 0 || limb[j] == 0)
            continue;
        if (flags)
            __atomic_fetch_or(to + channel[j], limb[j], __ATOMIC_RELAXED);
        else
            __atomic_fetch_add(to + channel[j], limb[j], __ATOMIC_RELAXED);
    }
}

/* Which column of a row is column j of an accumulator? */
static int64_t column_of(const bn_exact *e, int64_t j) {
    const int64_t lanes = e->kernels->lanes, within = j % (2 * lanes);
    return e->kernels->paired && !e->by_runs ? j - within + 2 * (within % lanes) + within / lanes
                                             : j;
}

/* The channel of each column of a strip. The first `columns` are columns of a row from `first` on;
 * the others get -1. */
static void channels_of(const bn_exact *e, int64_t first, int64_t columns,
                        int64_t channel[BN_STRIP]) {
    const int64_t each = e->by_runs ? 1 : e->problem->run;
    int64_t in_order[BN_STRIP], c = first / each % e->problem->channels, left = each - first % each;
    for (int64_t j = 0; j < columns; j++) {
        in_order[j] = c;
        if (--left == 0) {
            left = each;
            c = c + 1 < e->problem->channels ? c + 1 : 0;
        }
    }
    for (int64_t j = 0; j < BN_STRIP; j++) {
        const int64_t own = column_of(e, j);
        channel[j] = own < columns ? in_order[own] : -1;
    }
}

static void touch(bn_exact *e, int row) {
    int lowest = __atomic_load_n(&e->lowest_touched, __ATOMIC_RELAXED);
    while (row < lowest && !__atomic_compare_exchange_n(&e->lowest_touched, &lowest, row, true,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Add an accumulator's columns to the state. The first one is column `first` of a row or, by runs,
 * channel `first`. */
static void add_to_state(bn_exact *e, bn_accumulator *a, int64_t first, int64_t columns) {
    const int64_t channels = e->problem->channels;
    const int64_t all = round_up(columns, e->kernels->paired ? 2 * e->kernels->lanes : 1);
    const bool at_once = e->alone && e->in_order && !a->flagged;
    int64_t channel[BN_STRIP];
    e->kernels->exact->flush_all(a);
    if (a->first < a->end)
        touch(e, a->first);
    for (int64_t x = 0; x < all; x += BN_STRIP) {
        if (!at_once)
            channels_of(e, first + x, at_most(BN_STRIP, columns - x), channel);
        const int rows = a->end - a->first;
        for (int i = 0; i < rows + a->flagged; i++) {
            const int k = i < rows ? a->first + i : e->limbs; /* flags are the last row */
            for (int s = 0; s < BN_SUMS; s++) {
                const int64_t *limb = a->limb + k * a->pitch + s * a->columns + x;
                int64_t *to = e->state + (k * BN_SUMS + s) * channels;
                if (at_once)
                    for (int64_t j = 0; j < at_most(BN_STRIP, columns - x); j++)
                        to[first + x + j] += limb[j];
                else
                    join_limbs(e, k, limb, at_most(BN_STRIP, all - x), channel, to);
            }
        }
    }
    a->first = a->end = 0;
    a->flagged = false;
}

/* ---- tasks ------------------------------------------------------------------------- */

static void sum_panel(const bn_exact *e, bn_exact_scratch *s, int64_t first, int64_t columns,
                      int64_t position, int64_t rows) {
    for (int64_t row = 0, here; row < rows; row += here) {
        here = at_most(BLOCK_ROWS, rows - row);
        for (int64_t x = 0; x < columns; x += BN_STRIP) {
            const portion p = {.column = first + x,
                               .columns = at_most(BN_STRIP, columns - x),
                               .from = position + row * e->positions_per_row,
                               .terms = here * BN_STRIP};
            add_portion(e, s, &s->accumulator, x, &p);
        }
    }
}

static void sum_rows(bn_exact *e, bn_exact_scratch *s, int64_t index) {
    const int64_t m = e->positions_per_row, whole = e->problem->positions / m;
    const int64_t first = index % e->panels * BN_PANEL, from = index / e->panels * e->rows_per_task;
    const int64_t columns = at_most(BN_PANEL, e->columns - first);
    const int64_t rows = at_most(e->rows_per_task, whole - from);
    sum_panel(e, s, first, columns, from * m, rows);
    if (from + rows == whole) { /* positions that do not fill a row: if any, there is one panel */
        const int64_t left = e->problem->positions % m * (e->columns / m);
        sum_panel(e, s, first, left, whole * m, 1);
    }
    add_to_state(e, &s->accumulator, first, columns);
}

/* The share when n items are split evenly into the fewest shares of at most `most`. */
static int64_t even_share(int64_t n, int64_t most) {
    return ceil_div(n, ceil_div(n, most));
}

/* How many elements to take: whole runs, or an even share or the rest of a run. */
static int64_t elements_at_once(const bn_exact *e, int64_t element, int64_t to) {
    const int64_t left = to - element, most = terms_of_sum(e), run = e->problem->run;
    const int64_t done = element % run;
    if (run > most || left < run || done)
        return at_most(round_up(even_share(run, most), BN_STRIP), at_most(run - done, left));
    return even_share(left / run, most / run) * run;
}

static void sum_runs(bn_exact *e, bn_exact_scratch *s, int64_t index) {
    const int64_t all = e->problem->positions * e->problem->run;
    const int64_t channel = index / e->tasks_per_channel * e->channels_per_task;
    const int64_t n = at_most(e->channels_per_task, e->problem->channels - channel);
    portion p = {.columns = BN_STRIP, .first = index % e->tasks_per_channel * e->elements_per_task};
    p.to = at_most(p.first + e->elements_per_task, all);
    for (int64_t c = 0; c < n; c++) {
        p.column = channel + c;
        for (p.from = p.first; p.from < p.to; p.from += p.terms) {
            p.terms = elements_at_once(e, p.from, p.to);
            add_portion(e, s, &s->run, 0, &p);
        }
        e->kernels->exact->close_channel(&s->run, &s->accumulator, c);
    }
    add_to_state(e, &s->accumulator, channel, n);
}

void bn_exact_task(void *exact_, void *scratch, int pass, int64_t tile, int64_t index) {
    bn_exact *e = exact_;
    (void)pass, (void)tile;
    (e->by_runs ? sum_runs : sum_rows)(e, scratch, index);
}
