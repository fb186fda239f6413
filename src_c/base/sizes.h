/* sizes.h: arithmetic on sizes, which are int64_t everywhere. */
#pragma once

#include <stdint.h>

/* Bytes of a cache line and of a page on the machines we know. On others, aligning to these sizes
 * is correct but may be slower. */
enum { LINE_BYTES = 64, PAGE_BYTES = 4096 };

static inline int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t at_least(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

static inline int64_t round_up(int64_t a, int64_t unit) {
    return ceil_div(a, unit) * unit;
}

/* A step of a hash: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static inline uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
