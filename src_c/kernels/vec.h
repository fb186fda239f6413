/* vec.h: registers. Types, load, store and convert for every instruction-set
 * level, and nothing about batch normalization.
 *
 * A vector is as wide as the level's registers, so that ordinary operators
 * (a * x + b) compile to one instruction each. What C cannot say (converting
 * 16-bit types, widening a half, touching part of a register) is written here
 * once per level; no other file tests which instruction set it is built for.
 *
 * For each arithmetic type A in {f32, f64}: A_num, A_vec; A_wide_*, sums that are
 * wider than their terms; A_any_nan, A_canonical. For each storage type S in {f32, f64, f16, bf16}:
 *     S_BYTES           the size of an element
 *     S_PACK            vectors that one load or store unit holds: 2 for 16-bit types
 *     S_SHORT           1 if its values have so few bits that eight sum in a float
 *     S_load(p, h)      vector h of the pack at p
 *     S_load_part       the same of a pack that ends after n elements; the rest is 0
 *     S_store(p, v)     a whole pack, rounded to nearest even; every NaN canonical
 *     S_store_part      its first n elements
 *     S_stream          a whole pack past the cache; p is a multiple of VEC_BYTES
 *     S_split, S_join   between column order and pack order
 * A bf16 pack is a row of 32-bit words, each an even element below an odd one:
 * vector 0 holds the even elements, vector 1 the odd ones. Either is one shift or
 * one mask away, with no shuffle.
 *
 * Rounding assumes the default floating-point environment (see fp_mode.h).
 */
#ifndef BN_VEC_H
#define BN_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bn_ext is written for little-endian machines (bf16 packs, see vec.h)"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float f32v __attribute__((vector_size(VEC_BYTES)));
typedef double f64v __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t u32v __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t u64v __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t u16h __attribute__((vector_size(VEC_BYTES / 2)));

/* The same, wherever in memory and under whatever type they were written. */
typedef f32v f32v_any __attribute__((aligned(1), may_alias));
typedef f64v f64v_any __attribute__((aligned(1), may_alias));
typedef u32v u32v_any __attribute__((aligned(1), may_alias));
typedef u16h u16h_any __attribute__((aligned(1), may_alias));

typedef float f32_num;
typedef double f64_num;
typedef f32v f32_vec;
typedef f64v f64_vec;

/* Everywhere below, a lane of a comparison is all ones where it holds. */
INLINE u32v select_u32(u32v where, u32v yes, u32v no) {
    return (where & yes) | (~where & no);
}

/* ---- part of a register ------------------------------------------------ */

INLINE u32v load_bytes(const char *p, int64_t n) {
#if defined(__AVX512F__)
    return (u32v)_mm512_maskz_loadu_epi8(_bzhi_u64(~0ull, (unsigned)n), p);
#else
    u32v v = {0};
    if (n == VEC_BYTES)
        return *(const u32v_any *)p;
    memcpy(&v, p, (size_t)n);
    return v;
#endif
}

INLINE void store_bytes(char *p, u32v v, int64_t n) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_epi8(p, _bzhi_u64(~0ull, (unsigned)n), (__m512i)v);
#else
    if (n == VEC_BYTES)
        *(u32v_any *)p = v;
    else
        memcpy(p, &v, (size_t)n);
#endif
}

/* ---- past the cache ---------------------------------------------------- */

/* Stores that do not read the line first and leave the cache to others. They are
 * ordered with nothing: stream_fence() ends a series of them. */
INLINE void stream_bytes(char *p, u32v v) {
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)p, (__m512i)v);
#elif defined(__AVX2__)
    _mm256_stream_si256((void *)p, (__m256i)v);
#elif defined(__x86_64__)
    _mm_stream_si128((void *)p, (__m128i)v);
#else
    *(u32v_any *)p = v;
#endif
}

INLINE void stream_fence(void) {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* ---- NaN --------------------------------------------------------------- */

/* x86 and Arm make NaNs of different sign: every one that is written is the
 * positive quiet NaN without payload. They are rare, so it is enough to look for
 * them, two registers at a time, and mend where there are any. */
INLINE bool f32_any_nan(f32v a, f32v b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q);
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q));
#elif defined(__x86_64__)
    return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b));
#elif defined(__aarch64__)
    return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
#else
    (void)a, (void)b;
    return true;
#endif
}

INLINE bool f64_any_nan(f64v a, f64v b) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_UNORD_Q);
#elif defined(__AVX2__)
    return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q));
