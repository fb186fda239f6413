/* blocks.h: large memory that outlives a call, for the next one.
 *
 * A fresh map of 160 MB costs 8 ms beyond what writing it costs, for the system clears each page.
 * So a block that is given back is parked: it stays mapped, and the next block of about that size
 * is this one. Pages of all but the youngest are the system's to take whenever it needs memory
 * (MADV_FREE), and cost no more than others while it does not. */
#ifndef BN_BLOCKS_H
#define BN_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

/* Less than this is the C library's, which keeps such memory itself. */
enum { BN_BLOCK_BYTES = 1 << 20 };

/* Memory whose contents are anything, from a cache line on; NULL: there is none. */
void *bn_take_block(size_t bytes);
void bn_park_block(void *block);

/* Bytes that may be parked; what is beyond is unmapped at once. 0 where nothing can be. */
void bn_set_parked_limit(int64_t bytes);
int64_t bn_parked_limit(void);

/* That are parked now. */
int64_t bn_parked_bytes(void);

#endif
