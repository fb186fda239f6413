/* plain_elements.h: elements stored in their arithmetic type, for f32.c and f64.c. */
#pragma once

enum { PACK = 1, PAIRED = false };

INLINE vec load_elements(const char *p, int h) {
    (void)h;
    return load_numbers(p);
}
INLINE vec load_first_elements(const char *p, int64_t n, int h) {
    (void)h;
    return load_first_numbers(p, n);
}
INLINE void store_elements(char *p, const vec *v) {
    *(u32v_any *)p = (u32v)v[0];
}
INLINE void stream_elements(char *p, const vec *v) {
    store_nontemporal(p, (u32v)v[0]);
}
INLINE void store_first_elements(char *p, const vec *v, int64_t n) {
    store_bytes(p, (u32v)v[0], (int64_t)sizeof(num) * n);
}
INLINE vec to_pack_order(const vec *column, int h) {
    (void)h;
    return column[0];
}
INLINE void to_column_order(const vec *pack, vec *column) {
    column[0] = pack[0];
}
