/* sum.h: sums a chunk, and adds up chunks. See sum.c. */
#ifndef BN_SUM_H
#define BN_SUM_H

#include "call/task.h"

/* Sum the task's chunk, to the chunk's own sums. */
void bn_sum(const bn_task *t);

/* Add up the chunks of n channels from `from` on. */
void bn_add_chunks(const bn_room *room, int64_t from, int64_t n);

#endif
