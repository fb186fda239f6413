/* f64.h: elements of float64. kernels.inc lists what it needs of a dtype. */
#pragma once

#include "kernels/registers/number_f64.h"

#include "kernels/registers/number.h"
#include "kernels/registers/plain_elements.h"

#define STORAGE f64
enum { BYTES = f64_BYTES, COMPENSATED = f64_COMPENSATED, PRECISION = 53 };
enum { MOST_LIMBS = f64_MOST_LIMBS };
typedef uint64_t element_word;
#define NEGATIVE_INF (0xfffull << 52)
#define TO_ZERO      0.0

INLINE vec keep_where_bits(uint32_t bits, int h, vec v) {
    (void)h;
    return keep_f64(bits, v);
}
