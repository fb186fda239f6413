/* dispatch.h: the instruction-set levels, and the one in use. See dispatch.c. */
#pragma once

#include "kernels/moves/copies.h"
#include "kernels/kernels.h"
#include "operations/operation.h"

/* A level's kernels, by dtype, and its operations. `backward` is indexed by whether diff_src_1 is
 * written and by training; `double_backward`, by training; `training` and `inference`, by whether
 * src_1 is added. `moments` are exact, without a pivot. */
typedef struct {
    const char *name;
    const bn_dtype_kernels *kernels[BN_DTYPES];
    const bn_operation (*backward)[2], *double_backward, *training, *inference, *moments;
    const bn_copy_kernels *copies; /* for elements of 2, 4 and 8 bytes */
    int needs;                     /* of the CPU */
} bn_level;

int bn_level_count(void);                /* levels this CPU can run, lowest first */
const bn_level *bn_level_of(int number); /* 0 <= number < bn_level_count() */
const bn_level *bn_level_current(void);
void bn_level_use(int number);
