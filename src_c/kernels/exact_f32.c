/* exact_f32.c: sums of floats without rounding. */
#include "kernels/number_f32.h"
#include "sizes.h"
#include "exact/state.h"

enum { MOST_LIMBS = f32_SQUARE_LIMBS };

#include "kernels/exact.inc"
