/* number_f64.h: registers of doubles, in which float64 is computed. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/registers/vec.h"

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

/* ---- sums without rounding: kernels/exact/exact.inc ---------------------------------- */

enum {
    NUMBER_BITS = 53,
    HALVES = 1, /* registers of doubles that one register of terms becomes */
    LARGEST_EXPONENT = 1023,
};

/* Half h of a register of numbers as doubles: here the whole register. */
INLINE f64v doubles_of(vec v, int h) {
    (void)h;
    return v;
}
