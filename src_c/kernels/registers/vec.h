/* vec.h: registers. Types, loads, stores and conversions for every dtype at every
 * instruction-set level, and nothing about batch normalization.
 *
 * A C vector type is as wide as the level's registers, so that ordinary operators
 * (a * x + b) compile to one instruction each. What C cannot say is in one file per
 * instruction set, vec_*.h; functions for which a set has no instruction are in vec_portable.h.
 * The other kernel code has no intrinsics. The functions are:
 *     load_bytes, store_bytes      the first n bytes of a register; load_bytes makes the rest 0
 *     store_nontemporal            bypasses the cache; the address is a multiple of VEC_BYTES. It
 *                                  neither reads the line first nor evicts others, and is ordered
 *                                  with nothing until nontemporal_fence()
 *     larger_u32, smaller_u32      of integers, lane by lane
 *     f32_any_nan, f64_any_nan     is there a NaN in either of two registers?
 *     f32_where_positive, f64_...  v where the gate is above 0 or NaN, elsewhere 0
 *     keep_f32, keep_f64           lane i of a register where bit i is set, elsewhere 0
 *     keep_even_f32                the same with bit 2 * i
 *     widen_low, widen_high        half a register of f32 to f64
 *     square_error                 what rounding x*x takes from it, if nothing over- or underflows
 *     sum_of_lanes                 adds the upper half to the lower until one lane is left
 *     widen_f16, narrow_f16        half a register of f16 to f32 and back
 *     join_halves                  two halves to a register of f16
 *     bf16_round                   f32 rounded so that its upper 16 bits are a bf16
 *     in_hand                      keeps a value in a register: it is not loaded again for each use
 *     join_pair, split_pair        even and odd elements to and from two registers in order
 *
 * Rounding assumes the default floating-point environment (see fp_mode.h). */
#pragma once

#if defined(__AVX512F__)
#include "kernels/registers/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernels/registers/vec_avx2.h"
#elif defined(__x86_64__)
#include "kernels/registers/vec_sse2.h"
#else
#include "kernels/registers/vec_neon.h"
#endif
#include "kernels/registers/vec_portable.h"

enum { DOUBLES = VEC_BYTES / sizeof(double) }; /* in a register */

/* ---- bits --------------------------------------------------------------- */

/* At least 57 bits, from number `bit` on. Up to 8 bytes past the last bit may be read. */
INLINE uint64_t bits_at(const char *bytes, int64_t bit) {
    uint64_t bits;
    memcpy(&bits, bytes + bit / 8, sizeof bits);
    return bits >> bit % 8;
}

/* ---- sums that are wider than their terms ------------------------------ */

/* The sums so far of a register of columns. Floats are summed in two registers of doubles. Doubles
 * are summed in one register; the other keeps what the additions round away (TwoSum: Knuth, TAOCP
 * vol. 2, 4.2.2, theorem B). */
typedef struct {
    f64v v[2];
} sum_regs;

INLINE void two_sum(f64v *sum, f64v *compensation, f64v term) {
    const f64v total = *sum + term;
    const f64v added = total - *sum;
    *compensation += (*sum - (total - added)) + (term - added);
    *sum = total;
}
