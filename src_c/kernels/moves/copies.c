/* copies.c: copies of two axes at one level: copies.inc for each size of elements. */
#include "base/names.h"
#include "kernels/moves/copies.h"

#define SIZE 2
#include "kernels/moves/copies.inc"
#undef SIZE
#define SIZE 4
#include "kernels/moves/copies.inc"
#undef SIZE
#define SIZE 8
#include "kernels/moves/copies.inc"
#undef SIZE

extern const bn_copy_kernels BN_OF_LEVEL(bn_copies)[BN_COPY_SIZES];
const bn_copy_kernels BN_OF_LEVEL(bn_copies)[BN_COPY_SIZES] = {
    {set_picks_2, copy_2},
    {set_picks_4, copy_4},
    {set_picks_8, copy_8},
};
