/* kernels.c: every kernel of one instruction-set level.
 *
 * Compiled once per level, by flags, with BN_LEVEL naming the level; exports one
 * table, bn_kernels_<level>. Everything else is static: a function with external
 * linkage could be resolved to the copy of a level this CPU cannot run.
 */
#include "kernels/kernels.h"
#include "fp_mode.h"
#include "kernels/vec.h"
#include "sizes.h"
#include "state.h"

#ifndef BN_LEVEL
#error "BN_LEVEL names the instruction-set level (see build_c.py)"
#endif

/* A loop that clang cannot unroll, on machines without vectors, is slow there but not wrong. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/* gcc does not see that a group's sums are read only behind those of its first block. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define PASTE(a, b) a##_##b
#define JOIN(a, b)  PASTE(a, b)
#define STORED(x)   JOIN(STORAGE, x)
#define COMPUTED(x) JOIN(ARITHMETIC, x)
#define NAMED(x)    JOIN(x, STORAGE)

/* f32_BYTES, f32_LOSES, ...: the dtype table, as constants. */
#define FACTS(code, c_name, name, computed, bytes, loses)                                          \
    c_name##_BYTES = bytes, c_name##_LOSES = loses,
enum { BN_DTYPE_TABLE(FACTS) };
#undef FACTS

/* Operands that a formula touches, as bits. */
INLINE unsigned touched(formula f) {
    return formula_table[f].reads | formula_table[f].writes;
}

INLINE int first_of(unsigned operands) {
    return __builtin_ctz(operands);
}

#include "kernels/digits.inc"
#define ARITHMETIC f32
#include "kernels/exact.inc"
#define STORAGE f32
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
#include "kernels/exact.inc"
#define STORAGE f64
#include "kernels/loops.inc"

#define SUM_KERNEL(x, f)   [f] = sum_##f##_##x,
#define FOLD_KERNEL(x, f)  [f] = fold_##f##_##x,
#define RUNS_KERNEL(x, f)  [f] = sum_runs_##f##_##x,
#define TERMS_KERNEL(x, f) [f] = terms_##f##_##x,
#if QUIET_ARITHMETIC
#define QUIET_KERNEL(x, f)    [f] = add_quietly_##f##_##x,
#define ANCHORED_KERNEL(x, f) [f] = add_anchored_##f##_##x,
#else
#define QUIET_KERNEL(x, f)    [f] = NULL,
#define ANCHORED_KERNEL(x, f) [f] = NULL,
#endif
#define WRITE_KERNEL(x, f) [f] = write_##f##_##x,
#define KERNELS(code, x, name, computed, ...)                                                      \
    [code] = {.sum = {SUM_FORMULAS(SUM_KERNEL, x)},                                                \
              .fold = {SUM_FORMULAS(FOLD_KERNEL, x)},                                              \
              .sum_runs = {SUM_FORMULAS(RUNS_KERNEL, x)},                                          \
              .terms = {EXACT_FORMULAS(TERMS_KERNEL, x)},                                          \
              .add_quietly = {EXACT_FORMULAS(QUIET_KERNEL, x)},                                    \
              .add_anchored = {EXACT_FORMULAS(ANCHORED_KERNEL, x)},                                \
              .sum_exactly = computed##_exact_terms,                                               \
              .close = computed##_exact_close,                                                     \
              .settle = computed##_exact_settle,                                                   \
              .write = {WRITE_FORMULAS(WRITE_KERNEL, x)},                                          \
              .passed = passed_##x,                                                                \
              .add = add_##x,                                                                      \
              .sum_columns = sum_columns_##x,                                                      \
              .expand = expand_##x,                                                                \
              .ring = ring_##x,                                                                    \
              .paired = x##_PAIRED,                                                                \
              .lanes = LANES_##x},
#define STRING(x) #x
#define NAME(x)   STRING(x)

extern const bn_kernels JOIN(bn_kernels, BN_LEVEL);

const bn_kernels JOIN(bn_kernels, BN_LEVEL) = {
    .name = NAME(BN_LEVEL),
    .dtype = {BN_DTYPE_TABLE(KERNELS)},
    .carry = carry_digits,
};
