/* vec.h: registers. Types, loads, stores and conversions for every dtype at every
 * instruction-set level, and nothing about batch normalization.
 *
 * A C vector type is as wide as the level's registers, so that ordinary operators
 * (a * x + b) compile to one instruction each. What C cannot say stands in one file
 * per instruction set, vec_*.h, each with the same functions; no other file tests
 * which instruction set it is built for:
 *     STRANDS_SIDE_BY_SIDE         are kernels for strands worth their code?
 *     QUIET_ARITHMETIC             do f32_quiet_minus, ..._plus, ..._times, and f64's, which round
 *                                  as operators do, leave fp_inexact alone? If so, there are also
 *                                  quiet_add, which is +, given quiet_one(), f32_quiet_half and
 *                                  QUIET_SCALE, its unit, split_doubles, join_doubles
 *     load_bytes, store_bytes      the first n bytes of a register, the rest 0
 *     store_nontemporal            past the cache, to a multiple of VEC_BYTES: it neither reads
 *                                  the line first nor evicts others, and is ordered with nothing
 *                                  until nontemporal_fence()
 *     f32_any_nan, f64_any_nan     is there a NaN in either of two registers?
 *     f32_where_positive, f64_...  v where the gate is not 0 or less (a NaN is not), elsewhere 0
 *     keep_f32, keep_f64           lane i of a register where bit i is set, elsewhere 0
 *     keep_even_f32                the same of bit 2 * i
 *     widen_low, widen_high        half a register of f32 to f64
 *     sum_of_lanes                 lane i and the one half a register behind, until one is left
 *     widen_f16, narrow_f16        half a register of f16 to f32 and back
 *     join_halves                  two halves to a register of f16
 *     bf16_round                   f32 rounded so that its upper 16 bits are a bf16
 *     in_hand                      a register, not to be loaded again for each use
 *     join_pair, split_pair        even and odd elements to and from two registers in order
 *
 * From them, for each arithmetic type A in {f32, f64}: A_num, A_vec; A_wide_*, sums that are
 * wider than their terms; A_canonical; A_half(v, h), the register as two of doubles that have bits
 * to spare, A_whole(v, h), h = 0 alone for f64, and A_upper(v). For each storage type S in {f32,
 * f64, f16, bf16}:
 *     S_PACK              registers in a pack, which holds the numbers of one register of
 *                         elements: 2 for 16-bit types, else 1
 *     S_PAIRED            is register 0 of a pack its even elements, register 1 the odd ones?
 *     S_load(p, h)        register h of the pack at p
 *     S_load_edge         the same of a pack that ends after n elements; the rest is 0
 *     S_store(p, v)       a whole pack, rounded to nearest even; every NaN canonical
 *     S_store_edge        its first n elements
 *     S_store_nontemporal a whole pack past the cache
 *     S_split, S_join     between column order and pack order
 *     S_where_bits        register h of a pack where the element's bit is set, elsewhere 0
 *     S_TO_ZERO           the largest number that is 0 when it is stored
 *     S_word, S_NEGATIVE_INF   an element as an integer, and that of -Inf
 * In memory a bf16 pack is 32-bit words, each an even element below an odd one: register 0
 * holds the even elements, register 1 the odd ones. Either is one shift or one mask away, with
 * no shuffle. The other packs are in column order.
 *
 * Rounding assumes the default floating-point environment (see fp_mode.h).
 */
#ifndef BN_VEC_H
#define BN_VEC_H

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bn_ext is written for little-endian machines (bf16 packs, see vec.h)"
#endif

#if defined(__AVX512F__)
#include "kernels/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernels/vec_avx2.h"
#elif defined(__x86_64__)
#include "kernels/vec_sse2.h"
#elif defined(__aarch64__)
#include "kernels/vec_neon.h"
#else
#include "kernels/vec_generic.h"
#endif

typedef float f32_num;
typedef double f64_num;
typedef f32v f32_vec;
typedef f64v f64_vec;

enum { DOUBLES = VEC_BYTES / sizeof(double) }; /* in a register */

