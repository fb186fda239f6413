/* kernels.c: every kernel of one instruction-set level.
 *
 * Compiled once per level, by flags, with BN_LEVEL naming the level; exports one
 * table, bn_kernels_<level>. Everything else is static: a function with external
 * linkage could be resolved to the copy of a level this CPU cannot run.
 */
#include <stdbool.h>

#include "bn.h"
#include "vec.h"

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
#include "backward.inc"
#undef STORAGE
#define STORAGE f16
#include "backward.inc"
#undef STORAGE
#define STORAGE bf16
#include "backward.inc"
#undef STORAGE
#undef ARITHMETIC
#define ARITHMETIC f64
#define STORAGE    f64
#include "backward.inc"

#define TABLE(x)  {reduce_##x, apply_##x, scale_##x, fold_##x, add_##x, total_##x, expand_##x}
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
