/* copies.c: copies elements from one array to another, whatever their strides: cuts the copy into
 * pieces of two axes, for kernels/copies.inc. NumPy's own copy is no choice because nothing may
 * fail here: it allocates memory, and NumPy 2.4 crashes if it gets none. */
#include "arrays/axes.h"
#include "base/sizes.h"
#include "call/dispatch.h"
#include "threads/pool.h"

/* Append an axis; or merge it into the previous one if, in both arrays, the stride of the previous
 * axis is as long as all of the new one. */
static void add_axis(bn_axis_pair *axes, int *n, bn_axis_pair axis) {
    const bn_axis_pair last = *n ? axes[*n - 1] : (bn_axis_pair){1, 0, 0};
    if (*n && last.from == axis.from * axis.size && last.to == axis.to * axis.size)
        axes[*n - 1] = (bn_axis_pair){last.size * axis.size, axis.from, axis.to};
    else
        axes[(*n)++] = axis;
}

/* ---- pieces, over threads -------------------------------------------------- */

/* Elements per piece: enough to make the cost of taking the next piece negligible. */
enum { PIECE = 1 << 16 };

/* A copy runs over two axes, `other` and `last`, in a round for each index of the rest. A piece is
 * a part of these two axes in one round, or all of both in several. */
typedef struct {
    const char *from;
    char *to;
    const bn_copy_kernels *kernels; /* for elements of this size */
    bn_picks picks;
    bn_axis_pair axis[BN_MAX_AXES]; /* the rest */
    int n;
    bn_axis_pair other, last;
    ptrdiff_t others, lasts; /* elements of a piece along `other` and `last` */
    int64_t across, along;   /* pieces along `other` and `last` */
    int64_t rounds, rounds_of_piece;
} copying;

/* The k-th piece of an axis; moves both addresses to its start. */
static bn_axis_pair piece_of(bn_axis_pair axis, int64_t k, ptrdiff_t piece, const char **from,
                             char **to) {
    *from += k * piece * axis.from;
    *to += k * piece * axis.to;
    return (bn_axis_pair){at_most(piece, axis.size - k * piece), axis.from, axis.to};
}

static void copy_piece(const void *copying_, int64_t index) {
    const copying *c = copying_;
    const char *from = c->from;
    char *to = c->to;
    const bn_axis_pair last = piece_of(c->last, index % c->along, c->lasts, &from, &to);
    index /= c->along;
    const bn_axis_pair other = piece_of(c->other, index % c->across, c->others, &from, &to);
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
        c->kernels->copy(from + at_from, to + at_to, other, last, &c->picks);
    }
}

static bn_axis_pair take_axis(copying *c, int k) {
    if (k < 0)
        return (bn_axis_pair){1, 0, 0};
    const bn_axis_pair axis = c->axis[k];
    for (c->n--; k < c->n; k++)
        c->axis[k] = c->axis[k + 1];
    return axis;
}

/* An axis along which `from` or `to` is contiguous, if the last one is not; else the one before it.
 * With the last one, it makes rows, or blocks to be transposed. */
static int other_axis(const copying *c, ptrdiff_t itemsize) {
    const bool from = c->last.from == itemsize, to = c->last.to == itemsize;
    for (int k = c->n - 1; from != to && k >= 0; k--)
        if ((from ? c->axis[k].to : c->axis[k].from) == itemsize)
            return k;
    return c->n - 1;
}

void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_axes *axes,
                      int num_threads) {
    const ptrdiff_t itemsize = to->itemsize;
    copying c = {
        .from = from->data,
        .to = to->data,
        .kernels = &bn_level_current()->copies[itemsize == 8 ? 2 : itemsize == 4],
    };
    for (int k = 0; k < axes->n; k++) {
        const int axis = axes->axis[k];
        bn_axis_pair pair = {from->shape[axis], from->strides[axis], to->strides[axis]};
        if (pair.to < 0) { /* kernels expect that `to` is walked forwards */
            c.from += (pair.size - 1) * pair.from;
            c.to += (pair.size - 1) * pair.to;
            pair = (bn_axis_pair){pair.size, -pair.from, -pair.to};
        }
        add_axis(c.axis, &c.n, pair);
    }
    c.last = take_axis(&c, c.n - 1);
    c.other = take_axis(&c, other_axis(&c, itemsize));
    c.kernels->set_picks(&c.picks, c.other, c.last);
    c.rounds = 1;
    for (int a = 0; a < c.n; a++)
        c.rounds *= c.axis[a].size;
    /* `to` may be contiguous along `other`. So pieces are whole cache lines along it: if pieces
     * start on lines, no two threads write the same line. */
    c.lasts = at_most(c.last.size, PIECE);
    c.others = at_most(c.other.size, round_up(ceil_div(PIECE, c.lasts), LINE_BYTES / 2));
    c.along = ceil_div(c.last.size, c.lasts);
    c.across = ceil_div(c.other.size, c.others);
    const int64_t of_round = c.other.size * c.last.size;
    c.rounds_of_piece = c.along * c.across > 1 ? 1 : ceil_div(PIECE, of_round);
    const int64_t pieces = c.along * c.across * ceil_div(c.rounds, c.rounds_of_piece);
    bn_run_pieces(num_threads, of_round * c.rounds, pieces, copy_piece, &c);
}
