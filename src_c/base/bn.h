/* bn.h: a problem, and what it is made of. call/call.h has what is computed of it.
 *
 * Batch normalization over a tensor of positions x channels x run: every element belongs to one
 * channel, and a channel's M = positions * run elements share a mean, a variance, a gamma and a
 * beta. With xc = src - mean and rstd = 1/sqrt(variance + epsilon):
 *
 *     forward    mean = sum(src)/M    variance = sum(xc*xc)/M    (or both given: inference)
 *                dst = gamma*rstd * xc + beta (+ src_1; with relu, 0 where 0 or less)
 *
 * and backward, with dy = diff_dst:
 *
 *     diff_beta  = sum(dy)
 *     diff_gamma = rstd * sum(dy * xc)
 *     training   diff_src = gamma*rstd * (dy - (diff_beta/M + xc * rstd*diff_gamma/M))
 *     frozen     diff_src = gamma*rstd * dy
 *
 * operations/double_backward.c has the gradient of backward with respect to src, diff_dst and
 * gamma.
 *
 * If ReLU followed the forward pass, dy is diff_dst for the elements that passed the ReLU and 0 for
 * all others; diff_src_1 = dy.
 *
 * The caller has checked everything: this side trusts shapes, strides and pointers. An array that
 * is written is one of the operands that are read, or shares no byte with any of them. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtypes.h"

/* Refuse old compilers here, before our code fails for lack of vector types. */
#if defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 11
#error "bn_ext needs gcc 11, clang 14, or newer"
#endif

#ifdef __FAST_MATH__
#error "bn_ext promises the same bits everywhere: -ffast-math breaks that"
#endif

/* One NaN everywhere, a constant: Windows' header computes one, which may have a sign. */
#undef NAN
#define NAN __builtin_nanf("")

#if defined(_WIN32) && !defined(__clang__)
#error "on Windows, bn_ext needs clang: gcc does not align AVX's registers on the stack (bug 54412)"
#endif

/* The least power of two that is not below `count`. Statistics hold squares divided by it, which
 * overflow only if the variance does; and dividing by it compensated no bit. */
static inline double bn_power_above(double count) {
    int exponent;
    return ldexp(1, frexp(count, &exponent) == 0.5 ? exponent - 1 : exponent);
}

typedef enum { BN_OK, BN_NO_MEMORY } bn_status;

/* ---- the problem ------------------------------------------------------- */

/* The tensors and the (C,) vectors of a problem, by role. The gate has one bit per element: did the
 * ReLU let it pass? See gates.h. */
enum {
    BN_SRC,
    BN_DIFF_DST,
    BN_SRC_1,
    BN_DIFF_DIFF_SRC,
    BN_GATE,
    BN_DST, /* outputs from here on; a backward pass may read dst */
    BN_DIFF_SRC,
    BN_DIFF_DIFF_DST,
    BN_DIFF_SRC_1,
    BN_OPERANDS
};
enum {
    BN_MEAN,
    BN_VARIANCE,
    BN_GAMMA,
    BN_BETA,
    BN_DIFF_DIFF_GAMMA,
    BN_DIFF_DIFF_BETA,
    BN_DIFF_GAMMA,
    BN_DIFF_BETA,
    BN_RUNNING_MEAN,
    BN_RUNNING_VARIANCE,
    BN_VECTORS
};
enum { BN_MAX_AXES = 64 };

/* The passes over a problem's tensors: SUM adds terms up per channel, WRITE computes results. */
typedef enum { SUM, WRITE, PASSES } bn_pass;

/* A (C,) vector of any dtype (dtypes.h); data is NULL if the vector is absent. */
typedef struct {
    char *data;
    int64_t stride; /* bytes */
    bn_dtype dtype;
} bn_vector;

/* An array of any rank: elements of itemsize bytes, axes with their strides in bytes. */
typedef struct {
    char *data;
    ptrdiff_t itemsize;
    int ndim;
    const ptrdiff_t *shape, *strides;
} bn_view;

