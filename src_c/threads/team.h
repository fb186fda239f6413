/* team.h: threads that work at the same time. See openmp.c. */
#pragma once

#include <stdbool.h>

enum { BN_MOST_THREADS = 1024 }; /* of a call */

/* Run work(argument, me) once for each me from 0 to threads - 1, at the same time, and wait until
 * all have ended. The calling thread has number 0. Other numbers are left out if their threads
 * cannot be had or come after the caller is done. All compute in the default floating-point mode,
 * if the caller does. */
typedef void bn_team_work(void *argument, int me);
void bn_run_team(int threads, bn_team_work *work, void *argument);

/* Did this thread's last teams pay? If not, its next calls should run alone for a while. */
bool bn_teams_pay(void);

/* What a thread has learnt of its teams: until when its calls run alone, and how much longer than
 * the next late team idles. */
typedef struct {
    double alone_until; /* as bn_seconds tells it */
    int patience;
} bn_lesson;

/* What one learns of a team that took from `start` until `now`, in which the caller worked for
 * `worked` seconds, and `came` threads had begun by the time that the caller was done. The caller
 * alone would have taken about as long as they worked. */
bn_lesson bn_learn(bn_lesson before, double now, double start, double worked, int came);
