/* strided.h: copies parts of a view to dense memory or, if it is written, from there. See
 * strided.c. */
#pragma once

#include "call/dispatch.h"
#include "call/order.h"

/* A strided operand: in its axes, `from` is the view and `to` would be a dense array. */
typedef struct {
    char *data;
    bool written;
    bool fetch;                     /* does the view come from memory? set by those who know */
    const bn_copy_kernels *kernels; /* for elements of this size */
    bn_picks picks;
    int n; /* at least 2 */
    bn_axis_pair axis[BN_MAX_AXES + 2];
} bn_strided;

void bn_set_strided(bn_strided *s, const bn_view *view, const bn_axes *axes, bool written);

/* Should tasks copy this view, which does not lie as a problem wants it? If its elements are in
 * another order, or far apart, all of it is better copied at once (arrays/copies.c). */
bool bn_suits_tasks(const bn_view *view, const bn_axes *axes, bool written);

/* Copy elements `begin` to `end`, in the order of axes; of the dense memory, `dense` is where
 * element 0 would be. */
void bn_copy_range(const bn_strided *s, char *dense, int64_t begin, int64_t end);

/* Copy a chunk of the view to dense memory of its own or, if it is written, from there. */
void bn_copy_chunk(const bn_strided *s, const bn_problem *p, const bn_chunk *chunk, char *dense);
