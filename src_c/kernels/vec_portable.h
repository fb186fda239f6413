/* vec_portable.h: the types of registers, and what plain C can do with them.
 *
 * An instruction set's file (vec_*.h) defines VEC_BYTES, includes this one, and defines all
 * of the functions that vec.h lists, by intrinsics or by one of those here, which are right
 * for registers of every width.
 */
#ifndef BN_VEC_PORTABLE_H
#define BN_VEC_PORTABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Under a sanitizer, fully inlined loops with their checks would take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* gcc makes copies of a function for constants that it is called with, even where it is not to be
 * inlined. */
#if defined(__clang__)
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noinline, noclone))
#endif

typedef float f32v __attribute__((vector_size(VEC_BYTES)));
typedef double f64v __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t u32v __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t u64v __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t u16h __attribute__((vector_size(VEC_BYTES / 2)));

/* The same, at any address in memory, and whatever type was written there. */
typedef f32v f32v_any __attribute__((aligned(1), may_alias));
typedef f64v f64v_any __attribute__((aligned(1), may_alias));
typedef u32v u32v_any __attribute__((aligned(1), may_alias));
typedef u16h u16h_any __attribute__((aligned(1), may_alias));

/* A lane of a comparison is all ones where the comparison holds, else all zeros. */
INLINE u32v select_u32(u32v where, u32v yes, u32v no) {
    return (where & yes) | (~where & no);
}

INLINE u32v larger_u32_by_bits(u32v a, u32v b) {
    return select_u32((u32v)(a > b), a, b);
}
INLINE u32v smaller_u32_by_bits(u32v a, u32v b) {
    return select_u32((u32v)(a < b), a, b);
}
INLINE u64v larger_u64_by_bits(u64v a, u64v b) {
    return (u64v)select_u32((u32v)(a > b), (u32v)a, (u32v)b);
}
INLINE u64v smaller_u64_by_bits(u64v a, u64v b) {
    return (u64v)select_u32((u32v)(a < b), (u32v)a, (u32v)b);
}

INLINE f32v f32_where_positive_by_bits(f32v gate, f32v v) {
    return (f32v)(~(u32v)(gate <= 0) & (u32v)v);
}
INLINE f64v f64_where_positive_by_bits(f64v gate, f64v v) {
    return (f64v)(~(u64v)(gate <= 0) & (u64v)v);
}

/* Of lane i, bit i; and bit 2 * i. */
static const uint32_t lane_bits[16] = {1u << 0,  1u << 1,  1u << 2,  1u << 3, 1u << 4,  1u << 5,
                                       1u << 6,  1u << 7,  1u << 8,  1u << 9, 1u << 10, 1u << 11,
                                       1u << 12, 1u << 13, 1u << 14, 1u << 15};
static const uint32_t even_lane_bits[16] = {
    1u << 0,  1u << 2,  1u << 4,  1u << 6,  1u << 8,  1u << 10, 1u << 12, 1u << 14,
    1u << 16, 1u << 18, 1u << 20, 1u << 22, 1u << 24, 1u << 26, 1u << 28, 1u << 30};
static const uint64_t wide_lane_bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};

INLINE f32v keep_f32_by_bits(uint32_t bits, f32v v) {
    const u32v own = *(const u32v_any *)lane_bits;
    return (f32v)((u32v)((own & bits) == own) & (u32v)v);
}
INLINE f32v keep_even_f32_by_bits(uint32_t bits, f32v v) {
    const u32v own = *(const u32v_any *)even_lane_bits;
    return (f32v)((u32v)((own & bits) == own) & (u32v)v);
}
INLINE f64v keep_f64_by_bits(uint32_t bits, f64v v) {
    const u64v own = (u64v) * (const u32v_any *)wide_lane_bits;
    return (f64v)((u64v)((own & (uint64_t)bits) == own) & (u64v)v);
}

/* Of registers of 16 bytes. By words that overlap, which never pass through memory: a register that
 * is loaded from where words were just stored waits for them. */
INLINE u32v load_bytes_by_words(const char *p, int64_t n) {
    uint64_t low = 0, high = 0;
    uint32_t word;
    uint16_t half;
    if (n >= 8) {
        memcpy(&low, p, sizeof low);
        memcpy(&high, p + n - 8, sizeof high);
        high = n > 8 ? high >> 8 * (16 - n) : 0;
    } else if (n >= 4) {
        memcpy(&word, p, sizeof word);
        low = word;
        memcpy(&word, p + n - 4, sizeof word);
        low |= (uint64_t)word << 8 * (n - 4);
    } else if (n >= 2) {
        memcpy(&half, p, sizeof half);
        low = half;
    }
    return (u32v)(u64v){low, high};
}

INLINE void store_bytes_by_copy(char *p, u32v v, int64_t n) {
    if (n == VEC_BYTES)
        *(u32v_any *)p = v;
    else
        memcpy(p, &v, (size_t)n);
}

INLINE double sum_of_lanes_by_halves(f64v v) {
    double lane[VEC_BYTES / sizeof(double)];
    memcpy(lane, &v, sizeof lane);
    for (int half = VEC_BYTES / (int)sizeof(double) / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* f16 and f32 by integers. Two exact facts: an f16's bits, shifted to an f32's place, are its
 * value times 2^-112, subnormals included; and one unit of 0.5f's last place is 2^-24, the
 * spacing of f16's subnormals. Called, not inlined: a third of the lowest level's code would be
 * copies of them. */
#define CALLED static __attribute__((noinline, unused))
CALLED f32v widen_f16_by_bits(u16h half) {
    const u32v bits = __builtin_convertvector(half, u32v);
    const u32v magnitude = (bits & 0x7fffu) << 13;
    const f32v value = (f32v)magnitude * 0x1p112f;
    const u32v infinite = (u32v)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
    return (f32v)((u32v)value | infinite | (bits & 0x8000u) << 16);
}

CALLED u16h narrow_f16_by_bits(f32v v) {
    const u32v bits = (u32v)v, magnitude = bits & 0x7fffffffu;
    const u32v normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const u32v subnormal = (u32v)((f32v)magnitude + 0.5f) - 0x3f000000u;
    u32v half = select_u32((u32v)(magnitude < (113u << 23)), subnormal, normal);
    half = select_u32((u32v)(magnitude >= (143u << 23)), (u32v){0} + 0x7c00u, half);
    half = select_u32((u32v)(magnitude > 0x7f800000u), (u32v){0} + 0x7e00u, half);
    return __builtin_convertvector(half | (bits >> 16 & 0x8000u), u16h);
}

INLINE u32v join_halves_by_copy(u16h low, u16h high) {
    const u16h half[2] = {low, high};
    u32v both;
    memcpy(&both, half, sizeof both);
    return both;
}

/* Adds 0x7fff and the last kept bit: the kept bits are then rounded to nearest even. */
INLINE u32v bf16_round_by_bits(f32v v) {
    const u32v bits = (u32v)v;
    return bits + 0x7fffu + (bits >> 16 & 1u);
}

#endif