#elif defined(__x86_64__)
    return _mm_movemask_pd(_mm_cmpunord_pd((__m128d)a, (__m128d)b));
#elif defined(__aarch64__)
    return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
#else
    (void)a, (void)b;
    return true;
#endif
}

INLINE f32v f32_canonical(f32v v) {
    return (f32v)select_u32((u32v)(v == v), (u32v)v, (u32v){0} + 0x7fc00000u);
}

INLINE f64v f64_canonical(f64v v) {
    const u64v number = (u64v)(v == v);
    return (f64v)((number & (u64v)v) | (~number & ((u64v){0} + (0x7ff8ull << 48))));
}

/* ---- f32 to f64, half a register each ---------------------------------- */

INLINE f64v widen_low(f32v v) {
#if defined(__AVX512F__)
    return (f64v)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
#elif defined(__AVX2__)
    return (f64v)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v));
#elif defined(__x86_64__)
    return (f64v)_mm_cvtps_pd((__m128)v);
#elif defined(__aarch64__)
    return (f64v)vcvt_f64_f32(vget_low_f32((float32x4_t)v));
#else
    return (f64v){v[0], v[1]};
#endif
}

INLINE f64v widen_high(f32v v) {
#if defined(__AVX512F__)
    return (f64v)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
#elif defined(__AVX2__)
    return (f64v)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1));
#elif defined(__x86_64__)
    return (f64v)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v));
#elif defined(__aarch64__)
    return (f64v)vcvt_high_f64_f32((float32x4_t)v);
#else
    return (f64v){v[2], v[3]};
#endif
}

/* ---- f16 and f32 ------------------------------------------------------- */

/* The integer forms stand on two exact facts: an f16's bits, shifted to an f32's
 * place, are its value times 2^-112, subnormals included; and one unit of
 * 0.5f's last place is 2^-24, the spacing of f16's subnormals. */
INLINE f32v widen_f16(u16h half) {
#if defined(__AVX512F__)
    return (f32v)_mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
    return (f32v)_mm256_cvtph_ps((__m128i)half);
#elif defined(__aarch64__)
    return (f32v)vcvt_f32_f16((float16x4_t)half);
#else
    const u32v bits = __builtin_convertvector(half, u32v);
    const u32v magnitude = (bits & 0x7fffu) << 13;
    const f32v value = (f32v)magnitude * 0x1p112f;
    const u32v infinite = (u32v)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
    return (f32v)((u32v)value | infinite | (bits & 0x8000u) << 16);
#endif
}

INLINE u16h narrow_f16(f32v v) {
#if defined(__AVX512F__)
    return (u16h)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (u16h)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
    return (u16h)vcvt_f16_f32((float32x4_t)v);
#else
    const u32v bits = (u32v)v, magnitude = bits & 0x7fffffffu;
    const u32v normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const u32v subnormal = (u32v)((f32v)magnitude + 0.5f) - 0x3f000000u;
    u32v half = select_u32((u32v)(magnitude < (113u << 23)), subnormal, normal);
    half = select_u32((u32v)(magnitude >= (143u << 23)), (u32v){0} + 0x7c00u, half);
    half = select_u32((u32v)(magnitude > 0x7f800000u), (u32v){0} + 0x7e00u, half);
    return __builtin_convertvector(half | (bits >> 16 & 0x8000u), u16h);
#endif
}

/* ---- even and odd elements, joined and split --------------------------- */

INLINE void join_pair(f32v even, f32v odd, f32v out[2]) {
#if defined(__AVX512F__)
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    out[0] = (f32v)_mm512_permutex2var_ps((__m512)even, low, (__m512)odd);
    out[1] = (f32v)_mm512_permutex2var_ps((__m512)even, high, (__m512)odd);
#elif defined(__AVX2__)
    const __m256 a = _mm256_unpacklo_ps((__m256)even, (__m256)odd);
    const __m256 b = _mm256_unpackhi_ps((__m256)even, (__m256)odd);
    out[0] = (f32v)_mm256_permute2f128_ps(a, b, 0x20);
    out[1] = (f32v)_mm256_permute2f128_ps(a, b, 0x31);
#elif defined(__x86_64__)
    out[0] = (f32v)_mm_unpacklo_ps((__m128)even, (__m128)odd);
    out[1] = (f32v)_mm_unpackhi_ps((__m128)even, (__m128)odd);
#else
    out[0] = (f32v){even[0], odd[0], even[1], odd[1]};
    out[1] = (f32v){even[2], odd[2], even[3], odd[3]};
#endif
}

