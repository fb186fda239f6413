/* count_again.h: how often kernels were called to sum again what refine() of operations/forward.c
 * refused, so that a test can say that it came to that. Link with -Wl,--wrap=bn_kernels_current. */
#ifndef COUNT_AGAIN_H
#define COUNT_AGAIN_H

long count_again(void);

#endif
