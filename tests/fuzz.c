/* fuzz.c: random problems for the C part, under libFuzzer with sanitizers.
 *
 * The bytes determine a problem: operation, dtype, shape, how each operand and vector lies in
 * memory (order of axes, gaps, signs of strides, broadcasts, alignment, what is written in place),
 * options, level, threads, assumed cache sizes, and the seed and kind of the values. Arrays that an
 * operation does not touch are absent. axes.h makes a problem of the arrays, as in Python.
 *
 * What must hold: the call as given, or in halves, gives the same bits as the plainest call for the
 * same problem (elements gathered by hand, lowest level, one thread), and changes no other byte.
 * Exact sums are the same integers as the plainest call's.
 *
 * Python's tests check that the plainest call is right.
 *
 * Built and run by .ci/fuzz.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "fuzz.h"
#include "kernels/kernels.h"
#include "machine.h"
#include "state.h"

/* ---- operations ----------------------------------------------------------- */

#define TENSOR(role) (1u << BN_##role)
#define VECTOR(role) (1u << BN_##role)

/* Roles as bits; the roles in `may_...` may be absent. */
typedef struct {
    const char *name;
    unsigned reads, may_read, writes;
    unsigned vectors, may_vectors;
    bool relu, may_freeze; /* does it have these options? */
    bn_entry *whole;

    /* Its halves (NULL: it has none), and the tensors and vectors that the first half reads. */
    bn_entry *reduce, *reduce_exactly, *apply;
    unsigned reduce_reads, reduce_vectors;
} operation;

