/* schedule.c: which thread does what, and when. The only file that knows OpenMP
 * and cache sizes; nothing decided here can change a bit of any result.
 *
 * A problem is cut into tiles (ranges of channels) and each tile's pass into
 * tasks (chunks of rows). All tasks stand in one ordered list,
 *
 *     reduce 0 | reduce 1 | apply 0, reduce 2 | apply 1, reduce 3 | ... | apply n
 *
 * and the threads of one parallel region take them in order from an atomic
 * cursor. There is no barrier: the last task of a tile's reduce finishes the
 * tile (coefficients) and releases it; an apply task waits for that. Tasks wait
 * only for earlier ones, and earlier ones have been taken by running threads, so
 * the wait ends whatever number of threads the runtime delivers, one included.
 * The distance between a tile's reduce and its apply gives every thread a task
 * to do before anyone must wait.
 */
#include "schedule.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "fp_mode.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#include <sched.h>
#endif

/* A thread's start is worth about this many elements. */
enum { ELEMENTS_PER_THREAD = 65536 };
/* libgomp ends the process if a thread cannot be started. */
enum { MOST_THREADS = 1024 };

/* ---- process-wide state ------------------------------------------------ */

static atomic_int cpu_quota;
static atomic_bool forked;
static _Thread_local int last_threads;
static _Thread_local int64_t last_tasks;

void bn_set_cpu_quota(int threads) {
    atomic_store(&cpu_quota, threads);
}

void bn_last_call(int *threads, int64_t *tasks) {
    *threads = last_threads;
    *tasks = last_tasks;
}

bool bn_forked(void) {
    return atomic_load(&forked);
}

