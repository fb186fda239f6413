/* gates.h: which elements a ReLU let pass, one bit each. See gates.c.
 *
 * Bits are in the order of src's axes in memory, outer | channel | inner, as if there were no gaps;
 * the first element's is the lowest of the first byte. A ReLU lets all pass but what is 0 or less.
 */
#ifndef BN_GATES_H
#define BN_GATES_H

#include "bn.h"

/* Bytes that hold a bit for each element. */
static inline int64_t bn_bytes_of_bits(int64_t elements) {
    return elements / 8 + (elements % 8 != 0);
}

/* Write the bits of a problem: a copy of those given, or where they are NULL made from its dst. */
void bn_make_bits(const bn_problem *p, const char *given, char *to);

/* Give a problem a gate of such bits; or free it. */
bn_status bn_open_gate(bn_problem *p, const char *bits);
void bn_close_gate(bn_problem *p);

/* Copy n bits; places are numbers of bits. Up to 8 bytes behind either's last may be read, and
 * behind the last one that is written, what is there is written again. */
void bn_copy_bits(uint64_t from, uint64_t to, int64_t n);

#endif
