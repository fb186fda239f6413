/* machine.c: CPUs, caches and forks. */
#define _GNU_SOURCE /* CPU_COUNT */
#include "machine.h"

#include <stdatomic.h>
#include <stddef.h>

#include "sizes.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <stdio.h>
#endif
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

/* ---- forks --------------------------------------------------------------- */

static atomic_bool forked;

bool bn_forked(void) {
    return atomic_load(&forked);
}

#ifndef _WIN32
/* The threads of libgomp's pool do not survive a fork, and a region in the child
 * would wait for them forever. */
static void mark_forked(void) {
    atomic_store(&forked, true);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, mark_forked);
}
#endif

/* ---- CPUs ---------------------------------------------------------------- */

static atomic_int cpu_quota;

void bn_set_cpu_quota(int threads) {
    atomic_store(&cpu_quota, threads);
}

bool bn_has_openmp(void) {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
}

#ifndef _OPENMP
/* CPUs that this process may run on. */
static int processors(void) {
#ifdef _WIN32
    DWORD_PTR mine, all;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine)
        return __builtin_popcountll(mine);
    /* A process in several groups of up to 64 CPUs has no one mask. */
    return (int)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
#else
#ifdef CPU_COUNT
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
}
#endif

/* 0: none. */
static atomic_int threads_limit;

void bn_set_threads_limit(int threads) {
    atomic_store(&threads_limit, threads > 0 ? threads : 0);
}

int bn_default_threads(void) {
#ifdef _OPENMP
    const int own = omp_get_num_procs(), limit = omp_get_max_threads();
    if (bn_forked())
        return 1;
#else
    const int own = processors(), limit = atomic_load(&threads_limit);
#endif
    const int quota = atomic_load(&cpu_quota);
    int threads = own;
    if (limit > 0 && limit < threads)
        threads = limit;
    if (quota > 0 && quota < threads)
        threads = quota;
    return threads < 1 ? 1 : threads;
}

/* ---- caches -------------------------------------------------------------- */

/* Where the system does not say: as on common servers. */
enum { USUAL_L2 = 1 << 20, USUAL_L3 = 16 << 20 };

static int64_t ask_cache(int level) {
    int64_t bytes = 0;
    (void)level;
#ifdef __linux__
    /* First what Linux itself says: sysconf gave ten times a virtual machine's L3. */
    char path[64], unit = 0;
    long long size = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%lld%c", &size, &unit) >= 1)
        bytes = size * (unit == 'M' ? 1 << 20 : unit == 'K' ? 1 << 10 : 1);
    if (file)
        fclose(file);
#ifdef _SC_LEVEL2_CACHE_SIZE /* not in musl */
    if (bytes <= 0)
        bytes = sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
#endif
#elif defined(__APPLE__)
    size_t length = sizeof bytes;
    if (sysctlbyname(level == 2 ? "hw.l2cachesize" : "hw.l3cachesize", &bytes, &length, NULL, 0))
        bytes = 0;
#endif
    return bytes;
}

/* 0: not asked yet. */
static atomic_llong l2_size, last_level_size;

int64_t bn_l2_bytes(void) {
    if (!atomic_load(&l2_size)) {
        const int64_t asked = ask_cache(2);
        atomic_store(&l2_size, asked > 0 ? asked : USUAL_L2);
    }
    return atomic_load(&l2_size);
}

int64_t bn_last_level_bytes(void) {
    if (!atomic_load(&last_level_size)) {
        const int64_t asked = ask_cache(3);
        atomic_store(&last_level_size, asked > 0 ? asked : at_least(USUAL_L3, bn_l2_bytes()));
    }
    return atomic_load(&last_level_size);
}

void bn_set_cache_sizes(int64_t l2, int64_t last_level) {
    atomic_store(&l2_size, l2);
    atomic_store(&last_level_size, last_level);
}