bool bn_has_openmp(void) {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
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

/* ---- how many threads -------------------------------------------------- */

int bn_default_threads(void) {
    if (bn_forked())
        return 1;
#ifdef _OPENMP
    int threads = omp_get_max_threads();
    const int processors = omp_get_num_procs(), quota = atomic_load(&cpu_quota);
    if (processors < threads)
        threads = processors;
    if (quota > 0 && quota < threads)
        threads = quota;
    return threads < 1 ? 1 : threads;
#else
    return 1;
#endif
}

int bn_threads_wanted(int num_threads, int64_t elements) {
    if (bn_forked() || !bn_has_openmp())
        return 1;
    if (num_threads > 0)
        return num_threads < MOST_THREADS ? num_threads : MOST_THREADS;
    const int64_t worth = elements / ELEMENTS_PER_THREAD;
    if (worth <= 1)
        return 1;
    const int threads = bn_default_threads();
    return worth < threads ? (int)worth : threads;
}

/* ---- tiles ------------------------------------------------------------- */

static int64_t at_least(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Channels per tile. A tile's src and diff_dst should stay in a core's share of
 * cache from reduce to apply, and its columns in L1. With interleaved channels
 * (NXC) a narrow tile would touch each row in scraps, so there a tile is as wide
 * as working space allows, and narrower only to give every thread tasks. */
int64_t bn_tile_channels(const bn_extent *e, int threads) {
    enum { TILE_BYTES = 512 << 10, TILE_COLUMNS = 1024, WIDEST = 4096, NARROWEST = 64 };
    enum { TASKS_PER_THREAD = 4 };
    if (!e->divisible)
        return e->channels;
    int64_t width = e->interleaved
                        ? WIDEST
                        : at_most(TILE_BYTES / at_least(e->bytes, 1), TILE_COLUMNS / e->columns);
    width = at_least(at_most(width, e->channels), 1);
    if (threads > 1) {
        const int64_t narrowest = e->interleaved ? NARROWEST : 1;
        const int64_t tiles = (TASKS_PER_THREAD * threads + e->chunks - 1) / e->chunks;
        width = at_most(width, at_least(e->channels / tiles, narrowest));
    }
    return width;
}

/* ---- the list of tasks ------------------------------------------------- */

typedef struct {
    const bn_schedule *s;
    int64_t ahead; /* tiles reduced before the first one is applied */
    int64_t total;
    atomic_llong cursor;
    atomic_int entered;
    atomic_llong *left; /* per tile: reduce tasks still running or to come; -1: finished */
} list;

static void relax(int *tries) {
    if (++*tries > 1000) {
        *tries = 1000;
#ifndef _WIN32
        sched_yield();
#endif
        return;
    }
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_first(list *l, void *scratch, int64_t tile, int64_t task) {
    const bn_schedule *s = l->s;
    s->first(s->work, scratch, tile, task);
    if (atomic_fetch_sub_explicit(&l->left[tile], 1, memory_order_acq_rel) == 1) {
        s->finish(s->work, tile);
        atomic_store_explicit(&l->left[tile], -1, memory_order_release);
    }
}

static void run_second(list *l, void *scratch, int64_t tile, int64_t task) {
    const bn_schedule *s = l->s;
    int tries = 0;
    while (s->first && atomic_load_explicit(&l->left[tile], memory_order_acquire) >= 0)
        relax(&tries);
    /* Backwards: the chunks that were reduced last are those still in cache. */
    s->second(s->work, scratch, tile, s->tasks - 1 - task);
}

/* Task number i of the list. Round t of tiles + ahead rounds holds the reduce of
 * tile t and the apply of tile t - ahead, where there are such tiles. */
static void run_task(list *l, void *scratch, int64_t i) {
    const bn_schedule *s = l->s;
    const int64_t n = s->tasks;
    if (!s->first || !s->second) {
        if (s->first)
            run_first(l, scratch, i / n, i % n);
        else
            run_second(l, scratch, i / n, i % n);
        return;
    }
    const int64_t lead = l->ahead * n, both = 2 * n * (s->tiles - l->ahead);
    if (i < lead) {
        run_first(l, scratch, i / n, i % n);
    } else if (i < lead + both) {
        const int64_t tile = (i - lead) / (2 * n), task = (i - lead) % (2 * n);
        if (task < n)
            run_first(l, scratch, tile + l->ahead, task);
        else
            run_second(l, scratch, tile, task - n);
    } else {
        const int64_t rest = i - lead - both;
        run_second(l, scratch, s->tiles - l->ahead + rest / n, rest % n);
    }
}

static void run_thread(list *l, char *scratch) {
    const uint64_t mode = fp_mode_enter();
    scratch += l->s->scratch * (size_t)atomic_fetch_add(&l->entered, 1);
    l->s->start(l->s->work, scratch);
    for (int64_t i;
         (i = atomic_fetch_add_explicit(&l->cursor, 1, memory_order_relaxed)) < l->total;)
        run_task(l, scratch, i);
    fp_mode_leave(mode);
}

static int team_size(const bn_schedule *s, int threads) {
    return (int)at_most(threads, s->tiles * s->tasks);
}

/* The counters, then each thread's scratch, from a cache line on. */
static size_t counters_size(const bn_schedule *s) {
    return ((size_t)s->tiles * sizeof(atomic_llong) + 63) / 64 * 64;
}

void *bn_schedule_memory(const bn_schedule *s, int threads) {
    size_t bytes;
    if (__builtin_mul_overflow((size_t)team_size(s, threads), s->scratch, &bytes) ||
        __builtin_add_overflow(bytes, counters_size(s) + 64, &bytes))
        return NULL;
    return malloc(bytes);
}

void bn_schedule_run(const bn_schedule *s, int threads, void *memory) {
    const int64_t tasks = s->tiles * s->tasks;
    threads = team_size(s, threads);
    list l = {.s = s, .total = tasks * ((s->first != NULL) + (s->second != NULL))};
    if (threads > 1)
        l.ahead = at_most((threads + s->tasks - 1) / s->tasks, s->tiles);

    char *aligned = (char *)(((uintptr_t)memory + 63) / 64 * 64);
    char *scratch = aligned + counters_size(s);
    l.left = (atomic_llong *)aligned;
    for (int64_t t = 0; t < s->tiles; t++)
        atomic_init(&l.left[t], s->tasks);

#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        run_thread(&l, scratch);
    } else
#endif
        run_thread(&l, scratch);

    last_threads = atomic_load(&l.entered);
    last_tasks = tasks;
}
