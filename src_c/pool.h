/* pool.h: how many threads a call has, and that they can be had. See pool.c. */
#ifndef BN_POOL_H
#define BN_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* A call begins: the threads worth having, before the number of tasks is known. Each is
 * ended by bn_leave with what it returned. */
int bn_enter(int num_threads, int64_t elements);
void bn_leave(int threads);

/* The threads that a parallel region may be entered with, at most so many. With *grows, which
 * is to be false before, the first thread of the region says when all are there. */
int bn_team_to_be_had(int threads, bool *grows);
void bn_team_is_there(void);
/* The region has ended: so many threads took part. */
void bn_remember_team(int threads);

#endif
