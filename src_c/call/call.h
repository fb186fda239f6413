/* call.h: the C interface of bn_ext: what can be computed of a problem. See call.c. */
#pragma once

#include "base/bn.h"

/* Nothing is written unless BN_OK is returned. One call gives the same bits as two over the same
 * arrays: reduce, then a call that is given the sums of reduce. */
typedef bn_status bn_entry(const bn_problem *p);

/* sums are sum(dy), then sum(dy * xc). diff_src_1 is written if it and the gate have data. */
bn_entry bn_backward, bn_backward_reduce;

/* sums are statistics: mean, then sum(xc * xc) / bn_power_above(M). src_1, if any, is added. */
bn_entry bn_training, bn_training_reduce, bn_inference;

bn_entry bn_double_backward;

/* The same with exact sums. Reduce adds to a state that must be zeros; states merge by addition.
 * Gradients are summed about the mean rounded to the arithmetic type. Moments are sum(src) and
 * sum(src * src). */
bn_entry bn_backward_exactly, bn_backward_reduce_exactly;
bn_entry bn_training_exactly, bn_training_reduce_exactly;

/* From the merged state of all parts, compute the sums that bn_backward takes; the problem needs a
 * dtype, channels and a mean. Return a channel whose limbs are impossible for its counts of parts
 * and terms (state.h), or -1. */
int64_t bn_backward_sums(const bn_problem *p);
