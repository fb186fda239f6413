/* engine.h: an operation over a problem. See engine.c. */
#ifndef BN_ENGINE_H
#define BN_ENGINE_H

#include "bn.h"
#include "operations/operation.h"
#include "schedule.h"

typedef struct {
    const bn_problem *problem;
    const bn_operation *operation;
    bool writes; /* are results wanted, or the problem's sums alone? */
} bn_call;

/* One call after another, BN_MOST_CALLS at most, over problems of the same shape. Nothing is
 * written unless there is memory for all. Of empty problems only the last call is made. */
enum { BN_MOST_CALLS = 2 };
bn_status bn_execute(const bn_call *calls, int n);

#endif
