/* formulas.h: the formulas, the operands each reads and writes, and the coefficients it takes.
 *
 * An operation has two passes over its tensors: SUM adds terms up per channel, WRITE computes
 * results from coefficients that follow from those sums. Each pass is a formula. formulas.inc has
 * what is added and what is written. operations/ has what happens once per channel in between, and
 * which formulas make an operation.
 */
#ifndef BN_FORMULAS_H
#define BN_FORMULAS_H

#include "bn.h"

/* F(formula) for each formula. */
#define SUM_FORMULAS(F)                                                                            \
    F(GRADIENTS)                                                                                   \
    F(GRADIENTS_RELU)                                                                              \
    F(GRADIENTS_GATED)                                                                             \
    F(MOMENTS)                                                                                     \
    F(SCALED_MOMENTS)                                                                              \
    F(DOUBLE_GRADIENTS)
/* Sum formulas whose sums a caller can get without rounding. */
#define EXACT_FORMULAS(F)                                                                          \
    F(GRADIENTS)                                                                                   \
    F(GRADIENTS_RELU)                                                                              \
    F(GRADIENTS_GATED)                                                                             \
    F(MOMENTS)
#define WRITE_FORMULAS(F)                                                                          \
    F(BACKWARD)                                                                                    \
    F(FROZEN)                                                                                      \
    F(BACKWARD_RELU)                                                                               \
    F(FROZEN_RELU)                                                                                 \
    F(BACKWARD_GATED)                                                                              \
    F(FROZEN_GATED)                                                                                \
    F(NORMALIZE)                                                                                   \
    F(NORMALIZE_ADD)                                                                               \
    F(DOUBLE_BACKWARD)                                                                             \
    F(DOUBLE_FROZEN)

#define ENUMERATED(formula) formula,
typedef enum {
    SUM_FORMULAS(ENUMERATED) WRITE_FORMULAS(ENUMERATED) FORMULAS,
    NOTHING = FORMULAS, /* for an operation that has only one pass */
} formula;
#undef ENUMERATED

typedef enum { SUM, WRITE, PASSES } bn_pass;

/* Coefficients: for each, a channel has one number in the arithmetic type. If ReLU's gate is
 * recomputed, OFFSET is the shift of the forward pass. In double backward, OFFSET is the constant
 * term of diff_src. */
enum { COEF_MEAN, COEF_SHIFT, COEF_SLOPE, COEF_SCALE, COEF_CROSS, COEF_BEND, COEF_OFFSET, COEFS };

enum { MOST_SUMS = 5 };

#define OPERAND(role) (1u << BN_##role)
#define COEF(role)    (1u << COEF_##role)

/* Operands without the gate, which has bits, not elements. */
#define ELEMENTS(operands) ((operands) & ~OPERAND(GATE))

/* Operands (reads, writes) and coefficients (takes), as bits. */
typedef struct {
    const char *name;
    unsigned reads, writes, takes;
    int sums;
} formula_needs;

static const formula_needs formula_table[FORMULAS + 1] = {
#define SUMS_GRADIENTS(name, also_reads, also_takes)                                               \
    {name, OPERAND(SRC) | OPERAND(DIFF_DST) | (also_reads), 0, COEF(MEAN) | (also_takes), 2}
    [GRADIENTS] = SUMS_GRADIENTS("gradients", 0, 0),
    [GRADIENTS_RELU] = SUMS_GRADIENTS("gradients, relu", 0, COEF(SCALE) | COEF(OFFSET)),
    [GRADIENTS_GATED] = SUMS_GRADIENTS("gradients, gated", OPERAND(GATE), 0),
#undef SUMS_GRADIENTS
    [MOMENTS] = {"moments", OPERAND(SRC), 0, COEF(MEAN), 2},
    [SCALED_MOMENTS] = {"scaled moments", OPERAND(SRC), 0, COEF(MEAN) | COEF(SCALE), 2},
#define GOES_BACKWARD(name, also_reads, also_takes)                                                \
    {name, OPERAND(SRC) | OPERAND(DIFF_DST) | (also_reads), OPERAND(DIFF_SRC),                     \
     COEF(MEAN) | COEF(SHIFT) | COEF(SLOPE) | COEF(SCALE) | (also_takes), 0}
#define GOES_BACKWARD_FROZEN(name, also_reads, also_takes)                                         \
    {name, OPERAND(DIFF_DST) | (also_reads), OPERAND(DIFF_SRC), COEF(SCALE) | (also_takes), 0}
    [BACKWARD] = GOES_BACKWARD("backward", 0, 0),
    [FROZEN] = GOES_BACKWARD_FROZEN("frozen", 0, 0),
    [BACKWARD_RELU] = GOES_BACKWARD("backward, relu", 0, COEF(OFFSET)),
    [FROZEN_RELU] = GOES_BACKWARD_FROZEN("frozen, relu", OPERAND(SRC), COEF(MEAN) | COEF(OFFSET)),
    [BACKWARD_GATED] = GOES_BACKWARD("backward, gated", OPERAND(GATE), 0),
    [FROZEN_GATED] = GOES_BACKWARD_FROZEN("frozen, gated", OPERAND(GATE), 0),
#undef GOES_BACKWARD
#undef GOES_BACKWARD_FROZEN
#define NORMALIZES(name, also_reads)                                                               \
    {name, OPERAND(SRC) | (also_reads), OPERAND(DST), COEF(MEAN) | COEF(SHIFT) | COEF(SCALE), 0}
    [NORMALIZE] = NORMALIZES("normalize", 0),
    [NORMALIZE_ADD] = NORMALIZES("normalize, add", OPERAND(SRC_1)),
#undef NORMALIZES
#define GIVEN_TWICE (OPERAND(SRC) | OPERAND(DIFF_DST) | OPERAND(DIFF_DIFF_SRC))
#define BOTH_SECOND (OPERAND(DIFF_SRC) | OPERAND(DIFF_DIFF_DST))
    [DOUBLE_GRADIENTS] = {"double gradients", GIVEN_TWICE, 0, COEF(MEAN), 5},
    [DOUBLE_BACKWARD] = {"double backward", GIVEN_TWICE, BOTH_SECOND,
                         COEF(MEAN) | COEF(SHIFT) | COEF(SLOPE) | COEF(SCALE) | COEF(CROSS) |
                             COEF(BEND) | COEF(OFFSET),
                         0},
    [DOUBLE_FROZEN] = {"double frozen", GIVEN_TWICE, BOTH_SECOND,
                       COEF(MEAN) | COEF(SHIFT) | COEF(SLOPE) | COEF(SCALE), 0},
#undef GIVEN_TWICE
#undef BOTH_SECOND
    [NOTHING] = {"nothing", 0, 0, 0, 0},
};

/* Is this one of the formulas that most calls use? These formulas have extra loops. */
static inline bool bn_is_common(formula f) {
    return f == BACKWARD || f == FROZEN || f == NORMALIZE || f == GRADIENTS ||
           f == GRADIENTS_RELU || f == GRADIENTS_GATED || f == MOMENTS;
}

/* The number of planes of coefficients, up to the last that a formula takes. */
static inline int bn_coef_planes(formula f) {
    int planes = 0;
    while (formula_table[f].takes >> planes)
        planes++;
    return planes;
}

#endif
