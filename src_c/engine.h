/* engine.h: runs operations over problems. See engine.c. */
#ifndef BN_ENGINE_H
#define BN_ENGINE_H

#include "bn.h"
#include "operations/operation.h"

typedef struct {
    const bn_problem *problem;
    const bn_operation *operation;
    bool writes; /* does it write results? if not, only the problem's sums */
} bn_call;

/* Run calls one after another, at most BN_MOST_CALLS, over problems of the same shape. Nothing is
 * written unless there is memory for all. If the problems are empty, only the last call is made. */
enum { BN_MOST_CALLS = 2 };
bn_status bn_execute(const bn_call *calls, int n);

#endif
