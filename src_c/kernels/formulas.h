/* formulas.h: the formulas, the operands each reads and writes, and the coefficients it takes.
 *
 * An operation has two passes over its tensors: SUM adds terms up per channel, WRITE computes
 * results from coefficients that follow from those sums. Each pass is a formula. formulas.inc has
 * what is added and what is written. operations/ has what happens once per channel in between, and
 * which formulas make an operation. */
#pragma once

#include "base/bn.h"

/* What a ReLU does: there is none; diff_dst comes back through it, and its gate is recomputed from
 * src, or given; or it is CLIPPED's, behind a forward pass. */
typedef enum { NO_GATE, FROM_SRC, GATED, CLIPPED, GATES } bn_gate;

#define OPERAND(role) (1u << BN_##role)
#define COEF(role)    (1u << COEF_##role)
#define BOTH_GIVEN    (OPERAND(SRC) | OPERAND(DIFF_DST))
#define GIVEN_TWICE   (BOTH_GIVEN | OPERAND(DIFF_DIFF_SRC))
#define BOTH_SRC      (OPERAND(SRC) | OPERAND(SRC_1))
#define BOTH_FIRST    (OPERAND(DIFF_SRC) | OPERAND(DIFF_SRC_1))
#define BOTH_SECOND   (OPERAND(DIFF_SRC) | OPERAND(DIFF_DIFF_DST))
#define OF_TRAINING   (COEF(MEAN) | COEF(SHIFT) | COEF(SLOPE) | COEF(SCALE))
#define OF_NORMALIZE  (COEF(MEAN) | COEF(SHIFT) | COEF(SCALE))
#define OF_DOUBLE     (OF_TRAINING | COEF(CROSS) | COEF(BEND) | COEF(OFFSET))
#define PLAIN         (1u << NO_GATE)
#define ANY_GATE      (~0u)

/* Formulas of the pass SUM, then of the pass WRITE, without a ReLU: operands (reads, writes),
 * coefficients (takes) and gates (common) as bits. Behind a common gate, most calls use the
 * formula, so it has extra loops. With `squares`, the second sum adds the squares of the first
 * one's terms, which are elements: an exact sum squares them itself.
 *
 *    (base, name, reads, writes, takes, sums, common, squares) */
#define BASE_FORMULAS(F)                                                                           \
    F(GRADIENTS, "gradients", BOTH_GIVEN, 0, COEF(MEAN), 2, PLAIN, false)                          \
    F(MOMENTS, "moments", OPERAND(SRC), 0, COEF(MEAN), 2, PLAIN, false)                            \
    F(SCALED_MOMENTS, "scaled moments", OPERAND(SRC), 0, COEF(MEAN) | COEF(SCALE), 2, 0, false)    \
    F(RAW_MOMENTS, "raw moments", OPERAND(SRC), 0, 0, 2, 0, true)                                  \
    F(DOUBLE_GRADIENTS, "double gradients", GIVEN_TWICE, 0, COEF(MEAN), 5, 0, false)               \
    F(BACKWARD, "backward", BOTH_GIVEN, OPERAND(DIFF_SRC), OF_TRAINING, 0, PLAIN, false)           \
    F(FROZEN, "frozen", OPERAND(DIFF_DST), OPERAND(DIFF_SRC), COEF(SCALE), 0, PLAIN, false)        \
    F(BACKWARD_ADD, "backward, add", BOTH_GIVEN, BOTH_FIRST, OF_TRAINING, 0, 0, false)             \
    F(FROZEN_ADD, "frozen, add", OPERAND(DIFF_DST), BOTH_FIRST, COEF(SCALE), 0, 0, false)          \
    F(NORMALIZE, "normalize", OPERAND(SRC), OPERAND(DST), OF_NORMALIZE, 0, ANY_GATE, false)        \
    F(NORMALIZE_ADD, "normalize, add", BOTH_SRC, OPERAND(DST), OF_NORMALIZE, 0, ANY_GATE, false)   \
    F(DOUBLE_BACKWARD, "double backward", GIVEN_TWICE, BOTH_SECOND, OF_DOUBLE, 0, 0, false)        \
    F(DOUBLE_FROZEN, "double frozen", GIVEN_TWICE, BOTH_SECOND, OF_TRAINING, 0, 0, false)
#define BASE_NAME(base, ...) base,
typedef enum {
    BASE_FORMULAS(BASE_NAME) FORMULAS,
    NOTHING = FORMULAS /* for an operation that has only one pass */
} base_formula;

