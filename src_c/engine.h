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

/* Run a call. Nothing is written unless there is memory for all of it. */
bn_status bn_execute(const bn_call *call);

#endif
