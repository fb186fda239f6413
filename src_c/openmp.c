/* openmp.c: the threads of a call are those of an OpenMP parallel region. No call asks the runtime
 * for threads that the system would not start. Without OpenMP, workers.c has threads of our own. */
#ifdef _OPENMP
#ifndef __linux__
#error "bn_ext takes OpenMP's threads on Linux alone: elsewhere build with BN_EXT_OPENMP=0"
#endif
#define _GNU_SOURCE /* CPU_SET, sched_getcpu, syscall */
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fp_mode.h"
#include "machine.h"
#include "pool.h"
#include "sizes.h"

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
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@" FIRST_GLIBC);
#endif
#endif

/* ---- threads that can be started ------------------------------------------ */

/* OpenMP's runtimes end the process if they cannot start a thread (a limit on processes or address
 * space, a huge OMP_STACKSIZE). So before a region that needs more threads than the calling
 * thread's pool has, the missing threads are started on trial. libgomp keeps only the last team's
 * threads, so pool_size is the size of that team. */
static _Thread_local int pool_size = 1;

/* Pools grow one at a time, so that no other call starts threads between the trial and the region.
 * The mutex is unlocked inside the region, when all threads exist. */
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *wait_at_gate(void *id) {
    *(long *)id = syscall(SYS_gettid);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
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

/* How many of `wanted` more threads can exist at once, beside one as a margin: the runtime
 * allocates memory too. */
static int startable(int wanted) {
    static pthread_t thread[BN_MOST_THREADS];
    static long id[BN_MOST_THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (bn_stack_bytes())
        (void)pthread_attr_setstacksize(&attributes, (size_t)bn_stack_bytes());
    int n = 0;
    pthread_mutex_lock(&gate);
    while (n <= wanted && !pthread_create(&thread[n], &attributes, wait_at_gate, &id[n]))
        n++;
    pthread_mutex_unlock(&gate);
    pthread_attr_destroy(&attributes);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        wait_until_gone(id[i]);
    }
    return (int)at_least(n - 1, 0);
}

/* How many threads, at most `threads`, a region can have. If *grows becomes true, `growing` is
 * locked, and the caller must unlock it. */
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

/* ---- regions --------------------------------------------------------------- */

/* Give up the pool before a fork, whoever made it: else the child's thread, in its next region or
 * when it ends, would wait for threads that the child lacks. Within a region, this fails. */
static void leave_pool(void) {
    if (!bn_fork_limits() && omp_pause_resource_all(omp_pause_soft) == 0)
        pool_size = 1;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(leave_pool, NULL, NULL);
}

/* Move this thread off its caller's CPU. A virtual machine's sleeping CPUs look busy, so the system
 * wakes a thread on its caller's CPU, where it waits for the caller, at every call: 300 us instead
 * of 45 (measured). Where a thread has moved, it is woken again; if it comes back at once, the
 * other CPUs are busy indeed, so it moves once a second at most. */
static void move_off(int cpu) {
    static _Thread_local time_t moved;
    cpu_set_t mine, others;
    if (sched_getcpu() != cpu || moved == time(NULL) || sched_getaffinity(0, sizeof mine, &mine))
        return;
    moved = time(NULL);
    others = mine;
    CPU_CLR(cpu, &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) /* fails if there is no other */
        (void)sched_setaffinity(0, sizeof mine, &mine);
}

void bn_run_team(int threads, bn_team_work *work, void *argument) {
    bool grows = false;
    threads = startable_team(threads, &grows);
    if (threads == 1) {
        work(argument, 0);
        return;
    }
    int team = 1;
    const int cpu = sched_getcpu();
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
        if (me > 0)
            move_off(cpu);
        else
            team = omp_get_num_threads();
        if (me == 0 && grows)
            pthread_mutex_unlock(&growing);
        const uint64_t mode = fp_mode_enter(); /* a pool's threads may have any */
        work(argument, me);
        fp_mode_leave(mode);
    }
    /* A team of one leaves the pool as it was, and so does a team within another region. */
    if (team > 1 && !omp_get_level())
        pool_size = team;
}
#endif
