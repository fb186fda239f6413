/* memory.h: a call's memory, which is one allocation. Code that needs room asks for it twice: first
 * to count the bytes, then to get the address. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/sizes.h"

/* Room for `count` items of `bytes` bytes each, from the next cache line of `memory` on. If
 * `memory` is NULL, the bytes used are only counted. */
static inline void *lay_out(char *memory, size_t *used, int64_t count, int64_t bytes) {
    const size_t at = *used, lines = LINE_BYTES - 1;
    size_t all;
    if (count == 0)
        return memory ? memory + at : NULL;
    if (__builtin_mul_overflow((size_t)count, (size_t)bytes, &all) ||
        __builtin_add_overflow(all, lines, &all) ||
        __builtin_add_overflow(at, all & ~lines, used) || *used > PTRDIFF_MAX)
        *used = PTRDIFF_MAX; /* malloc refuses that much */
    return memory ? memory + at : NULL;
}

/* Memory whose result starts on a cache line; the caller frees *to_free. */
static inline char *line_aligned(size_t bytes, char **to_free) {
    *to_free = malloc(bytes + LINE_BYTES);
    return *to_free ? *to_free + (-(uintptr_t)*to_free & (LINE_BYTES - 1)) : NULL;
}
