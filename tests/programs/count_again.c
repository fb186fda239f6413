/* count_again.c: see count_again.h. The engine gets kernels that count, and call the real ones. */
#include <pthread.h>
#include <stdatomic.h>

#include "count_again.h"
#include "call/dispatch.h"

enum { MOST_LEVELS = 8 };

static bn_level counting[MOST_LEVELS];
static bn_dtype_kernels of_dtype[MOST_LEVELS][BN_DTYPES];
static atomic_long calls;

/* The linker redirects calls of bn_level_current to the first, and these to that function. */
const bn_level *__wrap_bn_level_current(void);
const bn_level *__real_bn_level_current(void);

long count_again(void) {
    return atomic_load(&calls);
}

static const bn_dtype_kernels *counted(bn_dtype dtype) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); /* relaxed, to hide no race */
    return __real_bn_level_current()->kernels[dtype];
}

#define COUNTED(code, c_name, kind)                                                                \
    static void kind##_##c_name(const bn_box *box, int boxes, const bn_coefs *coefs,               \
                                const bn_sums *sums) {                                             \
        counted(code)->kind[SCALED_MOMENTS][NO_GATE](box, boxes, coefs, sums);                     \
    }
#define COUNTING(code, c_name, ...)                                                                \
    COUNTED(code, c_name, sum)                                                                     \
    COUNTED(code, c_name, sum_runs)
BN_DTYPE_TABLE(COUNTING)

static void make_counting(void) {
    for (int level = 0; level < bn_level_count(); level++) {
        counting[level] = *bn_level_of(level);
        bn_dtype_kernels *dtype = of_dtype[level];
#define SET(code, c_name, ...)                                                                     \
    dtype[code] = *counting[level].kernels[code];                                                  \
    dtype[code].sum[SCALED_MOMENTS][NO_GATE] = sum_##c_name;                                       \
    dtype[code].sum_runs[SCALED_MOMENTS][NO_GATE] = sum_runs_##c_name;                             \
    counting[level].kernels[code] = &dtype[code];
        BN_DTYPE_TABLE(SET)
#undef SET
    }
}

const bn_level *__wrap_bn_level_current(void) {
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    pthread_once(&made, make_counting);
    return &counting[__real_bn_level_current() - bn_level_of(0)];
}
