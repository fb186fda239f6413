/* call.h: the C interface of bn_ext: what can be computed of a problem. See call.c. */
#pragma once

#include "base/bn.h"

/* Nothing is written unless BN_OK is returned. */
typedef bn_status bn_entry(const bn_problem *p);
bn_entry bn_backward, bn_training, bn_inference, bn_double_backward;

/* The same two calls with exact sums. */
bn_entry bn_backward_exactly, bn_training_exactly;

/* The same in two halves, with the same bits: reduce sums a part of the data; finish computes a
 * part's results from the sums of all parts.
 *
 * Of backward, sums are sum(dy), then sum(dy * xc); diff_src_1 is written if it and the gate have
 * data. Of training, they are statistics: mean, then sum(xc * xc) / bn_power_above(M); src_1, if
 * any, is added. */
typedef bn_status bn_half(const bn_problem *p, const bn_parts *parts);
bn_half bn_backward_reduce, bn_backward_finish;
bn_half bn_training_reduce, bn_training_finish;

/* Add exact sums to a state, which must be zeros; states merge by addition. Gradients are summed
 * about the mean rounded to the arithmetic type. Moments are sum(src) and sum(src * src). */
bn_half bn_backward_reduce_exactly, bn_training_reduce_exactly;

/* Round a state of gradients to the sums that bn_backward_finish takes; the problem needs a dtype,
 * channels and a mean. Return a channel whose limbs are impossible for its counts of parts and
 * terms (state.h), or -1. */
int64_t bn_backward_round(const bn_problem *p, const bn_parts *parts);
