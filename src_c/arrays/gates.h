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

/* The bytes that kernels may read past the last bit; the order of axes in a workspace is longer. */
enum { BN_PAST_BITS = 8 };

/* Write a problem's bits, made from dst, which must be without gaps. */
void bn_make_bits(const bn_problem *p, char *to);

/* Give a problem a gate of its own, made from dst. bn_close_gate frees it. */
bn_status bn_open_gate(bn_problem *p);
void bn_close_gate(bn_problem *p);
