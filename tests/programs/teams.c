/* teams.c: teams of which threads come late, and a count of the threads that are started on trial.
 * A library with the package's pool.c, openmp.c and machine.c; see programs/teams.py. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/system.h"
#include "threads/team.h"

/* ---- threads on trial, time: the linker's --wrap brings the package's calls here ---- */

int started; /* on trial: the runtime's own calls do not come here */

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
    started++;
    return __real_pthread_create(thread, attributes, run, argument);
}

double later; /* seconds */

double __real_bn_seconds(void);
double __wrap_bn_seconds(void) {
    return __real_bn_seconds() + later;
}

/* ---- a late team ------------------------------------------------------------- */

typedef struct {
    double start;
    atomic_int others;
    _Atomic double done; /* when the caller was done */
} team;

/* The caller is done when another thread has come; the others stay three times as long. */
static void stay(void *team_, int me) {
    team *t = team_;
    if (me == 0) {
        while (!atomic_load(&t->others))
            ;
        atomic_store(&t->done, bn_seconds());
        return;
    }
    atomic_fetch_add(&t->others, 1);
    double done;
    while (!(done = atomic_load(&t->done)))
        ;
    while (bn_seconds() < done + 3 * (done - t->start) + 0.001)
        ;
}

static void nothing(void *argument, int me) {
    (void)argument;
    (void)me;
}

/* Run a team as a call does; how many threads it asked for. */
int run_team(int num_threads, int64_t elements, bool late) {
    const int threads = bn_enter(num_threads, elements);
    team t = {.start = bn_seconds()};
    bn_run_team(threads, late && threads > 1 ? stay : nothing, &t);
    bn_leave(threads);
    return threads;
}
