/* fuzz_backward.c: random problems for the C part, under libFuzzer with sanitizers.
 *
 * The bytes decide a problem: dtype, axes, gaps, alignment, aliasing, options, level,
 * threads, believed cache sizes, and the seed and kind of the values. Every array is
 * allocated to the byte. The property: diff_src, diff_gamma, diff_beta and every byte
 * between them are what the plainest run of the same problem gives (dense arrays, least
 * level, one thread), and bn_backward_reduce with bn_backward_apply give the same.
 *
 * Built and run by .ci/fuzz.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bn.h"

enum { MOST_ELEMENTS = 60000, MOST_CHANNELS = 600, LONGEST = 9000 };

static const uint8_t *bytes;
static size_t left;

static uint64_t state;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* From the input while it lasts; then from what it was: short inputs are whole problems. */
static unsigned take(unsigned below) {
    if (left < 2)
        return (unsigned)(next_random() >> 32) % below;
    const unsigned value = (unsigned)(bytes[0] << 8 | bytes[1]);
    bytes += 2;
    left -= 2;
    return value % below;
}

static int size_of(bn_dtype dtype) {
    return dtype == BN_F64 ? 8 : dtype == BN_F32 ? 4 : 2;
}

static void *allocate(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p)
        abort();
    return p;
}

/* One element: an ordinary number, a small whole one, or any bits at all. */
static void put_number(char *to, bn_dtype dtype, unsigned kind, bool positive) {
    const uint64_t bits = next_random();
    if (kind == 2 && !positive && bits >> 60 == 0) {
        memcpy(to, &state, (size_t)size_of(dtype));
        return;
    }
    double value = (double)(int64_t)bits / 0x1p62;
    if (kind == 1)
        value = (double)(int)(value * 8);
    if (positive)
        value = value < 0 ? -value : value;
    const float single = (float)value;
    uint32_t word;
    memcpy(&word, &single, sizeof word);
    /* bf16's upper half of a float serves f16 too: it is some number there. */
    const uint16_t half = (uint16_t)(word >> 16 & (positive ? 0x3fffu : 0xffffu));
    if (dtype == BN_F64)
        memcpy(to, &value, sizeof value);
    else if (dtype == BN_F32)
        memcpy(to, &single, sizeof single);
    else
        memcpy(to, &half, sizeof half);
}

typedef struct {
    int n_outer, n_inner;
    int64_t sizes[5]; /* outer, channel, inner */
    int64_t stride[BN_OPERANDS][5];
    int64_t extent[BN_OPERANDS];
} layout;

static int axes_of(const layout *l) {
    return l->n_outer + 1 + l->n_inner;
}

/* Strides with `gap` elements after each position of each axis but the last one longer
 * than 1, which must be contiguous. */
static void lay_out(layout *l, int operand, int64_t size, const int64_t *gap) {
    int64_t step = size, extent = size;
    bool last = true;
    for (int a = axes_of(l) - 1; a >= 0; a--) {
        if (!last)
            step += gap[a] * size;
        last = last && l->sizes[a] == 1;
        l->stride[operand][a] = step;
        extent += (l->sizes[a] - 1) * step;
        step *= l->sizes[a];
    }
    l->extent[operand] = extent;
}

static void add_axis(bn_axis *axes, int *n, const bn_axis *axis) {
    bool merges = *n > 0;
    for (int o = 0; o < BN_OPERANDS && merges; o++)
        merges = axes[*n - 1].stride[o] == axis->size * axis->stride[o];
    if (axis->size == 1)
        return;
    if (!merges) {
        axes[(*n)++] = *axis;
        return;
    }
    axes[*n - 1].size *= axis->size;
    memcpy(axes[*n - 1].stride, axis->stride, sizeof axis->stride);
}

