/* copies.c: copies whole operands, those that tasks do not (strided.c). NumPy's own copy is no
 * choice: nothing may fail here, but it allocates memory, and NumPy 2.4 crashes if it gets none. */
#include "arrays/axes.h"
#include "base/machine.h"
#include "base/sizes.h"
#include "call/strided.h"
#include "threads/pool.h"

/* Elements per piece: enough that a piece of a transposed array fills whole cache lines. */
enum { PIECE = 1 << 17 };

typedef struct {
    bn_strided strided;
    char *dense;
    int64_t n;
} copying;

static void copy_piece(const void *copying_, int64_t index) {
    const copying *c = copying_;
    const int64_t begin = index * PIECE;
    bn_copy_range(&c->strided, c->dense, begin, at_most(begin + PIECE, c->n));
}

void bn_copy_elements(const bn_view *view, char *dense, const bn_axes *axes, bool written,
                      int num_threads) {
    copying c = {.dense = dense, .n = 1};
    for (int k = 0; k < axes->n; k++)
        c.n *= view->shape[axes->axis[k]];
    bn_set_strided(&c.strided, view, axes, written);
    c.strided.fetch = c.n * view->itemsize > bn_last_level_bytes() / 4;
    bn_run_pieces(num_threads, c.n, ceil_div(c.n, PIECE), copy_piece, &c);
}
