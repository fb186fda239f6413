/* order.h: the order of every sum, from the shape and the dtype alone. See order.c. */
#pragma once

#include "base/bn.h"
#include "base/sizes.h"

typedef enum { CHANNELS_LAST, SHORT_RUNS, LONG_RUNS } bn_form;

typedef struct {
    bn_form form;
    /* A row has the runs of neighboring channels at so many positions; more than 1 only with
     * CHANNELS_LAST. With long runs, a row is one channel's run. */
    int64_t row_positions;
    int64_t rows; /* the last may be shorter */
    /* A chunk has rows and, with long runs, a part of each run. */
    int64_t chunk_rows, chunk_run, run_chunks;
    int64_t chunks;
    int64_t stretch; /* with long runs: elements */
} bn_sum_order;

bn_sum_order bn_sum_order_of(const bn_problem *p);

/* What a task takes: positions, channels and, of each run, n elements from x on. No padding. */
typedef struct {
    int64_t index, position, positions, channel, channels, x, n;
} bn_chunk;

/* A chunk of n channels from `channel` on. */
static inline bn_chunk bn_chunk_of(const bn_problem *p, const bn_sum_order *s, int64_t index,
                                   int64_t channel, int64_t n) {
    const int64_t each = s->chunk_rows * s->row_positions, x = index % s->run_chunks * s->chunk_run;
    const int64_t position = index / s->run_chunks * each;
    return (bn_chunk){
        .index = index,
        .position = position,
        .positions = at_most(each, p->positions - position),
        .channel = channel,
        .channels = n,
        .x = x,
        .n = at_most(s->chunk_run, p->run - x),
    };
}