/* ---- NaN --------------------------------------------------------------- */

/* x86 and Arm make NaNs of different sign, so every NaN that is written is made the
 * positive quiet one without payload. They are rare: looking for them, two registers at a
 * time, and replacing them only where there are any is fastest. */
INLINE f32v f32_canonical(f32v v) {
    return (f32v)select_u32((u32v)(v == v), (u32v)v, (u32v){0} + 0x7fc00000u);
}

INLINE f64v f64_canonical(f64v v) {
    const u64v number = (u64v)(v == v);
    return (f64v)((number & (u64v)v) | (~number & ((u64v){0} + (0x7ff8ull << 48))));
}

/* ---- bits --------------------------------------------------------------- */

/* Of a tensor of bits, which "lies" where one of elements of so many bytes would: its address, and
 * those of its elements, are numbers of bits times these bytes. Behind the last bit 8 bytes may be
 * read. */
INLINE uint64_t bits_at(const char *at, int element_bytes) {
    const uintptr_t bit = (uintptr_t)at / (unsigned)element_bytes;
    uint64_t bits;
    memcpy(&bits, (const char *)(bit / 8), sizeof bits);
    return bits >> bit % 8;
}

/* ---- f32 --------------------------------------------------------------- */

enum { f32_PACK = 1, f32_PAIRED = 0 };
typedef uint32_t f32_word;
#define f32_NEGATIVE_INF 0xff800000u
#define f32_TO_ZERO      0.0f

INLINE f32v f32_where_bits(uint32_t bits, int h, f32v v) {
    (void)h;
    return keep_f32(bits, v);
}

