/* walk.c: the buffer in which elements are gathered that do not lie as kernels read them, and spans
 * that repeat. */
#include "walk.h"

#include <string.h>

bn_block bn_gathered_block(const bn_walk *walk, int64_t rows, int64_t n, int64_t repeats) {
    bn_block b = {.rows = (int)rows, .repeats = repeats, .cols = n};
    for (int o = 0; o < BN_OPERANDS; o++) {
        b.data[o] = walk->scratch->gathered[o];
        b.pitch[o] = n * walk->plan->element_bytes;
        b.step[o] = rows * b.pitch[o];
    }
    return b;
}

void bn_gather(const bn_walk *walk, char *const from[BN_OPERANDS], int64_t at, int64_t bytes) {
    const unsigned summed = walk->plan->needs->pass[SUM].reads;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (summed >> o & 1)
            memcpy(walk->scratch->gathered[o] + at, from[o], (size_t)bytes);
}

/* Do all strands of what is written begin at one place of their cache lines? */
static bool lines_agree(const bn_walk *walk, const int64_t pitch[BN_OPERANDS]) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (walk->plan->needs->pass[WRITE].writes >> o & 1 && pitch[o] % LINE_BYTES)
            return false;
    return true;
}

void bn_write_strands(const bn_walk *walk, bn_span *span) {
    span->strands = true;
    walk->write(span, &walk->coefs[WRITE]);
    span->strands = false;
    for (int o = 0; o < BN_OPERANDS; o++)
        span->data[o] = address(span->data[o], BN_STRANDS * span->pitch[o]);
}

void bn_write_repeats(const bn_walk *walk, bn_span *span, const int64_t apart[BN_OPERANDS],
                      int64_t n, bool strands) {
    const int64_t strand = n / BN_STRANDS;
    for (int o = 0; o < BN_OPERANDS; o++) {
        span->step[o] = apart[o];
        span->pitch[o] = strand * apart[o];
    }
    if (strands && strand > 0 && (!span->nontemporal || lines_agree(walk, span->pitch))) {
        span->repeats = strand;
        bn_write_strands(walk, span);
        n %= BN_STRANDS;
    }
    span->repeats = n;
    if (n > 0)
        walk->write(span, &walk->coefs[WRITE]);
}
