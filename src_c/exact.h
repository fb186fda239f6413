/* exact.h: exact sums of a part. See exact.c. */
#ifndef BN_EXACT_H
#define BN_EXACT_H

#include "operations/operation.h"
#include "state.h"

/* The two sums of an operation's formula, into a state of zeros. */
bn_status bn_reduce_exactly(const bn_problem *p, const bn_operation *operation,
                            bn_kind_of_state kind, int64_t *state);

#endif
