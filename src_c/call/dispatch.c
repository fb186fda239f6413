/* dispatch.c: which instruction-set levels this CPU can run, and the one in use.
 *
 * build_c.py lists the levels, compiles the dtypes' kernels and operations/ once per level, and
 * defines BN_LEVELS(X) as a list of X(name), lowest level first. This file has what each level
 * needs. */
#include "call/dispatch.h"

#define KERNELS(code, c_name, name, computed, bytes, compensated, level)                           \
    extern const bn_dtype_kernels bn_kernels_##c_name##_##level;
#define DECLARE(level)                                                                             \
    BN_DTYPE_TABLE(KERNELS, level)                                                                 \
    extern const bn_copy_kernels bn_copies_##level[BN_COPY_SIZES];                                 \
    BN_OPERATIONS_OF(level);
BN_LEVELS(DECLARE)
#undef KERNELS

/* The x86-64 psABI's microarchitecture levels; other machines have the baseline alone. */
enum {
    NEEDS_baseline = 1,
    NEEDS_v3 = 3,
    NEEDS_v4 = 4,
};

#define KERNELS(code, c_name, name, computed, bytes, compensated, level)                           \
    [code] = &bn_kernels_##c_name##_##level,
#define ENTRY(level)                                                                               \
    {                                                                                              \
        .name = #level,                                                                            \
        .kernels = {BN_DTYPE_TABLE(KERNELS, level)},                                               \
        .backward = bn_backward_##level,                                                           \
        .double_backward = bn_double_backward_##level,                                             \
        .training = bn_training_##level,                                                           \
        .inference = bn_inference_##level,                                                         \
        .moments = &bn_moments_##level,                                                            \
        .copies = bn_copies_##level,                                                               \
        .needs = NEEDS_##level,                                                                    \
    },
static const bn_level levels[] = {BN_LEVELS(ENTRY)};

#if defined(__x86_64__)
#include <cpuid.h>

/* The psABI level of this CPU: 1, 3 or 4. A level counts only if the operating system saves the
 * registers that it uses. */
static int cpu_level(void) {
    const uint32_t v3_in_1 = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
    const uint32_t v3_in_7 = bit_BMI | bit_AVX2 | bit_BMI2, ymm = 0x06, zmm = 0xe6;
    const uint32_t v4_in_7 =
        bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
    uint32_t a, b, c, d, in_7, saved;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & v3_in_1) != v3_in_1)
        return NEEDS_baseline;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if ((saved & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &in_7, &c, &d) ||
        (in_7 & v3_in_7) != v3_in_7 || !__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & bit_LZCNT))
        return NEEDS_baseline;
    const bool v4 = (in_7 & v4_in_7) == v4_in_7 && (saved & zmm) == zmm;
    return v4 ? NEEDS_v4 : NEEDS_v3;
}
#else
static int cpu_level(void) {
    return NEEDS_baseline;
}
#endif

/* The CPU is asked once: under a hypervisor, cpuid takes microseconds. */
int bn_level_count(void) {
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

const bn_level *bn_level_of(int number) {
    return &levels[number];
}

static const bn_level *_Atomic current;

const bn_level *bn_level_current(void) {
    if (!current)
        bn_level_use(bn_level_count() - 1);
    return current;
}

void bn_level_use(int number) {
    current = &levels[number];
}
