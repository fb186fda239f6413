/* schedule.h: runs tasks on threads. See schedule.c. */
#ifndef BN_SCHEDULE_H
#define BN_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>

#include <stdint.h>

typedef struct {
    int64_t tiles;
    int64_t tile_bytes; /* what a tile's tasks read */
    int64_t tasks;      /* per tile and pass ... */
    int64_t joint;      /* ... or the joint tasks of the second pass, over all tiles; 0: none */
    int64_t slices;     /* in which a tile is finished; 0: there is nothing to finish */
    /* Run a task of the first pass, of the second. NULL: there is no such pass. */
    void (*first)(const void *work, void *scratch, int64_t tile, int64_t task);
    void (*second)(const void *work, void *scratch, int64_t tile, int64_t task);
    /* Finish a slice of a tile whose tasks of the first pass, if any, have ended. */
    void (*finish)(const void *work, void *scratch, int64_t tile, int64_t slice);
    void (*start)(const void *work, void *scratch); /* once per thread, before all else ... */
    void (*end)(const void *work, void *scratch);   /* ... and after all else, unless NULL */
    const void *work;
    size_t scratch_bytes; /* per thread */
} bn_schedule;

/* How many bytes bn_schedule_execute needs in `memory`, which must start on a cache line. If that
 * is too many for memory, PTRDIFF_MAX, which malloc always refuses. */
int64_t bn_schedule_bytes(const bn_schedule *s, int threads);
void bn_schedule_execute(const bn_schedule *s, int threads, void *memory);

/* Facts of this thread's last call: the threads that took part, the tasks of the pass that has
 * more, and whether the write tasks were joint. */
typedef struct {
    int threads;
    int64_t tasks;
    bool joint;
} bn_call_facts;
bn_call_facts bn_last_call(void);

#endif
