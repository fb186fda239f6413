/* operation.h: what a call must know of an operation beyond its formulas. */
#pragma once

#include "base/bn.h"
#include "base/names.h"
#include "base/sizes.h"
#include "kernels/kernels.h"

enum { MOST_KEPT = 3 };

/* The most channels that are prepared or finished at once, so that an operation can compute on the
 * stack, in the first-level cache. */
enum { BN_CHANNELS_AT_ONCE = 256 };
typedef double channel_block[BN_CHANNELS_AT_ONCE];

/* What a call keeps per channel. */
typedef struct {
    const bn_problem *problem;
    double count;            /* elements per channel, over all parts */
    bool summed;             /* by this call */
    char *coefs;             /* planes of numbers of the arithmetic type */
    bn_sums sums;            /* a column per channel */
    double *kept[MOST_KEPT]; /* the operation's own, (channels,) each */
} bn_channel_memory;
typedef void bn_channels_function(const bn_channel_memory *c, int64_t from, int64_t n);

/* Call f, unless NULL, for n channels, some at a time. */
static inline void bn_for_channels(bn_channels_function *f, const bn_channel_memory *c,
                                   int64_t from, int64_t n) {
    if (f)
        for (int64_t done = 0; done < n; done += BN_CHANNELS_AT_ONCE)
            f(c, from + done, at_most(BN_CHANNELS_AT_ONCE, n - done));
}

typedef struct {
    base_formula formulas[PASSES];
    /* Does WRITE take coefficients that follow from sums? If not, sums are needed only for the
     * vectors, and one pass can both sum and write. */
    bool writes_need_sums;
    unsigned vectors; /* the vectors that it writes, as bits */
    double if_empty;  /* what it writes to them if no part has elements */
    int n_kept;       /* how many numbers it keeps per channel */

    /* Any function may be NULL. Each is for n channels from `from` on: at most BN_CHANNELS_AT_ONCE,
     * except for must_sum_again.
     *
     * Set the coefficients that need no sums: SUM's before the pass SUM, WRITE's before `finish`,
     * which may set them too. */
    bn_channels_function *prepare[PASSES];

    /* Must some of these channels be summed again, after they were `round` times? If so, set other
     * coefficients; all n are then summed by the formula `again`. */
    bool (*must_sum_again)(const bn_channel_memory *c, int64_t from, int64_t n, int round);
    base_formula again;

    /* Turn the kernels' sums into the sums that the caller gets. If there are compensations, rows
     * of low parts take their place, so many. */
    bn_channels_function *refine;
    int rows_of_lows;

    /* From the final sums, make the other coefficients and the vectors. */
    bn_channels_function *finish;
} bn_operation;

/* The .c files of this folder are compiled once per level, for faster square roots and divisions:
 * if channels have few elements, these take as long as the sums. So each level has tables of its
 * own (dispatch.h). */
#define BN_OPERATIONS_OF(level)                                                                    \
    extern const bn_operation bn_backward_##level[2][2], bn_double_backward_##level[2];            \
    extern const bn_operation bn_training_##level[2], bn_inference_##level[2];                     \
    extern const bn_operation bn_moments_##level

#ifdef BN_LEVEL
#define BN_DECLARE(level) BN_OPERATIONS_OF(level)
BN_DECLARE(BN_LEVEL);
#undef BN_DECLARE
#endif
