/* exact_f64.c: sums of doubles without rounding. */
#include "kernels/number_f64.h"
#include "sizes.h"
#include "exact/state.h"

enum { MOST_LIMBS = f64_SQUARE_LIMBS };

#include "kernels/exact.inc"
