/* bn.h: the C interface of bn_ext.
 *
 * Batch normalization over a tensor seen as (outer, channels, inner): every element belongs to one
 * channel, and a channel's M = outer * inner elements share a mean, a variance, a gamma and a beta.
 * With xc = src - mean and rstd = 1/sqrt(variance + epsilon):
 *
 *     forward    mean = sum(src)/M    variance = sum(xc*xc)/M    (or both given: inference)
 *                dst = gamma*rstd * xc + beta (+ src_1, then 0 where relu and not above 0)
 *
 * and backward, with dy = diff_dst:
 *
 *     diff_beta  = sum(dy)
 *     diff_gamma = rstd * sum(dy * xc)
 *     training   diff_src = gamma*rstd * (dy - (diff_beta/M + xc * rstd*diff_gamma/M))
 *     frozen     diff_src = gamma*rstd * dy
 *
 * and the gradient of these with respect to src, diff_dst and gamma: operations/double_backward.c.
 *
 * Where ReLU followed the forward pass, dy is diff_dst where the ReLU passed its element, and 0
 * elsewhere; and diff_src_1 = dy.
 *
 * The caller has checked everything: this side trusts shapes, strides and
 * pointers. What is written must be one of the operands read, or share no byte with any;
 * diff_src_1 must not be src.
 */
#ifndef BN_H
#define BN_H

#include <stdbool.h>
#include <stdint.h>

#include "dtypes.h"

/* Before anything else of ours fails for want of vector types or __builtin_convertvector. */
#if defined(__clang__)
#if __clang_major__ < 14
#error "bn_ext needs clang 14 or newer"
#endif
#elif defined(__GNUC__)
#if __GNUC__ < 11
#error "bn_ext needs gcc 11 or newer"
#endif
#else
#error "bn_ext needs gcc 11, clang 14, or newer"
#endif

#ifdef __FAST_MATH__
#error "bn_ext promises the same bits everywhere: -ffast-math breaks that"
#endif

typedef enum { BN_OK, BN_NO_MEMORY } bn_status;

/* ---- the problem ------------------------------------------------------- */

/* The tensors and the (C,) vectors of a problem, by role. The gate says which elements ReLU let
 * pass, by one bit each: gates.h. */
enum {
    BN_SRC,
    BN_DIFF_DST,
    BN_SRC_1,
    BN_DIFF_DIFF_SRC,
    BN_GATE,
    BN_DST, /* from here on, what is written; a backward pass may read dst */
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

/* One axis: its length and its step, in bytes, through each operand. */
typedef struct {
    int64_t size;
    int64_t stride[BN_OPERANDS];
} bn_axis;

/* A (C,) vector of any dtype of the table; data is NULL where the vector is absent. */
typedef struct {
    char *data;
    int64_t stride; /* bytes */
    bn_dtype dtype;
} bn_vector;

/* The axes before the channel (outer), the channel, the axes after it (inner), slowest
 * first, neighbours merged wherever all operands allow. The last axis of all is contiguous
 * in every operand. An operand that the call does not touch has the strides of src. Outer or
 * inner without axes stands for one of length 1. */
typedef struct {
    bn_dtype dtype;
    char *data[BN_OPERANDS];
    int n_outer, n_inner;
    bn_axis outer[BN_MAX_AXES], channel, inner[BN_MAX_AXES];

    bn_vector vector[BN_VECTORS]; /* gamma absent: ones; beta and diff_diff_*: zeros; a
                                      result: not wanted */
    double epsilon;
    bool training; /* of backward and double backward */
    bool relu;     /* of forward; of backward by the gate, or where that has no data, by src */
    /* running = (1 - factor) * running + factor * batch; of the variance, that of M - correction
     * degrees of freedom. */
    double exponential_avg_factor;
    int correction;
    int num_threads; /* 0: chosen from the machine and the size */

    /* What reduce writes: sums, (BN_SUMS, channels), or where these are exact a state (state.h).
     * NULL, or what a whole call takes in place of its own sums: those of all parts, and the
     * elements per channel over all parts. */
    double *sums;
    int64_t *state;
    double count;
} bn_problem;

/* Nothing is written unless BN_OK is returned. A call without sums gives the same bits as reduce
 * and then a call with what that wrote, over the same arrays. */
enum { BN_SUMS = 2 };
typedef bn_status bn_entry(const bn_problem *p);

/* sums are sum(dy), then sum(dy * xc). diff_src_1 is written where it and the gate have data. */
bn_entry bn_backward, bn_backward_reduce;

/* sums are statistics: mean, then sum(xc * xc). src_1 is added where it has data. */
bn_entry bn_training, bn_training_reduce, bn_inference;

bn_entry bn_double_backward;

/* With exact sums. Reduce adds to a state of zeros, which merges with others by +: of gradients,
 * about the mean as kernels take it; of moments, sum(x) and sum(x*x), where x is src less the mean,
 * or where that is absent src. */
bn_entry bn_backward_exactly, bn_backward_reduce_exactly;
bn_entry bn_training_exactly, bn_training_reduce_exactly;

/* The sums that bn_backward takes, from the state of all parts; the problem has a dtype, channels
 * and a mean. Returns a channel whose limbs no such sum has, or -1. */
int64_t bn_backward_sums(const bn_problem *p);

#endif
