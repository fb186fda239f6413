/* f32.c: kernels for float32, and exact sums of floats. See kernels.inc. */
#include "kernels/number_f32.h"
#include "kernels/plain_elements.h"

#define STORAGE f32
enum { BYTES = f32_BYTES, COMPENSATED = f32_COMPENSATED, PRECISION = 24 };
typedef uint32_t element_word;
#define NEGATIVE_INF 0xff800000u
#define TO_ZERO      0.0f

INLINE vec keep_where_bits(uint32_t bits, int h, vec v) {
    (void)h;
    return keep_f32(bits, v);
}

#include "kernels/kernels.inc"

enum { MOST_LIMBS = f32_MOST_LIMBS };
#include "kernels/exact.inc"
