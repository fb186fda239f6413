/* f32.h: elements of float32. kernels.inc lists what it needs of a dtype. */
#pragma once

#include "kernels/registers/number_f32.h"

#include "kernels/registers/number.h"
#include "kernels/registers/plain_elements.h"

#define STORAGE f32
enum { BYTES = f32_BYTES, COMPENSATED = f32_COMPENSATED, PRECISION = 24 };
enum { MOST_LIMBS = f32_MOST_LIMBS };
typedef uint32_t element_word;
#define NEGATIVE_INF 0xff800000u
#define TO_ZERO      0.0f

INLINE vec keep_where_bits(uint32_t bits, int h, vec v) {
    (void)h;
    return keep_f32(bits, v);
}
