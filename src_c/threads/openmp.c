/* openmp.c: the threads of a call are those of an OpenMP parallel region. On Linux, no call asks
 * the runtime for threads that the system would not start. Without OpenMP, a call has one thread.
 */
#define _GNU_SOURCE /* syscall */
#include "threads/pool.h"

#ifndef _OPENMP
bool bn_team_pays(void) {
    return false;
}

void bn_run_team(int threads, bn_team_work *work, void *argument) {
    (void)threads;
    work(argument, 0);
}
#else
#include <omp.h>
#include <stdatomic.h>
#include <stdint.h>

#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include "base/fp_mode.h"
#include "base/machine.h"
#include "base/sizes.h"

#if defined(BN_OLD_SYMBOLS) && defined(__GLIBC__)
/* glibc 2.32 and 2.34 moved these functions to libc: new symbol versions, which older ones lack. */
#ifdef __x86_64__
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#endif
#ifdef FIRST_GLIBC
__asm__(".symver pthread_create, pthread_create@" FIRST_GLIBC);
__asm__(".symver pthread_join, pthread_join@" FIRST_GLIBC);
__asm__(".symver pthread_attr_getstacksize, pthread_attr_getstacksize@" FIRST_GLIBC);
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@" FIRST_GLIBC);
#endif
#endif

/* ---- threads that can be started ------------------------------------------ */

/* OpenMP's runtimes end the process if they cannot start a thread (a limit on processes or address
 * space, a huge OMP_STACKSIZE). So on Linux, where such limits are common, the missing threads are
 * started on trial before a region that needs more threads than the calling thread's pool has.
 * libgomp keeps only the last team's threads, so pool_size is the size of that team. */
static _Thread_local int pool_size = 1;

#ifdef __linux__
/* Pools grow one at a time, so that no other call starts threads between the trial and the region.
 * The mutex is unlocked inside the region, when all threads exist. */
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_door(void *id) {
    *(long *)id = syscall(SYS_gettid);
    pthread_mutex_lock(&door);
    pthread_mutex_unlock(&door);
    return NULL;
}

/* A joined thread counts against the system's limits for a little longer. Wait until it no longer
 * does, at most a second. */
static void wait_until_gone(long id) {
    enum { MOST_WAITS = 10000 };
    const struct timespec wait = {.tv_nsec = 100000};
    for (int i = 0; i < MOST_WAITS && syscall(SYS_tgkill, getpid(), id, 0) == 0; i++)
        nanosleep(&wait, NULL);
}

/* glibc keeps the stacks of threads that have ended. So that the runtime's threads can have them,
 * they are larger: each thread of LLVM's has 128 bytes more than the one before. */
enum { STACK_MARGIN = 128 * BN_MOST_THREADS };

/* How many of `wanted` more threads can exist at once, beside one as a margin: the runtime
 * allocates memory too. */
static int startable(int wanted) {
    static pthread_t thread[BN_MOST_THREADS];
    static long id[BN_MOST_THREADS];
    pthread_attr_t attributes;
    size_t stack = (size_t)bn_stack_bytes();
    pthread_attr_init(&attributes);
    if (!stack)
        (void)pthread_attr_getstacksize(&attributes, &stack);
    (void)pthread_attr_setstacksize(&attributes, stack + STACK_MARGIN);
    int n = 0;
    pthread_mutex_lock(&door);
    while (n <= wanted && !pthread_create(&thread[n], &attributes, wait_at_door, &id[n]))
        n++;
    pthread_mutex_unlock(&door);
    pthread_attr_destroy(&attributes);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        wait_until_gone(id[i]);
    }
    return (int)at_least(n - 1, 0);
}

/* How many threads, at most `threads`, a region can have. If *grows becomes true, `growing` is
 * locked, and has_grown must be called in the region. */
static int startable_team(int threads, bool *grows) {
    const int have = omp_get_level() ? 1 : pool_size;
    if (threads <= have)
        return threads;
    bn_has_team();
    pthread_mutex_lock(&growing);
    threads = have + startable(threads - have);
    *grows = threads > 1;
    if (!*grows)
        pthread_mutex_unlock(&growing);
    return threads;
}

static void has_grown(void) {
    pthread_mutex_unlock(&growing);
}
#else
static int startable_team(int threads, bool *grows) {
    (void)grows;
    bn_has_team();
    return bn_stack_bytes() < PTRDIFF_MAX ? threads : 1;
}

static void has_grown(void) {
}
#endif

/* ---- forks ------------------------------------------------------------------ */

#ifndef _WIN32
/* Give up the pool before a fork, whoever made it: else the child's thread, in its next region or
 * when it ends, would wait for threads that the child lacks. Within a region, this fails. */
static void leave_pool(void) {
    if (!bn_fork_limits() && omp_pause_resource_all(omp_pause_soft) == 0)
        pool_size = 1;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(leave_pool, NULL, NULL);
}
#endif

/* ---- teams that do not pay ---------------------------------------------------- */

/* Waking a thread takes 15 to 50 us. It takes far longer if other work keeps the CPUs, such as
 * BLAS's idle threads, which spin for milliseconds behind a matrix product; and a thread that wakes
 * on its caller's CPU holds the caller up. Such a call takes up to ten times as long as on one
 * thread (measured). No size tells of it, but the last teams do. So when a team did not pay, the
 * calling thread's next calls run alone, for `patience` times as long as it idled, at most a
 * second. Patience grows with each such team, so that trying again costs a call behind a product
 * 1/MOST of its time, and a single late team costs little. */
enum { LEAST = 4, MOST = 64 };
static _Thread_local double alone_until;
static _Thread_local int patience = LEAST;

bool bn_team_pays(void) {
    return omp_get_wtime() >= alone_until;
}

/* Learn from a team that took from `start` until now, in which the caller worked for `worked`
 * seconds, and `came` threads had begun by the time that the caller was done. The caller alone
 * would have taken about as long as they worked. */
static void learn(double start, double worked, int came) {
    const double now = omp_get_wtime(), took = now - start;
    if (took > worked * came) {
        const double alone = patience * (took - worked);
        alone_until = now + (alone < 1 ? alone : 1);
        patience = (int)at_most(2 * patience, MOST);
    } else {
        patience = (int)at_least(patience / 2, LEAST);
    }
}

/* ---- regions --------------------------------------------------------------- */

void bn_run_team(int threads, bn_team_work *work, void *argument) {
    bool grows = false;
    threads = startable_team(threads, &grows);
    if (threads == 1) {
        work(argument, 0);
        return;
    }
    atomic_int begun = 0;
    int came = 0;
    double worked = 0;
    const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
        if (me == 0 && grows)
            has_grown();
        atomic_fetch_add(&begun, 1);
        const double own_start = me == 0 ? omp_get_wtime() : 0;
        const uint64_t mode = fp_mode_enter(); /* a pool's threads may have any */
        work(argument, me);
        fp_mode_leave(mode);
        if (me == 0) {
            worked = omp_get_wtime() - own_start;
            came = atomic_load(&begun);
        }
    }
    if (atomic_load(&begun) > 1)
        learn(start, worked, came);
    /* A team of one leaves the pool as it was, and so does a team within another region. */
    if (atomic_load(&begun) > 1 && !omp_get_level())
        pool_size = atomic_load(&begun);
}
#endif
