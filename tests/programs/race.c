/* race.c: every schedule and form with many threads, for ThreadSanitizer.
 *
 * Shapes of all three forms, with assumed cache sizes that lead to each order of work (see
 * schedule.c), go through `entries`. Results must be the same as with one thread, bit for bit.
 * Some channels have squares that overflow, so that the threads that finish them sum them again.
 * Then several callers do a part of this at once. Built and run by .ci/run tsan and musl.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays/axes.h"
#include "base/machine.h"
#include "call/call.h"

typedef struct {
    ptrdiff_t outer, channels, inner;
} shape;

/* With these caches, every order of work occurs with several tiles, and PHASES also with one. Tiles
 * have one part or several. */
static const shape shapes[] = {{2000, 64, 1}, {300, 1500, 1}, {40, 37, 49},
                               {9, 24, 300},  {1, 8, 20000},  {2, 14, 5000}};
static const int64_t caches[][2] = {
    {1 << 20, 32 << 20}, {1 << 14, 32 << 20}, {1 << 14, 1 << 16}, {1 << 30, 1 << 30}};
enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    CACHES = sizeof caches / sizeof *caches,
    CALLERS = 3,
    LARGE_CHANNEL = 3
};

static int threads;

/* ---- entries -------------------------------------------------------------- */

static bn_status by_halves(const bn_problem *p, bn_half *reduce, bn_half *finish) {
    double *sums = malloc(2 * (size_t)p->channels * sizeof *sums);
    const bn_parts parts = {.sums = sums, .count = (double)(p->positions * p->run)};
    bn_status status = reduce(p, &parts);
    if (status == BN_OK)
        status = finish(p, &parts);
    free(sums);
    return status;
}

static bn_status backward_halves(const bn_problem *p) {
    return by_halves(p, bn_backward_reduce, bn_backward_finish);
}

static bn_status training_halves(const bn_problem *p) {
    return by_halves(p, bn_training_reduce, bn_training_finish);
}

/* Copy src to an array with channels last. */
static bn_status copied(const bn_problem *p) {
    const ptrdiff_t size = sizeof(float), channels = p->channels, run = p->run;
    const ptrdiff_t dims[] = {p->positions, channels, run};
    const ptrdiff_t first[] = {channels * run * size, run * size, size};
    const ptrdiff_t last[] = {channels * run * size, size, channels * size};
    const bn_view from = {p->data[BN_SRC], size, 3, dims, first};
    const bn_view to = {p->data[BN_DIFF_SRC], size, 3, dims, last};
    bn_axes axes;
    bn_axes_of(&to, 1, &axes);
    bn_copy_elements(&from, to.data, &axes, false, p->num_threads);
    return BN_OK;
}

/* Backward on operands whose positions are reversed. */
static bn_status strided(const bn_problem *p) {
    enum { OPERANDS = 3 };
    static const int operands[OPERANDS] = {BN_SRC, BN_DIFF_DST, BN_DIFF_SRC};
    const ptrdiff_t size = sizeof(float), position = p->channels * p->run * size;
    const ptrdiff_t dims[] = {p->positions, p->channels, p->run};
    const ptrdiff_t strides[] = {-position, p->run * size, size};
    bn_view views[OPERANDS];
    bn_problem q = *p;
    bn_axes axes;
    for (int i = 0; i < OPERANDS; i++) {
        char *last = p->data[operands[i]] + (p->positions - 1) * position;
        views[i] = (bn_view){last, size, 3, dims, strides};
        q.data[operands[i]] = last;
        q.next_position[operands[i]] = -position;
        q.strided[operands[i]] = &views[i];
    }
    bn_axes_of(&views[0], 1, &axes);
    q.axes = &axes;
    return bn_backward(&q);
}

/* The operands that each entry touches, as bits. */
#define BIT(role)       (1u << BN_##role)
#define BACKWARD        (BIT(SRC) | BIT(DIFF_DST) | BIT(DIFF_SRC))
#define FORWARD         (BIT(SRC) | BIT(DST))
#define DOUBLE_BACKWARD (BACKWARD | BIT(DIFF_DIFF_SRC) | BIT(DIFF_DIFF_DST))

static const struct {
    const char *name;
    bn_entry *call;
    unsigned operands;
    bool training, relu, sums_again;
} entries[] = {
    {"backward", bn_backward, BACKWARD, .training = true},
    {"backward, frozen", bn_backward, BACKWARD, .training = false},
    {"backward's halves", backward_halves, BACKWARD, .training = true},
    {"backward by exact sums", bn_backward_exactly, BACKWARD, .training = true},
    {"training", bn_training, FORWARD, .sums_again = true},
    {"training's halves", training_halves, FORWARD | BIT(SRC_1), .relu = true, .sums_again = true},
    {"inference", bn_inference, FORWARD | BIT(SRC_1), .training = false},
    {"double backward", bn_double_backward, DOUBLE_BACKWARD, .training = true},
    {"double backward, frozen", bn_double_backward, DOUBLE_BACKWARD, .training = false},
    {"strided", strided, BACKWARD, .training = true},
    {"copies", copied, BIT(SRC) | BIT(DIFF_SRC), .training = false},
};
enum { ENTRIES = sizeof entries / sizeof *entries };

