/* gates.h: which elements a ReLU let pass, one bit each. See gates.c.
 *
 * Bits are in the order of src's axes in memory, outer | channel | inner, without gaps; the first
 * element has the lowest bit of the first byte. A ReLU stops elements that are 0 or less; all
 * others pass, NaN too.
 */
#ifndef BN_GATES_H
#define BN_GATES_H

#include "bn.h"

/* Bytes that hold a bit for each element. */
static inline int64_t bn_bytes_of_bits(int64_t elements) {
    return elements / 8 + (elements % 8 != 0);
}

/* Write a problem's bits: a copy of `given` or, if that is NULL, bits made from dst. */
void bn_make_bits(const bn_problem *p, const char *given, char *to);

/* Give a problem a gate with a copy of such bits; free it again. */
bn_status bn_open_gate(bn_problem *p, const char *bits);
void bn_close_gate(bn_problem *p);

/* Copy n bits. `from` and `to` count bits: 8 times a byte's address, plus a bit's number in it. Up
 * to 8 bytes past the last bit of either may be read; in `to`, the bits past the last one are
 * written back unchanged. */
void bn_copy_bits(uint64_t from, uint64_t to, int64_t n);

#endif
