/* machine.h: CPUs and caches. They decide which thread works when, but never a result. */
#ifndef BN_MACHINE_H
#define BN_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* ---- CPUs ---------------------------------------------------------------- */

int bn_default_threads(void);           /* the most that num_threads = 0 may use now */
void bn_set_threads_limit(int threads); /* in addition to OpenMP's own limit; 0: none */
bool bn_has_openmp(void);
bool bn_forked(void); /* are we in a child, forked after this library was loaded? */
/* Must a forked child use one thread? Before a fork, pool.c gives up libgomp's pool, but within a
 * region it cannot: the child's next region would wait forever for threads that the fork did not
 * copy. So does LLVM's runtime, if a thread other than the first forks. */
bool bn_fork_limits(void);

/* ---- caches, in bytes; Python asks the system ------------------------------- */

int64_t bn_l2_bytes(void);         /* of one core */
int64_t bn_last_level_bytes(void); /* shared by all cores */
void bn_set_cache_sizes(int64_t l2, int64_t last_level);

#endif
