/* copies.h: copies of arrays. See copies.c. */
#ifndef BN_COPIES_H
#define BN_COPIES_H

#include "arrays/axes.h"

/* Copy an array that is not empty to another of the same shape and itemsize, in this order of axes,
 * on as many threads as its size is worth. */
void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_axes *axes, int num_threads);

#endif
