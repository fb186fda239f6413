/* number.h: what both arithmetic types have in common: loads, and magnitudes of terms. A dtype's
 * file includes its arithmetic type's before; an editor that opens this one alone sees floats. */
#pragma once

#ifndef ARITHMETIC
#include "kernels/registers/number_f32.h"
#endif

enum { LANES = VEC_BYTES / sizeof(num) }; /* numbers in a register */

INLINE vec load_numbers(const void *p) {
    return *(const vec_any *)p;
}
/* The first n numbers; the others are 0. */
INLINE vec load_first_numbers(const void *p, int64_t n) {
    return (vec)load_bytes(p, (int64_t)sizeof(num) * n);
}

/* ---- magnitudes ---------------------------------------------------------- */

/* The magnitudes seen so far, as integers: a number's bits shifted left by one, which drops the
 * sign. `most` is the largest one. `least` is the smallest after 1 was subtracted from each: 0
 * wraps around, so zeros do not count. Of doubles, only the upper words, with the exponents, are
 * valid. */
typedef struct {
    u32v most, least;
} magnitudes;

INLINE magnitudes no_magnitudes(void) {
    return (magnitudes){{0}, ~(u32v){0}};
}
INLINE void see_magnitudes(magnitudes *m, vec t) {
    const word_vec twice = (word_vec)t << 1;
    m->most = larger_u32(m->most, (u32v)twice);
    m->least = smaller_u32(m->least, (u32v)(twice - 1));
}

/* The exponent in an upper word, but at least that of the smallest normal number. */
enum { WORDS = sizeof(num) / sizeof(uint32_t) };
INLINE int exponent_of(uint32_t upper) {
    const int biased = (int)(upper >> (NUMBER_BITS - 32 * (WORDS - 1)));
    return (biased > 1 ? biased : 1) - LARGEST_EXPONENT;
}

/* The range of the numbers seen, which have `bits` significant bits. For doubles, the smallest
 * exponent may be 1 too low, because of the 1 subtracted in `least`. */
INLINE bn_range range_of(const magnitudes *m, int bits) {
    uint32_t most = 0, least = UINT32_MAX;
    for (int i = WORDS - 1; i < WORDS * LANES; i += WORDS) {
        most = m->most[i] > most ? m->most[i] : most;
        least = m->least[i] < least ? m->least[i] : least;
    }
    if (least == UINT32_MAX && most == 0) /* a NaN may have all bits set */
        return BN_NO_RANGE;
    return (bn_range){exponent_of(most) + 1, exponent_of(least + (WORDS == 1)) - bits + 1};
}
