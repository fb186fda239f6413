/* memory.h: a call's memory, which is at most one allocation. Code that needs room asks for it
 * twice, if need be: first to count the bytes, then to get the address. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/sizes.h"

typedef struct {
    char *start; /* on a cache line */
    size_t bytes, used;
} bn_memory;

/* Room for `count` items of `bytes` bytes each, from the next cache line on; NULL if the memory has
 * too few bytes, which may be none. Then `used` says how many it takes. */
static inline void *lay_out(bn_memory *memory, int64_t count, int64_t bytes) {
    const size_t at = memory->used, lines = LINE_BYTES - 1;
    size_t all = 0;
    if (count > 0 &&
        (__builtin_mul_overflow((size_t)count, (size_t)bytes, &all) ||
         __builtin_add_overflow(all, lines, &all) ||
         __builtin_add_overflow(at, all & ~lines, &memory->used) || memory->used > PTRDIFF_MAX))
        memory->used = PTRDIFF_MAX; /* malloc refuses that much */
    return memory->used <= memory->bytes && memory->start ? memory->start + at : NULL;
}

/* Memory whose result starts on a cache line; the caller frees *to_free. */
static inline char *line_aligned(size_t bytes, char **to_free) {
    *to_free = malloc(bytes + LINE_BYTES);
    return *to_free ? *to_free + (-(uintptr_t)*to_free & (LINE_BYTES - 1)) : NULL;
}
