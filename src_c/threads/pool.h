/* pool.h: how many threads a call gets, and functions that run work on them. See pool.c and
 * openmp.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { BN_MOST_THREADS = 1024 }; /* of a call */

/* Begin a call: return how many threads it is worth, before the number of tasks is known. To end
 * the call, pass the returned number to bn_leave. */
int bn_enter(int num_threads, int64_t elements);
void bn_leave(int threads);

/* Run work(argument, me) once for each me from 0 to threads - 1, at the same time, and wait until
 * all have ended. The calling thread has number 0. Other numbers are left out if their threads
 * cannot be had or come after the caller is done. All compute in the default floating-point mode,
 * if the caller does. */
typedef void bn_team_work(void *argument, int me);
void bn_run_team(int threads, bn_team_work *work, void *argument);

/* What this thread has learnt of its teams: until when its calls run alone, and how much longer
 * than the next late team idles. */
typedef struct {
    double alone_until; /* as bn_seconds tells it */
    int patience;
} bn_lesson;
extern _Thread_local bn_lesson bn_learnt;

/* What one learns of a team that took from `start` until `now`, in which the caller worked for
 * `worked` seconds, and `came` threads had begun by the time that the caller was done. The caller
 * alone would have taken about as long as they worked. */
bn_lesson bn_learn(bn_lesson before, double now, double start, double worked, int came);

/* Call work(argument, i) once for each piece i, on as many threads as the elements are worth; an
 * element counts as one of a gradient. */
typedef void bn_piece_work(const void *argument, int64_t piece);
void bn_run_pieces(int num_threads, int64_t elements, int64_t pieces, bn_piece_work *work,
                   const void *argument);
