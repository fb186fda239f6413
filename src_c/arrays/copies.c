/* copies.c: copies elements from one array to another, whatever their strides. This code is written
 * by hand because nothing may fail here: NumPy's own copy allocates memory, and NumPy 2.4 crashes
 * if it gets none. */
#include <stddef.h>
#include <string.h>

#include "arrays/axes.h"
#include "base/sizes.h"
#include "threads/pool.h"

enum { STRIP = LINE_BYTES / 4 }; /* a cache line of 4-byte elements */

/* An axis's length, and its strides in the two arrays. */
typedef struct {
    ptrdiff_t size, from, to;
} axis_pair;

/* Append an axis; or merge it into the previous one if, in both arrays, the stride of the previous
 * axis is as long as all of the new one. */
static void add_axis(axis_pair *axes, int *n, axis_pair axis) {
    const axis_pair last = *n ? axes[*n - 1] : (axis_pair){1, 0, 0};
    if (*n && last.from == axis.from * axis.size && last.to == axis.to * axis.size)
        axes[*n - 1] = (axis_pair){last.size * axis.size, axis.from, axis.to};
    else
        axes[(*n)++] = axis;
}

static bool is_contiguous(axis_pair axis, ptrdiff_t itemsize) {
    return axis.from == itemsize && axis.to == itemsize;
}

/* Inlined with constants, so that compilers can unroll and vectorize. */
static inline __attribute__((always_inline)) void copy_each(const char *from, char *to,
                                                            axis_pair axis, ptrdiff_t itemsize) {
    for (ptrdiff_t i = 0; i < axis.size; i++)
        memcpy(to + i * axis.to, from + i * axis.from, (size_t)itemsize);
}

static inline __attribute__((always_inline)) void copy_axis_of(const char *from, char *to,
                                                               axis_pair axis, ptrdiff_t itemsize) {
    const ptrdiff_t n = axis.size;
    if (axis.to == itemsize && axis.from == -itemsize)
        copy_each(from, to, (axis_pair){n, -itemsize, itemsize}, itemsize);
    else if (axis.to == itemsize)
        copy_each(from, to, (axis_pair){n, axis.from, itemsize}, itemsize);
    else if (axis.from == itemsize)
        copy_each(from, to, (axis_pair){n, itemsize, axis.to}, itemsize);
    else
        copy_each(from, to, axis, itemsize);
}

static void copy_axis(const char *from, char *to, axis_pair axis, ptrdiff_t itemsize) {
    if (is_contiguous(axis, itemsize))
        memcpy(to, from, (size_t)(axis.size * itemsize));
    else if (itemsize == 8)
        copy_axis_of(from, to, axis, 8);
    else if (itemsize == 4)
        copy_axis_of(from, to, axis, 4);
    else
        copy_axis_of(from, to, axis, 2);
}

/* If the last axis has the longer stride in `from`, one cache line holds elements of several
 * indices of the other axis. So a strip of the last axis is copied for all of these, then the next
 * strip. */
static void copy_two_axes(const char *from, char *to, axis_pair other, axis_pair last,
                          ptrdiff_t itemsize) {
    const bool across =
        bytes_apart(other.from) < bytes_apart(last.from) && !is_contiguous(last, itemsize);
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

/* Elements per piece: enough to make the cost of taking the next piece negligible. */
enum { PIECE = 1 << 16 };

/* A copy runs over two axes, `other` and `last`, in a round for each index of the rest. A piece is
 * a part of these two axes in one round, or all of both in several. */
typedef struct {
    const char *from;
    char *to;
    ptrdiff_t itemsize;
    axis_pair axis[BN_MAX_AXES]; /* the rest */
    int n;
    axis_pair other, last;
    ptrdiff_t others, lasts; /* elements of a piece along `other` and `last` */
    int64_t across, along;   /* pieces along `other` and `last` */
    int64_t rounds, rounds_of_piece;
} copying;

/* The k-th piece of an axis; moves both addresses to its start. */
static axis_pair piece_of(axis_pair axis, int64_t k, ptrdiff_t piece, const char **from,
                          char **to) {
    *from += k * piece * axis.from;
    *to += k * piece * axis.to;
    return (axis_pair){at_most(piece, axis.size - k * piece), axis.from, axis.to};
}

static void copy_piece(const void *copying_, int64_t index) {
    const copying *c = copying_;
    const char *from = c->from;
    char *to = c->to;
    const axis_pair last = piece_of(c->last, index % c->along, c->lasts, &from, &to);
    index /= c->along;
    const axis_pair other = piece_of(c->other, index % c->across, c->others, &from, &to);
    index /= c->across;
    const int64_t first = index * c->rounds_of_piece;
    const int64_t end = at_most(first + c->rounds_of_piece, c->rounds);
    for (int64_t round = first; round < end; round++) {
        ptrdiff_t at_from = 0, at_to = 0;
        int64_t rest = round;
        for (int a = c->n - 1; a >= 0; a--) {
            at_from += rest % c->axis[a].size * c->axis[a].from;
            at_to += rest % c->axis[a].size * c->axis[a].to;
            rest /= c->axis[a].size;
        }
        copy_two_axes(from + at_from, to + at_to, other, last, c->itemsize);
    }
}

static axis_pair take_last(copying *c) {
    return c->n ? c->axis[--c->n] : (axis_pair){1, 0, 0};
}

void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_axes *axes,
                      int num_threads) {
    copying c = {.from = from->data, .to = to->data, .itemsize = to->itemsize};
    for (int k = 0; k < axes->n; k++) {
        const int axis = axes->axis[k];
        add_axis(c.axis, &c.n,
                 (axis_pair){from->shape[axis], from->strides[axis], to->strides[axis]});
    }
    c.last = take_last(&c);
    c.other = take_last(&c);
    c.rounds = 1;
    for (int a = 0; a < c.n; a++)
        c.rounds *= c.axis[a].size;
    /* `to` may be contiguous along `other`. So pieces are whole cache lines along it: if pieces
     * start on lines, no two threads write the same line. */
    c.lasts = at_most(c.last.size, PIECE);
    c.others = at_most(c.other.size, round_up(ceil_div(PIECE, c.lasts), 2 * STRIP));
    c.along = ceil_div(c.last.size, c.lasts);
    c.across = ceil_div(c.other.size, c.others);
    const int64_t of_round = c.other.size * c.last.size;
    c.rounds_of_piece = c.along * c.across > 1 ? 1 : ceil_div(PIECE, of_round);
    const int64_t pieces = c.along * c.across * ceil_div(c.rounds, c.rounds_of_piece);
    bn_run_pieces(num_threads, of_round * c.rounds, pieces, copy_piece, &c);
}
