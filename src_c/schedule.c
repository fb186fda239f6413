/* schedule.c: which thread does what, and when. The only file that knows OpenMP
 * and cache sizes; nothing decided here can change a bit of any result.
 *
 * A problem is cut into tiles (ranges of channels), and each tile's passes into tasks
 * (chunks of rows). One parallel region, and in it no barrier: the last task of a tile's
 * first pass finishes the tile (coefficients) and releases it; a second task waits for
 * that. There are three orders of work.
 *
 *   SOLO     many tiles that fit the caches: a thread takes a tile from start to end, so
 *            that what it has reduced is still in its own cache when it writes.
 *   PHASES   one tile, or all of them in cache: all first tasks, then all second ones,
 *            those backwards, since what was reduced last is still in cache.
 *   LIST     few large tiles:
 *               reduce 0 | reduce 1 | apply 0, reduce 2 | apply 1, reduce 3 | ...
 *            taken in order by all threads. The distance between a tile's reduce and its
 *            apply gives every thread a task to do before anyone must wait.
 *
 * In SOLO and PHASES each thread has a share of its own, the same at every call and in
 * both passes, for the sake of its cache, and when that is done takes from the others'.
 * A task waits only for tasks that running threads have taken, so every wait ends,
 * whatever number of threads the runtime delivers, one included.
 */
#define _GNU_SOURCE /* CPU_SET */
#include "schedule.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fp_mode.h"
#include "scalar.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

/* A thread's start is worth about this many elements. */
enum { ELEMENTS_PER_THREAD = 65536 };
/* Of a call; startable has room for them on its stack. */
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

static void leave_pool(void);

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(leave_pool, NULL, mark_forked);
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

/* Calls that run on several threads just now. */
static atomic_int calls_in_flight;

/* Every calling thread has a pool of its own, so calls at once could start callers x CPUs
 * threads. A call takes at most its share of twice the CPUs: two that overlap now and then
 * keep their pools, since a team that shrinks and grows again starts threads anew. */
static int shared_with_others(int threads) {
    const int calls = atomic_load_explicit(&calls_in_flight, memory_order_relaxed) + 1;
    return (int)at_least(1, at_most(threads, 2 * threads / calls));
}

static int threads_wanted(int num_threads, int64_t elements) {
    if (bn_forked() || !bn_has_openmp())
        return 1;
    if (num_threads > 0)
        return num_threads < MOST_THREADS ? num_threads : MOST_THREADS;
    const int64_t worth = elements / ELEMENTS_PER_THREAD;
    if (worth <= 1)
        return 1;
    return (int)at_most(worth, shared_with_others(bn_default_threads()));
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

/* ---- threads that can be had -------------------------------------------- */

uintptr_t bn_openmp_address(void) {
#ifdef _OPENMP
    return (uintptr_t)&omp_get_max_threads;
#else
    return 0;
#endif
}

#if defined(_OPENMP) && !defined(_WIN32)

#if defined(BN_OLD_SYMBOLS) && defined(__GLIBC__)
/* glibc 2.34 moved these into libc, under new versions that older ones lack. */
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

/* OpenMP's runtimes end the process where they cannot start a thread (a limit on processes
 * or address space, a huge OMP_STACKSIZE). So before a region is entered with more threads
 * than the calling thread's pool has, the missing ones, and one more as a margin, are
 * started and joined here: what failed here is not asked of the runtime. What code other
 * than ours takes between the two cannot be helped. libgomp keeps just the threads of the
 * last team, so that is what is remembered; a region that somebody else enters on this
 * thread, in the same libgomp and with fewer threads, goes unseen. */
static _Thread_local int pool_size = 1;
static size_t stack_bytes; /* that the environment asks for; 0: the system's choice */
enum { USUAL_STACK = 8 << 20 };

/* As "64", "64 k", "2M", or libomp's "4TB"; 0 where it is nothing of the kind, which the
 * runtimes ignore. */
static size_t bytes_of(const char *text, size_t unit) {
    char *end;
    const unsigned long long number = text ? strtoull(text, &end, 10) : 0;
    if (number == 0)
        return 0;
    end += strspn(end, " \t\n\v\f\r");
    const char *const units = "bkmgtp", *const found = *end ? strchr(units, *end | 32) : NULL;
    if (*end && !found)
        return 0;
    if (found)
        unit = (size_t)1 << (10 * (found - units));
    const size_t bytes = number > PTRDIFF_MAX / unit ? PTRDIFF_MAX : (size_t)number * unit;
    /* Of "64kB" libgomp takes nothing, but the system's choice. */
    const bool more = found && end[1];
    return more && bytes < USUAL_STACK ? USUAL_STACK : bytes;
}

__attribute__((constructor)) static void read_stack_size(void) {
    const size_t sizes[] = {bytes_of(getenv("OMP_STACKSIZE"), 1024),
                            bytes_of(getenv("GOMP_STACKSIZE"), 1024),
                            bytes_of(getenv("KMP_STACKSIZE"), 1)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > stack_bytes)
            stack_bytes = sizes[i];
}

/* What a thread of the runtime does as it starts: it allocates, for which the C library may
 * reserve much address space per thread. */
static void *pass(void *gate) {
    void *volatile allocated = malloc(1);
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    free(allocated);
    return NULL;
}

#ifdef __linux__
/* Can a thread be bound to each place that the environment asks for (OMP_PLACES,
 * GOMP_CPU_AFFINITY)? A runtime that cannot ends the process. */
static void *bind_to_places(void *possible_) {
    bool *possible = possible_;
    for (int place = 0; place < omp_get_num_places(); place++) {
        int ids[CPU_SETSIZE];
        const int n = omp_get_place_num_procs(place);
        cpu_set_t set;
        CPU_ZERO(&set);
        if (n <= 0 || n > CPU_SETSIZE) {
            *possible = false;
            continue;
        }
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < n; i++)
            if (ids[i] >= 0 && ids[i] < CPU_SETSIZE)
                CPU_SET(ids[i], &set);
        if (sched_setaffinity(0, sizeof set, &set))
            *possible = false;
    }
    return NULL;
}

