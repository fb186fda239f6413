/* tasks.h: all tasks of a plan, and what follows from their sums. See tasks.c. */
#pragma once

#include "call/room.h"

void bn_run_tasks(const bn_room *room);
