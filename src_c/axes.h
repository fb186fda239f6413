/* axes.h: arrays as they lie in memory, and how their axes become those of a problem.
 *
 * The axis order decides the bits, so it is a rule, not a guess: axes of length 1 are
 * dropped; the rest are sorted by |stride| of src, largest first, equal strides in logical
 * order; axes of stride 0 keep their place; no axis is flipped. What comes before the
 * channel is outer, what comes after it inner. One channel has no place among the others:
 * all axes are inner then.
 *
 * An operand whose own axes do not follow src's order is copied to memory that does. The caller
 * provides that memory: nothing here allocates, and nothing can fail.
 */
#ifndef AXES_H
#define AXES_H

#include <stddef.h>

#include "bn.h"

/* An array of any rank: elements of itemsize bytes, axes with their strides in bytes. */
typedef struct {
    char *data;
    ptrdiff_t itemsize;
    int ndim;
    const ptrdiff_t *shape, *strides;
} bn_view;

typedef struct {
    int n;                 /* axes longer than 1 */
    int axis[BN_MAX_AXES]; /* slowest first */
    int channel_place;     /* of the channel axis, in axis; -1 if it is not there */
} bn_order;

/* Places along n axes; one if there are none. */
static inline int64_t count_of(const bn_axis *axes, int n) {
    int64_t count = 1;
    for (int a = 0; a < n; a++)
        count *= axes[a].size;
    return count;
}

/* Add the offset of the index-th place along axes, the last of them fastest. */
static inline void add_offset(const bn_axis *axes, int n, int64_t index,
                              int64_t offset[BN_OPERANDS]) {
    for (int a = n - 1; a >= 0 && index; a--) {
        int64_t at = index;
        if (a > 0) {
            at = index % axes[a].size;
            index /= axes[a].size;
        }
        for (int o = 0; o < BN_OPERANDS; o++)
            offset[o] += at * axes[a].stride[o];
    }
}

static inline ptrdiff_t bytes_apart(ptrdiff_t stride) {
    return stride < 0 ? -stride : stride;
}

/* The axis order of src, by the rule above. */
void bn_order_of(const bn_view *src, int channel_axis, bn_order *order);

/* Can it be walked in this order? Its axes must lie in the same order (stride 0 fits anywhere but
 * last), and the last must be contiguous. */
bool bn_follows(const bn_view *view, const bn_order *order);

/* Append an axis, or merge it into the one before if, along all strides, a step of that one leads
 * just behind the end of this one. */
void bn_add_axis(bn_axis *axes, int *n, const bn_axis *axis);

/* Set a problem's data and axes, from operands of the same shape that follow this order. */
void bn_set_axes(bn_problem *p, const bn_view views[BN_OPERANDS], const bn_order *order,
                 int channel_axis);

bool bn_same_shape(const bn_view *a, const bn_view *b);

/* Does each element of `a` lie where that of `b` does? Shape and itemsize are the same. */
bool bn_same_place(const bn_view *a, const bn_view *b);

/* Might two of its elements share memory? False is certain; what is uncertain counts as true. */
bool bn_overlaps_itself(const bn_view *view);

/* Copy between arrays of the same shape and itemsize, not empty, taking axes in this order, on as
 * many threads as the elements are worth (copies.c). */
void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_order *order,
                      int num_threads);

/* Do the two overlap, if each is taken with its gaps, from its first byte to its last? */
bool bn_extents_meet(const bn_view *a, const bn_view *b);

#endif
