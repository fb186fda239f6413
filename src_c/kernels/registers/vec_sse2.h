/* vec_sse2.h: SSE2, which every x86-64 has (baseline): 16 bytes; f16 by integers. */
#pragma once

#include <immintrin.h>

#define VEC_BYTES 16
#include "kernels/registers/vec_types.h"

#define OWN_NONTEMPORAL
INLINE void store_nontemporal(char *p, u32v v) {
    _mm_stream_si128((void *)p, (__m128i)v);
}
INLINE void nontemporal_fence(void) {
    _mm_sfence();
}

INLINE bool f32_any_nan(f32v a, f32v b) {
    return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b));
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    return _mm_movemask_pd(_mm_cmpunord_pd((__m128d)a, (__m128d)b));
}

INLINE f64v widen_low(f32v v) {
    return (f64v)_mm_cvtps_pd((__m128)v);
}
INLINE f64v widen_high(f32v v) {
    return (f64v)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v));
}

#define OWN_PAIRS
INLINE void join_pair(f32v even, f32v odd, f32v out[2]) {
    out[0] = (f32v)_mm_unpacklo_ps((__m128)even, (__m128)odd);
    out[1] = (f32v)_mm_unpackhi_ps((__m128)even, (__m128)odd);
}
INLINE f32v split_pair(f32v first, f32v second, int h) {
    return (f32v)(h ? _mm_shuffle_ps((__m128)first, (__m128)second, 0xdd)
                    : _mm_shuffle_ps((__m128)first, (__m128)second, 0x88));
}
