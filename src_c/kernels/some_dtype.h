/* some_dtype.h: what an .inc file needs of a dtype (kernels.inc lists it). In a build, f32.c and
 * the like have defined it; for an editor that opens the .inc file by itself, it is that of
 * float32. */
#ifndef STORAGE
#ifndef BN_LEVEL
#define BN_LEVEL baseline
#endif
/* f32.c includes no kernels. */
#define BN_KERNELS_INC
#define BN_EXACT_INC
#include "kernels/f32.c"
#endif
