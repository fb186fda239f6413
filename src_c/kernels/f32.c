/* f32.c: kernels for float32, and exact sums of floats. */
#include "kernels/registers/f32.h"

#include "kernels/kernels.inc"

#include "kernels/exact/exact.inc"
