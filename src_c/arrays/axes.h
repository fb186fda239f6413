/* axes.h: array views, and how their axes become the axes of a problem.
 *
 * The axis order decides the bits, so it follows a fixed rule. Axes of length 1 are dropped. The
 * others are sorted by |stride| in src, largest first; equal strides stay in logical order. Axes of
 * stride 0 keep their logical place. No axis is flipped. Axes before the channel axis are
 * positions, axes after it are a run. With a single channel, the channel axis is dropped too, and
 * all others are its run.
 *
 * An operand that does not follow src's order (bn_follows) is copied, by tasks (call/strided.c) or
 * as a whole, to memory that the caller provides: nothing here allocates, and nothing can fail. */
#pragma once

#include <stddef.h>

#include "base/bn.h"

void bn_axes_of(const bn_view *src, int channel_axis, bn_axes *axes);

/* An order of axes as bytes: the axes, slowest first, those of length 1 last; then eight bytes that
 * tell src's shape and the channel axis. */
static inline ptrdiff_t bn_bytes_of_axes(int ndim) {
    return ndim + (ptrdiff_t)sizeof(uint64_t);
}

void bn_write_axes(const bn_view *src, int channel_axis, const bn_axes *axes, unsigned char *to);

/* Set `axes` to an order that bn_write_axes wrote. False if the bytes are none for src. */
bool bn_read_axes(const unsigned char *from, const bn_view *src, int channel_axis, bn_axes *axes);

/* Can kernels walk `view` in this order, as bn_problem wants it? Or, if it must be `dense`, has it
 * no gaps? */
bool bn_follows(const bn_view *view, const bn_axes *axes, bool dense);

/* Set a problem's data and sizes, from operands of the same shape that follow this order. */
void bn_set_axes(bn_problem *p, const bn_view views[BN_OPERANDS], const bn_axes *axes,
                 int channel_axis);

bool bn_same_shape(const bn_view *a, const bn_view *b);

/* Does each element of `a` have the same address as the same element of `b`? Both must have the
 * same shape and itemsize. */
bool bn_same_place(const bn_view *a, const bn_view *b);

/* Might two elements of `view` share memory? False is certain; true may be a false alarm. */
bool bn_overlaps_itself(const bn_view *view);

/* Do the byte ranges of the two overlap, each from its first byte to its last, gaps included? */
bool bn_extents_meet(const bn_view *a, const bn_view *b);

/* Copy an array that is not empty to dense memory, in this order of axes, or, if it is written,
 * from there; on as many threads as its size is worth (copies.c). */
void bn_copy_elements(const bn_view *view, char *dense, const bn_axes *axes, bool written,
                      int num_threads);
