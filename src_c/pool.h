/* pool.h: how many threads a call gets, and a function on as many. See pool.c and workers.c. */
#ifndef BN_POOL_H
#define BN_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* A call begins: how many threads it is worth, before the number of tasks is known. It ends with
 * bn_leave, which is given that number. */
int bn_enter(int num_threads, int64_t elements);
void bn_leave(int threads);
/* In a forked child, without OpenMP: the calls of other threads stayed behind. */
void bn_forget_calls(void);

/* Stacks that the environment asks for, of threads that OpenMP starts; 0: the system's choice. */
void bn_set_stack_bytes(int64_t bytes);

/* Run work(argument, me) once for each me from 0 up to less than `threads`, at the same time, and
 * wait until all have ended. The calling thread's is 0; others are left out if their threads
 * cannot be had, or come when the caller is done. */
typedef void bn_team_work(void *argument, int me);
void bn_run_team(int threads, bn_team_work *work, void *argument);

/* Call work(argument, i) once for each piece i, on as many threads as the elements are worth. */
typedef void bn_piece_work(const void *argument, int64_t piece);
void bn_run_pieces(int num_threads, int64_t elements, int64_t pieces, bn_piece_work *work,
                   const void *argument);

#endif