static bool places_exist(void) {
    bool possible = true;
    pthread_t thread;
    if (omp_get_num_places() == 0)
        return true;
    if (pthread_create(&thread, NULL, bind_to_places, &possible))
        return false;
    pthread_join(thread, NULL);
    return possible;
}
#else
static bool places_exist(void) {
    return true;
}
#endif

/* How many of so many further threads could be started, all at a time. */
static int startable(int wanted) {
    pthread_t started[MOST_THREADS + 1];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes))
        return 0;
    if (stack_bytes)
        (void)pthread_attr_setstacksize(&attributes, stack_bytes);
    int n = 0;
    pthread_mutex_lock(&gate);
    while (n < wanted && pthread_create(&started[n], &attributes, pass, &gate) == 0)
        n++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < n; i++)
        pthread_join(started[i], NULL);
    pthread_attr_destroy(&attributes);
    return n;
}

/* Pools grow one at a time: between the check and the region, no other call starts threads.
 * The thread that holds this lets go of it inside its region, when all are there. */
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;

/* The threads that a region may be entered with: at most so many. With *grows the caller
 * holds `growing`. */
static int team_to_be_had(int threads, bool *grows) {
    enum { TEAM_BYTES_PER_THREAD = 4096 }; /* more than any runtime allocates */
    if (threads == 1)
        return 1;
    const int have = omp_get_level() ? 1 : pool_size;
    if (threads <= have)
        return threads;
    void *volatile room = malloc((size_t)threads * TEAM_BYTES_PER_THREAD);
    const bool has_room = room != NULL;
    free(room);
    if (!has_room)
        return 1;
    pthread_mutex_lock(&growing);
    const int wanted = threads - have + 1, more = places_exist() ? startable(wanted) : 0;
    if (more < wanted)
        threads = have + (int)at_least(0, more - 1);
    *grows = threads > 1;
    if (!*grows)
        pthread_mutex_unlock(&growing);
    return threads;
}

/* Before a fork: a thread that has a pool in the child would wait for it when it ends. */
static void leave_pool(void) {
    if (pool_size > 1 && omp_pause_resource_all(omp_pause_soft) == 0)
        pool_size = 1;
}
#elif !defined(_WIN32)
static void leave_pool(void) {
}
#endif

/* ---- caches ------------------------------------------------------------ */

/* Where the system does not tell. */
enum { USUAL_L2 = 1 << 20, USUAL_L3 = 16 << 20 };

