/* formulas.h: the operations, and what each pass of one reads, takes and writes.
 *
 * An operation has two passes over its tensors: SUM adds terms up per channel, WRITE
 * computes results from coefficients that follow from those sums. What is added and what
 * is written stands in formulas.inc; what happens once per channel in between, in
 * operations/.
 */
#ifndef BN_FORMULAS_H
#define BN_FORMULAS_H

#include "bn.h"

/* F(x, a formula, the formula whose sums it takes: itself, or another that has the same). x is
 * handed through, for whoever uses the table. */
#define FORMULA_TABLE(F, x)                                                                        \
    F(x, BACKWARD, BACKWARD)                                                                       \
    F(x, FROZEN, BACKWARD)

#define ENUMERATED(x, formula, summed) formula,
typedef enum { FORMULA_TABLE(ENUMERATED, ) FORMULAS } formula;
#undef ENUMERATED

typedef enum { SUM, WRITE, PASSES } bn_pass;

/* Coefficients: of each, every channel has one number, of the arithmetic type. */
enum { COEF_MEAN, COEF_SHIFT, COEF_SLOPE, COEF_SCALE, COEFS };

/* Sums of a formula, at most. */
enum { MOST_SUMS = 2 };

#define OPERAND(role) (1u << BN_##role)
#define COEF(role)    (1u << COEF_##role)

/* Operands and coefficients as bits. */
typedef struct {
    unsigned reads, writes, takes;
} pass_needs;

typedef struct {
    const char *name;
    pass_needs pass[PASSES];
    int sums;
} formula_needs;

/* What formulas of gradients have in common. */
#define GRADIENT_SUMS .pass[SUM] = {OPERAND(SRC) | OPERAND(DIFF_DST), 0, COEF(MEAN)}, .sums = 2

static const formula_needs formula_table[FORMULAS] = {
    [BACKWARD] =
        {
            .name = "backward",
            GRADIENT_SUMS,
            .pass[WRITE] = {OPERAND(SRC) | OPERAND(DIFF_DST), OPERAND(DIFF_SRC),
                            COEF(MEAN) | COEF(SHIFT) | COEF(SLOPE) | COEF(SCALE)},
        },
    [FROZEN] =
        {
            .name = "frozen",
            GRADIENT_SUMS,
            .pass[WRITE] = {OPERAND(DIFF_DST), OPERAND(DIFF_SRC), COEF(SCALE)},
        },
};

#endif
