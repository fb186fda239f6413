/* write.h: writes a chunk. See write.c. */
#ifndef BN_WRITE_H
#define BN_WRITE_H

#include "call/task.h"

void bn_write(const bn_task *t);

#endif