static int64_t ask_cache(int level) {
    int64_t bytes = 0;
    (void)level;
#ifdef __linux__
    /* First what the kernel says: sysconf multiplied a virtual machine's L3 by ten. */
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

/* The cache of one core, and the last one, which all share; 0: not asked yet. */
static atomic_llong l2_size, last_level_size;

static int64_t l2_bytes(void) {
    if (!atomic_load(&l2_size)) {
        const int64_t asked = ask_cache(2);
        atomic_store(&l2_size, asked > 0 ? asked : USUAL_L2);
    }
    return atomic_load(&l2_size);
}

static int64_t last_level_bytes(void) {
    if (!atomic_load(&last_level_size)) {
        const int64_t asked = ask_cache(3);
        atomic_store(&last_level_size, asked > 0 ? asked : at_least(USUAL_L3, l2_bytes()));
    }
    return atomic_load(&last_level_size);
}

void bn_cache_sizes(int64_t *l2, int64_t *last_level) {
    *l2 = l2_bytes();
    *last_level = last_level_bytes();
}

void bn_set_cache_sizes(int64_t l2, int64_t last_level) {
    atomic_store(&l2_size, l2);
    atomic_store(&last_level_size, last_level);
}

bool bn_streaming(int64_t bytes) {
    return bytes > last_level_bytes() / 4 * 3;
}

/* ---- tiles ------------------------------------------------------------- */

/* Channels per tile. A tile's src and diff_dst should stay in a core's share of
 * cache from reduce to apply, and its columns in L1. But channels that share rows are
 * read in scraps as wide as the tile: where only narrow tiles would fit the cache, wide
 * ones that do not are faster (measured for NXC at any width, for NCX from 1000 columns
 * on). With interleaved channels (NXC) a tile is narrower than working space allows
 * only to give every thread tasks. */
int64_t bn_tile_channels(const bn_extent *e, int threads) {
    enum { LEAST_COLUMNS = 1024, TILE_COLUMNS = 2048, WIDEST = 4096, NARROWEST = 64 };
    enum { TASKS_PER_THREAD = 4 };
    if (!e->divisible)
        return e->channels;
    int64_t width = l2_bytes() / 2 / e->bytes;
    if (e->interleaved || width * e->columns < at_most(LEAST_COLUMNS, e->channels * e->columns))
        width = WIDEST / e->columns;
    else if (e->columns)
        width = at_most(width, TILE_COLUMNS / e->columns);
    width = at_least(at_most(width, e->channels), 1);
    if (threads > 1) {
        const int64_t tasks = e->interleaved ? threads : TASKS_PER_THREAD * threads;
        const int64_t tiles = (tasks + e->chunks - 1) / e->chunks;
        const int64_t narrowest = e->interleaved ? NARROWEST : 1;
        width = at_most(width, at_least((e->channels + tiles - 1) / tiles, narrowest));
    }
    return width;
}

/* ---- the work of one call ---------------------------------------------- */

enum { SOLO_TILES = 4 }; /* per thread, so that none waits long for the last ones */

typedef enum { SOLO, PHASES, LIST } order;

/* The next item of one thread's share; a cache line each. */
typedef struct {
    _Alignas(64) atomic_llong next;
} cursor;

typedef struct {
    const bn_schedule *s;
    order order;
    int64_t ahead; /* LIST: tiles reduced before the first one is applied */
    int threads;   /* as asked for: where fewer come, they take the others' shares */
    atomic_int entered;
    atomic_llong *left; /* per tile: first tasks still running or to come; -1: finished */
    cursor *cursors;    /* (2, threads): of each pass */
} team;

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

static void run_first(team *l, void *scratch, int64_t tile, int64_t task) {
    const bn_schedule *s = l->s;
    s->first(s->work, scratch, tile, task);
    if (atomic_fetch_sub_explicit(&l->left[tile], 1, memory_order_acq_rel) == 1) {
        s->finish(s->work, tile);
        atomic_store_explicit(&l->left[tile], -1, memory_order_release);
    }
}

static void run_second(team *l, void *scratch, int64_t tile, int64_t task) {
    const bn_schedule *s = l->s;
    int tries = 0;
    while (s->first && atomic_load_explicit(&l->left[tile], memory_order_acquire) >= 0)
        relax(&tries);
    s->second(s->work, scratch, tile, task);
}

/* Item i of the list. Round t of tiles + ahead rounds holds the reduce of tile t and
 * the apply of tile t - ahead, where there are such tiles. */
static void run_listed(team *l, void *scratch, int64_t i) {
    const bn_schedule *s = l->s;
    const int64_t n = s->tasks;
    const int64_t lead = l->ahead * n, both = 2 * n * (s->tiles - l->ahead);
    if (i < lead) {
        run_first(l, scratch, i / n, i % n);
    } else if (i < lead + both) {
        const int64_t tile = (i - lead) / (2 * n), task = (i - lead) % (2 * n);
        if (task < n)
            run_first(l, scratch, tile + l->ahead, task);
        else
            run_second(l, scratch, tile, 2 * n - 1 - task);
    } else {
        const int64_t rest = i - lead - both;
        run_second(l, scratch, s->tiles - l->ahead + rest / n, n - 1 - rest % n);
    }
}

static void run_tile(team *l, void *scratch, int64_t tile) {
    for (int64_t task = 0; task < l->s->tasks; task++)
        run_first(l, scratch, tile, task);
    for (int64_t task = l->s->tasks; task-- > 0;)
        run_second(l, scratch, tile, task);
}

static int64_t items_of(const team *l, int pass) {
    const bn_schedule *s = l->s;
    if (l->order == SOLO)
        return pass == 0 ? s->tiles : 0;
    if (l->order == LIST)
        return pass == 0 ? 2 * s->tiles * s->tasks : 0;
    return (pass == 0 ? s->first != NULL : s->second != NULL) ? s->tiles * s->tasks : 0;
}

static void run_item(team *l, void *scratch, int pass, int64_t item) {
    const int64_t n = l->s->tasks;
    if (l->order == SOLO)
        run_tile(l, scratch, item);
    else if (l->order == LIST)
        run_listed(l, scratch, item);
    else if (pass == 0)
        run_first(l, scratch, item / n, item % n);
    else
        run_second(l, scratch, item / n, item % n);
}

/* One pass: a thread's own share (the list is everyone's), then what is left of the
 * others'. The second pass goes backwards. */
static void run_pass(team *l, void *scratch, int pass, int me) {
    const int shares = l->order == LIST ? 1 : l->threads;
    const int64_t items = items_of(l, pass);
    for (int turn = 0; turn < shares; turn++) {
        const int whose = (me + turn) % shares;
        const int64_t from = items * whose / shares, to = items * (whose + 1) / shares;
        atomic_llong *next = &l->cursors[pass * l->threads + whose].next;
        for (int64_t i; (i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < to - from;)
            run_item(l, scratch, pass, pass == 0 ? from + i : to - 1 - i);
    }
}

static void run_thread(team *l, char *scratch, int me) {
    const uint64_t mode = fp_mode_enter();
    atomic_fetch_add(&l->entered, 1);
    scratch += l->s->scratch * (size_t)me;
    l->s->start(l->s->work, scratch);
    run_pass(l, scratch, 0, me);
    run_pass(l, scratch, 1, me);
    fp_mode_leave(mode);
}

static int team_size(const bn_schedule *s, int threads) {
    return (int)at_most(threads, s->tiles * s->tasks);
}

/* The counters, the cursors, then each thread's scratch, from a cache line on. */
static size_t counters_size(const bn_schedule *s) {
    return ((size_t)s->tiles * sizeof(atomic_llong) + 63) / 64 * 64;
}

void *bn_schedule_memory(const bn_schedule *s, int threads) {
    size_t bytes;
    if (__builtin_mul_overflow((size_t)team_size(s, threads), s->scratch + 2 * sizeof(cursor),
                               &bytes) ||
        __builtin_add_overflow(bytes, counters_size(s) + 64, &bytes))
        return NULL;
    return malloc(bytes);
}

static order choose_order(const bn_schedule *s, int threads) {
    const int64_t cache = last_level_bytes() / 2;
    if (!s->first || !s->second || s->tiles == 1)
        return PHASES;
    if (s->tiles >= SOLO_TILES * threads && threads * s->tile_bytes <= cache)
        return SOLO;
    return s->tiles * s->tile_bytes <= cache ? PHASES : LIST;
}

void bn_schedule_run(const bn_schedule *s, int threads, void *memory) {
    threads = team_size(s, threads);
#if defined(_OPENMP) && !defined(_WIN32)
    bool grows = false;
    threads = team_to_be_had(threads, &grows);
#endif
    team l = {.s = s, .order = choose_order(s, threads), .threads = threads};
    if (threads > 1)
        l.ahead = at_most((threads + s->tasks - 1) / s->tasks, s->tiles);

    char *aligned = (char *)(((uintptr_t)memory + 63) / 64 * 64);
    l.left = (atomic_llong *)aligned;
    l.cursors = (cursor *)(aligned + counters_size(s));
    char *scratch = (char *)(l.cursors + 2 * threads);
    for (int64_t t = 0; t < s->tiles; t++)
        atomic_init(&l.left[t], s->tasks);
    for (int i = 0; i < 2 * threads; i++)
        atomic_init(&l.cursors[i].next, 0);

#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            const int me = omp_get_thread_num();
#ifndef _WIN32
            if (me == 0 && grows)
                pthread_mutex_unlock(&growing);
#endif
            run_thread(&l, scratch, me);
        }
#ifndef _WIN32
        /* A team of one leaves the pool as it was. */
        const int entered = atomic_load(&l.entered);
        if (entered > 1)
            pool_size = entered;
#endif
    } else
#endif
        run_thread(&l, scratch, 0);

    last_threads = atomic_load(&l.entered);
    last_tasks = s->tiles * s->tasks;
}
