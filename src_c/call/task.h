/* task.h: a task, and the two ways to do one: sum.c, write.c. tasks.c makes tasks and runs them. */
#pragma once

#include "call/room.h"

typedef struct {
    const bn_plan *plan;
    const bn_room *room;
    bn_scratch *scratch;
    formula formula;
    bn_chunk chunk;
    int64_t index;          /* the chunk's, to sum it */
    bn_coefs coefs;         /* of the chunk's channels */
    int64_t channels_ahead; /* to the tile that may be prefetched; 0: none */
} bn_task;

/* A box of one row, where the task's chunk begins. */
static inline bn_box bn_first_row(const bn_task *t, int64_t cols) {
    const bn_problem *p = t->plan->problem;
    bn_box box = {.repeats = 1, .channels = 1, .rows = 1, .cols = cols};
    int64_t by[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++) {
        box.at.data[o] = p->data[o];
        box.next_channel[o] = p->next_channel[o];
        by[o] = t->chunk.position * p->next_position[o] + t->chunk.channel * p->next_channel[o] +
                t->chunk.x * bn_next_element(o, t->plan->element_bytes);
    }
    bn_move(&box.at, by);
    return box;
}

/* Move a box by so many repeats. */
static inline void bn_pass_repeats(bn_box *box, int64_t repeats) {
    int64_t by[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        by[o] = repeats * box->next_repeat[o];
    bn_move(&box->at, by);
}

/* Sum the task's chunk, to the chunk's own sums. */
void bn_sum(const bn_task *t);

/* Add up the chunks of n channels from `from` on. */
void bn_add_chunks(const bn_room *room, int64_t from, int64_t n);

/* Write the results of the task's chunk. */
void bn_write(const bn_task *t);
