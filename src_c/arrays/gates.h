/* gates.h: which elements a ReLU let pass, one bit each. See gates.c.
 *
 * Bits are in the order of src's axes in memory, positions x channels x run, without gaps; the
 * first element has the lowest bit of the first byte. In a workspace, that order (bn_write_axes)
 * stands behind them: src may have another one when they are read. A ReLU stops elements that are 0
 * or less; all others pass, NaN too. */
#pragma once

#include "base/bn.h"

static inline int64_t bn_bytes_of_bits(int64_t elements) {
    return elements / 8 + (elements % 8 != 0);
}

/* Write a problem's bits: copied from `given` or, if `given` is NULL, made from dst. */
void bn_make_bits(const bn_problem *p, const char *given, char *to);

/* Give a problem a gate, made by bn_make_bits from `bits` (as `given`). bn_close_gate frees it. */
bn_status bn_open_gate(bn_problem *p, const char *bits);
void bn_close_gate(bn_problem *p);
