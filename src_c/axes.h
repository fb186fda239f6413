/* axes.h: arrays as they lie in memory, and how they become the axes of a problem.
 *
 * The axis order decides the bits, so it is a rule, not a guess: axes of length 1 are
 * dropped; the rest are sorted by |stride| of src, largest first, equal strides in logical
 * order; axes of stride 0 keep their place; no axis is flipped. What comes before the
 * channel is outer, what comes after it inner. One channel has no place among the others:
 * all axes are inner then.
 *
 * Operands whose own axes do not follow src's order are copied to memory that does, by
 * whoever owns the memory: nothing here allocates, and nothing can fail.
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
    int channel;           /* place of the channel in axis; -1 if it is not there */
} bn_order;

/* The axis order of src, by the rule above. */
void bn_order_of(const bn_view *src, int channel, bn_order *order);

/* Can kernels walk it in this order? Its axes must be in the same order (stride 0 fits
 * anywhere but last) and its last one contiguous. */
bool bn_follows(const bn_view *view, const bn_order *order);

/* Data and axes of a problem, from operands of one shape that follow this order. */
void bn_set_axes(bn_problem *p, const bn_view views[BN_OPERANDS], const bn_order *order,
                 int channel);

/* Copy between arrays of one shape and itemsize, not empty, in this order. */
void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_order *order);

bool bn_same_shape(const bn_view *a, const bn_view *b);

/* Is each element of `a` that of `b`? They are of one shape and itemsize. */
bool bn_same_place(const bn_view *a, const bn_view *b);

/* May two elements of it share memory? No is certain; what is not certain counts as yes. */
bool bn_overlaps_itself(const bn_view *view);

/* Do the bytes from first to last of the one, gaps and all, meet those of the other? */
bool bn_extents_meet(const bn_view *a, const bn_view *b);

#endif
