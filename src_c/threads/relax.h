/* relax.h: how a thread waits for another that is about to finish. */
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifndef _WIN32
#include <sched.h>
#endif

/* How often a waiting thread looks before it yields its CPU: as often as libgomp's idle threads do
 * with our GOMP_SPINCOUNT (docs/design.md, "Threads"). */
enum { LOOKS = 5000 };

static inline void relax(int *tries) {
    if (++*tries > LOOKS) {
        *tries = LOOKS;
#ifndef _WIN32
        sched_yield();
#endif
        return;
    }
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