static const operation operations[] = {
    {
        .name = "backward",
        .reads = TENSOR(SRC) | TENSOR(DIFF_DST),
        .writes = TENSOR(DIFF_SRC),
        .vectors = VECTOR(MEAN) | VECTOR(VARIANCE),
        .may_vectors = VECTOR(GAMMA) | VECTOR(BETA) | VECTOR(DIFF_GAMMA) | VECTOR(DIFF_BETA),
        .relu = true,
        .may_freeze = true,
        .whole = bn_backward,
        .reduce = bn_backward_reduce,
        .reduce_exactly = bn_backward_reduce_exactly,
        .apply = bn_backward,
        .reduce_reads = TENSOR(SRC) | TENSOR(DIFF_DST),
        .reduce_vectors = VECTOR(MEAN) | VECTOR(VARIANCE) | VECTOR(GAMMA) | VECTOR(BETA),
    },
    {
        .name = "training",
        .reads = TENSOR(SRC),
        .may_read = TENSOR(SRC_1),
        .writes = TENSOR(DST),
        .may_vectors = VECTOR(GAMMA) | VECTOR(BETA) | VECTOR(MEAN) | VECTOR(VARIANCE) |
                       VECTOR(RUNNING_MEAN) | VECTOR(RUNNING_VARIANCE),
        .relu = true,
        .whole = bn_training,
        .reduce = bn_training_reduce,
        .reduce_exactly = bn_training_reduce_exactly,
        .apply = bn_training,
        .reduce_reads = TENSOR(SRC),
    },
    {
        .name = "inference",
        .reads = TENSOR(SRC),
        .may_read = TENSOR(SRC_1),
        .writes = TENSOR(DST),
        .vectors = VECTOR(MEAN) | VECTOR(VARIANCE),
        .may_vectors = VECTOR(GAMMA) | VECTOR(BETA),
        .relu = true,
        .whole = bn_inference,
    },
    {
        .name = "double backward",
        .reads = TENSOR(SRC) | TENSOR(DIFF_DST) | TENSOR(DIFF_DIFF_SRC),
        .writes = TENSOR(DIFF_SRC) | TENSOR(DIFF_DIFF_DST),
        .vectors = VECTOR(MEAN) | VECTOR(VARIANCE) | VECTOR(DIFF_GAMMA),
        .may_vectors = VECTOR(GAMMA) | VECTOR(DIFF_DIFF_GAMMA) | VECTOR(DIFF_DIFF_BETA),
        .may_freeze = true,
        .whole = bn_double_backward,
    },
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static const operation *chosen;
static long problems[OPERATIONS];

static void print_counts(void) {
    for (int i = 0; i < OPERATIONS; i++)
        fprintf(stderr, "%s: %ld problems\n", operations[i].name, problems[i]);
}

void demand(bool holds, const char *what, const tensor *t) {
    if (holds)
        return;
    fprintf(stderr, "%s: %s, dtype %d, channel %d\n", chosen->name, what, (int)t->dtype,
            t->channel);
    for (int a = 0; a < t->ndim; a++) {
        fprintf(stderr, "  %td elements, strides", t->shape[a]);
        for (int o = 0; o < BN_OPERANDS; o++)
            fprintf(stderr, " %td", t->operand[o].strides[a]);
        fprintf(stderr, "\n");
    }
    abort();
}

/* Choose some of these operands or vectors, or all; the problem lacks the others. */
static unsigned some_of(unsigned roles) {
    return roles & (take(4) ? take(1u << 15) : ~0u);
}

/* ---- the calls ------------------------------------------------------------ */

/* Sums, with numbers around them that must not change. */
enum { AROUND = 4 };

static double *allocate_sums(const tensor *t) {
    double *sums = allocate((2 * t->channels + 2 * AROUND) * (ptrdiff_t)sizeof *sums);
    for (ptrdiff_t i = 0; i < 2 * t->channels + 2 * AROUND; i++)
        sums[i] = 77;
    return sums;
}

static bool untouched_around(const tensor *t, const double *sums) {
    bool untouched = true;
    for (ptrdiff_t i = 0; i < AROUND; i++)
        untouched &= sums[i] == 77 && sums[2 * t->channels + AROUND + i] == 77;
    return untouched;
}

static ptrdiff_t state_numbers(const tensor *t) {
    const bool backward = chosen->reduce == bn_backward_reduce;
    const bn_kind_of_state kind = backward ? BN_OF_GRADIENTS : BN_OF_MOMENTS;
    return (bn_limbs(t->dtype, kind) + BN_MORE_ROWS) * BN_SUMS * t->channels;
}

/* A state of zeros, with AROUND numbers on either side. */
static int64_t *allocate_state(const tensor *t) {
    const ptrdiff_t n = state_numbers(t);
    int64_t *state = allocate((n + 2 * AROUND) * (ptrdiff_t)sizeof *state);
    for (ptrdiff_t i = 0; i < n + 2 * AROUND; i++)
        state[i] = i >= AROUND && i < AROUND + n ? 0 : 77;
    return state;
}

/* The problem for the first half, which writes `sums` or `state`; arrays that only the second half
 * uses are absent. */
static bn_problem reduced(bn_problem p, double *sums, int64_t *state) {
    p.sums = sums;
    p.state = state;
    for (int o = 0; o < BN_OPERANDS; o++)
        if (!(chosen->reduce_reads >> o & 1))
            p.data[o] = NULL;
    for (int v = 0; v < BN_VECTORS; v++)
        if (!(chosen->reduce_vectors >> v & 1))
            p.vector[v].data = NULL;
    return p;
}

/* Call with dense arrays in the tensor's order, at the lowest level, on one thread. */
static void call_plainly(const tensor *t, bn_problem p, plain *results) {
    const int64_t size = bn_dtype_table[t->dtype].element_bytes;
    p.n_outer = t->outer > 1;
    p.n_inner = t->inner > 1;
    p.outer[0].size = t->outer;
    p.channel.size = t->channels;
    p.inner[0].size = t->inner;
    for (int o = 0; o < BN_OPERANDS; o++) {
        p.data[o] = results->data[o];
        p.outer[0].stride[o] = t->channels * t->inner * size;
        p.channel.stride[o] = t->inner * size;
        p.inner[0].stride[o] = size;
    }
    for (int v = 0; v < BN_VECTORS; v++) {
        const array *a = &t->vector[v];
        p.vector[v] = (bn_vector){results->vector[v], a->view.itemsize, a->dtype};
    }
    p.num_threads = 1;
    bn_isa_use(0);
    bn_set_cache_sizes(1 << 20, 32 << 20);
    if (results->sums) {
        const bn_problem reduce = reduced(p, results->sums, results->state + AROUND);
        demand(chosen->reduce(&reduce) == BN_OK, "memory", t);
        demand(chosen->reduce_exactly(&reduce) == BN_OK, "memory", t);
    }
    demand(chosen->whole(&p) == BN_OK, "memory", t);
}

static void call_halves(const tensor *t, const bn_problem *p, const plain *results) {
    const size_t bytes = 2 * (size_t)t->channels * sizeof(double);
    double *around = allocate_sums(t), *sums = around + AROUND;
    const bn_problem reduce = reduced(*p, sums, NULL);
    demand(chosen->reduce(&reduce) == BN_OK, "memory", t);
    demand(!memcmp(sums, results->sums, bytes), "other bits: sums", t);
    bn_problem apply = *p;
    apply.sums = sums;
    apply.count = (double)(t->outer * t->inner);
    demand(chosen->apply(&apply) == BN_OK, "memory", t);
    demand(!memcmp(sums, results->sums, bytes), "sums that are read change", t);
    demand(untouched_around(t, around), "bytes around sums", t);
    free(around);
}

static void call_exactly(const tensor *t, const bn_problem *p, const plain *results) {
    int64_t *state = allocate_state(t);
    const bn_problem reduce = reduced(*p, NULL, state + AROUND);
    demand(chosen->reduce_exactly(&reduce) == BN_OK, "memory", t);
    const size_t bytes = (size_t)(state_numbers(t) + 2 * AROUND) * sizeof *state;
    demand(!memcmp(state, results->state, bytes), "other bits: exact sums", t);
    free(state);
}

/* An operand that can be walked in this order: itself, or a dense copy. */
static bn_view walkable(const tensor *t, const bn_order *order, int operand, array *copy) {
    const bn_view *view = &t->operand[operand].view;
    if (bn_follows(view, order))
        return *view;
    *copy = (array){.view = *view, .memory = allocate(t->elements * view->itemsize)};
    copy->view.data = copy->memory;
    copy->view.strides = copy->strides;
    ptrdiff_t step = view->itemsize;
    for (int k = order->n - 1; k >= 0; k--) {
        copy->strides[order->axis[k]] = step;
        step *= t->shape[order->axis[k]];
    }
    demand(bn_follows(&copy->view, order), "a dense copy cannot be walked", t);
    if (!(chosen->writes >> operand & 1))
        bn_copy_elements(view, &copy->view, order, 2);
    return copy->view;
}

static void check_order(const tensor *t, const bn_order *order) {
    bool same = order->n == t->n && order->channel_place < t->n;
    for (int k = 0; k < t->n && same; k++)
        same = order->axis[k] == t->order[k] &&
               (order->axis[k] == t->channel) == (k == order->channel_place);
    demand(same, "order of axes", t);
}

static void call_as_given(const tensor *t, bn_problem p, const plain *results) {
    static const int64_t caches[] = {1 << 12, 1 << 16, 1 << 20, 1 << 30};
    bn_order order;
    bn_order_of(&t->operand[BN_SRC].view, t->channel, &order);
    check_order(t, &order);
    array copy[BN_OPERANDS] = {{.memory = NULL}};
    bn_view walked[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++) {
        walked[o] = t->operand[BN_SRC].view;
        walked[o].data = NULL;
        if (t->operand[o].view.data)
            walked[o] = walkable(t, &order, o, &copy[o]);
    }
    for (int o = 0; o < BN_OPERANDS; o++)
        if (!walked[o].data)
            walked[o].strides = walked[BN_SRC].strides;
    bn_set_axes(&p, walked, &order, t->channel);
    for (int v = 0; v < BN_VECTORS; v++) {
        const array *a = &t->vector[v];
        p.vector[v] = (bn_vector){a->view.data, a->strides[0], a->dtype};
    }
    p.num_threads = 1 + (int)take(4);
    bn_isa_use((int)take((unsigned)bn_isa_count()));
    const int64_t l2 = caches[take(4)];
    bn_set_cache_sizes(l2, caches[take(4)]);
    if (results->state && take(3) == 0)
        call_exactly(t, &p, results);
    if (results->sums && take(3) == 0)
        call_halves(t, &p, results);
    else
        demand(chosen->whole(&p) == BN_OK, "memory", t);
    for (int o = 0; o < BN_OPERANDS; o++) {
        if (chosen->writes >> o & 1 && copy[o].memory)
            bn_copy_elements(&walked[o], &t->operand[o].view, &order, p.num_threads);
        free(copy[o].memory);
    }
}

/* ---- a problem ------------------------------------------------------------ */

static bn_problem choose_options(const tensor *t) {
    static const double epsilons[] = {1e-3, 1e-5, 0}, factors[] = {0.1, 1, 0, 0.75};
    return (bn_problem){
        .dtype = t->dtype,
        .epsilon = epsilons[take(3)],
        .training = chosen->may_freeze && take(2),
        .relu = chosen->relu && take(2),
        .exponential_avg_factor = factors[take(4)],
        .correction = (int)take(2),
    };
}

static void choose_arrays(tensor *t, unsigned kind) {
    const unsigned reads = chosen->reads | some_of(chosen->may_read);
    const unsigned vectors = chosen->vectors | some_of(chosen->may_vectors);
    choose_operands(t, reads, chosen->writes, kind);
    for (int v = 0; v < BN_VECTORS; v++)
        if (vectors >> v & 1)
            choose_vector(t, v, kind, v == BN_VARIANCE || v == BN_RUNNING_VARIANCE);
}

static void gather_all(const tensor *t, plain *to) {
    for (int o = 0; o < BN_OPERANDS; o++)
        if (t->operand[o].view.data)
            gather(t, &t->operand[o],
                   to->data[o] = allocate(t->elements * t->operand[o].view.itemsize));
    for (int v = 0; v < BN_VECTORS; v++)
        if (t->vector[v].view.data)
            gather_vector(t, v, to->vector[v] = allocate(t->channels * t->vector[v].view.itemsize));
    to->state = chosen->reduce ? allocate_state(t) : NULL;
    to->sums = chosen->reduce ? allocate(2 * t->channels * (ptrdiff_t)sizeof(double)) : NULL;
}

/* F(array) for each array that is there and owns its memory. */
#define EACH_ARRAY(t, F)                                                                           \
    do {                                                                                           \
        for (int role = 0; role < BN_OPERANDS; role++)                                             \
            if ((t)->operand[role].owns)                                                           \
                F(&(t)->operand[role]);                                                            \
        for (int role = 0; role < BN_VECTORS; role++)                                              \
            if ((t)->vector[role].owns)                                                            \
                F(&(t)->vector[role]);                                                             \
    } while (0)

/* Note what all memory must hold after the call: what it holds now, except for the results. */
static void expect(const tensor *t, const plain *results) {
#define AS_IT_IS(a) memcpy((a)->expected, (a)->memory, (size_t)(a)->bytes)
    EACH_ARRAY(t, AS_IT_IS);
    for (int o = 0; o < BN_OPERANDS; o++)
        if (chosen->writes >> o & 1)
            scatter(t, &t->operand[o], results->data[o], t->operand[o].expected);
    for (int v = 0; v < BN_VECTORS; v++)
        if (t->vector[v].owns)
            scatter_vector(t, v, results->vector[v], t->vector[v].expected);
}

static void check_and_free(tensor *t, plain *results) {
#define AS_EXPECTED(a) demand(!memcmp((a)->expected, (a)->memory, (size_t)(a)->bytes), "bytes", t)
    EACH_ARRAY(t, AS_EXPECTED);
#define FREE(a) (free((a)->memory), free((a)->expected))
    EACH_ARRAY(t, FREE);
    for (int o = 0; o < BN_OPERANDS; o++)
        free(results->data[o]);
    for (int v = 0; v < BN_VECTORS; v++)
        free(results->vector[v]);
    free(results->sums);
    free(results->state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_of_data) {
    static bool counting;
    if (!counting)
        counting = !atexit(print_counts);
    start(data, size_of_data);
    const unsigned which = take(OPERATIONS);
    chosen = &operations[which];
    tensor t = {0};
    choose_shape(&t);
    choose_arrays(&t, take(KINDS));
    const bn_problem p = choose_options(&t);
    plain results = {.sums = NULL};
    gather_all(&t, &results);

    call_plainly(&t, p, &results);
    problems[which]++;
    expect(&t, &results);
    call_as_given(&t, p, &results);
    check_and_free(&t, &results);
    return 0;
}
