/* number_f64.h: registers of doubles, which float64 is computed in. */
#ifndef BN_NUMBER_H
#define BN_NUMBER_H

#include "kernels/kernels.h"
#include "kernels/vec.h"

#define ARITHMETIC f64
typedef double num;
typedef f64v vec;
typedef f64v_any vec_any;
typedef uint64_t word;
typedef u64v word_vec;
#define any_nan        f64_any_nan
#define where_positive f64_where_positive
#define larger         larger_u64
#define smaller        smaller_u64

INLINE vec canonical(vec v) {
    const u64v number = (u64v)(v == v);
    return (vec)((number & (u64v)v) | (~number & ((u64v){0} + (0x7ff8ull << 48))));
}

/* Doubles are summed in one register; the other keeps what the additions round away. */
INLINE void wide_add(wide *w, vec term) {
    two_sum(&w->v[0], &w->v[1], term);
}
INLINE wide wide_load(const double *sum, const double *compensation) {
    return (wide){{*(const f64v_any *)sum, *(const f64v_any *)compensation}};
}
INLINE void wide_store(double *sum, double *compensation, wide w) {
    *(f64v_any *)sum = w.v[0];
    *(f64v_any *)compensation = w.v[1];
}

/* ---- sums without rounding: kernels/exact.inc ---------------------------------- */

/* A term is added as two doubles that have bits to spare: its upper 26 bits and the other 27.
 * Squares, whose exponents differ twice as much, are cut in three. */
enum {
    NUMBER_BITS = 53,
    PART_BITS = 27,
    SQUARE_PART_BITS = 18,
    PARTS = 2,        /* registers of doubles that a register of terms becomes */
    SQUARE_PARTS = 3, /* ... of squares */
    LARGEST_EXPONENT = 1023,
};

INLINE vec first_bits(vec t, int n) {
    return (vec)((u64v)t & (UINT64_MAX << (NUMBER_BITS - n)));
}
INLINE void cut_term(vec t, bool square, f64v part[SQUARE_PARTS]) {
    if (!square) {
        part[0] = first_bits(t, NUMBER_BITS - PART_BITS);
        part[1] = t - part[0];
    } else {
        const vec upper = first_bits(t, SQUARE_PART_BITS),
                  two = first_bits(t, 2 * SQUARE_PART_BITS);
        part[0] = upper;
        part[1] = two - upper;
        part[2] = t - two;
    }
}

/* Half h of a register of numbers as doubles: here the whole register. */
INLINE f64v doubles_of(vec v, int h) {
    (void)h;
    return v;
}

#include "kernels/number.inc"

#endif
