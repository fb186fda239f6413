/* gates.c: a gate's bits, made from dst or copied from the caller's.
 *
 * Kernels read eight bytes at once, starting at the byte of any bit, so they may read a little past
 * the last bit. Therefore they get a copy, 1/32 of the size of float32 data. The copy is made in
 * blocks of whole bytes, so that threads need not wait for one another. A buffer collects the bits
 * of a block's segments. */
#include "gates.h"

#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "kernels/kernels.h"
#include "pool.h"
#include "sizes.h"

void bn_copy_bits(uint64_t from, uint64_t to, int64_t n) {
    enum { AT_ONCE = 56 }; /* bits: wherever in a byte they begin, 8 bytes hold them */
    for (int64_t done = 0, here; done < n; done += here) {
        const uint64_t source = from + (uint64_t)done, place = to + (uint64_t)done;
        char *at = (char *)(uintptr_t)(place / 8);
        uint64_t bits, there;
        here = at_most(n - done, AT_ONCE);
        memcpy(&bits, (const char *)(uintptr_t)(source / 8), sizeof bits);
        memcpy(&there, at, sizeof there);
        const uint64_t mask = (1ull << here) - 1;
        there &= ~(mask << place % 8);
        there |= (bits >> source % 8 & mask) << place % 8;
        memcpy(at, &there, sizeof there);
    }
}

/* ---- dst, element by element ----------------------------------------------- */

enum { MOST_AXES = 2 * BN_MAX_AXES + 1 };

/* All axes of dst, slowest first, merged where they are contiguous. */
typedef struct {
    const char *data;
    int n;
    bn_axis axis[MOST_AXES];
} elements;

static void add_axis(elements *e, const bn_axis *axis) {
    bn_axis own = {.size = axis->size};
    own.stride[BN_DST] = axis->stride[BN_DST];
    if (axis->size > 1)
        bn_add_axis(e->axis, &e->n, &own);
}

static void add_axes(elements *e, const bn_problem *p) {
    for (int a = 0; a < p->n_outer; a++)
        add_axis(e, &p->outer[a]);
    add_axis(e, &p->channel);
    for (int a = 0; a < p->n_inner; a++)
        add_axis(e, &p->inner[a]);
}

/* The address of the index-th element, and the number of contiguous elements from there on. */
static const char *segment_at(const elements *e, int64_t index, int64_t *n) {
    int64_t offset[BN_OPERANDS] = {0};
    add_offset(e->axis, e->n, index, offset);
    *n = e->n ? e->axis[e->n - 1].size - index % e->axis[e->n - 1].size : 1;
    return e->data + offset[BN_DST];
}

/* ---- blocks ------------------------------------------------------------------ */

enum { BLOCK = 4096, BLOCKS_AT_ONCE = 16 };

typedef struct {
    elements dst;
    void (*passed)(const char *from, int64_t n, uint64_t *to);
    const char *given; /* bits; NULL: made from dst */
    char *to;
    int64_t n;
} making;

/* Make the bits of a block: of n elements from `first` on. Bits past the last are zeros. */
static void make_block(const making *m, int64_t first, int64_t n) {
    uint64_t block[BLOCK / 64 + 1] = {0}, piece[BLOCK / 64 + 1] = {0};
    for (int64_t done = 0, here; done < n; done += here) {
        const char *at = segment_at(&m->dst, first + done, &here);
        here = at_most(here, n - done);
        if (here == n) {
            m->passed(at, n, block);
            break;
        }
        m->passed(at, here, piece);
        bn_copy_bits((uint64_t)(uintptr_t)piece * 8,
                     (uint64_t)(uintptr_t)block * 8 + (uint64_t)done, here);
    }
    memcpy(m->to + first / 8, block, (size_t)bn_bytes_of_bits(n));
}

static void make_some(const void *making_, int64_t piece) {
    const making *m = making_;
    const int64_t some = BLOCKS_AT_ONCE * BLOCK, from = piece * some;
    const int64_t end = at_most(from + some, m->n);
    if (m->given)
        memcpy(m->to + from / 8, m->given + from / 8, (size_t)bn_bytes_of_bits(end - from));
    for (int64_t first = from; !m->given && first < end; first += BLOCK)
        make_block(m, first, at_most(BLOCK, end - first));
}

static int64_t size_of(const bn_problem *p) {
    return count_of(p->outer, p->n_outer) * p->channel.size * count_of(p->inner, p->n_inner);
}

void bn_make_bits(const bn_problem *p, const char *given, char *to) {
    making m = {
        .dst.data = p->data[BN_DST],
        .passed = bn_kernels_current()->dtype[p->dtype]->relu_mask,
        .given = given,
        .to = to,
        .n = size_of(p),
    };
    add_axes(&m.dst, p);
    bn_run_pieces(p->num_threads, m.n, ceil_div(m.n, BLOCKS_AT_ONCE * BLOCK), make_some, &m);
}

/* ---- a problem's gate ---------------------------------------------------------- */

/* Set the gate's stride along an axis; return the bytes that the whole axis spans. */
static int64_t set_axis(bn_axis *axis, int64_t bytes) {
    axis->stride[BN_GATE] = bytes;
    return bytes * axis->size;
}

bn_status bn_open_gate(bn_problem *p, const char *bits) {
    enum { MAY_BE_READ = 8 };
    const int64_t size = bn_dtype_table[p->dtype].element_bytes;
    char *memory = malloc((size_t)bn_bytes_of_bits(size_of(p)) + MAY_BE_READ);
    if (!memory)
        return BN_NO_MEMORY;
    bn_make_bits(p, bits, memory);
    p->data[BN_GATE] = (char *)((uintptr_t)memory * 8 * (uintptr_t)size);
    int64_t bytes = size;
    for (int a = p->n_inner - 1; a >= 0; a--)
        bytes = set_axis(&p->inner[a], bytes);
    bytes = set_axis(&p->channel, bytes);
    for (int a = p->n_outer - 1; a >= 0; a--)
        bytes = set_axis(&p->outer[a], bytes);
    return BN_OK;
}

void bn_close_gate(bn_problem *p) {
    const uintptr_t size = (uintptr_t)bn_dtype_table[p->dtype].element_bytes;
    free((void *)((uintptr_t)p->data[BN_GATE] / size / 8));
    p->data[BN_GATE] = NULL;
}
