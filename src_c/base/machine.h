/* machine.h: CPUs and caches. They decide which thread works when, but never a result. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* ---- CPUs ---------------------------------------------------------------- */

int bn_most_threads(void);              /* that any num_threads may use now */
int bn_default_threads(void);           /* that num_threads = 0 may use now */
void bn_set_threads_limit(int threads); /* of default threads, besides OpenMP's own; 0: none */
bool bn_has_openmp(void);               /* if not, each call has one thread */
int bn_cpus(void);                      /* that OpenMP may use */
/* Must we use one thread, because the process that forked us had a team of OpenMP's threads? A fork
 * copies what the runtime knows of them, but not the threads: it would wait for them forever. */
bool bn_fork_limits(void);
void bn_has_team(void); /* to be called before the first team exists */

/* ---- caches, in bytes; Python asks the system ------------------------------- */

int64_t bn_l2_bytes(void);         /* of one core */
int64_t bn_last_level_bytes(void); /* shared by all cores */
void bn_set_cache_sizes(int64_t l2, int64_t last_level);

/* Is the last level a cache of many cores, and slow to reach for each? */
bool bn_last_level_is_far(void);
void bn_set_last_level_far(bool far);