INLINE f32v f32_load(const char *p, int h) {
    (void)h;
    return *(const f32v_any *)p;
}
INLINE f32v f32_load_edge(const char *p, int64_t n, int h) {
    (void)h;
    return (f32v)load_bytes(p, 4 * n);
}
INLINE void f32_store(char *p, const f32v *v) {
    *(f32v_any *)p = v[0];
}
INLINE void f32_store_nontemporal(char *p, const f32v *v) {
    store_nontemporal(p, (u32v)v[0]);
}
INLINE void f32_store_edge(char *p, const f32v *v, int64_t n) {
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

enum { f64_PACK = 1, f64_PAIRED = 0 };
typedef uint64_t f64_word;
#define f64_NEGATIVE_INF (0xfffull << 52)
#define f64_TO_ZERO      0.0

INLINE f64v f64_where_bits(uint32_t bits, int h, f64v v) {
    (void)h;
    return keep_f64(bits, v);
}

INLINE f64v f64_load(const char *p, int h) {
    (void)h;
    return *(const f64v_any *)p;
}
INLINE f64v f64_load_edge(const char *p, int64_t n, int h) {
    (void)h;
    return (f64v)load_bytes(p, 8 * n);
}
INLINE void f64_store(char *p, const f64v *v) {
    *(f64v_any *)p = v[0];
}
INLINE void f64_store_nontemporal(char *p, const f64v *v) {
    store_nontemporal(p, (u32v)v[0]);
}
INLINE void f64_store_edge(char *p, const f64v *v, int64_t n) {
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

enum { f16_PACK = 2, f16_PAIRED = 0 };
typedef uint16_t f16_word;
#define f16_NEGATIVE_INF 0xfc00u
#define f16_TO_ZERO      0x1p-25f /* half the smallest, a tie with even 0 */

INLINE f32v f16_where_bits(uint32_t bits, int h, f32v v) {
    return keep_f32(bits >> h * (VEC_BYTES / 4), v);
}

INLINE u16h f16_half(u32v bytes, int h) {
    u16h half[2];
    memcpy(half, &bytes, sizeof half);
    return half[h];
}
INLINE u32v f16_both(const f32v *v) {
    return join_halves(narrow_f16(v[0]), narrow_f16(v[1]));
}
INLINE f32v f16_load(const char *p, int h) {
    return widen_f16(*(const u16h_any *)(p + h * (VEC_BYTES / 2)));
}
INLINE f32v f16_load_edge(const char *p, int64_t n, int h) {
    return widen_f16(f16_half(load_bytes(p, 2 * n), h));
}
INLINE void f16_store(char *p, const f32v *v) {
    *(u16h_any *)p = narrow_f16(v[0]);
    *(u16h_any *)(p + VEC_BYTES / 2) = narrow_f16(v[1]);
}
INLINE void f16_store_nontemporal(char *p, const f32v *v) {
    store_nontemporal(p, f16_both(v));
}
INLINE void f16_store_edge(char *p, const f32v *v, int64_t n) {
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

enum { bf16_PACK = 2, bf16_PAIRED = 1 };
typedef uint16_t bf16_word;
#define bf16_NEGATIVE_INF 0xff80u
#define bf16_TO_ZERO      0x1p-134f

INLINE f32v bf16_where_bits(uint32_t bits, int h, f32v v) {
    return keep_even_f32(bits >> h, v);
}

INLINE f32v bf16_unpack(u32v words, int h) {
    return (f32v)(h ? words & 0xffff0000u : words << 16);
}
/* The bits of a canonical NaN that are dropped are zeros, so rounding leaves it as it is. */
INLINE u32v bf16_pack(const f32v *v) {
    return bf16_round(v[0]) >> 16 | (bf16_round(v[1]) & 0xffff0000u);
}
INLINE f32v bf16_load(const char *p, int h) {
    return bf16_unpack(in_hand(*(const u32v_any *)p), h);
}
INLINE f32v bf16_load_edge(const char *p, int64_t n, int h) {
    return bf16_unpack(load_bytes(p, 2 * n), h);
}
INLINE void bf16_store(char *p, const f32v *v) {
    *(u32v_any *)p = bf16_pack(v);
}
INLINE void bf16_store_nontemporal(char *p, const f32v *v) {
    store_nontemporal(p, bf16_pack(v));
}
INLINE void bf16_store_edge(char *p, const f32v *v, int64_t n) {
    store_bytes(p, bf16_pack(v), 2 * n);
}
INLINE f32v bf16_split(const f32v *column, int h) {
    return split_pair(column[0], column[1], h);
}
INLINE void bf16_join(const f32v *pack, f32v *column) {
    join_pair(pack[0], pack[1], column);
}

/* ---- sums that are wider than their terms ------------------------------ */

/* The sums so far of a register of columns. Floats are summed in doubles, two registers of them
 * for one of floats. Doubles are summed with what the additions round away kept beside them
 * (TwoSum: Knuth, TAOCP vol. 2, 4.2.2, theorem B). */
typedef struct {
    f64v v[2];
} wide;

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
INLINE wide f64_wide_load(const double *sum, const double *lost) {
    return (wide){{*(const f64v_any *)sum, *(const f64v_any *)lost}};
}
INLINE void f64_wide_store(double *sum, double *lost, wide w) {
    *(f64v_any *)sum = w.v[0];
    *(f64v_any *)lost = w.v[1];
}

/* ---- doubles with bits to spare ------------------------------------------ */

/* Low and high columns of floats; or the upper 26 bits of each double, and what is left. */
INLINE f64v f32_whole(f32v v, int h) {
    return h ? widen_high(v) : widen_low(v);
}
INLINE f64v f32_half(f32v v, int h) {
    return f32_whole(v, h);
}
/* The upper 12 bits of a float, or 18 of a double: what is left has as many, or twice as many. */
INLINE f32v f32_upper(f32v v) {
    return (f32v)((u32v)v & (~0u << 12));
}
INLINE f64v f64_upper(f64v v) {
    return (f64v)((u64v)v & (~0ull << 35));
}
INLINE f64v f64_whole(f64v v, int h) {
    (void)h;
    return v;
}
INLINE f64v f64_half(f64v v, int h) {
    const f64v upper = (f64v)((u64v)v & (~0ull << 27));
    return h ? v - upper : upper;
}

#endif
