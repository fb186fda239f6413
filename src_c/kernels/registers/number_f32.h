/* number_f32.h: registers of floats, in which float32, float16 and bfloat16 are computed. */
#pragma once

#include "kernels/kernels.h"
#include "kernels/registers/vec.h"

#define ARITHMETIC f32
typedef float num;
typedef f32v vec;
typedef f32v_any vec_any;
typedef u32v word_vec;
#define any_nan        f32_any_nan
#define where_positive f32_where_positive

INLINE vec canonical(vec v) {
    return (vec)select_u32((u32v)(v == v), (u32v)v, (u32v){0} + 0x7fc00000u);
}

/* Zero plus term; but -0 may stay, because no sum that it joins is -0. */
INLINE sum_regs sum_regs_of(vec term) {
    return (sum_regs){{widen_low(term), widen_high(term)}};
}
INLINE void sum_regs_add(sum_regs *w, vec term) {
    w->v[0] += widen_low(term);
    w->v[1] += widen_high(term);
}
INLINE sum_regs sum_regs_load(const double *sum, const double *compensation) {
    (void)compensation;
    return (sum_regs){{((const f64v_any *)sum)[0], ((const f64v_any *)sum)[1]}};
}
INLINE void sum_regs_store(double *sum, double *compensation, sum_regs w) {
    (void)compensation;
    ((f64v_any *)sum)[0] = w.v[0];
    ((f64v_any *)sum)[1] = w.v[1];
}

/* ---- sums without rounding: kernels/exact/exact.inc ---------------------------------- */

enum {
    NUMBER_BITS = 24,
    HALVES = 2, /* registers of doubles that one register of terms becomes */
    LARGEST_EXPONENT = 127,
};

/* Half h of a register of numbers as doubles. */
INLINE f64v doubles_of(vec v, int h) {
    return h ? widen_high(v) : widen_low(v);
}
