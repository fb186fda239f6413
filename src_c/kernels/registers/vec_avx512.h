/* vec_avx512.h: AVX-512 F, BW, DQ and VL with BMI2 (x86-64-v4): 64 bytes, and masks. */
#pragma once

#include <immintrin.h>

#define VEC_BYTES 64
#include "kernels/registers/vec_types.h"

#define OWN_LOAD_BYTES
INLINE u32v load_bytes(const char *p, int64_t n) {
    return (u32v)_mm512_maskz_loadu_epi8(_bzhi_u64(~0ull, (unsigned)n), p);
}
#define OWN_STORE_BYTES
INLINE void store_bytes(char *p, u32v v, int64_t n) {
    _mm512_mask_storeu_epi8(p, _bzhi_u64(~0ull, (unsigned)n), (__m512i)v);
}
#define OWN_NONTEMPORAL
INLINE void store_nontemporal(char *p, u32v v) {
    _mm512_stream_si512((void *)p, (__m512i)v);
}
INLINE void nontemporal_fence(void) {
    _mm_sfence();
}

#define OWN_LARGER_U32
INLINE u32v larger_u32(u32v a, u32v b) {
    return (u32v)_mm512_max_epu32((__m512i)a, (__m512i)b);
}
INLINE u32v smaller_u32(u32v a, u32v b) {
    return (u32v)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

INLINE bool f32_any_nan(f32v a, f32v b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q);
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_UNORD_Q);
}

#define OWN_WHERE
INLINE f32v f32_where_positive(f32v gate, f32v v) {
    const __mmask16 passes = _mm512_cmp_ps_mask((__m512)gate, _mm512_setzero_ps(), _CMP_NLE_UQ);
    return (f32v)_mm512_maskz_mov_ps(passes, (__m512)v);
}
INLINE f64v f64_where_positive(f64v gate, f64v v) {
    const __mmask8 passes = _mm512_cmp_pd_mask((__m512d)gate, _mm512_setzero_pd(), _CMP_NLE_UQ);
    return (f64v)_mm512_maskz_mov_pd(passes, (__m512d)v);
}

INLINE f32v keep_f32(uint32_t bits, f32v v) {
    return (f32v)_mm512_maskz_mov_ps((__mmask16)bits, (__m512)v);
}
INLINE f32v keep_even_f32(uint32_t bits, f32v v) {
    return keep_f32(_pext_u32(bits, 0x55555555u), v);
}
INLINE f64v keep_f64(uint32_t bits, f64v v) {
    return (f64v)_mm512_maskz_mov_pd((__mmask8)bits, (__m512d)v);
}

INLINE f64v widen_low(f32v v) {
    return (f64v)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
}
INLINE f64v widen_high(f32v v) {
    return (f64v)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
}

#define OWN_SQUARE_ERROR
INLINE f64v square_error(f64v x) {
    return (f64v)_mm512_fmsub_pd((__m512d)x, (__m512d)x, (__m512d)(x * x));
}

#define OWN_SUM_OF_LANES
INLINE double sum_of_lanes(f64v v) {
    const __m256d low = _mm512_castpd512_pd256((__m512d)v);
    const __m256d half = low + _mm512_extractf64x4_pd((__m512d)v, 1);
    const __m128d sum = _mm256_castpd256_pd128(half) + _mm256_extractf128_pd(half, 1);
    return sum[0] + sum[1];
}

#define OWN_F16
INLINE f32v widen_f16(u16h half) {
    return (f32v)_mm512_cvtph_ps((__m256i)half);
}
INLINE u16h narrow_f16(f32v v) {
    return (u16h)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#define OWN_JOIN_HALVES
INLINE u32v join_halves(u16h low, u16h high) {
    return (u32v)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
}

#define OWN_BF16_ROUND
/* The same sum as in vec_portable.h, one instruction shorter: a - ~b is a + b + 1, and the ternary
 * instruction gives ~((bits >> 16 & 1) | 0x7ffe). */
INLINE u32v bf16_round(f32v v) {
    const u32v bits = (u32v)v;
    const __m512i one = _mm512_set1_epi32(1), most = _mm512_set1_epi32(0x7ffe);
    return bits - (u32v)_mm512_ternarylogic_epi32((__m512i)(bits >> 16), one, most, 0x15);
}

#define OWN_IN_HAND
/* Without this, gcc reads memory twice, for the even and for the odd elements; a load that
 * straddles cache lines then costs twice. */
INLINE u32v in_hand(u32v v) {
    __asm__("" : "+v"(v));
    return v;
}

#define OWN_PAIRS
INLINE void join_pair(f32v even, f32v odd, f32v out[2]) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    out[0] = (f32v)_mm512_permutex2var_ps((__m512)even, low, (__m512)odd);
    out[1] = (f32v)_mm512_permutex2var_ps((__m512)even, high, (__m512)odd);
}
INLINE f32v split_pair(f32v first, f32v second, int h) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i pick = _mm512_add_epi32(even, _mm512_set1_epi32(h));
    return (f32v)_mm512_permutex2var_ps((__m512)first, pick, (__m512)second);
}
