/* gates.c: a gate's bits, made from dst or copied from the caller's.
 *
 * Kernels read eight bytes at once, starting at the byte of any bit, so they may read a little past
 * the last bit. Therefore they get a copy, 1/32 of the size of float32 data. The copy is made in
 * ranges of whole bytes, so that threads need not wait for one another. A buffer collects the bits
 * that lie apart in dst. */
#include "arrays/gates.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "call/dispatch.h"
#include "threads/pool.h"

/* Put n bits behind the first `at` bits; all others must be zeros. */
static void put_bits(const uint64_t *from, uint64_t *to, int64_t at, int64_t n) {
    const int64_t word = at / 64, past = at % 64;
    for (int64_t w = 0; w < ceil_div(n, 64); w++) {
        to[word + w] |= from[w] << past;
        if (past)
            to[word + w + 1] |= from[w] >> (64 - past);
    }
}

/* ---- ranges ------------------------------------------------------------------ */

enum { RANGE = 4096, RANGES_AT_ONCE = 16 };

typedef struct {
    const bn_problem *problem;
    int64_t together; /* contiguous elements of dst */
    void (*relu_mask)(const char *from, int64_t n, uint64_t *to);
    const char *given; /* bits; NULL: made from dst */
    char *to;
    int64_t n;
} making;

/* Where dst has an element, counted in the order of bits. */
static const char *element_of(const bn_problem *p, int64_t index) {
    const int64_t x = index % p->run, channel = index / p->run % p->channels;
    return p->data[BN_DST] + index / p->run / p->channels * p->next_position[BN_DST] +
           channel * p->next_channel[BN_DST] + x * bn_dtype_table[p->dtype].element_bytes;
}

/* Make the bits of a range: of n elements from `first` on. Bits past the last are zeros. */
static void make_range(const making *m, int64_t first, int64_t n) {
    uint64_t bits[RANGE / 64 + 1] = {0}, some[RANGE / 64 + 1] = {0};
    for (int64_t done = 0, here; done < n; done += here) {
        const char *at = element_of(m->problem, first + done);
        here = at_most(m->together - (first + done) % m->together, n - done);
        if (here == n) {
            m->relu_mask(at, n, bits);
            break;
        }
        m->relu_mask(at, here, some);
        put_bits(some, bits, done, here);
    }
    memcpy(m->to + first / 8, bits, (size_t)bn_bytes_of_bits(n));
}

static void make_some(const void *making_, int64_t index) {
    const making *m = making_;
    const int64_t some = RANGES_AT_ONCE * RANGE, from = index * some;
    const int64_t end = at_most(from + some, m->n);
    if (m->given)
        memcpy(m->to + from / 8, m->given + from / 8, (size_t)bn_bytes_of_bits(end - from));
    else
        for (int64_t first = from; first < end; first += RANGE)
            make_range(m, first, at_most(RANGE, end - first));
}

void bn_make_bits(const bn_problem *p, const char *given, char *to) {
    const int64_t size = bn_dtype_table[p->dtype].element_bytes, n = bn_elements(p);
    const bool channels_meet = p->next_channel[BN_DST] == p->run * size;
    const bool all_meet = channels_meet && p->next_position[BN_DST] == p->channels * p->run * size;
    const making m = {
        .problem = p,
        .together = all_meet        ? n
                    : channels_meet ? p->channels * p->run
                                    : p->run,
        .relu_mask = bn_level_current()->kernels[p->dtype]->relu_mask,
        .given = given,
        .to = to,
        .n = n,
    };
    bn_run_pieces(p->num_threads, n, ceil_div(n, RANGES_AT_ONCE * RANGE), make_some, &m);
}

/* ---- a problem's gate ---------------------------------------------------------- */

bn_status bn_open_gate(bn_problem *p, const char *bits) {
    enum { MAY_BE_READ = 8 };
    char *memory = allocate((size_t)bn_bytes_of_bits(bn_elements(p)) + MAY_BE_READ);
    if (!memory)
        return BN_NO_MEMORY;
    bn_make_bits(p, bits, memory);
    p->data[BN_GATE] = memory;
    return BN_OK;
}

void bn_close_gate(bn_problem *p) {
    free(p->data[BN_GATE]);
    p->data[BN_GATE] = NULL;
}
