/* race_backward.c: every schedule and form with many threads, for ThreadSanitizer.
 *
 * Shapes of all four forms under believed cache sizes that lead to each order of work
 * (see schedule.c); results must be those of one thread, bit for bit. Then the same from
 * several callers at once. Built and run by .ci/tsan.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "machine.h"

typedef struct {
    ptrdiff_t outer, channels, inner;
} shape;

static const shape shapes[] = {{2000, 64, 1}, {3000, 300, 1}, {40, 37, 49},
                               {9, 24, 900},  {1, 8, 100000}, {2, 40, 5000}};
static const int64_t caches[][2] = {
    {1 << 20, 32 << 20}, {1 << 14, 32 << 20}, {1 << 14, 1 << 16}, {1 << 30, 1 << 30}};
enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    CACHES = sizeof caches / sizeof *caches,
    CALLERS = 3
};

static int threads;

static float number(int64_t i) {
    const uint32_t mixed = (uint32_t)i * 2654435761u;
    return (float)(mixed >> 8) / 0x1p22f - 2;
}

static float *numbers(int64_t n, int64_t seed) {
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = number(i + seed);
    return values;
}

static float *ramp(int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = 1 + (float)i / (float)n;
    return values;
}

static void set_shape(bn_problem *p, const shape *s, float *const data[BN_OPERANDS]) {
    const ptrdiff_t size = sizeof(float), dims[] = {s->outer, s->channels, s->inner};
    const ptrdiff_t strides[] = {s->channels * s->inner * size, s->inner * size, size};
    bn_view views[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        views[o] = (bn_view){(char *)data[o], size, 3, dims, strides};
    bn_order order;
    bn_order_of(&views[BN_SRC], 1, &order);
    bn_set_axes(p, views, &order, 1);
}

/* One problem; true if threads change nothing. */
static bool same(const shape *s, bool training) {
    const int64_t all = (int64_t)s->outer * s->channels * s->inner;
    const size_t data_bytes = (size_t)all * sizeof(float);
    const size_t vector_bytes = (size_t)s->channels * sizeof(float);
    float *data[BN_OPERANDS], *alone = malloc(data_bytes);
    for (int o = 0; o < BN_OPERANDS; o++)
        data[o] = numbers(all, o);
    bn_problem p = {.dtype = BN_F32, .epsilon = 1e-3, .training = training}, q;
    for (int v = 0; v < BN_VECTORS; v++)
        p.vector[v] = (bn_vector){(char *)ramp(s->channels), sizeof(float), BN_F32};
    set_shape(&p, s, data);
    p.num_threads = threads;
    bool ok = bn_backward(&p) == BN_OK;

    q = p;
    q.num_threads = 1;
    q.data[BN_DIFF_SRC] = (char *)alone;
    for (int v = 0; v < BN_VECTORS; v++)
        q.vector[v].data = memcpy(malloc(vector_bytes), p.vector[v].data, vector_bytes);
    ok = bn_backward(&q) == BN_OK && ok;
    ok = !memcmp(alone, data[BN_DIFF_SRC], data_bytes) && ok;
    for (int v = 0; v < BN_VECTORS; v++)
        ok = !memcmp(q.vector[v].data, p.vector[v].data, vector_bytes) && ok;

    free(alone);
    for (int o = 0; o < BN_OPERANDS; o++)
        free(data[o]);
    for (int v = 0; v < BN_VECTORS; v++) {
        free(p.vector[v].data);
        free(q.vector[v].data);
    }
    return ok;
}

static void *caller(void *wrong) {
    for (int i = 0; i < SHAPES; i++)
        if (!same(&shapes[i], i % 2))
            *(int *)wrong = 1;
    return NULL;
}

int main(int count, char **arguments) {
    threads = count > 1 ? atoi(arguments[1]) : 4;
    int wrong = 0, calls = 0;
    for (int k = 0; k < CACHES; k++) {
        bn_set_cache_sizes(caches[k][0], caches[k][1]);
        for (int i = 0; i < SHAPES; i++)
            for (int training = 0; training < 2; training++, calls++)
                wrong |= !same(&shapes[i], training);
    }
    pthread_t callers[CALLERS];
    int wrongs[CALLERS] = {0};
    for (int i = 0; i < CALLERS; i++)
        if (pthread_create(&callers[i], NULL, caller, &wrongs[i]))
            return 1;
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i], NULL);
        wrong |= wrongs[i];
    }
    printf("%d calls, then %d callers at once: %s\n", calls, CALLERS, wrong ? "WRONG" : "right");
    return wrong;
}
