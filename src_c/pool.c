/* pool.c: how many threads a call gets and, if the compiler has OpenMP, a parallel region with
 * these threads. Without OpenMP, workers.c has threads of our own.
 *
 * Concurrent calls share two threads per CPU. No call asks OpenMP's runtime for threads that the
 * system would not start. Nothing decided here can change a bit of any result. */
#define _GNU_SOURCE /* CPU_SET, syscall */
#include "pool.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#include "machine.h"
#include "sizes.h"

#ifdef _OPENMP
#ifndef __linux__
#error "bn_ext takes OpenMP's threads on Linux alone: elsewhere build with BN_EXT_OPENMP=0"
#endif
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Waking threads takes 15 to 50 us. Behind other work, that pays in a call of WORTH_THREADS
 * elements or more (measured behind NumPy's), with a thread for each ELEMENTS_PER_THREAD. */
enum { ELEMENTS_PER_THREAD = 49152, WORTH_THREADS = 4 * ELEMENTS_PER_THREAD };
enum { MOST_THREADS = 1024 }; /* of num_threads; by default, the CPUs are the limit */

/* ---- how many threads -------------------------------------------------- */

/* Calls that run on several threads now. */
static atomic_int calls_in_flight;

/* Every calling thread has a pool of its own, so each of many concurrent calls could start a thread
 * per CPU. Therefore, by default, a call takes at most its share of twice the CPUs. Two calls that
 * overlap still get all CPUs each, because a team that shrank and grew again would start new
 * threads. */
static int shared_with_others(int threads) {
    const int calls = atomic_load_explicit(&calls_in_flight, memory_order_relaxed) + 1;
    return (int)at_least(1, at_most(threads, 2 * threads / calls));
}

static int threads_wanted(int num_threads, int64_t elements) {
    if (bn_fork_limits())
        return 1;
    if (num_threads > 0)
        return num_threads < MOST_THREADS ? num_threads : MOST_THREADS;
    if (elements < WORTH_THREADS)
        return 1;
    return (int)at_most(elements / ELEMENTS_PER_THREAD, shared_with_others(bn_default_threads()));
}

int bn_enter(int num_threads, int64_t elements) {
    const int threads = threads_wanted(num_threads, elements);
    if (threads > 1)
        atomic_fetch_add_explicit(&calls_in_flight, 1, memory_order_relaxed);
    return threads;
}

void bn_leave(int threads) {
    if (threads > 1)
        atomic_fetch_sub_explicit(&calls_in_flight, 1, memory_order_relaxed);
}

#ifndef _OPENMP
void bn_forget_calls(void) {
    atomic_store_explicit(&calls_in_flight, 0, memory_order_relaxed);
}
#endif

/* ---- pieces ----------------------------------------------------------------- */

typedef struct {
    bn_piece_work *work;
    const void *argument;
    int64_t pieces;
    atomic_llong next;
} sharing;

static void take_pieces(void *sharing_, int me) {
    sharing *s = sharing_;
    (void)me;
    for (;;) {
        const int64_t piece = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (piece >= s->pieces)
            return;
        s->work(s->argument, piece);
    }
}

void bn_run_pieces(int num_threads, int64_t elements, int64_t pieces, bn_piece_work *work,
                   const void *argument) {
    sharing s = {.work = work, .argument = argument, .pieces = pieces};
    atomic_init(&s.next, 0);
    const int threads = bn_enter(num_threads, elements);
    bn_run_team((int)at_least(at_most(threads, pieces), 1), take_pieces, &s);
    bn_leave(threads);
}

/* ---- threads that can be started ------------------------------------------ */

static size_t stack_bytes; /* as the environment asks; 0: the system's choice */

void bn_set_stack_bytes(int64_t bytes) {
    stack_bytes = (size_t)bytes;
}

#ifdef _OPENMP

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
__asm__(".symver pthread_attr_getstack, pthread_attr_getstack@" FIRST_GLIBC);
__asm__(".symver pthread_getattr_np, pthread_getattr_np@" FIRST_GLIBC);
#endif
#endif

/* OpenMP's runtimes end the process if they cannot start a thread (a limit on processes or address
 * space, a huge OMP_STACKSIZE). So before a region that needs more threads than the calling
 * thread's pool has, the missing threads, and one more as a margin, are started and joined here.
 * The runtime is asked only for as many as could be started. Nothing can be done about resources
 * that other code takes in between. libgomp keeps only the last team's threads, so pool_size is the
 * size of that team. If other code enters a region on this thread, in the same libgomp, with fewer
 * threads, we do not notice. */
static _Thread_local int pool_size = 1;

typedef struct {
    pthread_t thread;
    pthread_mutex_t *gate;
    long id;         /* the system's thread id */
    bool binds;      /* does it bind itself to each place, as a test? */
    char room[4096]; /* more than any runtime allocates for a thread of a team */
} trial;

/* Can a thread be bound to each place that the environment asks for (OMP_PLACES,
 * GOMP_CPU_AFFINITY)? If a runtime cannot bind a thread, it ends the process. */
static bool can_bind(void) {
    for (int place = 0; place < omp_get_num_places(); place++) {
        int ids[CPU_SETSIZE];
        const int n = omp_get_place_num_procs(place);
        cpu_set_t set;
        CPU_ZERO(&set);
        if (n <= 0 || n > CPU_SETSIZE)
            return false;
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < n; i++)
            if (ids[i] >= 0 && ids[i] < CPU_SETSIZE)
                CPU_SET(ids[i], &set);
        if (sched_setaffinity(0, sizeof set, &set))
            return false;
    }
    return true;
}

/* Do what the runtime's threads do when they start: allocate memory, for which the C library may
 * reserve much address space per thread. Then wait until all threads exist. */
