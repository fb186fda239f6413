/* vec_sse2.h: SSE2, which every x86-64 has (baseline): 16 bytes; f16 by integers. */
#ifndef BN_VEC_SSE2_H
#define BN_VEC_SSE2_H

#include <immintrin.h>

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
    _mm_stream_si128((void *)p, (__m128i)v);
}
INLINE void nontemporal_fence(void) {
    _mm_sfence();
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
    return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b));
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    return _mm_movemask_pd(_mm_cmpunord_pd((__m128d)a, (__m128d)b));
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
    return (f64v)_mm_cvtps_pd((__m128)v);
}
INLINE f64v widen_high(f32v v) {
    return (f64v)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v));
}

INLINE double sum_of_lanes(f64v v) {
    return v[0] + v[1];
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
    out[0] = (f32v)_mm_unpacklo_ps((__m128)even, (__m128)odd);
    out[1] = (f32v)_mm_unpackhi_ps((__m128)even, (__m128)odd);
}
INLINE f32v split_pair(f32v first, f32v second, int h) {
    return (f32v)(h ? _mm_shuffle_ps((__m128)first, (__m128)second, 0xdd)
                    : _mm_shuffle_ps((__m128)first, (__m128)second, 0x88));
}

#endif