static void set_axes(bn_problem *p, const layout *l) {
    p->n_outer = p->n_inner = 0;
    for (int a = 0; a < axes_of(l); a++) {
        bn_axis axis = {.size = l->sizes[a]};
        for (int o = 0; o < BN_OPERANDS; o++)
            axis.stride[o] = l->stride[o][a];
        if (a < l->n_outer)
            add_axis(p->outer, &p->n_outer, &axis);
        else if (a == l->n_outer)
            p->channel = axis;
        else
            add_axis(p->inner, &p->n_inner, &axis);
    }
}

/* Copy every element from one operand's places to another's. */
static void copy(const layout *from, int o, const char *src, const layout *to, int q, char *dst,
                 int64_t size) {
    int64_t at[5] = {0}, count = 1;
    const int n = axes_of(from);
    for (int a = 0; a < n; a++)
        count *= from->sizes[a];
    for (int64_t i = 0; i < count; i++) {
        int64_t f = 0, t = 0;
        for (int a = 0; a < n; a++) {
            f += at[a] * from->stride[o][a];
            t += at[a] * to->stride[q][a];
        }
        memcpy(dst + t, src + f, (size_t)size);
        for (int a = n - 1; a >= 0 && ++at[a] == from->sizes[a]; a--)
            at[a] = 0;
    }
}

