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
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fp_mode.h"
#include "machine.h"
#include "threads/pool.h"
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

static int64_t nanoseconds(void) {
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Until then this thread does not yield: its last yield gave the CPU to another process for long.
 */
static _Thread_local int64_t keeps_cpu;

static void let_others_run(void) {
    enum { LONG = 500000, PAUSE = 1000000000 }; /* ns */
    const int64_t before = nanoseconds();
    if (before < keeps_cpu)
        return;
    sched_yield();
    const int64_t now = nanoseconds();
    if (now - before > LONG)
        keeps_cpu = now + PAUSE;
}

/* Move this thread off its caller's `cpu`. */
static void move_off(int cpu) {
    cpu_set_t mine, others;
    if (sched_getcpu() != cpu || sched_getaffinity(0, sizeof mine, &mine))
        return;
    others = mine;
    CPU_CLR(cpu, &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) /* fails if there is no other */
        (void)sched_setaffinity(0, sizeof mine, &mine);
}

/* The system may wake a thread on its caller's CPU: a virtual machine's sleeping CPUs look busy,
 * and behind a matrix product BLAS's idle threads spin on the others. There it would get no time
 * before the caller is done, and then delay the caller: a call takes 300 us instead of 45
 * (measured). So such a thread moves off, and the caller yields to threads that have not begun,
 * first and last. */
void bn_run_team(int threads, bn_team_work *work, void *argument) {
    enum { MOST_YIELDS = 200 }; /* about 50 us, the time that a thread takes to wake */
    bool grows = false;
    threads = startable_team(threads, &grows);
    if (threads == 1) {
        work(argument, 0);
        return;
    }
    atomic_int begun = 0;
    const bool fits = threads <= omp_get_num_procs(), yields = fits && nanoseconds() >= keeps_cpu;
    const int cpu = fits ? sched_getcpu() : -1;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
        if (me == 0 && grows)
            pthread_mutex_unlock(&growing);
        if (me == 0 && yields && atomic_load(&begun) == 0)
            let_others_run();
        if (me > 0)
            move_off(cpu);
        atomic_fetch_add(&begun, 1);
        const uint64_t mode = fp_mode_enter(); /* a pool's threads may have any */
        work(argument, me);
        fp_mode_leave(mode);
        for (int i = 0;
             me == 0 && yields && i < MOST_YIELDS && atomic_load(&begun) < omp_get_num_threads();
             i++)
            let_others_run();
    }
    /* A team of one leaves the pool as it was, and so does a team within another region. */
    if (atomic_load(&begun) > 1 && !omp_get_level())
        pool_size = atomic_load(&begun);
}
#endif