INLINE f32v split_pair(f32v first, f32v second, int h) {
#if defined(__AVX512F__)
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i pick = _mm512_add_epi32(even, _mm512_set1_epi32(h));
    return (f32v)_mm512_permutex2var_ps((__m512)first, pick, (__m512)second);
#elif defined(__AVX2__)
    const __m256 a = _mm256_permute2f128_ps((__m256)first, (__m256)second, 0x20);
    const __m256 b = _mm256_permute2f128_ps((__m256)first, (__m256)second, 0x31);
    return (f32v)(h ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88));
#elif defined(__x86_64__)
    return (f32v)(h ? _mm_shuffle_ps((__m128)first, (__m128)second, 0xdd)
                    : _mm_shuffle_ps((__m128)first, (__m128)second, 0x88));
#else
    return (f32v){first[h], first[2 + h], second[h], second[2 + h]};
#endif
}

/* ---- f32 --------------------------------------------------------------- */

enum { f32_BYTES = 4, f32_PACK = 1, f32_SHORT = 0 };

INLINE f32v f32_load(const char *p, int h) {
    (void)h;
    return *(const f32v_any *)p;
}
INLINE f32v f32_load_part(const char *p, int64_t n, int h) {
    (void)h;
    return (f32v)load_bytes(p, 4 * n);
}
INLINE void f32_store(char *p, const f32v *v) {
    *(f32v_any *)p = v[0];
}
INLINE void f32_stream(char *p, const f32v *v) {
    stream_bytes(p, (u32v)v[0]);
}
INLINE void f32_store_part(char *p, const f32v *v, int64_t n) {
    store_bytes(p, (u32v)v[0], 4 * n);
}
INLINE f32v f32_split(const f32v *column, int h) {
    (void)h;
    return column[0];
}
INLINE void f32_join(const f32v *pack, f32v *column) {
    column[0] = pack[0];
}

/* ---- f64 --------------------------------------------------------------- */

enum { f64_BYTES = 8, f64_PACK = 1, f64_SHORT = 0 };

INLINE f64v f64_load(const char *p, int h) {
    (void)h;
    return *(const f64v_any *)p;
}
INLINE f64v f64_load_part(const char *p, int64_t n, int h) {
    (void)h;
    return (f64v)load_bytes(p, 8 * n);
}
INLINE void f64_store(char *p, const f64v *v) {
    *(f64v_any *)p = v[0];
}
INLINE void f64_stream(char *p, const f64v *v) {
    stream_bytes(p, (u32v)v[0]);
}
INLINE void f64_store_part(char *p, const f64v *v, int64_t n) {
    store_bytes(p, (u32v)v[0], 8 * n);
}
INLINE f64v f64_split(const f64v *column, int h) {
    (void)h;
    return column[0];
}
INLINE void f64_join(const f64v *pack, f64v *column) {
    column[0] = pack[0];
}

/* ---- f16 --------------------------------------------------------------- */

enum { f16_BYTES = 2, f16_PACK = 2, f16_SHORT = 1 };

INLINE u16h f16_half(u32v bytes, int h) {
    u16h half[2];
    memcpy(half, &bytes, sizeof half);
    return half[h];
}
INLINE u32v f16_both(const f32v *v) {
    const u16h half[2] = {narrow_f16(v[0]), narrow_f16(v[1])};
    u32v bytes;
    memcpy(&bytes, half, sizeof bytes);
    return bytes;
}
INLINE f32v f16_load(const char *p, int h) {
    return widen_f16(*(const u16h_any *)(p + h * (VEC_BYTES / 2)));
}
INLINE f32v f16_load_part(const char *p, int64_t n, int h) {
    return widen_f16(f16_half(load_bytes(p, 2 * n), h));
}
INLINE void f16_store(char *p, const f32v *v) {
    *(u16h_any *)p = narrow_f16(v[0]);
    *(u16h_any *)(p + VEC_BYTES / 2) = narrow_f16(v[1]);
}
INLINE void f16_stream(char *p, const f32v *v) {
    stream_bytes(p, f16_both(v));
}
INLINE void f16_store_part(char *p, const f32v *v, int64_t n) {
    store_bytes(p, f16_both(v), 2 * n);
}
INLINE f32v f16_split(const f32v *column, int h) {
    return column[h];
}
INLINE void f16_join(const f32v *pack, f32v *column) {
    column[0] = pack[0];
    column[1] = pack[1];
}

/* ---- bf16 -------------------------------------------------------------- */

enum { bf16_BYTES = 2, bf16_PACK = 2, bf16_SHORT = 1 };

