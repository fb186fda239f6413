/* vec_avx2.h: AVX2 with FMA and F16C (x86-64-v3): 32 bytes, in two halves that shuffles do not
 * cross. */
#pragma once

#include <immintrin.h>

#define VEC_BYTES 32
#include "kernels/registers/vec_types.h"

#define OWN_LOAD_BYTES
/* Loads whole words, then a half word, if one is left. A load with a mask costs about nine cycles
 * on a Zen 1, even if the mask keeps all, so a whole register is loaded without a mask. */
INLINE u32v load_bytes(const char *p, int64_t n) {
    if (n == VEC_BYTES)
        return *(const u32v_any *)p;
    const __m256i byte = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i all = _mm256_set1_epi32((int)n - 3);
    __m256i v = _mm256_maskload_epi32((const int *)p, _mm256_cmpgt_epi32(all, byte));
    if (n & 2) {
        uint16_t last;
        memcpy(&last, p + n - 2, sizeof last);
        const __m256i there = _mm256_cmpeq_epi32(byte, _mm256_set1_epi32((int)n - 2));
        v = _mm256_or_si256(v, _mm256_and_si256(there, _mm256_set1_epi32(last)));
    }
    return (u32v)v;
}
#define OWN_NONTEMPORAL
INLINE void store_nontemporal(char *p, u32v v) {
    _mm256_stream_si256((void *)p, (__m256i)v);
}
INLINE void nontemporal_fence(void) {
    _mm_sfence();
}

#define OWN_LARGER_U32
INLINE u32v larger_u32(u32v a, u32v b) {
    return (u32v)_mm256_max_epu32((__m256i)a, (__m256i)b);
}
INLINE u32v smaller_u32(u32v a, u32v b) {
    return (u32v)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

INLINE bool f32_any_nan(f32v a, f32v b) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q));
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q));
}

INLINE f64v widen_low(f32v v) {
    return (f64v)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v));
}
INLINE f64v widen_high(f32v v) {
    return (f64v)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1));
}

#define OWN_SQUARE_ERROR
INLINE f64v square_error(f64v x) {
    return (f64v)_mm256_fmsub_pd((__m256d)x, (__m256d)x, (__m256d)(x * x));
}

#define OWN_SUM_OF_LANES
INLINE double sum_of_lanes(f64v v) {
    const __m128d low = _mm256_castpd256_pd128((__m256d)v);
    const __m128d sum = low + _mm256_extractf128_pd((__m256d)v, 1);
    return sum[0] + sum[1];
}

#define OWN_F16
INLINE f32v widen_f16(u16h half) {
    return (f32v)_mm256_cvtph_ps((__m128i)half);
}
INLINE u16h narrow_f16(f32v v) {
    return (u16h)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#define OWN_JOIN_HALVES
INLINE u32v join_halves(u16h low, u16h high) {
    return (u32v)_mm256_set_m128i((__m128i)high, (__m128i)low);
}

#define OWN_PAIRS
INLINE void join_pair(f32v even, f32v odd, f32v out[2]) {
    const __m256 a = _mm256_unpacklo_ps((__m256)even, (__m256)odd);
    const __m256 b = _mm256_unpackhi_ps((__m256)even, (__m256)odd);
    out[0] = (f32v)_mm256_permute2f128_ps(a, b, 0x20);
    out[1] = (f32v)_mm256_permute2f128_ps(a, b, 0x31);
}
INLINE f32v split_pair(f32v first, f32v second, int h) {
    const __m256 a = _mm256_permute2f128_ps((__m256)first, (__m256)second, 0x20);
    const __m256 b = _mm256_permute2f128_ps((__m256)first, (__m256)second, 0x31);
    return (f32v)(h ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88));
}
