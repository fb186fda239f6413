/* f16.h: elements of float16: a register of elements makes two of floats, in the order of columns.
 * kernels.inc lists what it needs of a dtype. */
#pragma once

#include "kernels/registers/number_f32.h"

#include "kernels/registers/number.h"

#define STORAGE f16
enum { BYTES = f16_BYTES, COMPENSATED = f16_COMPENSATED, PRECISION = 11, PACK = 2, PAIRED = false };
typedef uint16_t element_word;
#define NEGATIVE_INF 0xfc00u
#define TO_ZERO      0x1p-25f /* half the smallest number, a tie: it rounds to even, which is 0 */

INLINE vec keep_where_bits(uint32_t bits, int h, vec v) {
    return keep_f32(bits >> h * LANES, v);
}

INLINE u16h half_of(u32v elements, int h) {
    u16h half[2];
    memcpy(half, &elements, sizeof half);
    return half[h];
}
INLINE u32v both_halves(const vec *v) {
    return join_halves(narrow_f16(v[0]), narrow_f16(v[1]));
}
INLINE vec load_elements(const char *p, int h) {
    return widen_f16(*(const u16h_any *)(p + h * (VEC_BYTES / 2)));
}
INLINE vec load_first_elements(const char *p, int64_t n, int h) {
    return widen_f16(half_of(load_bytes(p, BYTES * n), h));
}
INLINE void store_elements(char *p, const vec *v) {
    *(u16h_any *)p = narrow_f16(v[0]);
    *(u16h_any *)(p + VEC_BYTES / 2) = narrow_f16(v[1]);
}
INLINE void stream_elements(char *p, const vec *v) {
    store_nontemporal(p, both_halves(v));
}
INLINE void store_first_elements(char *p, const vec *v, int64_t n) {
    store_bytes(p, both_halves(v), BYTES * n);
}
INLINE vec to_pack_order(const vec *column, int h) {
    return column[h];
}
INLINE void to_column_order(const vec *pack, vec *column) {
    column[0] = pack[0];
    column[1] = pack[1];
}
