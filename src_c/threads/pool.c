/* pool.c: how many threads a call gets. openmp.c has the threads. Nothing decided here can change a
 * bit of any result. */
#include "threads/pool.h"

#include <stdatomic.h>

#include "base/machine.h"
#include "base/sizes.h"
#include "threads/team.h"

/* ---- how many threads -------------------------------------------------- */

/* Behind a pass of NumPy, two threads pay from 80 000 elements on (measured). */
enum { ELEMENTS_PER_THREAD = 49152, WORTH_THREADS = 2 * ELEMENTS_PER_THREAD };

/* Calls that run on several threads now. Each calling thread has a pool of its own, so by default n
 * calls at once share twice the CPUs: two still get all CPUs each, because a team that shrank and
 * grew again would start new threads. */
static atomic_int calls_in_flight;

static int64_t threads_wanted(int num_threads, int64_t elements) {
    if (num_threads > 0)
        return at_most(num_threads, bn_most_threads());
    if (elements < WORTH_THREADS || !bn_teams_pay())
        return 1;
    const int calls = atomic_load_explicit(&calls_in_flight, memory_order_relaxed) + 1;
    const int64_t most = bn_default_threads(), shared = at_most(most, 2 * most / calls);
    return at_least(at_most(elements / ELEMENTS_PER_THREAD, shared), 1);
}

int bn_enter(int num_threads, int64_t elements) {
    const int threads = (int)at_most(threads_wanted(num_threads, elements), BN_MOST_THREADS);
    if (threads > 1)
        atomic_fetch_add_explicit(&calls_in_flight, 1, memory_order_relaxed);
    return threads;
}

void bn_leave(int threads) {
    if (threads > 1)
        atomic_fetch_sub_explicit(&calls_in_flight, 1, memory_order_relaxed);
}

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
