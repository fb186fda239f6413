/* parked.h: large memory that outlives a call, for the next one.
 *
 * Writing to 160 MB takes 8 ms longer if it has just been mapped, because the system clears each
 * page. So returned memory is parked: it stays mapped. A later request for about its size may get
 * it. The system may take the pages of parked mappings whenever it needs memory (MADV_FREE). Pages
 * that it has not taken are written as fast as others. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fewer bytes come from the C library. glibc keeps freed memory itself: up to 16 MiB, new memory
 * costs no more than kept memory (measured). */
#ifdef __GLIBC__
enum { BN_WORTH_PARKING = 16 << 20 };
#else
enum { BN_WORTH_PARKING = 1 << 20 };
#endif

/* Uninitialized memory, on a cache line where parking is supported; NULL if there is too little. */
void *bn_take_memory(size_t bytes);
void bn_park_memory(void *memory);

/* Unmap all parked mappings, for an allocation that has failed; were there any? */
bool bn_release_parked(void);

/* The most bytes that may be parked; any excess is unmapped at once. 0 if none can be. */
void bn_set_parked_limit(int64_t bytes);
int64_t bn_parked_limit(void);

int64_t bn_parked_bytes(void);