/* What a kernel computes: `base` with a gate. */
typedef struct {
    base_formula base;
    bn_gate gate;
} formula;

/* F(base, gate) for each formula that has kernels. */
#define EACH_GATE(F, base) F(base, NO_GATE) F(base, FROM_SRC) F(base, GATED)
#define SUM_FORMULAS(F)                                                                            \
    EACH_GATE(F, GRADIENTS)                                                                        \
    F(MOMENTS, NO_GATE)                                                                            \
    F(SCALED_MOMENTS, NO_GATE)                                                                     \
    F(DOUBLE_GRADIENTS, NO_GATE)
/* Sum formulas whose sums a caller can get without rounding. */
#define EXACT_FORMULAS(F) EACH_GATE(F, GRADIENTS) F(RAW_MOMENTS, NO_GATE)
#define WRITE_FORMULAS(F)                                                                          \
    EACH_GATE(F, BACKWARD)                                                                         \
    EACH_GATE(F, FROZEN)                                                                           \
    F(BACKWARD_ADD, GATED)                                                                         \
    F(FROZEN_ADD, GATED)                                                                           \
    F(NORMALIZE, NO_GATE)                                                                          \
    F(NORMALIZE, CLIPPED)                                                                          \
    F(NORMALIZE_ADD, NO_GATE)                                                                      \
    F(NORMALIZE_ADD, CLIPPED)                                                                      \
    F(DOUBLE_BACKWARD, NO_GATE)                                                                    \
    F(DOUBLE_FROZEN, NO_GATE)

/* Coefficients: for each, a channel has one number in the arithmetic type. If ReLU's gate is
 * recomputed, OFFSET is the shift of the forward pass. In double backward, OFFSET is the constant
 * term of diff_src. */
enum { COEF_MEAN, COEF_SHIFT, COEF_SLOPE, COEF_SCALE, COEF_CROSS, COEF_BEND, COEF_OFFSET, COEFS };

enum { MOST_SUMS = 5 };

/* Operands without the gate, which has bits, not elements. */
#define ELEMENTS(operands) ((operands) & ~OPERAND(GATE))

/* A row of BASE_FORMULAS; that of NOTHING is zeros. */
typedef struct {
    const char *name;
    unsigned reads, writes, takes;
    int sums;
    unsigned common;
    bool squares;
} formula_needs;
#define BASE_NEEDS(base, ...) [base] = {__VA_ARGS__},
static const formula_needs base_table[FORMULAS + 1] = {BASE_FORMULAS(BASE_NEEDS)};

/* What a gate adds, to the name too. */
static const formula_needs gate_table[GATES] = {
    [NO_GATE] = {.name = ""},
    [FROM_SRC] = {.name = ", relu",
                  .reads = OPERAND(SRC),
                  .takes = COEF(MEAN) | COEF(SCALE) | COEF(OFFSET)},
    [GATED] = {.name = ", gated", .reads = OPERAND(GATE)},
    [CLIPPED] = {.name = ", clipped"},
};

static inline unsigned bn_reads(formula f) {
    return base_table[f.base].reads | gate_table[f.gate].reads;
}
static inline unsigned bn_writes(formula f) {
    return base_table[f.base].writes;
}
/* If gcc 12 may choose whether to inline it, kernels take up to 1.08 times as long (measured). */
static inline __attribute__((always_inline)) unsigned bn_touches(formula f) {
    return bn_reads(f) | bn_writes(f);
}
static inline unsigned bn_takes(formula f) {
    return base_table[f.base].takes | gate_table[f.gate].takes;
}
static inline int bn_sum_count(formula f) {
    return base_table[f.base].sums;
}
static inline bool bn_is_common(formula f) {
    return base_table[f.base].common >> f.gate & 1;
}

/* A gate is for formulas that read diff_dst or write dst. */
static inline formula bn_formula_of(base_formula base, const bn_problem *p) {
    const unsigned touched = base_table[base].reads | base_table[base].writes;
    const bn_gate gate = !p->relu                         ? NO_GATE
                         : touched & OPERAND(DST)         ? CLIPPED
                         : !(touched & OPERAND(DIFF_DST)) ? NO_GATE
                         : p->data[BN_GATE]               ? GATED
                                                          : FROM_SRC;
    return (formula){base, gate};
}
