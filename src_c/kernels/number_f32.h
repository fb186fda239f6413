/* number_f32.h: registers of floats, which float32, float16 and bfloat16 are computed in. */
#ifndef BN_NUMBER_H
#define BN_NUMBER_H

#include "kernels/kernels.h"
#include "kernels/vec.h"

#define ARITHMETIC f32
typedef float num;
typedef f32v vec;
typedef f32v_any vec_any;
typedef uint32_t word;
typedef u32v word_vec;
#define any_nan        f32_any_nan
#define where_positive f32_where_positive
#define larger         larger_u32
#define smaller        smaller_u32

INLINE vec canonical(vec v) {
    return (vec)select_u32((u32v)(v == v), (u32v)v, (u32v){0} + 0x7fc00000u);
}

/* Floats are summed in doubles, two registers of them for one of floats, and lose nothing that
 * matters. */
INLINE void wide_add(wide *w, vec term) {
    w->v[0] += widen_low(term);
    w->v[1] += widen_high(term);
}
INLINE wide wide_load(const double *sum, const double *compensation) {
    (void)compensation;
    return (wide){{((const f64v_any *)sum)[0], ((const f64v_any *)sum)[1]}};
}
INLINE void wide_store(double *sum, double *compensation, wide w) {
    (void)compensation;
    ((f64v_any *)sum)[0] = w.v[0];
    ((f64v_any *)sum)[1] = w.v[1];
}

/* ---- sums without rounding: kernels/exact.inc ---------------------------------- */

/* A register of terms is added as two registers of doubles, its lower and its upper half: doubles
 * have bits to spare. Squares, whose exponents differ twice as much, are cut in two first. */
enum {
    NUMBER_BITS = 24,
    PART_BITS = 24,
    SQUARE_PART_BITS = 12,
    PARTS = 2,        /* registers of doubles that a register of terms becomes */
    SQUARE_PARTS = 4, /* ... of squares */
    LARGEST_EXPONENT = 127,
};

INLINE void cut_term(vec t, bool square, f64v part[SQUARE_PARTS]) {
    const vec upper = square ? (vec)((u32v)t & (~0u << 12)) : t, rest = t - upper;
    part[0] = widen_low(upper);
    part[1] = widen_high(upper);
    if (square) {
        part[2] = widen_low(rest);
        part[3] = widen_high(rest);
    }
}

/* Half h of a register of numbers as doubles. */
INLINE f64v doubles_of(vec v, int h) {
    return h ? widen_high(v) : widen_low(v);
}

#include "kernels/number.inc"

#endif
