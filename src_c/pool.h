/* pool.h: how many threads a call gets, and that they can be started. See pool.c. */
#ifndef BN_POOL_H
#define BN_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* A call begins: how many threads it is worth, before the number of tasks is known. It ends with
 * bn_leave, which is given that number. */
int bn_enter(int num_threads, int64_t elements);
void bn_leave(int threads);

/* How many threads, at most so many, a parallel region can be entered with. If that sets *grows,
 * which must be false before, the region's first thread must call bn_team_is_there. */
int bn_startable_team(int threads, bool *grows);
void bn_team_is_there(void);
/* The region has ended: so many threads took part. */
void bn_remember_team(int threads);

#endif
