/* copies.h: elements from one array to another, wherever both lie. */
#ifndef BN_COPIES_H
#define BN_COPIES_H

#include "axes.h"

/* Copy between arrays of the same shape and itemsize, not empty, taking axes in this order, on as
 * many threads as the elements are worth. */
void bn_copy_elements(const bn_view *from, const bn_view *to, const bn_order *order,
                      int num_threads);

#endif