/* ---- a problem ------------------------------------------------------------ */

static float number(int64_t i) {
    const uint32_t mixed = (uint32_t)i * 2654435761u;
    return (float)(mixed >> 8) / 0x1p22f - 2;
}

/* Every seventh channel has numbers too large to be squared, but not its variance. */
static void set_numbers(float *to, const shape *s, int64_t seed) {
    for (ptrdiff_t outer = 0; outer < s->outer; outer++)
        for (ptrdiff_t c = 0; c < s->channels; c++)
            for (ptrdiff_t inner = 0; inner < s->inner; inner++)
                *to++ = number(seed++) * (c % 7 == LARGE_CHANNEL ? 0x1p63f : 1);
}

static void set_ramp(float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = 1 + (float)i / (float)n;
}

static void set_shape(bn_problem *p, const shape *s, float *const data[BN_OPERANDS]) {
    const ptrdiff_t size = sizeof(float), dims[] = {s->outer, s->channels, s->inner};
    const ptrdiff_t strides[] = {s->channels * s->inner * size, s->inner * size, size};
    bn_view views[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        views[o] = (bn_view){(char *)data[o], size, 3, dims, strides};
    bn_axes axes;
    bn_axes_of(&views[BN_SRC], 1, &axes);
    bn_set_axes(p, views, &axes, 1);
}

/* The arrays of a call. After it, some hold its results. */
typedef struct {
    float *data[BN_OPERANDS], *vector[BN_VECTORS];
    bool ok;
} outcome;

static size_t vector_bytes(const shape *s) {
    return (size_t)s->channels * sizeof(float);
}
static size_t data_bytes(const shape *s) {
    return (size_t)(s->outer * s->inner) * vector_bytes(s);
}

static outcome room_for(const shape *s) {
    outcome made;
    for (int o = 0; o < BN_OPERANDS; o++)
        made.data[o] = malloc(data_bytes(s));
    for (int v = 0; v < BN_VECTORS; v++)
        made.vector[v] = malloc(vector_bytes(s));
    return made;
}

static void forget(outcome *made) {
    for (int o = 0; o < BN_OPERANDS; o++)
        free(made->data[o]);
    for (int v = 0; v < BN_VECTORS; v++)
        free(made->vector[v]);
}

static bool touches(int which, int operand) {
    return entries[which].operands >> operand & 1;
}

/* Every call starts with the same numbers in its arrays. */
static void call(outcome *made, int which, const shape *s, int num_threads) {
    bn_problem p = {.dtype = BN_F32, .epsilon = 1e-3, .exponential_avg_factor = 0.1};
    float *data[BN_OPERANDS] = {NULL};
    for (int o = 0; o < BN_OPERANDS; o++)
        if (touches(which, o))
            set_numbers(data[o] = made->data[o], s, o);
    for (int v = 0; v < BN_VECTORS; v++) {
        set_ramp(made->vector[v], s->channels);
        p.vector[v] = (bn_vector){(char *)made->vector[v], sizeof(float), BN_F32};
    }
    set_shape(&p, s, data);
    p.training = entries[which].training;
    p.relu = entries[which].relu;
    p.num_threads = num_threads;
    made->ok = entries[which].call(&p) == BN_OK;
    if (entries[which].sums_again) /* else the squares, which overflow, would still be summed */
        made->ok &= isfinite(made->vector[BN_VARIANCE][LARGE_CHANNEL]) != 0;
}

/* True if a call on several threads gives what a call on one gave. */
static bool same(outcome *many, int which, const shape *s, const outcome *one) {
    call(many, which, s, threads);
    bool ok = many->ok && one->ok;
    for (int o = 0; o < BN_OPERANDS; o++)
        ok = ok && (!touches(which, o) || !memcmp(one->data[o], many->data[o], data_bytes(s)));
    for (int v = 0; v < BN_VECTORS; v++)
        ok = ok && !memcmp(one->vector[v], many->vector[v], vector_bytes(s));
    if (!ok)
        printf("%s of (%td, %td, %td): WRONG\n", entries[which].name, s->outer, s->channels,
               s->inner);
    return ok;
}

static void *caller(void *wrong) {
    for (int i = 0; i < SHAPES; i++) {
        outcome one = room_for(&shapes[i]), many = room_for(&shapes[i]);
        for (int which = i % 2; which < ENTRIES; which += 2) {
            call(&one, which, &shapes[i], 1);
            *(int *)wrong |= !same(&many, which, &shapes[i], &one);
        }
        forget(&one);
        forget(&many);
    }
    return NULL;
}

int main(int count, char **arguments) {
    threads = count > 1 ? atoi(arguments[1]) : 4;
    int wrong = 0, calls = 0;
    for (int i = 0; i < SHAPES; i++) {
        outcome one = room_for(&shapes[i]), many = room_for(&shapes[i]);
        for (int which = 0; which < ENTRIES; which++) {
            call(&one, which, &shapes[i], 1);
            for (int k = 0; k < CACHES; k++, calls++) {
                bn_set_cache_sizes(caches[k][0], caches[k][1]);
                wrong |= !same(&many, which, &shapes[i], &one);
            }
        }
        forget(&one);
        forget(&many);
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
