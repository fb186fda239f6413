/* vec_portable.h: the functions of vec.h in plain C; some of them only for registers of 16 bytes.
 * Each is left out if the instruction set's file has its own and says so (OWN_...). */
#pragma once

#ifndef OWN_LOAD_BYTES
/* For registers of 16 bytes. Load overlapping words, and combine them in registers. If they were
 * combined in memory, loading the result would wait for the stores of the words. */
INLINE u32v load_bytes(const char *p, int64_t n) {
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
#endif

#ifndef OWN_STORE_BYTES
/* Stores pieces of constant size: if the size is not constant, memcpy is a call, which takes far
 * longer. */
INLINE void store_bytes(char *p, u32v v, int64_t n) {
    const char *from = (const char *)&v;
    if (n == VEC_BYTES) {
        *(u32v_any *)p = v;
        return;
    }
    UNROLLED
    for (int piece = VEC_BYTES / 2; piece > 1; piece /= 2)
        if (n & piece) {
            memcpy(p, from, (size_t)piece);
            p += piece;
            from += piece;
        }
}
#endif

#ifndef OWN_NONTEMPORAL
/* Arm has a nontemporal store (STNP), but gcc has no intrinsic for it. */
INLINE void store_nontemporal(char *p, u32v v) {
    *(u32v_any *)p = v;
}
INLINE void nontemporal_fence(void) {
}
#endif

#ifndef OWN_LARGER_U32
INLINE u32v larger_u32(u32v a, u32v b) {
    return select_u32((u32v)(a > b), a, b);
}
INLINE u32v smaller_u32(u32v a, u32v b) {
    return select_u32((u32v)(a < b), a, b);
}
#endif

#ifndef OWN_WHERE
INLINE f32v f32_where_positive(f32v gate, f32v v) {
    return (f32v)(~(u32v)(gate <= 0) & (u32v)v);
}
INLINE f64v f64_where_positive(f64v gate, f64v v) {
    return (f64v)(~(u64v)(gate <= 0) & (u64v)v);
}

/* Of lane i, bit i; of even_lane_bits, bit 2 * i. */
static const uint32_t lane_bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
static const uint32_t even_lane_bits[8] = {1, 4, 16, 64, 256, 1024, 4096, 16384};
static const uint64_t wide_lane_bits[4] = {1, 2, 4, 8};

INLINE f32v keep_f32(uint32_t bits, f32v v) {
    const u32v own = *(const u32v_any *)lane_bits;
    return (f32v)((u32v)((own & bits) == own) & (u32v)v);
}
INLINE f32v keep_even_f32(uint32_t bits, f32v v) {
    const u32v own = *(const u32v_any *)even_lane_bits;
    return (f32v)((u32v)((own & bits) == own) & (u32v)v);
}
INLINE f64v keep_f64(uint32_t bits, f64v v) {
    const u64v own = (u64v) * (const u32v_any *)wide_lane_bits;
    return (f64v)((u64v)((own & (uint64_t)bits) == own) & (u64v)v);
}
#endif

#ifndef OWN_SQUARE_ERROR
/* Veltkamp's split and Dekker's product (Dekker, "A floating-point technique for extending the
 * available precision", 1971). */
INLINE f64v square_error(f64v x) {
    const f64v split = 134217729.0 * x, upper = split - (split - x), lower = x - upper;
    return ((upper * upper - x * x) + 2 * (upper * lower)) + lower * lower;
}
#endif

#ifndef OWN_SUM_OF_LANES
INLINE double sum_of_lanes(f64v v) {
    return v[0] + v[1];
}
#endif

#ifndef OWN_F16
/* f16 to f32 and back, by integers. This uses two exact facts. A finite f16's bits, shifted to an
 * f32's place, are its value times 2^-112, even if it is subnormal. The last bit of 0.5f is 2^-24,
 * the spacing of f16's subnormals. The functions are called, not inlined, because inlined copies
 * would be a third of the lowest level's code. */
#define CALLED static __attribute__((noinline, unused))
CALLED f32v widen_f16(u16h half) {
    const u32v bits = __builtin_convertvector(half, u32v);
    const u32v magnitude = (bits & 0x7fffu) << 13;
    const f32v value = (f32v)magnitude * 0x1p112f;
    const u32v infinite = (u32v)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
    return (f32v)((u32v)value | infinite | (bits & 0x8000u) << 16);
}

CALLED u16h narrow_f16(f32v v) {
    const u32v bits = (u32v)v, magnitude = bits & 0x7fffffffu;
    const u32v normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const u32v subnormal = (u32v)((f32v)magnitude + 0.5f) - 0x3f000000u;
    u32v half = select_u32((u32v)(magnitude < (113u << 23)), subnormal, normal);
    half = select_u32((u32v)(magnitude >= (143u << 23)), (u32v){0} + 0x7c00u, half);
    half = select_u32((u32v)(magnitude > 0x7f800000u), (u32v){0} + 0x7e00u, half);
    return __builtin_convertvector(half | (bits >> 16 & 0x8000u), u16h);
}
#endif

#ifndef OWN_JOIN_HALVES
INLINE u32v join_halves(u16h low, u16h high) {
    const u16h half[2] = {low, high};
    u32v both;
    memcpy(&both, half, sizeof both);
    return both;
}
#endif

#ifndef OWN_BF16_ROUND
/* Adds 0x7fff and the last kept bit: the kept bits are then rounded to nearest even. */
INLINE u32v bf16_round(f32v v) {
    const u32v bits = (u32v)v;
    return bits + 0x7fffu + (bits >> 16 & 1u);
}
#endif

#ifndef OWN_IN_HAND
/* Does nothing. With 16 registers (SSE2, AVX2), keeping v in one would slow sums down, but speed up
 * writes. aarch64 has 32 registers, but the effect could not be timed there. */
INLINE u32v in_hand(u32v v) {
    return v;
}
#endif

#ifndef OWN_PAIRS
INLINE void join_pair(f32v even, f32v odd, f32v out[2]) {
    out[0] = (f32v){even[0], odd[0], even[1], odd[1]};
    out[1] = (f32v){even[2], odd[2], even[3], odd[3]};
}
INLINE f32v split_pair(f32v first, f32v second, int h) {
    return (f32v){first[h], first[2 + h], second[h], second[2 + h]};
}
#endif
