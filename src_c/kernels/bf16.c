/* bf16.c: kernels for bfloat16. */
#include "kernels/registers/bf16.h"

#include "kernels/kernels.inc"