static void *imitate_start(void *trial_) {
    trial *t = trial_;
    void *volatile allocated = malloc(1);
    t->id = t->binds && !can_bind() ? 0 : syscall(SYS_gettid);
    pthread_mutex_lock(t->gate);
    pthread_mutex_unlock(t->gate);
    free(allocated);
    return NULL;
}

/* A joined thread counts against the system's limits for a little longer; wait until it no longer
 * does. False if that takes a second. */
static bool counts_no_more(long id) {
    enum { MOST_WAITS = 10000 };
    const struct timespec wait = {.tv_nsec = 100000};
    for (int i = 0; i < MOST_WAITS; i++) {
        if (syscall(SYS_tgkill, getpid(), id, 0))
            return true;
        nanosleep(&wait, NULL);
    }
    return false;
}

/* How many of `wanted` more threads can exist at once. */
static int startable(int wanted) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    /* This also tests whether there is memory for the new threads, and for those that the pool has:
     * the runtime allocates a whole new team. */
    trial *trials = malloc((size_t)(pool_size + wanted) * sizeof *trials);
    if (!trials)
        return 0;
    pthread_attr_init(&attributes);
    if (stack_bytes)
        (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    int n = 0, gone = 0;
    pthread_mutex_lock(&gate);
    for (; n < wanted; n++) {
        trials[n].gate = &gate;
        trials[n].binds = n == 0;
        if (pthread_create(&trials[n].thread, &attributes, imitate_start, &trials[n]))
            break;
    }
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < n; i++)
        pthread_join(trials[i].thread, NULL);
    for (int i = 0; i < n && trials[0].id; i++)
        gone += counts_no_more(trials[i].id);
    pthread_attr_destroy(&attributes);
    free(trials);
    return gone;
}

/* The stack that a call takes, and how much of its caller's for each new thread: libgomp keeps a
 * record there, half as large. */
enum { OF_A_CALL = 20 << 10, OF_A_THREAD = 256 };

/* How much of this thread's stack is left. A stack that is not the thread's own, such as a
 * coroutine's, is assumed to be large enough. */
static int64_t stack_left(void) {
    pthread_attr_t attributes;
    void *lowest = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        (void)pthread_attr_getstack(&attributes, &lowest, &size);
        pthread_attr_destroy(&attributes);
    }
    const uintptr_t left = (uintptr_t)__builtin_frame_address(0) - (uintptr_t)lowest;
    return left < size ? (int64_t)left : INT64_MAX;
}

/* Is the stack of a pool's thread large enough? Whoever made the pool, or the environment, chose
 * its size, which may be 16 KiB. */
static bool has_stack(void) {
    static _Thread_local bool known;
    known = known || stack_left() >= OF_A_CALL;
    return known;
}

/* Pools grow one at a time, so that no other call starts threads between the check and the region.
 * The mutex is unlocked inside the region, when all threads exist. */
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;

/* How many threads, at most `threads`, a region can have. If *grows becomes true, `growing` is
 * locked, and the caller must unlock it. */
static int startable_team(int threads, bool *grows) {
    const int have = omp_get_level() ? 1 : pool_size;
    if (threads <= have)
        return threads;
    const int64_t room = at_least(stack_left() - OF_A_CALL, 0) / OF_A_THREAD;
    const int more = (int)at_most(threads - have, room);
    bn_has_team();
    pthread_mutex_lock(&growing);
    threads = have + (int)at_least(startable(more + 1) - 1, 0);
    *grows = threads > 1;
    if (!*grows)
        pthread_mutex_unlock(&growing);
    return threads;
}

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

/* No yield before this time: after the last yield, another process kept the CPU for long. */
static _Thread_local int64_t keeps_cpu;

/* Let threads that were woken on this CPU run. */
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

/* Move this thread off its caller's `cpu` (-1: stay). A virtual machine's sleeping CPUs look busy,
 * so the system wakes a thread on its caller's CPU, where the thread waits for the caller. */
static void move_off(int cpu) {
    cpu_set_t mine, others;
    if (cpu < 0 || sched_getcpu() != cpu || sched_getaffinity(0, sizeof mine, &mine))
        return;
    others = mine;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        (void)sched_setaffinity(0, sizeof mine, &mine);
}

/* If the caller slept until late threads ended, it would get its CPU back only when these threads
 * sleep: every call would take 115 us instead of 20 (measured). */
static void wait_for_late(atomic_int *entered, int threads) {
    enum { MOST_YIELDS = 200 }; /* about 50 us, the time that a thread takes to wake */
    for (int i = 0; i < MOST_YIELDS && atomic_load(entered) < threads; i++)
        let_others_run();
}

void bn_run_team(int threads, bn_team_work *work, void *argument) {
    bool grows = false;
    threads = startable_team(threads, &grows);
    if (threads == 1) {
        work(argument, 0);
        return;
    }
    atomic_int entered = 0;
    const bool room = threads <= omp_get_num_procs() && nanoseconds() >= keeps_cpu;
    const int cpu = room ? sched_getcpu() : -1;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num();
        if (me == 0 && grows)
            pthread_mutex_unlock(&growing);
        if (me == 0 && room && atomic_load(&entered) == 0)
            let_others_run();
        if (me > 0)
            move_off(cpu);
        atomic_fetch_add(&entered, 1);
        if (me == 0 || has_stack())
            work(argument, me);
        if (me == 0 && room)
            wait_for_late(&entered, omp_get_num_threads());
    }
    /* A team of one leaves the pool as it was, and so does a team within another region. */
    if (atomic_load(&entered) > 1 && !omp_get_level())
        pool_size = atomic_load(&entered);
}
#endif
