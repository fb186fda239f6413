/* exact.h: sums that round nothing, so their order is free. See exact.c. */
#pragma once

#include "exact/state.h"
#include "base/memory.h"
#include "kernels/kernels.h"

/* A thread's own memory. `sums` are those of a tile, by columns or, if by runs, by channels. */
typedef struct {
    const bn_dtype_kernels *kernels;
    formula formula;
    int64_t element_bytes, number_bytes;
    bn_accumulator sums, *state; /* all threads share the state */
    bool alone;                  /* does no other thread add to it? */
    bool paired;                 /* do registers have even and odd columns apart? */
    int64_t portion_terms;
    int64_t positions, run;          /* of a row; by runs, both are 1 */
    int64_t from, channels, columns; /* of the tile; there is none yet if `from` is -1 */
    char *terms;                     /* of a portion */
} bn_exact;

static inline const bn_format *bn_format_of_sums(bn_dtype dtype, base_formula f) {
    return &bn_formats[dtype][base_table[f].squares ? BN_OF_MOMENTS : BN_OF_GRADIENTS];
}

/* A state of zeros of n channels, as an accumulator of this formula's sums, by channels. */
bn_accumulator bn_state_sums(bn_dtype dtype, base_formula f, int64_t *state, int64_t n);

/* Room for a thread's memory; state and alone are the caller's to set. A tile has up to so many
 * channels; its rows, so many positions. */
void bn_lay_out_exact(bn_exact *e, const bn_problem *p, const bn_dtype_kernels *kernels, formula f,
                      bool by_runs, int64_t positions, int64_t channels, bn_memory *memory);

/* Take n channels from `from` on as the tile. If there was another one, move its sums to the state;
 * so do with from = -1. */
void bn_take_tile(bn_exact *e, int64_t from, int64_t n);

/* Add the sums of a box of the tile, which starts with the tile's first channel. */
void bn_sum_exactly(bn_exact *e, const bn_box *box, const bn_coefs *coefs);
