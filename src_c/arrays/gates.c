/* gates.c: a gate's bits, made from dst, in ranges of whole words, so that threads need not wait
 * for one another. */
#include "arrays/gates.h"

#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "call/dispatch.h"
#include "threads/pool.h"

enum { RANGE = 16384 };

typedef struct {
    const bn_problem *problem;
    char *to;
} making;

static void make_range(const void *making_, int64_t index) {
    const making *m = making_;
    const bn_problem *p = m->problem;
    const int64_t first = index * RANGE, n = at_most(RANGE, bn_elements(p) - first);
    const char *from = p->data[BN_DST] + first * bn_dtype_table[p->dtype].element_bytes;
    uint64_t bits[RANGE / 64];
    bn_level_current()->kernels[p->dtype]->relu_mask(from, n, bits);
    memcpy(m->to + first / 8, bits, (size_t)bn_bytes_of_bits(n));
}

void bn_make_bits(const bn_problem *p, char *to) {
    const making m = {p, to};
    bn_run_pieces(p->num_threads, bn_elements(p), ceil_div(bn_elements(p), RANGE), make_range, &m);
}

bn_status bn_open_gate(bn_problem *p) {
    char *memory = malloc((size_t)bn_bytes_of_bits(bn_elements(p)) + BN_PAST_BITS);
    if (!memory)
        return BN_NO_MEMORY;
    bn_make_bits(p, memory);
    p->data[BN_GATE] = memory;
    return BN_OK;
}

void bn_close_gate(bn_problem *p) {
    free(p->data[BN_GATE]);
    p->data[BN_GATE] = NULL;
}
