/* schedule.h: tasks over threads. See schedule.c. */
#ifndef BN_SCHEDULE_H
#define BN_SCHEDULE_H

#include <stddef.h>

#include "bn.h"

/* What tiling needs to know of a problem. */
typedef struct {
    int64_t channels;
    int64_t chunks;   /* tasks per tile and pass */
    int64_t columns;  /* in working space, per channel; 0: its rows are read by themselves */
    int64_t bytes;    /* of src and diff_dst per channel */
    bool divisible;   /* may a tile be a part of the channels? */
    bool interleaved; /* are a row's channels neighbours in memory? */
} bn_extent;

typedef void bn_task(void *work, void *scratch, int64_t tile, int64_t task);

typedef struct {
    int64_t tiles;
    int64_t tile_bytes;                       /* of src and diff_dst */
    int64_t tasks;                            /* per tile and pass */
    bn_task *first, *second;                  /* NULL: no such pass */
    void (*finish)(void *work, int64_t tile); /* once all of a tile's first tasks ended */
    void (*start)(void *work, void *scratch); /* once per thread */
    void *work;
    size_t scratch; /* bytes per thread */
} bn_schedule;

/* A call begins: the threads worth having, before the number of tasks is known. Each is
 * ended by bn_leave with what it returned. */
int bn_enter(int num_threads, int64_t elements);
void bn_leave(int threads);
/* Should this many bytes of src, diff_dst and diff_src be written past the cache? */
bool bn_streaming(int64_t bytes);
int64_t bn_tile_channels(const bn_extent *e, int threads);

/* What a run needs, in one block that the caller frees; NULL if it cannot be had. */
void *bn_schedule_memory(const bn_schedule *s, int threads);
void bn_schedule_run(const bn_schedule *s, int threads, void *memory);

#endif
