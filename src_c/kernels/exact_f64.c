/* exact_f64.c: sums of doubles without rounding. */
#include "kernels/number_f64.h"
#include "sizes.h"
#include "state.h"

enum { LIMBS = f64_LIMBS, LOWEST = f64_LOWEST };

#include "kernels/exact.inc"
