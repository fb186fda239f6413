/* f64.c: kernels for float64, and exact sums of doubles. */
#include "kernels/registers/f64.h"

#include "kernels/kernels.inc"

#include "kernels/exact/exact.inc"
