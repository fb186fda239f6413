/* exact_runs.c: exact sums by runs: a channel's elements, run after run, in any number of columns.
 */
#include "exact_walk.h"

/* Where an element of a channel lies. */
static void element_offset(const bn_exact *e, int64_t channel, int64_t element,
                           int64_t offset[BN_OPERANDS]) {
    const bn_problem *p = e->problem;
    offset_of(e, channel, element / e->run_length, offset);
    add_offset(p->inner, p->n_inner, element % e->run_length, offset);
}

/* The share when n items are split evenly into the fewest shares of at most `most`. */
static int64_t even_share(int64_t n, int64_t most) {
    return ceil_div(n, ceil_div(n, most));
}

/* As many elements of a channel, from one on, as are a segment, or segments of one length and a
 * fixed distance apart: so many at most. Meanwhile those behind are fetched, or, if these are the
 * task's last, those of a later channel from `first` on. */
static bn_block segments_at(const bn_exact *e, int64_t channel, int64_t first, int64_t element,
                            int64_t to, int64_t most) {
    const bn_problem *p = e->problem;
    const int64_t length = p->n_inner ? p->inner[p->n_inner - 1].size : 1;
    const int64_t x = element % e->run_length;
    int64_t rows = 1, cols = at_most(length - x % length, most);
    int64_t offset[BN_OPERANDS], next[BN_OPERANDS];
    if (length == e->run_length && x == 0 && e->evenly && length <= most)
        rows = most / length;
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

static bn_coefs coefs_of(const bn_exact *e, int64_t channel) {
    return (bn_coefs){e->channels.coefs + channel * e->number_bytes, e->channels.channels, 1,
                      ONE_FOR_ALL};
}

/* Of n elements of a channel from one on, which there is room for: the sums, or the terms. */
static void walk_segments(const bn_exact *e, bn_exact_scratch *s, int64_t channel, int64_t first,
                          int64_t element, int64_t n, int64_t to, bool sums) {
    const bn_coefs coefs = coefs_of(e, channel);
    for (int64_t done = 0, here; done < n; done += here) {
        const bn_block b = segments_at(e, channel, first, element + done, to, n - done);
        here = b.rows * b.cols;
        if (sums)
            e->kernels->add_up[e->operation->formulas[SUM]](&b, &coefs, &s->strip);
        else
            bn_exact_compute_terms(e, s, &b, &coefs, done, b.cols);
    }
}

/* Terms of so many elements, and zeros up to a whole strip, become digits. */
static void deposit_segments(const bn_exact *e, bn_exact_scratch *s, int64_t n) {
    const int64_t whole = round_up(n, BN_STRIP);
    for (int k = 0; k < BN_SUMS; k++)
        memset(s->terms + (k * (numbers_of(e) + BN_STRIP) + n) * e->number_bytes, 0,
               (size_t)((whole - n) * e->number_bytes));
    bn_exact_deposit_terms(e, s, &s->run, 0, BN_STRIP, whole / BN_STRIP);
}

/* Whole runs, or an even share of one. */
static int64_t elements_at_once(const bn_exact *e, int64_t element, int64_t to) {
    const int64_t left = to - element, most = numbers_of(e), run = e->run_length;
    const int64_t done = element % run;
    if (run > most || left < run || done)
        return at_most(round_up(even_share(run, most), BN_STRIP), at_most(run - done, left));
    return even_share(left / run, most / run) * run;
}

static void sum_channel(const bn_exact *e, bn_exact_scratch *s, int64_t channel, int64_t from,
                        int64_t to) {
    for (int64_t element = from, n; element < to; element += n) {
        n = elements_at_once(e, element, to);
        bn_exact_begin_strip(s);
        walk_segments(e, s, channel, from, element, n, to, true);
        if (bn_exact_join_strip(e, s, &s->run, 0))
            continue;
        walk_segments(e, s, channel, from, element, n, to, false);
        deposit_segments(e, s, n);
    }
}

void bn_exact_task_by_runs(bn_exact *e, bn_exact_scratch *s, int64_t index) {
    const int64_t all = e->positions * e->run_length;
    const int64_t channel = index / e->tasks_per_channel * e->channels_per_task;
    const int64_t from = index % e->tasks_per_channel * e->elements_per_task;
    const int64_t to = at_most(from + e->elements_per_task, all);
    const int64_t n = at_most(e->channels_per_task, e->channels.channels - channel);
    for (int64_t c = 0; c < n; c++) {
        sum_channel(e, s, channel + c, from, to);
        e->kernels->exact->close_channel(&s->run, &s->account, c);
    }
    bn_exact_publish(e, &s->account, channel, n);
}
