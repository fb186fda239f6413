/* fp_mode.h: the floating-point environment a thread computes in.
 *
 * Results must not depend on what the caller, or whoever made the thread, left
 * in the control register (flush to zero, another rounding mode). So every
 * thread sets the default on entering, and on leaving puts back what it found,
 * sticky exception flags included. It may enter again within.
 *
 * In between, fp_inexact says whether anything was rounded since fp_forget_inexact. Both are
 * barriers to the compiler: what is computed before is in memory by then.
 */
#ifndef BN_FP_MODE_H
#define BN_FP_MODE_H

#include <stdbool.h>
#include <stdint.h>

static inline void fp_barrier(void) {
    __asm__ volatile("" ::: "memory");
}

#if defined(__x86_64__)
#include <xmmintrin.h>

static inline uint64_t fp_mode_enter(void) {
    const uint64_t found = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return found;
}

static inline void fp_mode_leave(uint64_t found) {
    _mm_setcsr((unsigned)found);
}

static inline void fp_forget_inexact(void) {
    fp_barrier();
    _mm_setcsr(0x1f80);
}

static inline bool fp_inexact(void) {
    fp_barrier();
    return _mm_getcsr() & _MM_EXCEPT_INEXACT;
}

#elif defined(__aarch64__)

static inline uint64_t fp_mode_enter(void) {
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
    return control << 32 | (status & 0xffffffffu);
}

static inline void fp_mode_leave(uint64_t found) {
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(found >> 32), "r"(found & 0xffffffffu)
                     : "memory");
}

static inline void fp_forget_inexact(void) {
    __asm__ volatile("msr fpsr, %0" ::"r"((uint64_t)0) : "memory");
}

static inline bool fp_inexact(void) {
    uint64_t status;
    __asm__ volatile("mrs %0, fpsr" : "=r"(status)::"memory");
    return status & 0x10;
}

#else
#include <fenv.h>

static _Thread_local fenv_t fp_mode_found; /* by the outermost */
static _Thread_local uint64_t fp_mode_depth;

static inline uint64_t fp_mode_enter(void) {
    const uint64_t depth = fp_mode_depth++;
    if (depth == 0)
        fegetenv(&fp_mode_found);
    fesetenv(FE_DFL_ENV);
    return depth;
}

static inline void fp_mode_leave(uint64_t depth) {
    fp_mode_depth = depth;
    if (depth == 0)
        fesetenv(&fp_mode_found);
}

static inline void fp_forget_inexact(void) {
    fp_barrier();
    feclearexcept(FE_INEXACT);
}

static inline bool fp_inexact(void) {
    fp_barrier();
    return fetestexcept(FE_INEXACT);
}

#endif

/* Not every machine has the flag: valgrind's, for one, does not. */
static inline bool fp_tells_inexact(void) {
    volatile double one = 1, small = 0x1p-60, sum;
    fp_forget_inexact();
    sum = one + small;
    const bool told = fp_inexact();
    fp_forget_inexact();
    sum = one + one;
    (void)sum;
    return told && !fp_inexact();
}

#endif
