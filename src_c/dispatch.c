/* dispatch.c: which instruction-set levels this CPU can run, and the one in use.
 *
 * build_c.py has the levels, compiles the dtypes' kernels and operations/ once for each, and
 * defines BN_LEVELS(X) as a list of X(name), lowest level first. Here stands what each one needs of
 * a CPU.
 */
#include "kernels/kernels.h"

#include <stddef.h>

#include "operations/operation.h"

#define DECLARE(level)                                                                             \
    extern const bn_dtype_kernels bn_kernels_f32_##level, bn_kernels_f64_##level,                  \
        bn_kernels_f16_##level, bn_kernels_bf16_##level;                                           \
    BN_OPERATIONS_OF(level);
BN_LEVELS(DECLARE)

/* The x86-64 psABI's microarchitecture levels; other machines have the baseline alone. */
enum {
    NEEDS_baseline = 1,
    NEEDS_v3 = 3,
    NEEDS_v4 = 4,
};

#define ENTRY(level)                                                                               \
    {{#level,                                                                                      \
      {[BN_F32] = &bn_kernels_f32_##level,                                                         \
       [BN_F64] = &bn_kernels_f64_##level,                                                         \
       [BN_F16] = &bn_kernels_f16_##level,                                                         \
       [BN_BF16] = &bn_kernels_bf16_##level}},                                                     \
     {bn_backward_##level, bn_double_backward_##level, bn_training_##level, bn_inference_##level,  \
      &bn_moments_##level},                                                                        \
     NEEDS_##level},
static const struct {
    bn_kernels kernels;
    bn_operations operations;
    int needs;
} levels[] = {BN_LEVELS(ENTRY)};

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xgetbv0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* The psABI's level that this CPU has under this operating system, which must save the registers
 * that the level uses: 1, 3 or 4. */
static int cpu_level(void) {
    enum {
        FMA = 1 << 12,
        MOVBE = 1 << 22,
        OSXSAVE = 1 << 27,
        AVX = 1 << 28,
        F16C = 1 << 29,
        V3_ECX1 = FMA | MOVBE | OSXSAVE | AVX | F16C,
        BMI1 = 1 << 3,
        AVX2 = 1 << 5,
        BMI2 = 1 << 8,
        V3_EBX7 = BMI1 | AVX2 | BMI2,
        LZCNT = 1 << 5,
        AVX512F = 1 << 16,
        AVX512DQ = 1 << 17,
        AVX512CD = 1 << 28,
        AVX512BW = 1 << 30,
        V4_EBX7 = AVX512F | AVX512DQ | AVX512CD | AVX512BW,
        YMM_STATE = 0x06,
        ZMM_STATE = 0xe6,
    };
    const uint32_t AVX512VL = 1u << 31;
    uint32_t a, b, c, d, b7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & V3_ECX1) != V3_ECX1)
        return NEEDS_baseline;
    const uint64_t saved = xgetbv0();
    if ((saved & YMM_STATE) != YMM_STATE)
        return NEEDS_baseline;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c, &d) || (b7 & V3_EBX7) != V3_EBX7)
        return NEEDS_baseline;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & LZCNT))
        return NEEDS_baseline;
    const bool v4 =
        (b7 & V4_EBX7) == V4_EBX7 && (b7 & AVX512VL) && (saved & ZMM_STATE) == ZMM_STATE;
    return v4 ? NEEDS_v4 : NEEDS_v3;
}
#else
static int cpu_level(void) {
    return NEEDS_baseline;
}
#endif

static _Atomic int current = -1;

/* Asked once: under a hypervisor cpuid takes microseconds. */
int bn_isa_count(void) {
    static _Atomic int count;
    if (!count) {
        const int all = (int)(sizeof levels / sizeof *levels), level = cpu_level();
        int n = 0;
        while (n < all && levels[n].needs <= level)
            n++;
        count = n;
    }
    return count;
}

const char *bn_isa_name(int level) {
    return levels[level].kernels.name;
}

int bn_isa_current(void) {
    if (current < 0)
        current = bn_isa_count() - 1;
    return current;
}

void bn_isa_use(int level) {
    current = level;
}

const bn_kernels *bn_kernels_of(int level) {
    return &levels[level].kernels;
}

const bn_kernels *bn_kernels_current(void) {
    return &levels[bn_isa_current()].kernels;
}

const bn_operations *bn_operations_current(void) {
    return &levels[bn_isa_current()].operations;
}
