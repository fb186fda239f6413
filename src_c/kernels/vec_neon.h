/* vec_neon.h: NEON, which every 64-bit Arm has: 16 bytes. */
#ifndef BN_VEC_NEON_H
#define BN_VEC_NEON_H

#include <arm_neon.h>

#define VEC_BYTES            16
#define STRANDS_SIDE_BY_SIDE 1
#include "kernels/vec_portable.h"

INLINE u32v load_bytes(const char *p, int64_t n) {
    return load_bytes_by_words(p, n);
}
INLINE void store_bytes(char *p, u32v v, int64_t n) {
    store_bytes_by_copy(p, v, n);
}
/* gcc has no intrinsic for the nontemporal store (STNP), so this one goes through the cache. */
INLINE void store_nontemporal(char *p, u32v v) {
    *(u32v_any *)p = v;
}
INLINE void nontemporal_fence(void) {
}

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
    return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
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
    return (f64v)vcvt_f64_f32(vget_low_f32((float32x4_t)v));
}
INLINE f64v widen_high(f32v v) {
    return (f64v)vcvt_high_f64_f32((float32x4_t)v);
}

INLINE double sum_of_lanes(f64v v) {
    return v[0] + v[1];
}

INLINE f32v widen_f16(u16h half) {
    return (f32v)vcvt_f32_f16((float16x4_t)half);
}
INLINE u16h narrow_f16(f32v v) {
    return (u16h)vcvt_f16_f32((float32x4_t)v);
}
INLINE u32v join_halves(u16h low, u16h high) {
    return (u32v)vcombine_u16((uint16x4_t)low, (uint16x4_t)high);
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