static void demand(bool holds, const char *what, const layout *l, bn_dtype dtype) {
    if (holds)
        return;
    fprintf(stderr, "%s differs: dtype %d, %d outer, %d inner, sizes", what, (int)dtype, l->n_outer,
            l->n_inner);
    for (int a = 0; a < axes_of(l); a++)
        fprintf(stderr, " %lld", (long long)l->sizes[a]);
    fprintf(stderr, "\n");
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_of_data) {
    bytes = data;
    left = size_of_data;
    state = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size_of_data; i++)
        state = (state ^ data[i]) * 0x100000001b3u;
    state |= 1;
    const bn_dtype dtype = (bn_dtype)take(BN_DTYPES);
    const bn_dtype number = dtype == BN_F64 ? BN_F64 : BN_F32;
    const int64_t size = size_of(dtype);

    layout given = {.n_outer = (int)take(3), .n_inner = (int)take(3)};
    const int n = axes_of(&given);
    int64_t elements = 1;
    for (int a = 0; a < n; a++) {
        static const unsigned bounds[] = {4, 20, 300, LONGEST};
        const bool is_channel = a == given.n_outer;
        int64_t most = (int64_t)bounds[take(4)];
        if (is_channel && most > MOST_CHANNELS)
            most = MOST_CHANNELS;
        given.sizes[a] = 1 + take((unsigned)most);
        while (elements * given.sizes[a] > MOST_ELEMENTS)
            given.sizes[a] = (given.sizes[a] + 1) / 2;
        elements *= given.sizes[a];
    }
    layout dense = given;
    char *operand[BN_OPERANDS], *memory[BN_OPERANDS], *plain[BN_OPERANDS];
    const unsigned alias = take(4); /* diff_src is src; is diff_dst; else its own */
    int64_t offset = 0;
    for (int o = 0; o < BN_OPERANDS; o++) {
        int64_t gap[5] = {0}, none[5] = {0};
        for (int a = 0; a < n; a++)
            gap[a] = take(3) ? 0 : take(6);
        lay_out(&given, o, size, gap);
        lay_out(&dense, o, size, none);
        if (o == BN_DIFF_SRC && alias < 2) {
            memcpy(given.stride[o], given.stride[alias], sizeof given.stride[o]);
            given.extent[o] = given.extent[alias];
            operand[o] = operand[alias];
            memory[o] = NULL;
        } else {
            offset = take(64); /* elements need not be aligned */
            memory[o] = allocate((size_t)(given.extent[o] + offset));
            operand[o] = memory[o] + offset;
            memset(operand[o], 0xa5, (size_t)given.extent[o]);
        }
        plain[o] = allocate((size_t)dense.extent[o]);
    }
    const unsigned kind = take(3);
    for (int o = 0; o < 2; o++) {
        for (int64_t i = 0; i < elements; i++)
            put_number(plain[o] + i * size, dtype, kind, false);
        copy(&dense, o, plain[o], &given, o, operand[o], size);
    }

    const int64_t channels = given.sizes[given.n_outer], width = size_of(number);
    char *vector[5], *plain_vector[2];
    for (int v = 0; v < 5; v++) {
        vector[v] = allocate((size_t)(channels * width));
        for (int64_t c = 0; c < channels; c++)
            put_number(vector[v] + c * width, number, kind, v == 1);
    }
    for (int v = 0; v < 2; v++)
        plain_vector[v] = allocate((size_t)(channels * width));

    bn_problem p = {.dtype = dtype, .epsilon = 1e-3, .training = take(2)};
    for (int o = 0; o < BN_OPERANDS; o++)
        p.data[o] = plain[o];
    p.vector[BN_MEAN] = (bn_vector){vector[0], width, number};
    p.vector[BN_VARIANCE] = (bn_vector){vector[1], width, number};
    if (take(4))
        p.vector[BN_GAMMA] = (bn_vector){vector[2], width, number};
    const bool param_grads = take(4);
    if (param_grads) {
        p.vector[BN_DIFF_GAMMA] = (bn_vector){plain_vector[0], width, number};
        p.vector[BN_DIFF_BETA] = (bn_vector){plain_vector[1], width, number};
    }
    set_axes(&p, &dense);
    p.num_threads = 1;
    bn_isa_use(0);
    bn_set_cache_sizes(1 << 20, 32 << 20);
    if (bn_backward(&p) != BN_OK)
        abort();

    /* What the whole of the given diff_src must be afterwards. */
    char *expected = allocate((size_t)given.extent[BN_DIFF_SRC]);
    memcpy(expected, operand[BN_DIFF_SRC], (size_t)given.extent[BN_DIFF_SRC]);
    copy(&dense, BN_DIFF_SRC, plain[BN_DIFF_SRC], &given, BN_DIFF_SRC, expected, size);

    for (int o = 0; o < BN_OPERANDS; o++)
        p.data[o] = operand[o];
    if (param_grads) {
        p.vector[BN_DIFF_GAMMA].data = vector[3];
        p.vector[BN_DIFF_BETA].data = vector[4];
    }
    set_axes(&p, &given);
    p.num_threads = 1 + (int)take(4);
    bn_isa_use((int)take((unsigned)bn_isa_count()));
    static const int64_t caches[] = {1 << 12, 1 << 16, 1 << 20, 1 << 30};
    const int64_t l2 = caches[take(4)];
    bn_set_cache_sizes(l2, caches[take(4)]);
    const bool split = take(3) == 0;
    if (split) {
        double *sums = allocate(2 * (size_t)channels * sizeof *sums);
        bn_problem reduce = p;
        reduce.vector[BN_VARIANCE].data = reduce.vector[BN_GAMMA].data = NULL;
        reduce.vector[BN_DIFF_GAMMA].data = reduce.vector[BN_DIFF_BETA].data = NULL;
        if (bn_backward_reduce(&reduce, sums) != BN_OK ||
            bn_backward_apply(&p, sums, (double)elements / (double)channels) != BN_OK)
            abort();
        free(sums);
    } else if (bn_backward(&p) != BN_OK) {
        abort();
    }
    demand(!memcmp(expected, operand[BN_DIFF_SRC], (size_t)given.extent[BN_DIFF_SRC]), "diff_src",
           &given, dtype);
    for (int v = 0; v < 2 && param_grads; v++)
        demand(!memcmp(plain_vector[v], vector[3 + v], (size_t)(channels * width)),
               v ? "diff_beta" : "diff_gamma", &given, dtype);

    free(expected);
    for (int o = 0; o < BN_OPERANDS; o++) {
        free(memory[o]);
        free(plain[o]);
    }
    for (int v = 0; v < 5; v++)
        free(vector[v]);
    for (int v = 0; v < 2; v++)
        free(plain_vector[v]);
    return 0;
}
