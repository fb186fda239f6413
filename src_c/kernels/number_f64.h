/* number_f64.h: registers of doubles, which float64 are computed in. */
#ifndef BN_NUMBER_H
#define BN_NUMBER_H

#include "kernels/kernels.h"
#include "kernels/vec.h"

#define ARITHMETIC f64
typedef double num;
typedef f64v vec;
enum { LANES = VEC_BYTES / sizeof(num) }; /* numbers in a register */

INLINE vec load_numbers(const void *p) {
    return *(const f64v_any *)p;
}
/* The first n of them; the others are 0. */
INLINE vec load_first_numbers(const void *p, int64_t n) {
    return (vec)load_bytes(p, (int64_t)sizeof(num) * n);
}

/* x86 and Arm make NaNs of different sign, so every NaN that is written is made the positive quiet
 * one without payload. NaNs are rare: to look for them, two registers at a time, and replace them
 * only where there are any is fastest. */
INLINE bool any_nan(vec a, vec b) {
    return f64_any_nan(a, b);
}
INLINE vec canonical(vec v) {
    const u64v number = (u64v)(v == v);
    return (vec)((number & (u64v)v) | (~number & ((u64v){0} + (0x7ff8ull << 48))));
}

/* v where the gate is not 0 or less (a NaN is not), elsewhere 0. */
INLINE vec where_positive(vec gate, vec v) {
    return f64_where_positive(gate, v);
}

/* Doubles are summed with what the additions round away kept beside them. */
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

/* A term is added as doubles that have bits to spare: its upper 26 bits, and the other 27. Squares,
 * whose exponents differ twice as much, are cut in three. */
enum {
    NUMBER_BITS = 53,
    PART_BITS = 27,
    SQUARE_PART_BITS = 18,
    PARTS = 2,        /* registers of doubles that a register of terms makes */
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

/* Magnitudes as integers, twice each, so that the sign is gone: the largest, and the smallest but
 * for 0, less one. */
typedef struct {
    u64v most, least;
} magnitudes;

INLINE magnitudes no_magnitudes(void) {
    return (magnitudes){{0}, ~(u64v){0}};
}
INLINE void see_magnitudes(magnitudes *m, vec t) {
    const u64v twice = (u64v)t << 1;
    m->most = larger_u64(m->most, twice);
    m->least = smaller_u64(m->least, twice - 1);
}

/* The exponent of a number that is given by its bits, or of its square: at least that of normal
 * ones; of squares that overflow, one that no finite number has. */
INLINE int exponent_of(uint64_t bits, bool square) {
    num value;
    memcpy(&value, &bits, sizeof value);
    value = square ? value * value : value;
    memcpy(&bits, &value, sizeof bits);
    const int exponent = (int)(bits >> 52) - 1023;
    return exponent < -1022 ? -1022 : exponent;
}

/* Between which powers of 2 they lie, or their squares. */
INLINE bn_range range_of(const magnitudes *m, bool square) {
    uint64_t most = 0, least = ~(uint64_t)0;
    for (int i = 0; i < LANES; i++) {
        most = m->most[i] > most ? m->most[i] : most;
        least = m->least[i] < least ? m->least[i] : least;
    }
    if (most == 0)
        return BN_NO_RANGE;
    return (bn_range){exponent_of(most / 2, square) + 1, exponent_of((least + 1) / 2, square)};
}

/* Half h of a register of numbers as doubles; there is one. */
INLINE f64v doubles_of(vec v, int h) {
    (void)h;
    return v;
}

#endif