INLINE f32v bf16_unpack(u32v words, int h) {
    return (f32v)(h ? words & 0xffff0000u : words << 16);
}
/* Adds 0x7fff and the last kept bit: the kept bits are then rounded to nearest even. A
 * canonical NaN has room below its last kept bit, so it stays one. */
INLINE u32v bf16_round(f32v v) {
    const u32v bits = (u32v)v;
#if defined(__AVX512F__)
    /* ~(bit | 0x7ffe) in one instruction, and a - ~b is a + b + 1. */
    const __m512i one = _mm512_set1_epi32(1), most = _mm512_set1_epi32(0x7ffe);
    return bits - (u32v)_mm512_ternarylogic_epi32((__m512i)(bits >> 16), one, most, 0x15);
#else
    return bits + 0x7fffu + (bits >> 16 & 1u);
#endif
}
INLINE u32v bf16_pack(const f32v *v) {
    return bf16_round(v[0]) >> 16 | (bf16_round(v[1]) & 0xffff0000u);
}
INLINE f32v bf16_load(const char *p, int h) {
    return bf16_unpack(*(const u32v_any *)p, h);
}
INLINE f32v bf16_load_part(const char *p, int64_t n, int h) {
    return bf16_unpack(load_bytes(p, 2 * n), h);
}
INLINE void bf16_store(char *p, const f32v *v) {
    *(u32v_any *)p = bf16_pack(v);
}
INLINE void bf16_stream(char *p, const f32v *v) {
    stream_bytes(p, bf16_pack(v));
}
INLINE void bf16_store_part(char *p, const f32v *v, int64_t n) {
    store_bytes(p, bf16_pack(v), 2 * n);
}
INLINE f32v bf16_split(const f32v *column, int h) {
    return split_pair(column[0], column[1], h);
}
INLINE void bf16_join(const f32v *pack, f32v *column) {
    join_pair(pack[0], pack[1], column);
}

/* ---- sums that are wider than their terms ------------------------------ */

/* A column's running sum. Floats are summed in doubles, two registers of them
 * for one of floats. Doubles are summed with what each addition rounds away
 * kept beside it (TwoSum: Knuth, TAOCP vol. 2, 4.2.2, theorem B). */
typedef struct {
    f64v v[2];
} wide;

enum { f32_LOSES = 0, f64_LOSES = 1 };

INLINE void two_sum(f64v *sum, f64v *lost, f64v term) {
    const f64v total = *sum + term;
    const f64v added = total - *sum;
    *lost += (*sum - (total - added)) + (term - added);
    *sum = total;
}

INLINE void f32_wide_add(wide *w, f32v term) {
    w->v[0] += widen_low(term);
    w->v[1] += widen_high(term);
}
/* The floats at p. Widening from memory spares the shuffle of the upper half. */
INLINE void f32_wide_add_at(wide *w, const char *p) {
#if defined(__AVX512F__)
    w->v[0] += (f64v)_mm512_cvtps_pd(_mm256_loadu_ps((const float *)p));
    w->v[1] += (f64v)_mm512_cvtps_pd(_mm256_loadu_ps((const float *)p + 8));
#elif defined(__AVX2__)
    w->v[0] += (f64v)_mm256_cvtps_pd(_mm_loadu_ps((const float *)p));
    w->v[1] += (f64v)_mm256_cvtps_pd(_mm_loadu_ps((const float *)p + 4));
#else
    f32_wide_add(w, *(const f32v_any *)p);
#endif
}
INLINE wide f32_wide_load(const double *sum, const double *lost) {
    (void)lost;
    return (wide){{((const f64v_any *)sum)[0], ((const f64v_any *)sum)[1]}};
}
INLINE void f32_wide_store(double *sum, double *lost, wide w) {
    (void)lost;
    ((f64v_any *)sum)[0] = w.v[0];
    ((f64v_any *)sum)[1] = w.v[1];
}

INLINE void f64_wide_add(wide *w, f64v term) {
    two_sum(&w->v[0], &w->v[1], term);
}
INLINE void f64_wide_add_at(wide *w, const char *p) {
    f64_wide_add(w, *(const f64v_any *)p);
}
INLINE wide f64_wide_load(const double *sum, const double *lost) {
    return (wide){{*(const f64v_any *)sum, *(const f64v_any *)lost}};
}
INLINE void f64_wide_store(double *sum, double *lost, wide w) {
    *(f64v_any *)sum = w.v[0];
    *(f64v_any *)lost = w.v[1];
}

#endif
