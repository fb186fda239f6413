/* count_again.h: how often kernels summed channels again because must_sum_again() in
 * operations/forward.c asked for it, so that a test can tell that this happened. Link with
 * -Wl,--wrap=bn_level_current. */
#ifndef COUNT_AGAIN_H
#define COUNT_AGAIN_H

long count_again(void);

#endif
