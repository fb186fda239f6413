/* fuzz_backward.c: random problems for the C part, under libFuzzer with sanitizers.
 *
 * The bytes decide a problem: dtype, shape, how each operand lies in memory (order of axes,
 * gaps, signs, broadcasts, alignment, aliasing), options, level, threads, believed cache
 * sizes, and the seed and kind of the values. Every array is allocated to the byte. Arrays
 * become a problem as they do in Python, by axes.h. The property: diff_src, diff_gamma,
 * diff_beta and every byte between them are what the plainest call for the same problem gives
 * (elements gathered by hand, lowest level, one thread), and bn_backward_reduce with
 * bn_backward_apply give the same.
 *
 * Built and run by .ci/fuzz.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "kernels/kernels.h"
#include "machine.h"

enum { MOST_AXES = 6, MOST_ELEMENTS = 60000, MOST_CHANNELS = 600, LONGEST = 9000 };
enum { FARTHEST = 1 << 26 }; /* bytes that an axis reaches: libFuzzer allows 2 GB in all */

/* ---- what the input decides -------------------------------------------- */

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

static void start(const uint8_t *data, size_t size) {
    bytes = data;
    left = size;
    state = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        state = (state ^ data[i]) * 0x100000001b3u;
    state |= 1;
}

static void *allocate(ptrdiff_t n) {
    void *p = malloc(n ? (size_t)n : 1);
    if (!p)
        abort();
    return p;
}

