/* tasks.h: what threads do in a call. See tasks.c. */
#ifndef BN_TASKS_H
#define BN_TASKS_H

#include "call/room.h"

/* Sum, and make what follows from sums, as the plan says. */
void bn_run_tasks(const bn_room *room);

#endif
