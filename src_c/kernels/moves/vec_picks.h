/* vec_picks.h: a register of elements of 2, 4 or 8 bytes, each picked by its number among those of
 * two registers: picked_N, pick_N. PICKED_N is a register's size; 0 where a level has no
 * instruction for it. Where NUMBERED_BYTES_N, each byte of an element has a number; an element of 8
 * bytes may have one for each of its words (NUMBERED_WORDS). */
#pragma once

#include "kernels/registers/vec.h"

typedef uint16_t word_2;
typedef uint32_t word_4;
typedef uint64_t word_8;

#if defined(__AVX512F__)
enum { PICKED_2 = 64, PICKED_4 = 64, PICKED_8 = 64 };
enum { NUMBERED_BYTES_2 = 0, NUMBERED_BYTES_4 = 0, NUMBERED_BYTES_8 = 0, NUMBERED_WORDS = 0 };
typedef u32v picked_2, picked_4, picked_8;
INLINE u32v pick_2(u32v a, u32v b, u32v number) {
    return (u32v)_mm512_permutex2var_epi16((__m512i)a, (__m512i)number, (__m512i)b);
}
INLINE u32v pick_4(u32v a, u32v b, u32v number) {
    return (u32v)_mm512_permutex2var_epi32((__m512i)a, (__m512i)number, (__m512i)b);
}
INLINE u32v pick_8(u32v a, u32v b, u32v number) {
    return (u32v)_mm512_permutex2var_epi64((__m512i)a, (__m512i)number, (__m512i)b);
}

#elif defined(__AVX2__)
enum { PICKED_2 = 16, PICKED_4 = 32, PICKED_8 = 32 };
enum { NUMBERED_BYTES_2 = 1, NUMBERED_BYTES_4 = 0, NUMBERED_BYTES_8 = 0, NUMBERED_WORDS = 1 };
typedef __m128i picked_2;
typedef u32v picked_4, picked_8;
/* A byte whose number has its upper bit set becomes 0. Numbers are below 32. */
INLINE __m128i pick_2(__m128i a, __m128i b, __m128i number) {
    const __m128i in_a = _mm_add_epi8(number, _mm_set1_epi8(0x70));
    const __m128i in_b = _mm_sub_epi8(number, _mm_set1_epi8(16));
    return _mm_or_si128(_mm_shuffle_epi8(a, in_a), _mm_shuffle_epi8(b, in_b));
}
/* Shuffles see the lowest three bits of a number; the select sees the fourth, as a sign. */
INLINE u32v pick_4(u32v a, u32v b, u32v number) {
    const __m256i n = (__m256i)number, in_b = _mm256_slli_epi32(n, 28);
    return (u32v)_mm256_blendv_ps((__m256)_mm256_permutevar8x32_epi32((__m256i)a, n),
                                  (__m256)_mm256_permutevar8x32_epi32((__m256i)b, n), (__m256)in_b);
}
INLINE u32v pick_8(u32v a, u32v b, u32v number) {
    return pick_4(a, b, number);
}

#else
#if defined(__aarch64__)
enum { PICKED_2 = 16 };
INLINE u32v pick_2(u32v a, u32v b, u32v number) {
    return (u32v)vqtbl2q_u8((uint8x16x2_t){{(uint8x16_t)a, (uint8x16_t)b}}, (uint8x16_t)number);
}
#else
enum { PICKED_2 = 0 };
INLINE u32v pick_2(u32v a, u32v b, u32v number) {
    (void)b;
    (void)number;
    return a;
}
#endif
/* Bytes are picked, whatever the size of elements. */
enum { PICKED_4 = PICKED_2, PICKED_8 = PICKED_2 };
enum { NUMBERED_BYTES_2 = 1, NUMBERED_BYTES_4 = 1, NUMBERED_BYTES_8 = 1, NUMBERED_WORDS = 0 };
typedef u32v picked_2, picked_4, picked_8;
INLINE u32v pick_4(u32v a, u32v b, u32v number) {
    return pick_2(a, b, number);
}
INLINE u32v pick_8(u32v a, u32v b, u32v number) {
    return pick_2(a, b, number);
}
#endif
