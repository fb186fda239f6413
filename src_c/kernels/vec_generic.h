/* vec_generic.h: for machines without a file of their own: 16 bytes, which the compiler maps to
 * what there is. Correct everywhere, fast nowhere. */
#ifndef BN_VEC_GENERIC_H
#define BN_VEC_GENERIC_H

#define VEC_BYTES            16
#define STRANDS_SIDE_BY_SIDE 0
#include "kernels/vec_portable.h"

INLINE u32v load_bytes(const char *p, int64_t n) {
    return load_bytes_by_words(p, n);
}
INLINE void store_bytes(char *p, u32v v, int64_t n) {
    store_bytes_by_copy(p, v, n);
}
INLINE void store_nontemporal(char *p, u32v v) {
    *(u32v_any *)p = v;
}
INLINE void nontemporal_fence(void) {
}

/* There may be: looking costs as much as replacing. */
INLINE u32v larger_u32(u32v a, u32v b) {
    return larger_u32_by_bits(a, b);
}
INLINE u32v smaller_u32(u32v a, u32v b) {
    return smaller_u32_by_bits(a, b);
}
INLINE u64v larger_u64(u64v a, u64v b) {
    return larger_u64_by_bits(a, b);
}
INLINE u64v smaller_u64(u64v a, u64v b) {
    return smaller_u64_by_bits(a, b);
}

INLINE bool f32_any_nan(f32v a, f32v b) {
    (void)a, (void)b;
    return true;
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    (void)a, (void)b;
    return true;
}

INLINE f32v f32_where_positive(f32v gate, f32v v) {
    return f32_where_positive_by_bits(gate, v);
}
INLINE f64v f64_where_positive(f64v gate, f64v v) {
    return f64_where_positive_by_bits(gate, v);
}

INLINE f32v keep_f32(uint32_t bits, f32v v) {
    return keep_f32_by_bits(bits, v);
}
INLINE f32v keep_even_f32(uint32_t bits, f32v v) {
    return keep_even_f32_by_bits(bits, v);
}
INLINE f64v keep_f64(uint32_t bits, f64v v) {
    return keep_f64_by_bits(bits, v);
}

INLINE f64v widen_low(f32v v) {
    return (f64v){v[0], v[1]};
}
INLINE f64v widen_high(f32v v) {
    return (f64v){v[2], v[3]};
}

INLINE double sum_of_lanes(f64v v) {
    return sum_of_lanes_by_halves(v);
}

INLINE f32v widen_f16(u16h half) {
    return widen_f16_by_bits(half);
}
INLINE u16h narrow_f16(f32v v) {
    return narrow_f16_by_bits(v);
}
INLINE u32v join_halves(u16h low, u16h high) {
    return join_halves_by_copy(low, high);
}
INLINE u32v bf16_round(f32v v) {
    return bf16_round_by_bits(v);
}
INLINE u32v in_hand(u32v v) {
    return v;
}

INLINE void join_pair(f32v even, f32v odd, f32v out[2]) {
    out[0] = (f32v){even[0], odd[0], even[1], odd[1]};
    out[1] = (f32v){even[2], odd[2], even[3], odd[3]};
}
INLINE f32v split_pair(f32v first, f32v second, int h) {
    return (f32v){first[h], first[2 + h], second[h], second[2 + h]};
}

#endif
