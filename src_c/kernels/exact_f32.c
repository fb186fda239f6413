/* exact_f32.c: sums of floats without rounding. */
#include "kernels/number_f32.h"
#include "sizes.h"
#include "state.h"

enum { LIMBS = f32_LIMBS, LOWEST = f32_LOWEST };

#include "kernels/exact.inc"
