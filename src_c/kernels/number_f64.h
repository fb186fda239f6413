/* number_f64.h: registers of doubles, in which float64 is computed. */
#ifndef BN_NUMBER_H
#define BN_NUMBER_H

#include "kernels/kernels.h"
#include "kernels/vec.h"
#include "exact/state.h"

#define ARITHMETIC f64
typedef double num;
typedef f64v vec;
typedef f64v_any vec_any;
typedef u64v word_vec;
#define any_nan        f64_any_nan
#define where_positive f64_where_positive

INLINE vec canonical(vec v) {
    const u64v number = (u64v)(v == v);
    return (vec)((number & (u64v)v) | (~number & ((u64v){0} + (0x7ff8ull << 48))));
}

INLINE void sum_regs_add(sum_regs *w, vec term) {
    two_sum(&w->v[0], &w->v[1], term);
}
INLINE sum_regs sum_regs_of(vec term) {
    sum_regs w = {{{0}}};
    sum_regs_add(&w, term);
    return w;
}
INLINE sum_regs sum_regs_load(const double *sum, const double *compensation) {
    return (sum_regs){{*(const f64v_any *)sum, *(const f64v_any *)compensation}};
}
INLINE void sum_regs_store(double *sum, double *compensation, sum_regs w) {
    *(f64v_any *)sum = w.v[0];
    *(f64v_any *)compensation = w.v[1];
}

/* ---- sums without rounding: kernels/exact.inc ---------------------------------- */

/* A term is cut into doubles that have bits to spare. */
enum {
    NUMBER_BITS = 53,
    HALVES = 1,       /* registers of doubles that one register of terms becomes */
    TERM_PARTS = 2,   /* doubles into which a term is cut ... */
    SQUARE_PARTS = 4, /* ... and a square, which has 106 bits */
    LARGEST_EXPONENT = 1023,
};

/* Half h of a register of numbers as doubles: here the whole register. */
INLINE f64v doubles_of(vec v, int h) {
    (void)h;
    return v;
}

/* Cut a register of terms, or the squares of these terms, into doubles: whole grains of each anchor
 * (exact.inc), and what is left. Nothing is rounded if the sums' range says so (bn_added). */
INLINE void cut_term(vec t, int h, const f64v *anchor, f64v part[TERM_PARTS]) {
    (void)h;
    part[0] = (t + anchor[0]) - anchor[0];
    part[1] = t - part[0];
}
INLINE void cut_square(vec t, int h, const f64v *anchor, f64v part[SQUARE_PARTS]) {
    const f64v square = t * t, error = square_error(t);
    (void)h;
    part[0] = (square + anchor[0]) - anchor[0];
    const f64v left = square - part[0], upper = (left + anchor[1]) - anchor[1];
    const f64v upper_error = (error + anchor[1]) - anchor[1], left_error = error - upper_error;
    const f64v middle_error = (left_error + anchor[2]) - anchor[2];
    part[1] = upper + upper_error;
    /* Let u be anchor 2's grain, s the unit in the last place of `square`, and e that of the exact
     * square; s is 2^52 e or 2^53 e. Part 3 is what the error has below u. For two or more terms,
     * the range has a bit for carries. If part 3 and that bit fit in 53 bits, part 3 has at most 52
     * bits. So u is at most 2^52 e, and at most s. Then left - upper and middle_error are multiples
     * of u, and part 2, their sum, is exact. (For a single term, u may be 2 s; part 2 has bits to
     * spare.) */
    part[2] = (left - upper) + middle_error;
    part[3] = left_error - middle_error;
}

#include "kernels/number.inc"

#endif