/* |stride|. An array without elements may have any stride, even the least one. */
static inline size_t bytes_apart(ptrdiff_t stride) {
    return stride < 0 ? 0 - (size_t)stride : (size_t)stride;
}

/* The order of a view's axes: positions, the channel axis, then the axes of a run (axes.h). */
typedef struct {
    int n;                         /* axes longer than 1 */
    signed char axis[BN_MAX_AXES]; /* slowest first */
    int channel;                   /* index of the channel axis in `axis`, or -1 if it is dropped */
} bn_axes;

/* Two sizes decide what a problem's memory must be, and in which order it is summed (order.c).
 * BN_FULL_ROW: channels that fill a row; 16-bit ones fill four 64-byte registers.
 * BN_ALWAYS_LONG: a run of so many elements is long, however many positions there are. */
enum { BN_FULL_ROW = 128, BN_ALWAYS_LONG = 256 };

/* A tensor of positions x channels x run. In an operand, a run's elements are contiguous.
 * Distances are in bytes; of the gate, which has no gaps, in bits. Channels too are contiguous,
 * unless runs have BN_ALWAYS_LONG elements. If runs have one element and channels are fewer than
 * BN_FULL_ROW, so are positions.
 *
 * An operand that does not lie like this may be `strided`: tasks walk its rows where they are, if
 * these are dense; or copy what they need of it, or what they have made, between the view and
 * memory of their own. Its next_position is that of the fastest axis of positions. */
typedef struct {
    bn_dtype dtype;
    char *data[BN_OPERANDS];
    int64_t positions, channels, run;
    int64_t next_position[BN_OPERANDS], next_channel[BN_OPERANDS];
    const bn_view *strided[BN_OPERANDS]; /* NULL: the operand lies as described above */
    const bn_axes *axes;                 /* of strided operands */

    bn_vector vector[BN_VECTORS]; /* if absent: gamma is ones, beta and diff_diff_* are zeros, a
                                     result is not wanted */
    double epsilon;
    bool training; /* used by backward and double backward */
    bool relu;     /* is there a ReLU? if the gate has no data, backward recomputes it from src */
    /* running = (1 - factor) * running + factor * batch. Here the divisor of the batch variance is
     * M - correction. */
    double exponential_avg_factor;
    int correction;
    int num_threads; /* 0: chosen from the machine and the size */
} bn_problem;

static inline int64_t bn_elements(const bn_problem *p) {
    return p->positions * p->channels * p->run;
}

/* The distance of the axes from `first` to `end`, at an index that counts all their elements. */
static inline int64_t bn_distance(const bn_problem *p, int operand, int first, int end,
                                  int64_t index) {
    const bn_view *view = p->strided[operand];
    int64_t bytes = 0;
    for (int k = end; k-- > first; index /= view->shape[p->axes->axis[k]])
        bytes += index % view->shape[p->axes->axis[k]] * view->strides[p->axes->axis[k]];
    return bytes;
}

/* How far a position is from the first. */
static inline int64_t bn_to_position(const bn_problem *p, int operand, int64_t position) {
    return p->strided[operand] ? bn_distance(p, operand, 0, p->axes->channel, position)
                               : position * p->next_position[operand];
}

/* Where an operand has element x of a run of the first channel. The next channel's element is
 * next_channel further. */
static inline char *bn_element_at(const bn_problem *p, int operand, int64_t position, int64_t x) {
    return p->data[operand] + bn_to_position(p, operand, position) +
           (p->strided[operand] ? bn_distance(p, operand, p->axes->channel + 1, p->axes->n, x)
                                : x * bn_dtype_table[p->dtype].element_bytes);
}

/* The sums of a part of the data, or of all parts together. */
enum { BN_SUMS = 2 };
typedef struct {
    double *sums;   /* (BN_SUMS, channels) ... */
    int64_t *state; /* ... or exact (state.h) */
    double count;   /* elements per channel */
} bn_parts;
/* Of float64 data, reduce also writes what rounding took from the mean, as a third row. */
static inline int bn_rows_of_statistics(bn_dtype dtype) {
    return BN_SUMS + bn_dtype_table[dtype].compensated;
}
