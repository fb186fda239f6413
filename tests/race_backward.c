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

#include "bn.h"

typedef struct {
    int64_t outer, channels, inner;
} shape;

static const shape shapes[] = {{2000, 64, 1}, {300, 300, 1},  {40, 37, 49},
                               {9, 24, 900},  {1, 3, 100000}, {2, 40, 5000}};
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

/* One problem; true if threads change nothing. */
static bool same(const shape *s, bool training) {
    const int64_t all = s->outer * s->channels * s->inner, c = s->channels;
    float *data[3], *vector[5], *alone = malloc((size_t)all * sizeof *alone), *alone_grads[2];
    for (int o = 0; o < 3; o++) {
        data[o] = malloc((size_t)all * sizeof **data);
        for (int64_t i = 0; i < all; i++)
            data[o][i] = number(i + o);
    }
    for (int v = 0; v < BN_VECTORS; v++) {
        vector[v] = malloc((size_t)c * sizeof **vector);
        for (int64_t i = 0; i < c; i++)
            vector[v][i] = 1 + (float)i / (float)c;
    }
    for (int v = 0; v < 2; v++)
        alone_grads[v] = malloc((size_t)c * sizeof **alone_grads);

    bn_problem p = {.dtype = BN_F32, .n_outer = s->outer > 1, .n_inner = s->inner > 1};
    const int64_t size = sizeof(float);
    for (int o = 0; o < 3; o++) {
        p.data[o] = (char *)data[o];
        p.outer[0].size = s->outer;
        p.outer[0].stride[o] = c * s->inner * size;
        p.channel.size = c;
        p.channel.stride[o] = s->inner * size;
        p.inner[0].size = s->inner;
        p.inner[0].stride[o] = size;
    }
    for (int v = 0; v < BN_VECTORS; v++)
        p.vector[v] = (bn_vector){(char *)vector[v], size, BN_F32};
    p.epsilon = 1e-3;
    p.training = training;
    p.num_threads = threads;
    bool ok = bn_backward(&p) == BN_OK;

    p.num_threads = 1;
    p.data[BN_DIFF_SRC] = (char *)alone;
    p.vector[BN_DIFF_GAMMA].data = (char *)alone_grads[0];
    p.vector[BN_DIFF_BETA].data = (char *)alone_grads[1];
    ok = bn_backward(&p) == BN_OK && ok;
    ok = !memcmp(alone, data[BN_DIFF_SRC], (size_t)all * sizeof *alone) && ok;
    for (int v = 0; v < 2; v++)
        ok = !memcmp(alone_grads[v], vector[3 + v], (size_t)c * sizeof **alone_grads) && ok;

    free(alone);
    for (int o = 0; o < 3; o++)
        free(data[o]);
    for (int v = 0; v < BN_VECTORS; v++)
        free(vector[v]);
    for (int v = 0; v < 2; v++)
        free(alone_grads[v]);
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
    int wrong = 0, runs = 0;
    for (int k = 0; k < CACHES; k++) {
        bn_set_cache_sizes(caches[k][0], caches[k][1]);
        for (int i = 0; i < SHAPES; i++)
            for (int training = 0; training < 2; training++, runs++)
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
    printf("%d runs, then %d callers at once: %s\n", runs, CALLERS, wrong ? "WRONG" : "right");
    return wrong;
}
