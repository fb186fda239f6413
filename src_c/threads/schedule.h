/* schedule.h: runs tasks on threads. See schedule.c. */
#pragma once

#include "base/bn.h"

/* How much there is to do. */
typedef struct {
    int threads; /* at most */
    int64_t tiles;
    int64_t tile_bytes;  /* what a tile's tasks read */
    int64_t tasks;       /* per tile and pass ... */
    int64_t joint_tasks; /* ... or the joint tasks of WRITE, over all tiles; 0: none */
    int64_t most_tasks;  /* the tasks of the pass that has more */
    int64_t slices;      /* in which a tile is finished; 0: there is nothing to finish */
    bool has[PASSES];    /* is there such a pass? */
} bn_schedule;

/* What there is to do. `me` is the thread's number. */
typedef void bn_stage(const void *work, int me, int64_t tile, int64_t index);
typedef struct {
    bn_stage *task[PASSES];                /* a task of this pass */
    bn_stage *finish_slice;                /* of a tile; its sum tasks, if any, have ended */
    void (*end)(const void *work, int me); /* once per thread, after all tasks */
} bn_stages;

/* How many bytes bn_schedule_execute needs in `memory`, which must start on a cache line. */
int64_t bn_schedule_bytes(const bn_schedule *s);
void bn_schedule_execute(const bn_schedule *s, const bn_stages *stages, const void *work,
                         void *memory);

/* Facts of this thread's last call: the threads that took part, the tasks of the pass that has
 * more, and whether the write tasks were joint. */
typedef struct {
    int threads;
    int64_t tasks;
    bool joint;
} bn_call_facts;
bn_call_facts bn_last_call(void);
