/* schedule.c: which thread does what, and when. Nothing decided here can change a bit.
 *
 * A problem is cut into tiles (ranges of channels), and each pass over a tile into tasks (a chunk
 * each). There is one parallel region, without a barrier. When the last of a tile's sum tasks has
 * ended, the tile is "finished": its coefficients are made. The thread that ended the task and all
 * threads that wait for the tile do this in slices. The tile's write tasks wait until the tile is
 * finished. If write tasks are joint, each spans all tiles, and there are as many as suit the
 * threads, because writes need no order. There are three ways through the work.
 *
 *   SOLO     many tiles, of which the last-level cache holds one per thread: a thread takes a
 *            tile from start to end, so that what it has summed is still in its own cache when it
 *            writes.
 *   PHASES   one pass, one tile, all tiles in cache, or joint write tasks: all sum tasks, then all
 *            write tasks backwards, because what was summed last is still in cache.
 *   LIST     few large tiles:
 *               sum 0 | sum 1 | sum 2, write 0 | sum 3, write 1 | ...
 *            taken in order by all threads. The distance between a tile's sum and its
 *            write gives every thread a task to do before any has to wait.
 *
 * What a thread takes at a time is an item: with SOLO a tile, else a task. With SOLO and PHASES
 * each thread has a share of the items, the same at every call and in both passes for the sake of
 * its cache. When its share is done, it takes from the others' shares. A task waits only for tasks
 * and slices that threads have already taken, so every wait ends, however few threads the runtime
 * delivers, even one. */
#include "threads/schedule.h"

#include <stdatomic.h>

#include "base/machine.h"
#include "base/sizes.h"
#include "threads/relax.h"
#include "threads/team.h"

static _Thread_local bn_call_facts last_call;

bn_call_facts bn_last_call(void) {
    return last_call;
}

/* ---- the work of one call ---------------------------------------------- */

typedef enum { SOLO, PHASES, LIST } way_of_work;
enum { SOLO_TILES = 4 }; /* per thread, so that no thread waits long for the last tiles */

/* The next item of one thread's share, in a cache line of its own. */
typedef struct {
    _Alignas(LINE_BYTES) atomic_llong next;
} cursor;

typedef struct {
    atomic_llong left;       /* sum tasks still running or to come */
    atomic_llong next_slice; /* the first slice that nobody has taken */
    atomic_llong unfinished; /* slices */
} progress;

typedef struct {
    const bn_schedule *s; /* if fewer threads come, they take the shares of the missing ones */
    const bn_stages *stages;
    const void *work;
    way_of_work way;
    int64_t write_lag; /* LIST: tiles that are summed before the first is written */
    atomic_int entered;
    progress *tile;
    cursor *cursors; /* (PASSES, threads) */
} bn_team;

static void finish_slices(bn_team *team, int me, int64_t tile) {
    const bn_schedule *s = team->s;
    progress *p = &team->tile[tile];
    while (atomic_load_explicit(&p->next_slice, memory_order_relaxed) < s->slices) {
        const int64_t slice = atomic_fetch_add_explicit(&p->next_slice, 1, memory_order_relaxed);
        if (slice < s->slices) {
            team->stages->finish_slice(team->work, me, tile, slice);
            atomic_fetch_sub_explicit(&p->unfinished, 1, memory_order_release);
        }
    }
}

static void wait_for_tile(bn_team *team, int me, int64_t tile) {
    progress *p = &team->tile[tile];
    int tries = 0;
    while (atomic_load_explicit(&p->left, memory_order_acquire))
        relax(&tries);
    finish_slices(team, me, tile);
    while (atomic_load_explicit(&p->unfinished, memory_order_acquire))
        relax(&tries);
}

static void wait_for_all_tiles(bn_team *team, int me) {
    for (int64_t tile = 0; tile < team->s->tiles; tile++)
        wait_for_tile(team, me, tile);
}

static void run_task(bn_team *team, int me, bn_pass pass, int64_t tile, int64_t task) {
    const bn_schedule *s = team->s;
    if (pass == WRITE && s->joint_tasks)
        wait_for_all_tiles(team, me);
    else if (pass == WRITE)
        wait_for_tile(team, me, tile);
    team->stages->task[pass](team->work, me, tile, task);
    if (pass == SUM &&
        atomic_fetch_sub_explicit(&team->tile[tile].left, 1, memory_order_acq_rel) == 1)
        finish_slices(team, me, tile);
}

/* Item i of the list. A round is the sum of tile t and the write of tile t - write_lag; the first
 * and the last rounds have only one of the two. */
