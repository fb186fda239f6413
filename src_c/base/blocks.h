/* blocks.h: large memory that outlives a call, for the next one.
 *
 * Writing to 160 MB takes 8 ms longer if it has just been mapped, because the system clears each
 * page. So a returned block is parked: it stays mapped. A later request for about its size may get
 * the block. The system may take the pages of parked blocks whenever it needs memory (MADV_FREE).
 * Pages that it has not taken are written as fast as others.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Smaller blocks come from the C library. glibc keeps freed memory itself: up to 16 MiB, a new
 * block costs no more than a kept one (measured). */
#ifdef __GLIBC__
enum { BN_BLOCK_BYTES = 16 << 20 };
#else
enum { BN_BLOCK_BYTES = 1 << 20 };
#endif

/* Uninitialized memory; NULL if there is not enough. It starts on a cache line where parking is
 * supported. */
void *bn_take_block(size_t bytes);
void bn_park_block(void *block);

/* Unmap all parked blocks, for an allocation that has failed; were there any? */
bool bn_release_parked(void);

/* The most bytes that may be parked; any excess is unmapped at once. 0 where parking is not
 * supported. */
void bn_set_parked_limit(int64_t bytes);
int64_t bn_parked_limit(void);

int64_t bn_parked_bytes(void);
