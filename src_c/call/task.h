/* task.h: a task, and the two ways to do one: sum.c, write.c. tasks.c makes tasks and runs them. */
#pragma once

#include <string.h>

#include "call/room.h"

typedef struct {
    const bn_plan *plan;
    const bn_room *room;
    bn_scratch *scratch;
    formula formula;
    bn_chunk chunk;
    /* Where the chunk begins in each operand, and distances from there: in the operand itself or,
     * if it is strided, in the thread's copy of the chunk. */
    bn_place at;
    int64_t next_position[BN_OPERANDS], next_channel[BN_OPERANDS];
    bn_coefs coefs;            /* of the chunk's channels */
    int64_t prefetch_channels; /* to write: to the tile that may be prefetched; 0: none */
} bn_task;

/* Where a position begins in each operand. */
static inline bn_place bn_place_of(const bn_problem *p, int64_t position) {
    bn_place at = {.bit = 0};
    int64_t distance[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        distance[o] = bn_to_position(p, o, position);
    memcpy(at.data, p->data, sizeof at.data);
    bn_move(&at, distance, 1);
    return at;
}

/* Set a box to one row, where the task's chunk begins. */
static inline void bn_set_first_row(bn_box *box, const bn_task *t, int64_t cols) {
    *box = (bn_box){.at = t->at, .repeats = 1, .channels = 1, .rows = 1, .cols = cols};
    memcpy(box->next_channel, t->next_channel, sizeof box->next_channel);
}

/* Sum the task's chunk, to the chunk's own sums. */
void bn_sum(const bn_task *t);

/* Add up the chunks of n channels from `from` on. */
void bn_add_chunks(const bn_room *room, int64_t from, int64_t n);

/* Write the results of the task's chunk. */
void bn_write(const bn_task *t);
