/* walk.c: the buffer in which elements are gathered that do not lie as kernels read them. */
#include "walk.h"

#include <string.h>

bn_block bn_gathered_block(const bn_walk *walk, int64_t rows, int64_t n) {
    bn_block b = {.rows = (int)rows, .repeats = 1, .cols = n};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = walk->scratch->gathered[o];
        b.pitch[o] = n * walk->plan->element_bytes;
    }
    return b;
}

void bn_gather(const bn_walk *walk, char *const from[BN_OPERANDS], int64_t at, int64_t bytes) {
    const unsigned summed = walk->plan->needs->pass[SUM].reads;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (summed >> o & 1)
            memcpy(walk->scratch->gathered[o] + at, from[o], (size_t)bytes);
}
