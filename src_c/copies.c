/* copies.c: see copies.h. */
#include "copies.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "pool.h"
#include "sizes.h"

/* By hand, since nothing may fail here: NumPy's own copy needs memory, and crashes (2.4)
 * where it gets none. */

enum { STRIP = LINE_BYTES / 4 }; /* a cache line of 4-byte elements */

/* An axis's length, and its strides in the two arrays. */
typedef struct {
    ptrdiff_t size, from, to;
} axis_pair;

static axis_pair axis_pair_of(const bn_view *from, const bn_view *to, const bn_order *order,
                              int k) {
    if (k < 0)
        return (axis_pair){1, 0, 0};
    const int axis = order->axis[k];
    return (axis_pair){from->shape[axis], from->strides[axis], to->strides[axis]};
}

static void copy_axis(const char *from, char *to, axis_pair axis, ptrdiff_t itemsize) {
    if (itemsize == 8)
        for (ptrdiff_t i = 0; i < axis.size; i++)
            memcpy(to + i * axis.to, from + i * axis.from, 8);
    else if (itemsize == 4)
        for (ptrdiff_t i = 0; i < axis.size; i++)
            memcpy(to + i * axis.to, from + i * axis.from, 4);
    else
        for (ptrdiff_t i = 0; i < axis.size; i++)
            memcpy(to + i * axis.to, from + i * axis.from, 2);
}

/* Where the last axis has the longer stride, a cache line holds elements of several places along
 * the other one: a strip of the last axis is copied at all of them before the next strip. */
static void copy_two_axes(const char *from, char *to, axis_pair other, axis_pair last,
                          ptrdiff_t itemsize) {
    const bool across = bytes_apart(other.from) < bytes_apart(last.from);
    axis_pair strip = last;
    if (across)
        strip.size = STRIP;
    for (ptrdiff_t left = last.size; left > 0; left -= strip.size) {
        if (strip.size > left)
            strip.size = left;
        for (ptrdiff_t i = 0; i < other.size; i++)
            copy_axis(from + i * other.from, to + i * other.to, strip, itemsize);
        from += strip.size * strip.from;
        to += strip.size * strip.to;
    }
}

/* ---- pieces, over threads -------------------------------------------------- */

/* Elements of a piece: enough that taking the next one costs nothing. */
enum { PIECE = 1 << 16 };

/* All axes but the last two are taken place by place; those in pieces. */
typedef struct {
    const bn_view *from, *to;
    const bn_order *order;
    axis_pair other, last;
    ptrdiff_t others, lasts; /* of a piece, so many along either */
    int64_t across, along;   /* pieces along either */
    int64_t pieces;
    atomic_llong next;
} copying;

/* What is left of an axis in its k-th piece, to which both addresses move. */
static axis_pair piece_of(axis_pair axis, int64_t k, ptrdiff_t piece, const char **from,
                          char **to) {
    *from += k * piece * axis.from;
    *to += k * piece * axis.to;
    return (axis_pair){at_most(piece, axis.size - k * piece), axis.from, axis.to};
}

static void copy_piece(const copying *c, int64_t index) {
    const char *from = c->from->data;
    char *to = c->to->data;
    const axis_pair last = piece_of(c->last, index % c->along, c->lasts, &from, &to);
    index /= c->along;
    const axis_pair other = piece_of(c->other, index % c->across, c->others, &from, &to);
    index /= c->across;
    for (int k = c->order->n - 3; k >= 0; k--) {
        const axis_pair axis = axis_pair_of(c->from, c->to, c->order, k);
        from += index % axis.size * axis.from;
        to += index % axis.size * axis.to;
        index /= axis.size;
    }
    copy_two_axes(from, to, other, last, c->to->itemsize);
}

static void copy_some(void *copying_, int me) {
    copying *c = copying_;
    (void)me;
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
        if (index >= c->pieces)
            return;
        copy_piece(c, index);
    }
}

void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_order *order,
                      int num_threads) {
    const int n = order->n;
    copying c = {
        .from = from,
        .to = to,
        .order = order,
        .other = axis_pair_of(from, to, order, n - 2),
        .last = axis_pair_of(from, to, order, n - 1),
    };
    /* Along the other axis whole lines, which two threads would both write. */
    c.lasts = at_most(c.last.size, PIECE);
    c.others = at_most(c.other.size, round_up(ceil_div(PIECE, c.lasts), 2 * STRIP));
    c.along = ceil_div(c.last.size, c.lasts);
    c.across = ceil_div(c.other.size, c.others);
    c.pieces = c.along * c.across;
    int64_t elements = c.other.size * c.last.size;
    for (int k = 0; k < n - 2; k++) {
        c.pieces *= from->shape[order->axis[k]];
        elements *= from->shape[order->axis[k]];
    }
    atomic_init(&c.next, 0);
    const int threads = bn_enter(num_threads, elements);
    bn_run_team((int)at_most(threads, c.pieces), copy_some, &c);
    bn_leave(threads);
}
