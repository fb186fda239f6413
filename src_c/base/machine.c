/* machine.c: forks, CPUs and caches. */
#include "base/machine.h"

#include <stdatomic.h>

#include "base/openmp.h"
#include "base/sizes.h"
#include "base/system.h"

/* ---- forks --------------------------------------------------------------- */

static atomic_bool had_team, one_thread_only;

bool bn_fork_limits(void) {
    return atomic_load(&one_thread_only);
}

void bn_has_team(void) {
    atomic_store(&had_team, true);
}

/* There, if LLVM's or Intel's runtime has taken libgomp's place: in a child that a thread other
 * than the first has forked, LLVM's hangs. */
__attribute__((weak)) int kmp_get_blocktime(void);

static void mark_forked(void) {
    if (atomic_load(&had_team) || kmp_get_blocktime || omp_get_level() > 0)
        atomic_store(&one_thread_only, true);
}

__attribute__((constructor)) static void watch_forks(void) {
    bn_at_fork(NULL, NULL, mark_forked);
}

/* ---- CPUs ---------------------------------------------------------------- */

static atomic_int threads_limit;

void bn_set_threads_limit(int threads) {
    atomic_store(&threads_limit, threads);
}

bool bn_has_openmp(void) {
    return BN_HAS_OPENMP;
}

int bn_cpus(void) {
    return omp_get_num_procs();
}

int bn_most_threads(void) {
    const bool one = bn_fork_limits() || omp_get_level() > 0 || omp_get_max_active_levels() < 1;
    return one ? 1 : omp_get_thread_limit();
}

int bn_default_threads(void) {
    const int limit = atomic_load(&threads_limit);
    int64_t threads = bn_most_threads();
    if (threads > 1)
        threads = at_most(threads, at_most(omp_get_num_procs(), omp_get_max_threads()));
    return (int)at_least(limit > 0 ? at_most(threads, limit) : threads, 1);
}

/* ---- caches -------------------------------------------------------------- */

/* Defaults, as on common servers. */
static atomic_llong l2_size = 1 << 20, last_level_size = 16 << 20;

int64_t bn_l2_bytes(void) {
    return atomic_load(&l2_size);
}

int64_t bn_last_level_bytes(void) {
    return atomic_load(&last_level_size);
}

static atomic_bool last_level_is_far;

bool bn_last_level_is_far(void) {
    return atomic_load(&last_level_is_far);
}

void bn_set_last_level_far(bool far) {
    atomic_store(&last_level_is_far, far);
}

void bn_set_cache_sizes(int64_t l2, int64_t last_level) {
    atomic_store(&l2_size, l2);
    atomic_store(&last_level_size, last_level);
}
