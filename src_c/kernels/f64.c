/* f64.c: kernels for float64, and exact sums of doubles. See kernels.inc. */
#include "kernels/number_f64.h"
#include "kernels/plain_elements.h"

#define STORAGE f64
enum { BYTES = f64_BYTES, COMPENSATED = f64_COMPENSATED, PRECISION = 53 };
typedef uint64_t element_word;
#define NEGATIVE_INF (0xfffull << 52)
#define TO_ZERO      0.0

INLINE vec keep_where_bits(uint32_t bits, int h, vec v) {
    (void)h;
    return keep_f64(bits, v);
}

#include "kernels/kernels.inc"

enum { MOST_LIMBS = f64_MOST_LIMBS };
#include "kernels/exact.inc"
