/* bf16.h: elements of bfloat16. A register of elements holds 32-bit words, each with an even
 * element in its lower half and an odd one in its upper half. A shift yields register 0 of a pack
 * (kernels.inc), the even elements; a mask yields register 1, the odd ones. kernels.inc also lists
 * what it needs of a dtype. */
#pragma once

#include "kernels/registers/number_f32.h"

#include "kernels/registers/number.h"

#define STORAGE bf16
enum { BYTES = bf16_BYTES, COMPENSATED = bf16_COMPENSATED, PRECISION = 8, PACK = 2, PAIRED = true };
typedef uint16_t element_word;
#define NEGATIVE_INF 0xff80u
#define TO_ZERO      0x1p-134f /* half the smallest number, a tie: it rounds to even, which is 0 */

INLINE vec keep_where_bits(uint32_t bits, int h, vec v) {
    return keep_even_f32(bits >> h, v);
}

INLINE vec unpacked(u32v words, int h) {
    return (vec)(h ? words & 0xffff0000u : words << 16);
}
/* Rounding leaves a canonical NaN as it is, because the bits that are dropped are zeros. */
INLINE u32v packed(const vec *v) {
    return bf16_round(v[0]) >> 16 | (bf16_round(v[1]) & 0xffff0000u);
}
INLINE vec load_elements(const char *p, int h) {
    return unpacked(in_hand(*(const u32v_any *)p), h);
}
INLINE vec load_first_elements(const char *p, int64_t n, int h) {
    return unpacked(load_bytes(p, BYTES * n), h);
}
INLINE void store_elements(char *p, const vec *v) {
    *(u32v_any *)p = packed(v);
}
INLINE void stream_elements(char *p, const vec *v) {
    store_nontemporal(p, packed(v));
}
INLINE void store_first_elements(char *p, const vec *v, int64_t n) {
    store_bytes(p, packed(v), BYTES * n);
}
INLINE vec to_pack_order(const vec *column, int h) {
    return split_pair(column[0], column[1], h);
}
INLINE void to_column_order(const vec *pack, vec *column) {
    join_pair(pack[0], pack[1], column);
}
