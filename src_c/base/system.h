/* system.h: what we ask of the operating system. posix.c and windows.c answer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- memory --------------------------------------------------------------- */

void *bn_map_pages(size_t bytes); /* zeros; NULL if memory is short */
void bn_unmap_pages(void *pages, size_t bytes);
/* Their contents are no longer needed: the system may take them until they are written again. */
void bn_offer_pages(void *pages, size_t bytes);
void bn_prefer_huge_pages(void *pages, size_t bytes);

/* One lock, for what outlives a call (_core_src/kept.pxi). */
void bn_lock(void);
void bn_unlock(void);

/* ---- threads and time ------------------------------------------------------ */

/* How many of so many threads the system starts, of which none ends before all have been tried. */
int bn_try_threads(int threads);
void bn_yield(void);     /* let others have this CPU */
double bn_seconds(void); /* of a clock that nobody can set back */
/* Have these called around each fork, where there are forks; NULL: nothing. */
void bn_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* ---- the machine ------------------------------------------------------------ */

int64_t bn_memory_bytes(void); /* that a process can use at most; 0: not told */
/* Linux tells the others in files, which Python reads. */
void bn_told_caches(int64_t *l2, int64_t *last_level); /* as in machine.h; 0: not told */
bool bn_told_processor(char *name, size_t room);
bool bn_told_library(int number, char *path, size_t room); /* of this process; false: no more */
