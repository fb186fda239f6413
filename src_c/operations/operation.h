/* operation.h: what the engine must know of an operation beyond its formula. */
#ifndef BN_OPERATION_H
#define BN_OPERATION_H

#include "bn.h"
#include "kernels/kernels.h"

enum { MOST_NUMBERS = 8 };

/* What a call keeps per channel. */
typedef struct {
    const bn_problem *problem;
    int64_t channels;
    double count;                 /* elements per channel, over all parts */
    char *coefs;                  /* COEFS planes of numbers of the arithmetic type */
    bn_sums sums;                 /* a column per channel */
    double *number[MOST_NUMBERS]; /* the operation's own, each (channels,) */
} bn_channels;

typedef struct {
    formula formula;
    /* Do coefficients of the write pass follow from sums? If not, sums are wanted only for
     * the vectors, and one pass can do both. */
    bool writes_need_sums;
    unsigned vectors; /* that are written, as bits */
    int numbers;      /* of its own, per channel */

    /* Coefficients that need no sums: those that the sum pass takes, then those of the write
     * pass. */
    void (*prepare[PASSES])(const bn_channels *c);

    /* From the sums of n channels, rounded to doubles: the other coefficients, and the vectors. */
    void (*finish)(const bn_channels *c, int64_t from, int64_t n);
} bn_operation;

#endif
