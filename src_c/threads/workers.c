/* workers.c: threads of our own, where the compiler has no OpenMP (macOS, Windows, or by choice).
 *
 * The process has as many workers as its largest call so far wanted. Idle workers look for a job
 * for a while, then sleep. A call's job has a place for each thread. The call puts the job on a
 * list, takes the first place, and takes the job back when its own part is done. Places that no
 * worker has taken by then stay empty. So a call waits only for workers that have begun to work for
 * it, never for one that has yet to wake up. Concurrent calls share the workers. If workers cannot
 * be started, a call does without them.
 */
#ifndef _OPENMP
#include "threads/pool.h"

#include <stdatomic.h>
#include <stddef.h>

#include "fp_mode.h"
#include "threads/relax.h"

/* ---- the system's threads ------------------------------------------------------ */

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

static SRWLOCK mutex = SRWLOCK_INIT;
typedef CONDITION_VARIABLE condition;
static condition work_wanted = CONDITION_VARIABLE_INIT, part_done = CONDITION_VARIABLE_INIT;

static void lock(void) {
    AcquireSRWLockExclusive(&mutex);
}
static void unlock(void) {
    ReleaseSRWLockExclusive(&mutex);
}
static void wait_for(condition *c) {
    SleepConditionVariableSRW(c, &mutex, INFINITE, 0);
}
static void wake_one(condition *c) {
    WakeConditionVariable(c);
}
static void wake_all(condition *c) {
    WakeAllConditionVariable(c);
}

static void work_forever(void);
static DWORD WINAPI thread_of_worker(void *unused) {
    (void)unused;
    work_forever();
    return 0;
}
static bool start_worker(void) {
    const HANDLE thread = CreateThread(NULL, 0, thread_of_worker, NULL, 0, NULL);
    if (thread)
        CloseHandle(thread);
    return thread != NULL;
}
#else
#include <pthread.h>
#include <signal.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
typedef pthread_cond_t condition;
static condition work_wanted = PTHREAD_COND_INITIALIZER, part_done = PTHREAD_COND_INITIALIZER;

static void lock(void) {
    pthread_mutex_lock(&mutex);
}
static void unlock(void) {
    pthread_mutex_unlock(&mutex);
}
static void wait_for(condition *c) {
    pthread_cond_wait(c, &mutex);
}
static void wake_one(condition *c) {
    pthread_cond_signal(c);
}
static void wake_all(condition *c) {
    pthread_cond_broadcast(c);
}

static void work_forever(void);
static void *thread_of_worker(void *unused) {
    (void)unused;
    work_forever();
    return NULL;
}
/* Workers block all signals: signals are for the program's own threads. */
static bool start_worker(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, thread_of_worker, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}
#endif

/* ---- jobs ---------------------------------------------------------------------- */

/* A call's job, on the stack of that call. */
typedef struct job {
    bn_team_work *work;
    void *argument;
    int next, threads;  /* the next place to take, out of `threads` */
    int64_t number;     /* later jobs have higher ones */
    atomic_int at_work; /* workers now in the job */
    struct job *later;
} job;

/* The lock protects `jobs` and `workers`. */
static job *jobs; /* jobs with free places, the oldest first */
static int workers;

/* The number of the latest job; may be read without the lock. */
static atomic_llong latest;

static void add(job *j) {
    job **at = &jobs;
    while (*at)
        at = &(*at)->later;
    *at = j;
    j->number = atomic_load(&latest) + 1;
    atomic_store(&latest, j->number);
}

static void take_back(job *j) {
    job **at = &jobs;
    while (*at && *at != j)
        at = &(*at)->later;
    if (*at)
        *at = j->later;
}

/* The oldest job with a higher number than a worker's last one: no worker works twice for a job. */
static job *later_than(int64_t number) {
    job *j = jobs;
    while (j && j->number <= number)
        j = j->later;
    return j;
}

static void work_forever(void) {
    int64_t last = 0;
    (void)fp_mode_enter();
    for (;;) {
        for (int tries = 0; atomic_load(&latest) <= last && tries < LOOKS;)
            relax(&tries);
        lock();
        job *j;
        while (!(j = later_than(last)))
            wait_for(&work_wanted);
        last = j->number;
        const int me = j->next++;
        atomic_fetch_add(&j->at_work, 1);
        if (j->next == j->threads)
            take_back(j);
        unlock();
        j->work(j->argument, me);
        lock();
        /* This must be the last access to the job: its call may return now. */
        if (atomic_fetch_sub(&j->at_work, 1) == 1)
            wake_all(&part_done);
        unlock();
    }
}

void bn_run_team(int threads, bn_team_work *work, void *argument) {
    if (threads == 1) {
        work(argument, 0);
        return;
    }
    job own = {.work = work, .argument = argument, .next = 1, .threads = threads};
    lock();
    while (workers < threads - 1 && start_worker())
        workers++;
    add(&own);
    /* Wake only as many workers as the job has free places: earlier calls may have started more. */
    for (int i = 1; i < threads; i++)
        wake_one(&work_wanted);
    unlock();

    work(argument, 0);

    lock();
    take_back(&own);
    unlock();
    for (int tries = 0; atomic_load(&own.at_work) && tries < LOOKS;)
        relax(&tries);
    lock();
    while (atomic_load(&own.at_work))
        wait_for(&part_done);
    unlock();
}

/* A call never waits for a worker that has yet to wake up. */
bool bn_team_pays(void) {
    return true;
}

/* ---- forks ----------------------------------------------------------------------- */

#ifndef _WIN32
/* The child has only the forking thread: no workers, and no calls in progress. */
static void begin_again(void) {
    static const pthread_mutex_t free_mutex = PTHREAD_MUTEX_INITIALIZER;
    static const condition nobody_waits = PTHREAD_COND_INITIALIZER;
    mutex = free_mutex;
    work_wanted = part_done = nobody_waits;
    jobs = NULL;
    workers = 0;
    bn_forget_calls();
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(lock, unlock, begin_again);
}
#endif
#endif
