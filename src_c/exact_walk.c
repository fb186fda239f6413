/* exact_walk.c: from terms to an accumulator, and from there to the state. See exact_walk.h. */
#include "exact_walk.h"

/* ---- from terms to an accumulator --------------------------------------------------- */

void bn_exact_begin_strip(bn_exact_scratch *s) {
    memset(s->strip.plane, 0, BN_PLANES * BN_STRIP * sizeof(double));
    s->strip.added = BN_NOTHING_ADDED;
}

bool bn_exact_join_strip(const bn_exact *e, const bn_exact_scratch *s, bn_accumulator *a,
                         int64_t column) {
    const bn_exact_kernels *exact = e->kernels->exact;
    bn_added *added = &a->added[column / BN_STRIP];
    bn_added both = bn_both(*added, s->strip.added);
    if (!bn_fits(exact, a->squares, s->strip.added, 1))
        return false;
    if (!bn_fits(exact, a->squares, both, 1)) {
        exact->flush(a, column);
        both = s->strip.added;
    }
    exact->add_strip(a, column, &s->strip);
    *added = both;
    return true;
}

void bn_exact_compute_terms(const bn_exact *e, const bn_exact_scratch *s, const bn_block *b,
                            const bn_coefs *coefs, int64_t at, int64_t pitch) {
    const bn_terms to = {s->terms + at * e->plan.number_bytes, numbers_of(e) + BN_STRIP, pitch};
    e->kernels->terms[e->operation->formulas[SUM]](b, coefs, &to);
}

void bn_exact_deposit_terms(const bn_exact *e, const bn_exact_scratch *s, bn_accumulator *a,
                            int64_t column, int64_t columns, int64_t rows) {
    const bn_terms terms = {s->terms, numbers_of(e) + BN_STRIP, BN_STRIP};
    const int64_t unit = e->kernels->lanes * (e->kernels->paired ? 2 : 1);
    e->kernels->exact->deposit_terms(a, column, round_up(columns, unit), &terms, rows,
                                     s->strip.added.range);
}

/* ---- from an accumulator to the state ---------------------------------------------- */

/* Add columns of digits, or of flags, to the state; a column without a channel is left out. */
static void join_digits(const bn_exact *e, int k, const int64_t *digit, int64_t columns,
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

/* The column of a row that an accumulator's column is. */
static int64_t column_of(const bn_exact *e, int64_t j) {
    const int64_t lanes = e->kernels->lanes, within = j % (2 * lanes);
    return e->kernels->paired && !e->by_runs ? j - within + 2 * (within % lanes) + within / lanes
                                             : j;
}

/* The channel of each column of a strip, of which the first `columns` are columns of a row from
 * `first` on; behind those -1. */
static void channels_of(const bn_exact *e, int64_t first, int64_t columns,
                        int64_t channel[BN_STRIP]) {
    const int64_t each = e->by_runs ? 1 : e->plan.run_length;
    int64_t in_order[BN_STRIP], c = first / each % e->plan.channels, left = each - first % each;
    for (int64_t j = 0; j < columns; j++) {
        in_order[j] = c;
        if (--left == 0) {
            left = each;
            c = c + 1 < e->plan.channels ? c + 1 : 0;
        }
    }
    for (int64_t j = 0; j < BN_STRIP; j++) {
        const int64_t own = column_of(e, j);
        channel[j] = own < columns ? in_order[own] : -1;
    }
}

void bn_exact_add_to_state(bn_exact *e, bn_accumulator *a, int64_t first, int64_t columns) {
    const int64_t channels = e->plan.problem->channel.size;
    const int64_t all = round_up(columns, e->kernels->paired ? 2 * e->kernels->lanes : 1);
    const bool at_once = e->alone && e->in_order && !(a->touched >> e->digits);
    int64_t channel[BN_STRIP];
    e->kernels->exact->flush_all(a);
    __atomic_fetch_or(&e->touched, a->touched, __ATOMIC_RELAXED);
    for (int64_t x = 0; x < all; x += BN_STRIP) {
        if (!at_once)
            channels_of(e, first + x, at_most(BN_STRIP, columns - x), channel);
        for (uint64_t touched = a->touched; touched; touched &= touched - 1) {
            const int k = __builtin_ctzll(touched);
            for (int s = 0; s < BN_SUMS; s++) {
                const int64_t *digit = a->digit + k * a->pitch + s * a->columns + x;
                int64_t *to = e->state + (k * BN_SUMS + s) * channels;
                if (at_once)
                    for (int64_t j = 0; j < at_most(BN_STRIP, columns - x); j++)
                        to[first + x + j] += digit[j];
                else
                    join_digits(e, k, digit, at_most(BN_STRIP, all - x), channel, to);
            }
        }
    }
    a->touched = 0;
}
