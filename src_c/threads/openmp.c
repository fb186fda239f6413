/* openmp.c: the threads of a call are those of an OpenMP parallel region. No call asks the runtime
 * for threads that the system would not start. */
#include "threads/team.h"

#include <stdatomic.h>

#include "base/fp_mode.h"
#include "base/machine.h"
#include "base/openmp.h"
#include "base/sizes.h"
#include "base/system.h"
#include "threads/relax.h"

/* ---- threads that can be started ------------------------------------------ */

/* OpenMP's runtimes end the process if they cannot start a thread (a limit on processes or address
 * space). So threads are started on trial before a region that needs more of them than the calling
 * thread's pool has. libgomp keeps only the last team's threads, so pool_size is the size of that
 * team. A pool that could not grow stays as it is for a while. Pools grow one at a time, so that no
 * other call starts threads between the trial and the region. */
static _Thread_local int pool_size = 1;
static _Thread_local double full_until;
static atomic_flag growing = ATOMIC_FLAG_INIT;
enum { STAYS_FULL = 10 }; /* seconds */

/* How many threads, at most `threads`, a region can have. If *grows becomes true, the region must
 * clear `growing` when all of them exist. */
static int startable_team(int threads, bool *grows) {
    if (threads <= pool_size || bn_seconds() < full_until)
        return (int)at_most(threads, pool_size);
    bn_has_team();
    for (int tries = 0; atomic_flag_test_and_set(&growing);)
        relax(&tries);
    /* Half of those that can exist at once, because a joined thread counts against the system's
     * limits for a little longer, and because the runtime allocates memory too. */
    const int can = pool_size + bn_try_threads(2 * (threads - pool_size)) / 2;
    if (can < threads)
        full_until = bn_seconds() + STAYS_FULL;
    *grows = can > 1;
    if (!*grows)
        atomic_flag_clear(&growing);
    return can;
}

/* ---- forks ------------------------------------------------------------------ */

/* Give up the pool before a fork, whoever made it: else the child's thread, in its next region or
 * when it ends, would wait for threads that the child lacks. Within a region, this fails. */
static void leave_pool(void) {
    if (!bn_fork_limits() && omp_pause_resource_all(omp_pause_soft) == 0)
        pool_size = 1, full_until = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
    bn_at_fork(leave_pool, NULL, NULL);
}

/* ---- teams that do not pay ---------------------------------------------- */

/* Waking a thread takes 15 to 50 us. It takes far longer if other work keeps the CPUs, such as
 * BLAS's idle threads, which spin for milliseconds behind a matrix product; and a thread that wakes
 * on its caller's CPU holds the caller up. Such a call takes up to ten times as long as on one
 * thread (measured). No size tells of it, but the last teams do. So when a team did not pay, the
 * calling thread's next calls run alone, for `patience` times as long as it idled, at most a
 * second. Patience grows with each such team, so that trying again costs a call behind a product
 * 1/MOST_PATIENCE of its time, and a single late team costs little. */
enum { LEAST_PATIENCE = 4, MOST_PATIENCE = 64 };
static _Thread_local bn_lesson learnt = {.patience = LEAST_PATIENCE};

bool bn_teams_pay(void) {
    return bn_seconds() >= learnt.alone_until;
}

bn_lesson bn_learn(bn_lesson before, double now, double start, double worked, int came) {
    const double took = now - start, alone = before.patience * (took - worked);
    if (took <= worked * came)
        return (bn_lesson){before.alone_until, (int)at_least(before.patience / 2, LEAST_PATIENCE)};
    return (bn_lesson){now + (alone < 1 ? alone : 1),
                       (int)at_most(2 * before.patience, MOST_PATIENCE)};
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
    const double start = bn_seconds();
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        const int me = omp_get_thread_num();
        if (me == 0 && grows)
            atomic_flag_clear(&growing);
        atomic_fetch_add(&begun, 1);
        const double own_start = me == 0 ? bn_seconds() : 0;
        const uint64_t mode = fp_mode_enter(); /* a pool's threads may have any */
        work(argument, me);
        fp_mode_leave(mode);
        if (me == 0) {
            worked = bn_seconds() - own_start;
            came = atomic_load(&begun);
        }
    }
    const int team = atomic_load(&begun);
    if (team < threads)
        full_until = bn_seconds() + STAYS_FULL;
    if (team > 1) { /* a team of one leaves the pool as it was */
        pool_size = team;
        learnt = bn_learn(learnt, bn_seconds(), start, worked, came);
    }
}
