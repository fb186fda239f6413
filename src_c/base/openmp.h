/* openmp.h: OpenMP; in a build without it, its functions as they answer for one thread. */
#pragma once

#ifdef _OPENMP
#include <omp.h>

enum { BN_HAS_OPENMP = 1 };
#else
enum { BN_HAS_OPENMP = 0 };
enum { omp_pause_soft };

static inline int omp_get_num_procs(void) {
    return 1;
}
static inline int omp_get_max_threads(void) {
    return 1;
}
static inline int omp_get_thread_limit(void) {
    return 1;
}
static inline int omp_get_thread_num(void) {
    return 0;
}
static inline int omp_get_level(void) {
    return 0;
}
static inline int omp_get_max_active_levels(void) {
    return 0;
}
static inline int omp_pause_resource_all(int kind) {
    return kind;
}
#endif
