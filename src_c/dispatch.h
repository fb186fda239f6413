/* dispatch.h: the instruction-set levels, and the tables of the one in use. See dispatch.c. */
#ifndef BN_DISPATCH_H
#define BN_DISPATCH_H

#include "kernels/kernels.h"
#include "operations/operation.h"

int bn_isa_count(void);             /* levels this CPU can run, lowest first */
const char *bn_isa_name(int level); /* 0 <= level < bn_isa_count() */
int bn_isa_current(void);
void bn_isa_use(int level);

typedef struct {
    const char *name;
    const bn_dtype_kernels *dtype[BN_DTYPES];
} bn_kernels;

const bn_kernels *bn_kernels_of(int level);
const bn_kernels *bn_kernels_current(void);

/* `backward` is indexed by whether diff_src_1 is written and by training; `double_backward`, by
 * training; `training` and `inference`, by whether src_1 is added. */
typedef struct {
    const bn_operation (*backward)[2], *double_backward;
    const bn_operation *training, *inference;
    const bn_operation *moments; /* exact, without a pivot */
} bn_operations;

const bn_operations *bn_operations_current(void);

#endif
