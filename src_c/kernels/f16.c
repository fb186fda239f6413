/* f16.c: kernels for float16. */
#include "kernels/registers/f16.h"

#include "kernels/kernels.inc"
