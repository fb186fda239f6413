/* fp_mode.h: the floating-point environment in which a thread computes.
 *
 * Results must not depend on what the caller, or the creator of the thread, left in the control
 * register (flush to zero, another rounding mode). So a call (_core_src/run.pxi) and each other
 * thread of its team set the default, and at the end restore what they found, sticky exception
 * flags included. Entries may nest. */
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

/* The x87 control word: 64 bits of precision, to nearest, no traps. Long doubles obey it. */
#define FP_MODE_X87 0x37f

static inline uint64_t fp_mode_enter(void) {
    const uint64_t csr = _mm_getcsr();
    const uint16_t ours = FP_MODE_X87;
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    if (x87 != ours)
        __asm__ volatile("fldcw %0" ::"m"(ours) : "memory");
    _mm_setcsr(0x1f80);
    return csr | (uint64_t)x87 << 32;
}

static inline void fp_mode_leave(uint64_t mode) {
    const uint16_t x87 = (uint16_t)(mode >> 32);
    if (x87 != FP_MODE_X87) /* our flags would trap where the caller's word unmasks them */
        __asm__ volatile("fnclex\n\tfldcw %0" ::"m"(x87) : "memory");
    _mm_setcsr((unsigned)mode);
}

#elif defined(__AARCH64EL__)

static inline uint64_t fp_mode_enter(void) {
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
    return control << 32 | (status & 0xffffffffu);
}

static inline void fp_mode_leave(uint64_t mode) {
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(mode >> 32), "r"(mode & 0xffffffffu)
                     : "memory");
}

#else
#error "bn_ext is for x86-64 and little-endian aarch64"
#endif
