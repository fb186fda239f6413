/* room.h: the memory of a call, all of it. See room.c. */
#pragma once

#include "call/plan.h"
#include "call/strided.h"
#include "exact/exact.h"

/* A thread's own memory. A thread may alternate between the two passes, on different tiles, so each
 * pass keeps its own coefficients. */
typedef struct {
    /* The channel whose coefficients come first, or -1. */
    _Alignas(LINE_BYTES) int64_t from[PASSES];
    bn_coefs coefs[PASSES];
    char *expanded[PASSES]; /* room for coefficients that kernels lay out */
    /* Of strided operands: dense copies, and the chunk that each has (at first none: n is 0). */
    char *copy[BN_OPERANDS];
    bn_chunk *copied[BN_OPERANDS];
    bn_sums sums;
    bn_exact exact;
} bn_scratch;

typedef struct {
    const bn_plan *plan;
    bn_channel_memory channels;
    double *partial;       /* (chunks, planes, channels); if there is one chunk, channels.sums */
    bn_accumulator *state; /* of exact sums; threads add to it */
    bn_scratch *scratch;   /* of each thread */
    bn_strided *strided;   /* by operand */
    void *progress;        /* schedule.c's */
    char *to_free;
} bn_room;

/* Memory of the caller for a small call: to allocate it would take as long as a tenth of such a
 * call (measured). */
typedef struct {
    _Alignas(LINE_BYTES) char bytes[16 << 10];
} bn_small_room;

/* Get a plan's memory, `small` if that is enough; false if there is none. The caller frees to_free.
 */
bool bn_take_room(bn_room *room, const bn_plan *plan, bn_small_room *small);
