/* count_again.c: see count_again.h. The engine gets kernels that count, and call the real ones. */
#include <pthread.h>
#include <stdatomic.h>

#include "count_again.h"
#include "dispatch.h"

enum { MOST_LEVELS = 8 };

static bn_kernels counting[MOST_LEVELS];
static bn_dtype_kernels of_dtype[MOST_LEVELS][BN_DTYPES];
static atomic_long calls;

long count_again(void) {
    return atomic_load(&calls);
}

static const bn_dtype_kernels *counted(bn_dtype dtype) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed); /* relaxed, to hide no race */
    return bn_kernels_of(bn_isa_current())->dtype[dtype];
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
    for (int level = 0; level < bn_isa_count(); level++) {
        counting[level] = *bn_kernels_of(level);
        bn_dtype_kernels *dtype = of_dtype[level];
#define SET(code, c_name, ...)                                                                     \
    dtype[code] = *counting[level].dtype[code];                                                    \
    dtype[code].sum[SCALED_MOMENTS][NO_GATE] = sum_##c_name;                                       \
    dtype[code].sum_runs[SCALED_MOMENTS][NO_GATE] = sum_runs_##c_name;                             \
    counting[level].dtype[code] = &dtype[code];
        BN_DTYPE_TABLE(SET)
#undef SET
    }
}

/* The linker redirects calls to bn_kernels_current here. */
const bn_kernels *__wrap_bn_kernels_current(void);
const bn_kernels *__wrap_bn_kernels_current(void) {
    static pthread_once_t made = PTHREAD_ONCE_INIT;
    pthread_once(&made, make_counting);
    return &counting[bn_isa_current()];
}
