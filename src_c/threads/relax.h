/* relax.h: how a thread waits for another that is about to finish. */
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/system.h"

/* How often a waiting thread looks before it yields its CPU: as often as libgomp's idle threads do
 * with our GOMP_SPINCOUNT (docs/design.md, "Threads"). */
enum { LOOKS = 5000 };

static inline void relax(int *tries) {
    if (++*tries > LOOKS) {
        *tries = LOOKS;
        bn_yield();
        return;
    }
#if defined(__x86_64__)
    _mm_pause();
#else
    __asm__ volatile("yield");
#endif
}
