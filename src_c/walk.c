/* walk.c: rows that are not a fixed pitch apart, brought together in a buffer. */
#include "walk.h"

#include <string.h>

bn_block bn_gathered_block(const bn_walk *walk, int64_t rows, int64_t n) {
    bn_block b = {.rows = (int)rows, .repeats = 1, .cols = n};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = walk->scratch->gathered[o];
        b.pitch[o] = n * walk->plan->size;
    }
    return b;
}

void bn_gather(const bn_walk *walk, char *const from[BN_OPERANDS], int64_t at, int64_t bytes) {
    const unsigned summed = walk->plan->formula->pass[SUM].reads;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (summed >> o & 1)
            memcpy(walk->scratch->gathered[o] + at, from[o], (size_t)bytes);
}