static void run_listed(bn_team *team, int me, int64_t i) {
    const int64_t n = team->s->tasks, round = i / (2 * n), task = i % (2 * n);
    if (task < n && round < team->s->tiles)
        run_task(team, me, SUM, round, task);
    else if (task >= n && round >= team->write_lag)
        run_task(team, me, WRITE, round - team->write_lag, 2 * n - 1 - task);
}

static void run_tile(bn_team *team, int me, int64_t tile) {
    for (int64_t task = 0; task < team->s->tasks; task++)
        run_task(team, me, SUM, tile, task);
    for (int64_t task = team->s->tasks; task-- > 0;)
        run_task(team, me, WRITE, tile, task);
}

static int64_t items_of(const bn_team *team, bn_pass pass) {
    const bn_schedule *s = team->s;
    if (team->way == SOLO)
        return pass == SUM ? s->tiles : 0;
    if (team->way == LIST)
        return pass == SUM ? 2 * s->tasks * (s->tiles + team->write_lag) : 0;
    if (!s->has[pass])
        return 0;
    return pass == WRITE && s->joint_tasks ? s->joint_tasks : s->tiles * s->tasks;
}

static void run_item(bn_team *team, int me, bn_pass pass, int64_t item) {
    const int64_t n = team->s->tasks, tiles = team->s->tiles;
    if (team->way == SOLO)
        run_tile(team, me, item);
    else if (team->way == LIST)
        run_listed(team, me, item);
    else if (!team->s->joint_tasks)
        run_task(team, me, pass, item / n, item % n);
    else if (pass == SUM)
        run_task(team, me, pass, item % tiles, item / tiles);
    else
        run_task(team, me, pass, 0, item);
}

/* A thread's work in one pass: its own share, then what is left of the others' shares. With LIST,
 * there is a single share. WRITE goes backwards. */
static void run_pass(bn_team *team, int me, bn_pass pass) {
    const int shares = team->way == LIST ? 1 : team->s->threads;
    const int64_t items = items_of(team, pass);
    for (int turn = 0; turn < shares; turn++) {
        const int whose = (me + turn) % shares;
        const int64_t from = items * whose / shares, to = items * (whose + 1) / shares;
        atomic_llong *next = &team->cursors[pass * team->s->threads + whose].next;
        /* The cursor of a share that is done is only read, so that its line stays in all caches. */
        while (atomic_load_explicit(next, memory_order_relaxed) < to - from) {
            const int64_t i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
            if (i < to - from)
                run_item(team, me, pass, pass == SUM ? from + i : to - 1 - i);
        }
    }
}

static void worker(void *team_, int me) {
    bn_team *team = team_;
    atomic_fetch_add(&team->entered, 1);
    run_pass(team, me, SUM);
    run_pass(team, me, WRITE);
    team->stages->end(team->work, me);
    if (!team->s->has[WRITE] && team->s->slices > 1)
        wait_for_all_tiles(team, me);
}

int64_t bn_schedule_bytes(const bn_schedule *s) {
    return PASSES * s->threads * (int64_t)sizeof(cursor) + s->tiles * (int64_t)sizeof(progress);
}

static way_of_work way_of(const bn_schedule *s) {
    const int64_t cache = bn_last_level_bytes() / 2;
    if (!s->has[SUM] || !s->has[WRITE] || s->tiles == 1 || s->joint_tasks)
        return PHASES;
    if (s->tiles >= SOLO_TILES * s->threads && s->threads * s->tile_bytes <= cache)
        return SOLO;
    return s->tiles * s->tile_bytes <= cache ? PHASES : LIST;
}

void bn_schedule_execute(const bn_schedule *s, const bn_stages *stages, const void *work,
                         void *memory) {
    bn_team team = {.s = s, .stages = stages, .work = work, .way = way_of(s), .cursors = memory};
    team.tile = (progress *)(team.cursors + PASSES * s->threads);
    team.write_lag = s->threads > 1 ? at_most(ceil_div(s->threads, s->tasks), s->tiles) : 0;
    for (int64_t t = 0; t < s->tiles; t++) {
        atomic_init(&team.tile[t].left, s->has[SUM] ? s->tasks : 0);
        atomic_init(&team.tile[t].next_slice, 0);
        atomic_init(&team.tile[t].unfinished, s->slices);
    }
    for (int i = 0; i < PASSES * s->threads; i++)
        atomic_init(&team.cursors[i].next, 0);

    bn_run_team(s->threads, worker, &team);

    last_call = (bn_call_facts){atomic_load(&team.entered), s->most_tasks, s->joint_tasks};
}
