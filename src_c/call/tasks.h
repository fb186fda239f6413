/* tasks.h: what threads do in a call. See tasks.c. */
#ifndef BN_TASKS_H
#define BN_TASKS_H

#include "threads/schedule.h"
#include "call/plan.h"

/* Prepare what the first task needs; tasks prepare the rest. */
void bn_begin(const bn_plan *plan);

/* Make all that follows from the sums of n channels from `from` on. */
void bn_finish(const bn_plan *plan, int64_t from, int64_t n);

/* The tasks of a plan that has been divided. */
bn_schedule bn_schedule_of(const bn_plan *plan);

#endif
