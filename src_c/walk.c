/* walk.c: what both walks do with blocks. */
#include "walk.h"

#include <string.h>

void bn_write_block(const bn_walk *walk, const bn_block *block, const bn_coefs *coefs) {
    if (block->rows <= MOST_WRITE_STRANDS) {
        walk->write(block, coefs);
        return;
    }
    for (int done = 0; done < block->rows; done += MOST_WRITE_STRANDS) {
        bn_block b = *block;
        b.rows = (int)at_most(MOST_WRITE_STRANDS, block->rows - done);
        for (int o = 0; o < BN_OPERANDS; o++)
            b.data[o] = address(b.data[o], done * b.pitch[o]);
        walk->write(&b, coefs);
    }
}

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
