/* kernels.c: every kernel of one instruction-set level.
 *
 * Compiled once per level, by flags, with BN_LEVEL naming the level; exports one
 * table, bn_kernels_<level>. Everything else is static: a function with external
 * linkage could be resolved to the copy of a level this CPU cannot run.
 */
#include <stdbool.h>

#include "kernels/kernels.h"
#include "kernels/vec.h"

#ifndef BN_LEVEL
#error "BN_LEVEL names the instruction-set level (see setup.py)"
#endif

#define PASTE(a, b) a##_##b
#define JOIN(a, b)  PASTE(a, b)
#define OF(x)       JOIN(STORAGE, x)
#define AR(x)       JOIN(ARITHMETIC, x)
#define FN(x)       JOIN(x, STORAGE)

typedef enum { REDUCE, APPLY, SCALE } action;

#define ARITHMETIC f32
#define STORAGE    f32
#include "kernels/loops.inc"
#undef STORAGE
#define STORAGE f16
#include "kernels/loops.inc"
#undef STORAGE
#define STORAGE bf16
#include "kernels/loops.inc"
#undef STORAGE
#undef ARITHMETIC
#define ARITHMETIC f64
#define STORAGE    f64
#include "kernels/loops.inc"

#define TABLE(x)                                                                                   \
    {.sum = {[BACKWARD] = reduce_##x, [FROZEN] = reduce_##x},                                      \
     .write = {[BACKWARD] = apply_##x, [FROZEN] = scale_##x},                                      \
     .flush = fold_##x,                                                                            \
     .add = add_##x,                                                                               \
     .sum_columns = total_##x,                                                                     \
     .expand = expand_##x}
#define STRING(x) #x
#define NAME(x)   STRING(x)

extern const bn_kernels JOIN(bn_kernels, BN_LEVEL);

const bn_kernels JOIN(bn_kernels, BN_LEVEL) = {
    .name = NAME(BN_LEVEL),
    .dtype = {[BN_F32] = TABLE(f32),
              [BN_F64] = TABLE(f64),
              [BN_F16] = TABLE(f16),
              [BN_BF16] = TABLE(bf16)},
};
