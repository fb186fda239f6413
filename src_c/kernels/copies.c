/* copies.c: copies of two axes at one level: copies.inc for each size of elements. */
#include "kernels/copies.h"

#include "base/names.h"
#include "base/sizes.h"
#include "kernels/vec_picks.h"

/* From an element to the next, forwards or backwards. */
INLINE ptrdiff_t bytes_between(ptrdiff_t stride) {
    return stride < 0 ? -stride : stride;
}

typedef uint16_t word_2;
typedef uint32_t word_4;
typedef uint64_t word_8;

#define SIZE 2
#include "kernels/copies.inc"
#undef SIZE
#define SIZE 4
#include "kernels/copies.inc"
#undef SIZE
#define SIZE 8
#include "kernels/copies.inc"
#undef SIZE

extern const bn_copy_kernels BN_OF_LEVEL(bn_copies)[BN_COPY_SIZES];
const bn_copy_kernels BN_OF_LEVEL(bn_copies)[BN_COPY_SIZES] = {
    {set_picks_2, copy_2},
    {set_picks_4, copy_4},
    {set_picks_8, copy_8},
};
