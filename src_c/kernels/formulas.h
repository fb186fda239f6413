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

/* Formulas of the pass SUM, then of the pass WRITE, without a ReLU. */
typedef enum {
    GRADIENTS,
    MOMENTS,
    SCALED_MOMENTS,
    RAW_MOMENTS,
    DOUBLE_GRADIENTS,
    BACKWARD,
    FROZEN,
    BACKWARD_ADD,
    FROZEN_ADD,
    NORMALIZE,
    NORMALIZE_ADD,
    DOUBLE_BACKWARD,
    DOUBLE_FROZEN,
    FORMULAS,
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

/* Operands (reads, writes), coefficients (takes) and gates (common), as bits. Behind a common gate,
 * most calls use the formula, so it has extra loops. With `squares`, the second sum adds the
 * squares of the first one's terms, which are elements: an exact sum squares them itself. */
typedef struct {
    const char *name;
    unsigned reads, writes, takes;
    int sums;
    unsigned common;
    bool squares;
} formula_needs;

#define BOTH_GIVEN   (OPERAND(SRC) | OPERAND(DIFF_DST))
#define GIVEN_TWICE  (BOTH_GIVEN | OPERAND(DIFF_DIFF_SRC))
#define BOTH_FIRST   (OPERAND(DIFF_SRC) | OPERAND(DIFF_SRC_1))
#define BOTH_SECOND  (OPERAND(DIFF_SRC) | OPERAND(DIFF_DIFF_DST))
#define OF_TRAINING  (COEF(MEAN) | COEF(SHIFT) | COEF(SLOPE) | COEF(SCALE))
#define OF_NORMALIZE (COEF(MEAN) | COEF(SHIFT) | COEF(SCALE))
#define PLAIN        (1u << NO_GATE)
#define EVERY_GATE   (~0u)
static const formula_needs base_table[FORMULAS + 1] = {
    [GRADIENTS] =
        {.name = "gradients", .reads = BOTH_GIVEN, .takes = COEF(MEAN), .sums = 2, .common = PLAIN},
    [MOMENTS] =
        {.name = "moments", .reads = OPERAND(SRC), .takes = COEF(MEAN), .sums = 2, .common = PLAIN},
    [SCALED_MOMENTS] = {.name = "scaled moments",
                        .reads = OPERAND(SRC),
                        .takes = COEF(MEAN) | COEF(SCALE),
                        .sums = 2},
    [RAW_MOMENTS] = {.name = "raw moments", .reads = OPERAND(SRC), .sums = 2, .squares = true},
    [DOUBLE_GRADIENTS] = {.name = "double gradients",
                          .reads = GIVEN_TWICE,
                          .takes = COEF(MEAN),
                          .sums = 5},
    [BACKWARD] = {.name = "backward",
                  .reads = BOTH_GIVEN,
                  .writes = OPERAND(DIFF_SRC),
                  .takes = OF_TRAINING,
                  .common = PLAIN},
    [FROZEN] = {.name = "frozen",
                .reads = OPERAND(DIFF_DST),
                .writes = OPERAND(DIFF_SRC),
                .takes = COEF(SCALE),
                .common = PLAIN},
    [BACKWARD_ADD] = {.name = "backward, add",
                      .reads = BOTH_GIVEN,
                      .writes = BOTH_FIRST,
                      .takes = OF_TRAINING},
    [FROZEN_ADD] = {.name = "frozen, add",
                    .reads = OPERAND(DIFF_DST),
                    .writes = BOTH_FIRST,
                    .takes = COEF(SCALE)},
    [NORMALIZE] = {.name = "normalize",
                   .reads = OPERAND(SRC),
                   .writes = OPERAND(DST),
                   .takes = OF_NORMALIZE,
                   .common = EVERY_GATE},
    [NORMALIZE_ADD] = {.name = "normalize, add",
                       .reads = OPERAND(SRC) | OPERAND(SRC_1),
                       .writes = OPERAND(DST),
                       .takes = OF_NORMALIZE,
                       .common = EVERY_GATE},
    [DOUBLE_BACKWARD] = {.name = "double backward",
                         .reads = GIVEN_TWICE,
                         .writes = BOTH_SECOND,
                         .takes = OF_TRAINING | COEF(CROSS) | COEF(BEND) | COEF(OFFSET)},
    [DOUBLE_FROZEN] = {.name = "double frozen",
                       .reads = GIVEN_TWICE,
                       .writes = BOTH_SECOND,
                       .takes = OF_TRAINING},
    [NOTHING] = {.name = "nothing"},
};

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
