/* pool.h: how many threads a call gets, and pieces of work that they share. See pool.c. */
#pragma once

#include <stdint.h>

/* Begin a call: return how many threads it is worth, before the number of tasks is known. To end
 * the call, pass the returned number to bn_leave. */
int bn_enter(int num_threads, int64_t elements);
void bn_leave(int threads);

/* Call work(argument, i) once for each piece i, on as many threads as the elements are worth; an
 * element counts as one of a gradient. */
typedef void bn_piece_work(const void *argument, int64_t piece);
void bn_run_pieces(int num_threads, int64_t elements, int64_t pieces, bn_piece_work *work,
                   const void *argument);