/* One element: an ordinary number, a small whole one, or any bits at all. */
static void put_number(char *to, bn_dtype dtype, unsigned kind, bool positive) {
    const uint64_t bits = next_random();
    if (kind == 2 && !positive && bits >> 60 == 0) {
        memcpy(to, &state, (size_t)bn_dtype_table[dtype].element_bytes);
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

/* ---- arrays ------------------------------------------------------------ */

typedef struct {
    bn_view view;
    ptrdiff_t strides[MOST_AXES];
    char *memory;    /* NULL: it is another array's */
    char *first;     /* lowest byte of an element */
    ptrdiff_t reach; /* bytes from there to the last one */
    bool nested;     /* each axis steps over all that lies within it */
} array;

typedef struct {
    bn_dtype dtype;
    ptrdiff_t shape[MOST_AXES];
    int ndim, channel;
    ptrdiff_t elements;
    array operand[BN_OPERANDS];
    int order[MOST_AXES], n; /* of axes, by the rule */
} tensor;

static void demand(bool holds, const char *what, const tensor *t) {
    if (holds)
        return;
    fprintf(stderr, "%s: dtype %d, channel %d\n", what, (int)t->dtype, t->channel);
    for (int a = 0; a < t->ndim; a++) {
        fprintf(stderr, "  %td elements, strides", t->shape[a]);
        for (int o = 0; o < BN_OPERANDS; o++)
            fprintf(stderr, " %td", t->operand[o].strides[a]);
        fprintf(stderr, "\n");
    }
    abort();
}

static void choose_shape(tensor *t) {
    static const unsigned bounds[] = {4, 20, 300, LONGEST};
    t->dtype = (bn_dtype)take(BN_DTYPES);
    t->ndim = 2 + (int)take(MOST_AXES - 1);
    t->channel = (int)take((unsigned)t->ndim);
    t->elements = 1;
    for (int a = 0; a < t->ndim; a++) {
        unsigned most = bounds[take(4)];
        if (a == t->channel && most > MOST_CHANNELS)
            most = MOST_CHANNELS;
        t->shape[a] = 1 + (ptrdiff_t)take(most);
        while (t->elements * t->shape[a] > MOST_ELEMENTS)
            t->shape[a] = (t->shape[a] + 1) / 2;
        t->elements *= t->shape[a];
    }
}

static void shuffle(int *axes, int n) {
    for (int a = n - 1; a > 0; a--) {
        const int b = (int)take((unsigned)a + 1), kept = axes[a];
        axes[a] = axes[b];
        axes[b] = kept;
    }
}

/* Strides for axes in this order, slowest first, with gaps and turned axes; if it is only
 * read, sometimes with elements in the places of others. */
static void choose_strides(const tensor *t, array *a, const int *order, bool read_only) {
    ptrdiff_t step =
        bn_dtype_table[t->dtype].element_bytes * (take(8) ? 1 : 1 + (ptrdiff_t)take(3));
    for (int k = t->ndim - 1; k >= 0; k--) {
        const int axis = order[k];
        a->strides[axis] = take(6) ? step : -step;
        step *= t->shape[axis];
        step += take(3) ? 0 : (ptrdiff_t)take(6) * bn_dtype_table[t->dtype].element_bytes;
    }
    a->nested = true;
    for (int axis = 0; axis < t->ndim && read_only; axis++)
        if (take(8) == 0) {
            const ptrdiff_t other = take(2) ? 0 : a->strides[take((unsigned)t->ndim)];
            a->strides[axis] = llabs(other) < FARTHEST / t->shape[axis] ? other : 0;
            a->nested = false;
        }
}

static void place(const tensor *t, array *a) {
    ptrdiff_t before = 0, after = bn_dtype_table[t->dtype].element_bytes;
    for (int axis = 0; axis < t->ndim; axis++) {
        const ptrdiff_t way = (t->shape[axis] - 1) * a->strides[axis];
        *(way < 0 ? &before : &after) += way;
    }
    const ptrdiff_t offset = (ptrdiff_t)take(64); /* elements need not be aligned */
    a->reach = after - before;
    a->memory = allocate(a->reach + offset);
    a->first = a->memory + offset;
    memset(a->first, 0xa5, (size_t)a->reach);
    a->view = (bn_view){a->first - before, bn_dtype_table[t->dtype].element_bytes, t->ndim,
                        t->shape, a->strides};
}

/* ---- by hand, element by element ---------------------------------------- */

/* The rule of axes.h: again and again the axis of the largest stride that is left. */
static void order_by_hand(tensor *t) {
    const ptrdiff_t *strides = t->operand[BN_SRC].strides;
    bool taken[MOST_AXES] = {false};
    t->n = 0;
    for (int a = 0; a < t->ndim; a++) {
        if (t->shape[a] == 1)
            continue;
        int found = strides[a] == 0 ? a : -1;
        for (int b = 0; b < t->ndim && strides[a] != 0; b++)
            if (t->shape[b] > 1 && strides[b] != 0 && !taken[b] &&
                (found < 0 || llabs(strides[b]) > llabs(strides[found])))
                found = b;
        taken[found] = true;
        t->order[t->n++] = found;
    }
}

/* The next index in this order of axes; false after the last one. */
static bool next(const tensor *t, ptrdiff_t *at) {
    for (int k = t->n - 1; k >= 0; k--) {
        if (++at[t->order[k]] < t->shape[t->order[k]])
            return true;
        at[t->order[k]] = 0;
    }
    return false;
}

static ptrdiff_t offset_of(const tensor *t, const array *a, const ptrdiff_t *at) {
    ptrdiff_t offset = a->view.data - a->first;
    for (int axis = 0; axis < t->ndim; axis++)
        offset += at[axis] * a->strides[axis];
    return offset;
}

/* Copy the elements of an array to or from neighbouring places, in the tensor's order. */
static void gather(const tensor *t, const array *a, char *to) {
    const size_t size = (size_t)a->view.itemsize;
    ptrdiff_t at[MOST_AXES] = {0};
    do {
        memcpy(to, a->first + offset_of(t, a, at), size);
        to += size;
    } while (next(t, at));
}

static void scatter(const tensor *t, const array *a, const char *from, char *first) {
    const size_t size = (size_t)a->view.itemsize;
    ptrdiff_t at[MOST_AXES] = {0};
    do {
        memcpy(first + offset_of(t, a, at), from, size);
        from += size;
    } while (next(t, at));
}

static void fill(const tensor *t, const array *a, unsigned kind) {
    ptrdiff_t at[MOST_AXES] = {0};
    do
        put_number(a->first + offset_of(t, a, at), t->dtype, kind, false);
    while (next(t, at));
}

static bool overlaps_by_hand(const tensor *t, const array *a) {
    char *seen = calloc(1, (size_t)a->reach);
    if (!seen)
        abort();
    ptrdiff_t at[MOST_AXES] = {0};
    bool overlaps = false;
    do {
        char *element = seen + offset_of(t, a, at);
        for (ptrdiff_t i = 0; i < a->view.itemsize; i++, element++) {
            overlaps |= *element;
            *element = 1;
        }
    } while (next(t, at));
    free(seen);
    return overlaps;
}

/* ---- axes.h --------------------------------------------------------------- */

/* What it says of where an array lies. */
static void check_place(const tensor *t, const array *a) {
    const bool overlaps = bn_overlaps_itself(&a->view);
    demand(!a->nested || !overlaps, "overlap seen where there is none", t);
    demand(a->nested || overlaps || !overlaps_by_hand(t, a), "overlap not seen", t);
    for (int side = 0; side < 2; side++)
        for (int inside = 0; inside < 2; inside++) {
            char *edge = side ? a->first + a->reach - inside : a->first - 1 + inside;
            const bn_view byte = {.data = edge, .itemsize = 1};
            demand(bn_extents_meet(&a->view, &byte) == inside, "first or last byte", t);
            demand(bn_extents_meet(&byte, &a->view) == inside, "first or last byte", t);
        }
}

static void check_order(const tensor *t, const bn_order *order) {
    bool same = order->n == t->n && order->channel_place < t->n;
    for (int k = 0; k < t->n && same; k++)
        same = order->axis[k] == t->order[k] &&
               (order->axis[k] == t->channel) == (k == order->channel_place);
    demand(same, "order of axes", t);
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
    if (operand != BN_DIFF_SRC)
        bn_copy_elements(view, &copy->view, order);
    return copy->view;
}

/* ---- the calls ------------------------------------------------------------ */

static void call(const bn_problem *p, bool split, double count) {
    if (!split) {
        if (bn_backward(p) != BN_OK)
            abort();
        return;
    }
    double *sums = allocate(2 * (ptrdiff_t)p->channel.size * (ptrdiff_t)sizeof *sums);
    bn_problem reduce = *p;
    for (int v = BN_MEAN + 1; v < BN_VECTORS; v++)
        reduce.vector[v].data = NULL;
    if (bn_backward_reduce(&reduce, sums) != BN_OK || bn_backward_apply(p, sums, count) != BN_OK)
        abort();
    free(sums);
}

/* Dense, in the tensor's order, at the lowest level, by one thread. */
static void call_plainly(const tensor *t, bn_problem p, char *plain[BN_OPERANDS]) {
    const int64_t size = bn_dtype_table[t->dtype].element_bytes;
    int64_t channels = t->shape[t->channel], outer = 1, inner = 1;
    bool before = channels > 1;
    for (int k = 0; k < t->n; k++) {
        before = before && t->order[k] != t->channel;
        if (t->order[k] != t->channel)
            *(before ? &outer : &inner) *= t->shape[t->order[k]];
    }
    p.n_outer = outer > 1;
    p.n_inner = inner > 1;
    p.outer[0].size = outer;
    p.channel.size = channels;
    p.inner[0].size = inner;
    for (int o = 0; o < BN_OPERANDS; o++) {
        p.data[o] = plain[o];
        p.outer[0].stride[o] = channels * inner * size;
        p.channel.stride[o] = inner * size;
        p.inner[0].stride[o] = size;
    }
    p.num_threads = 1;
    bn_isa_use(0);
    bn_set_cache_sizes(1 << 20, 32 << 20);
    call(&p, false, 0);
}

static void call_as_given(const tensor *t, bn_problem p) {
    static const int64_t caches[] = {1 << 12, 1 << 16, 1 << 20, 1 << 30};
    bn_order order;
    bn_order_of(&t->operand[BN_SRC].view, t->channel, &order);
    check_order(t, &order);
    array copy[BN_OPERANDS] = {{.memory = NULL}};
    bn_view walked[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        walked[o] = walkable(t, &order, o, &copy[o]);
    bn_set_axes(&p, walked, &order, t->channel);
    p.num_threads = 1 + (int)take(4);
    bn_isa_use((int)take((unsigned)bn_isa_count()));
    const int64_t l2 = caches[take(4)];
    bn_set_cache_sizes(l2, caches[take(4)]);
    call(&p, take(3) == 0, (double)t->elements / (double)t->shape[t->channel]);
    if (copy[BN_DIFF_SRC].memory)
        bn_copy_elements(&walked[BN_DIFF_SRC], &t->operand[BN_DIFF_SRC].view, &order);
    for (int o = 0; o < BN_OPERANDS; o++)
        free(copy[o].memory);
}

/* ---- a problem ------------------------------------------------------------ */

/* The operands in memory, src and diff_dst filled; often all in one order of axes. */
static void choose_operands(tensor *t, unsigned kind) {
    const unsigned alias = take(4); /* diff_src is src; is diff_dst; else its own */
    int order[MOST_AXES];
    for (int a = 0; a < t->ndim; a++)
        order[a] = a;
    if (take(2))
        shuffle(order, t->ndim);
    for (int o = 0; o < BN_OPERANDS; o++) {
        array *a = &t->operand[o];
        if (o == BN_DIFF_SRC && alias < BN_DIFF_SRC &&
            !bn_overlaps_itself(&t->operand[alias].view)) {
            *a = t->operand[alias];
            a->memory = NULL;
            continue;
        }
        if (take(4) == 0)
            shuffle(order, t->ndim);
        choose_strides(t, a, order, o != BN_DIFF_SRC);
        place(t, a);
        if (o == BN_SRC)
            order_by_hand(t);
        check_place(t, a);
        if (o != BN_DIFF_SRC)
            fill(t, a, kind);
    }
}

/* The (C,) vectors of a problem, filled, and copies for another; some are absent. */
static void choose_vectors(const tensor *t, unsigned kind, bn_problem *p, bn_problem *plain) {
    const bn_dtype number = t->dtype == BN_F64 ? BN_F64 : BN_F32;
    const ptrdiff_t width = bn_dtype_table[number].element_bytes,
                    room = t->shape[t->channel] * width;
    for (int v = 0; v < BN_VECTORS; v++) {
        if (v >= BN_GAMMA && take(4) == 0)
            continue;
        p->vector[v] = plain->vector[v] = (bn_vector){allocate(room), width, number};
        for (ptrdiff_t c = 0; c < room; c += width)
            put_number(p->vector[v].data + c, number, kind, v == BN_VARIANCE);
        plain->vector[v].data = memcpy(allocate(room), p->vector[v].data, (size_t)room);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_of_data) {
    start(data, size_of_data);
    static tensor t;
    choose_shape(&t);
    const unsigned kind = take(3);
    choose_operands(&t, kind);
    array *written = &t.operand[BN_DIFF_SRC];

    bn_problem p = {.dtype = t.dtype, .epsilon = 1e-3, .training = take(2)}, plain = p;
    choose_vectors(&t, kind, &p, &plain);
    char *plain_data[BN_OPERANDS];
    for (int o = 0; o < BN_OPERANDS; o++)
        plain_data[o] = allocate(t.elements * written->view.itemsize);
    gather(&t, &t.operand[BN_SRC], plain_data[BN_SRC]);
    gather(&t, &t.operand[BN_DIFF_DST], plain_data[BN_DIFF_DST]);
    call_plainly(&t, plain, plain_data);

    /* What the whole of the given diff_src must be afterwards. */
    char *expected = memcpy(allocate(written->reach), written->first, (size_t)written->reach);
    scatter(&t, written, plain_data[BN_DIFF_SRC], expected);
    call_as_given(&t, p);
    demand(!memcmp(expected, written->first, (size_t)written->reach), "diff_src", &t);
    for (int v = 0; v < BN_VECTORS; v++) {
        const bn_vector *x = &p.vector[v], *y = &plain.vector[v];
        const size_t room = (size_t)(t.shape[t.channel] * x->stride);
        demand(!x->data || !memcmp(x->data, y->data, room), "a vector", &t);
    }
    free(expected);
    for (int o = 0; o < BN_OPERANDS; o++) {
        free(t.operand[o].memory);
        free(plain_data[o]);
    }
    for (int v = 0; v < BN_VECTORS; v++) {
        free(p.vector[v].data);
        free(plain.vector[v].data);
    }
    return 0;
}
