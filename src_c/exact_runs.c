/* exact_runs.c: exact sums by runs: a channel's elements, run after run, in any number of columns.
 */
#include "exact_walk.h"

enum { AT_ONCE = 128 }; /* elements of a run: fewer wait for others (measured) */

/* Where an element of a channel lies. */
static void element_offset(const bn_exact *e, int64_t channel, int64_t element,
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
static bn_block segments_at(const bn_exact *e, int64_t channel, int64_t first, int64_t element,
                            int64_t to, int64_t most) {
    const bn_problem *p = e->problem;
    const int64_t length = p->n_inner ? p->inner[p->n_inner - 1].size : 1;
    const int64_t x = element % e->run_length;
    int64_t rows = 1, cols = at_most(length - x % length, most);
    int64_t offset[BN_OPERANDS], next[BN_OPERANDS];
    if (length == e->run_length && x == 0 && e->evenly && length <= most)
        rows = even_share((to - element) / length, at_most(most / length, BN_ROWS_AT_ONCE));
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

/* Segments from an element on, added up at once. Returns how many elements these were. */
static int64_t add_segments(const bn_exact *e, bn_exact_scratch *s, int64_t channel, int64_t first,
                            int64_t element, int64_t to) {
    const bn_coefs coefs = coefs_of(e, channel);
    const bn_block b =
        segments_at(e, channel, first, element, to, at_most(BN_ELEMENTS_AT_ONCE, to - element));
    const int64_t n = b.rows * b.cols;
    return n >= AT_ONCE && bn_exact_add_quietly(e, &s->run, 0, &b, &coefs) ? n : 0;
}

/* The same by terms, as many as there is room for. */
static int64_t sum_segments(const bn_exact *e, bn_exact_scratch *s, int64_t channel, int64_t first,
                            int64_t element, int64_t to) {
    const bn_coefs coefs = coefs_of(e, channel);
    const int64_t room = numbers_of(e);
    int64_t have = 0;
    while (have < room && element + have < to) {
        const bn_block b = segments_at(e, channel, first, element + have, to,
                                       at_most(room - have, to - element - have));
        bn_exact_compute_terms(e, s, &b, &coefs, have, b.cols);
        have += b.rows * b.cols;
    }
    const int64_t whole = round_up(have, BN_STRIP);
    for (int k = 0; k < BN_SUMS; k++)
        memset(s->terms + (k * (room + BN_STRIP) + have) * e->number_bytes, 0,
               (size_t)((whole - have) * e->number_bytes));
    bn_exact_add_terms(e, s, &s->run, 0, BN_STRIP, whole / BN_STRIP);
    return have;
}

static void sum_channel(const bn_exact *e, bn_exact_scratch *s, int64_t channel, int64_t from,
                        int64_t to) {
    int64_t unsettled = 0;
    for (int64_t element = from, n; element < to; element += n) {
        n = add_segments(e, s, channel, from, element, to);
        if (n == 0)
            n = sum_segments(e, s, channel, from, element, to);
        unsettled += n;
        if (s->run.squares && unsettled >= BN_SQUARES_ROWS * BN_STRIP) {
            e->kernels->settle(&s->run, BN_STRIP);
            unsettled = 0;
        }
    }
}

void bn_exact_task_by_runs(bn_exact *e, bn_exact_scratch *s, int64_t index) {
    const int64_t all = e->positions * e->run_length;
    const int64_t channel = index / e->tasks_per_channel * e->channels_per_task;
    const int64_t from = index % e->tasks_per_channel * e->elements_per_task;
    const int64_t to = at_most(from + e->elements_per_task, all);
    const int64_t n = at_most(e->channels_per_task, e->channels.channels - channel);
    bn_block block =
        segments_at(e, channel, from, from, to, at_most(BN_ELEMENTS_AT_ONCE, to - from));
    const bool whole = block.rows * block.cols == to - from && to - from >= AT_ONCE;
    for (int64_t c = 0; c < n; c++) {
        const bn_coefs coefs = coefs_of(e, channel + c);
        if (!whole || !bn_exact_add_quietly(e, &s->run, 0, &block, &coefs))
            sum_channel(e, s, channel + c, from, to);
        e->kernels->close(&s->run, &s->account, c);
        for (int o = 0; o < BN_OPERANDS; o++)
            block.data[o] = address(block.data[o], e->problem->channel.stride[o]);
    }
    bn_exact_publish(e, &s->account, channel, n);
}
