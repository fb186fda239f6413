/* operation.h: what the engine must know of an operation beyond its formula. */
#ifndef BN_OPERATION_H
#define BN_OPERATION_H

#include "bn.h"
#include "kernels/kernels.h"

enum { MOST_VALUES = 8 };

/* What a call keeps per channel. */
typedef struct {
    const bn_problem *problem;
    int64_t channels;
    double count;               /* elements per channel, over all parts */
    bool summed;                /* by this call */
    char *coefs;                /* planes of numbers of the arithmetic type */
    bn_sums sums;               /* a column per channel */
    double *value[MOST_VALUES]; /* the operation's own, (channels,) each */
} bn_channels;

typedef struct {
    formula formulas[PASSES];
    /* Does WRITE take coefficients that follow from sums? If not, sums are needed only for the
     * vectors, and one pass can both sum and write. */
    bool writes_need_sums;
    unsigned vectors;  /* that it writes, as bits */
    double of_nothing; /* what these hold of a problem without elements */
    int values;        /* that it keeps per channel; one at least */

    /* Each of these is NULL where there is nothing to do. Set the coefficients that need no sums:
     * those that SUM takes, then those that WRITE does. */
    void (*prepare[PASSES])(const bn_channels *c);

    /* Make sums what is handed out; or set other coefficients and return true to have the n
     * channels summed again, by the formula `again`. `round` says how often they
     * were. */
    bool (*settle)(const bn_channels *c, int64_t from, int64_t n, int round);
    formula again;

    /* From the sums of n channels, rounded to doubles, make the other coefficients and the
     * vectors. */
    void (*finish)(const bn_channels *c, int64_t from, int64_t n);
} bn_operation;

#endif
