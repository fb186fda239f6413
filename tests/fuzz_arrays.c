/* fuzz_arrays.c: what the input decides: numbers, and arrays as they lie in memory. Also checks,
 * element by element, what axes.h says about arrays. See fuzz.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "fuzz.h"

enum { FARTHEST = 1 << 26 }; /* bytes that an axis may span: libFuzzer allows 2 GB in all */
enum { GUARD = 64 };         /* most bytes before or after an array, which nothing may write */

/* ---- choices ------------------------------------------------------------ */

static const uint8_t *bytes;
static size_t left;
static uint64_t state;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Take from the input while it lasts, then random numbers that it seeds: even a short input gives a
 * whole problem. */
unsigned take(unsigned below) {
    if (left < 2)
        return (unsigned)(next_random() >> 32) % below;
    const unsigned value = (unsigned)(bytes[0] << 8 | bytes[1]);
    bytes += 2;
    left -= 2;
    return value % below;
}

void start(const uint8_t *data, size_t size) {
    bytes = data;
    left = size;
    state = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        state = (state ^ data[i]) * 0x100000001b3u;
    state |= 1;
}

void *allocate(ptrdiff_t n) {
    void *p = malloc(n ? (size_t)n : 1);
    if (!p)
        abort();
    return p;
}

/* ---- numbers ------------------------------------------------------------ */

/* A channel's character. Its numbers are (`offset` + `scale` * a random number) * 2^e; `power` is e
 * as a share of the dtype's largest exponent. If `rare` is not 0, one number in `rare` is `rarity`
 * instead. */
static const struct {
    double offset, scale, power;
    int rare;
    double rarity;
} characters[] = {
    {0, 1, 0, 0, 0},      {3.3, 0, 0, 0, 0},
    {1000, 1, 0, 0, 0},   {9999, 0.01, 0, 0, 0},
    {0, 1, 0.8, 0, 0},    {1, 0, 0.9, 0, 0},
    {2, 1, 0.7, 0, 0},    {1.9, 0.05, 0.97, 0, 0},
    {0, 1, -0.8, 0, 0},   {1, 0, -0.8, 0, 0},
    {2, 1, -0.6, 0, 0},   {0, 0, 0, 0, 0},
    {1, 1, 0, 999, 9e3},  {1, 1, 0, 3000, INFINITY},
    {0, 1, 0, 3000, NAN}, {1, 1, 0.8, 2000, INFINITY},
};
enum { CHARACTERS = sizeof characters / sizeof *characters };
static unsigned first_character; /* channel 0's; each next channel's is 5 further on */

static double of_channel(double value, bn_dtype dtype, ptrdiff_t channel) {
    static const int most[BN_DTYPES] = {
        [BN_F32] = 127, [BN_F64] = 1023, [BN_F16] = 15, [BN_BF16] = 127};
    const unsigned i = (first_character + (unsigned)channel * 5) % CHARACTERS;
    if (characters[i].rare && next_random() >> 32 < UINT32_MAX / (unsigned)characters[i].rare)
        return characters[i].rarity;
    return ldexp(characters[i].offset + characters[i].scale * value,
                 (int)(characters[i].power * most[dtype]));
}

static void put_number(char *to, bn_dtype dtype, unsigned kind, bool positive, ptrdiff_t channel) {
    const uint64_t bits = next_random();
    if (kind == 2 && !positive && bits >> 60 == 0) {
        memcpy(to, &state, (size_t)bn_dtype_table[dtype].element_bytes);
        return;
    }
    double value = (double)(int64_t)bits / 0x1p62;
    if (kind == 1)
        value = (double)(int)(value * 8);
    if (kind == BY_CHANNEL)
        value = of_channel(value, dtype, channel);
    element_write(dtype, to, positive ? fabs(value) : value);
}

/* ---- shapes and strides -------------------------------------------------- */

void choose_shape(tensor *t) {
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
    t->channels = t->shape[t->channel];
    first_character = take(CHARACTERS);
}

static void shuffle(int *axes, int n) {
    for (int a = n - 1; a > 0; a--) {
        const int b = (int)take((unsigned)a + 1), kept = axes[a];
        axes[a] = axes[b];
        axes[b] = kept;
    }
}

/* Strides for axes in this order, slowest first, with gaps and flipped axes. If the array is only
 * read, elements sometimes share places. */
static void choose_strides(const tensor *t, array *a, const int *order, bool read_only) {
    const ptrdiff_t size = bn_dtype_table[t->dtype].element_bytes;
    ptrdiff_t step = size * (take(8) ? 1 : 1 + (ptrdiff_t)take(3));
    for (int k = t->ndim - 1; k >= 0; k--) {
        const int axis = order[k];
        a->strides[axis] = take(6) ? step : -step;
        step *= t->shape[axis];
        step += take(3) ? 0 : (ptrdiff_t)take(6) * size;
    }
    a->nested = true;
    for (int axis = 0; axis < t->ndim && read_only; axis++)
        if (take(8) == 0) {
            const ptrdiff_t other = take(2) ? 0 : a->strides[take((unsigned)t->ndim)];
            a->strides[axis] = llabs(other) < FARTHEST / t->shape[axis] ? other : 0;
            a->nested = false;
        }
}

/* Allocate an array. Elements need not be aligned. Half of the arrays end where their memory does,
 * so that the sanitizer sees reads past the end too. */
static void place(array *a, bn_dtype dtype, int ndim, const ptrdiff_t *shape) {
    const ptrdiff_t size = bn_dtype_table[dtype].element_bytes;
    ptrdiff_t down = 0, up = size;
    for (int axis = 0; axis < ndim; axis++) {
        const ptrdiff_t way = (shape[axis] - 1) * a->strides[axis];
        *(way < 0 ? &down : &up) += way;
    }
    a->dtype = dtype;
    a->owns = true;
    a->before = (ptrdiff_t)take(GUARD);
    a->reach = up - down;
    a->bytes = a->before + a->reach + (take(2) ? GUARD : 0);
    a->memory = memset(allocate(a->bytes), 0xa5, (size_t)a->bytes);
    a->expected = allocate(a->bytes);
    a->view = (bn_view){a->memory + a->before - down, size, ndim, shape, a->strides};
}

/* ---- element by element -------------------------------------------------- */

/* The rule of axes.h: next is the largest |stride| left; stride 0 keeps its place. */
static void order_by_hand(tensor *t) {
    const ptrdiff_t *strides = t->operand[BN_SRC].strides;
    bool taken[MOST_AXES] = {false}, before = t->channels > 1;
    t->n = 0;
    t->outer = t->inner = 1;
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
        before = before && found != t->channel;
        if (found != t->channel)
            *(before ? &t->outer : &t->inner) *= t->shape[found];
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

/* An element's offset in the array's memory. */
static ptrdiff_t offset_of(const array *a, const ptrdiff_t *at) {
    ptrdiff_t offset = a->view.data - a->memory;
    for (int axis = 0; axis < a->view.ndim; axis++)
        offset += at[axis] * a->strides[axis];
    return offset;
}

void gather(const tensor *t, const array *a, char *to) {
    const size_t size = (size_t)a->view.itemsize;
    ptrdiff_t at[MOST_AXES] = {0};
    do {
        memcpy(to, a->memory + offset_of(a, at), size);
        to += size;
    } while (next(t, at));
}

void scatter(const tensor *t, const array *a, const char *from, char *memory) {
    const size_t size = (size_t)a->view.itemsize;
    ptrdiff_t at[MOST_AXES] = {0};
    do {
        memcpy(memory + offset_of(a, at), from, size);
        from += size;
    } while (next(t, at));
}

void gather_vector(const tensor *t, int vector, char *to) {
    const array *a = &t->vector[vector];
    const ptrdiff_t size = a->view.itemsize;
    for (ptrdiff_t c = 0; c < t->channels; c++)
        memcpy(to + c * size, a->memory + offset_of(a, &c), (size_t)size);
}

void scatter_vector(const tensor *t, int vector, const char *from, char *memory) {
    const array *a = &t->vector[vector];
    const ptrdiff_t size = a->view.itemsize;
    for (ptrdiff_t c = 0; c < t->channels; c++)
        memcpy(memory + offset_of(a, &c), from + c * size, (size_t)size);
}

static void fill(const tensor *t, const array *a, unsigned kind) {
    ptrdiff_t at[MOST_AXES] = {0};
    do
        put_number(a->memory + offset_of(a, at), t->dtype, kind, false, at[t->channel]);
    while (next(t, at));
}

static bool overlaps_by_hand(const tensor *t, const array *a) {
    char *seen = calloc(1, (size_t)a->bytes);
    if (!seen)
        abort();
    ptrdiff_t at[MOST_AXES] = {0};
    bool overlaps = false;
    do {
        char *element = seen + offset_of(a, at);
        for (ptrdiff_t i = 0; i < a->view.itemsize; i++, element++) {
            overlaps |= *element;
            *element = 1;
        }
    } while (next(t, at));
    free(seen);
    return overlaps;
}

/* Check axes.h on an array: does it overlap itself, where does it begin and end? */
static void check_place(const tensor *t, const array *a) {
    const bool overlaps = bn_overlaps_itself(&a->view);
    demand(!a->nested || !overlaps, "overlap seen where there is none", t);
    demand(a->nested || overlaps || !overlaps_by_hand(t, a), "overlap not seen", t);
    char *first = a->memory + a->before;
    for (int side = 0; side < 2; side++)
        for (int inside = 0; inside < 2; inside++) {
            char *edge = side ? first + a->reach - inside : first - 1 + inside;
            const bn_view byte = {.data = edge, .itemsize = 1};
            demand(bn_extents_meet(&a->view, &byte) == inside, "first or last byte", t);
            demand(bn_extents_meet(&byte, &a->view) == inside, "first or last byte", t);
        }
}

/* ---- the arrays of a problem ------------------------------------------------ */

/* Sometimes put an output in the place of an input, if no other output is there. */
static bool in_place(tensor *t, array *a, unsigned reads, unsigned writes, int o) {
    const int other = (int)take(2 * BN_OPERANDS);
    if (other >= BN_OPERANDS || !(reads >> other & 1))
        return false;
    const array *place = &t->operand[other];
    for (int w = 0; w < o; w++)
        if (writes >> w & 1 && t->operand[w].memory == place->memory)
            return false;
    if (bn_overlaps_itself(&place->view))
        return false;
    *a = *place;
    memcpy(a->strides, place->strides, sizeof a->strides);
    a->view.strides = a->strides;
    a->owns = false;
    return true;
}

/* Choose all operands, often all in one order of axes, and fill the inputs. */
void choose_operands(tensor *t, unsigned reads, unsigned writes, unsigned kind) {
    int order[MOST_AXES];
    for (int a = 0; a < t->ndim; a++)
        order[a] = a;
    if (take(2))
        shuffle(order, t->ndim);
    for (int o = 0; o < BN_OPERANDS; o++) {
        array *a = &t->operand[o];
        const bool read_only = reads >> o & 1;
        if (!((reads | writes) >> o & 1) || (!read_only && in_place(t, a, reads, writes, o)))
            continue;
        if (take(4) == 0)
            shuffle(order, t->ndim);
        choose_strides(t, a, order, read_only);
        place(a, t->dtype, t->ndim, t->shape);
        if (o == BN_SRC)
            order_by_hand(t);
        check_place(t, a);
        if (read_only)
            fill(t, a, kind);
    }
}

/* Choose a vector of the arithmetic type or of any dtype, contiguous or not. */
void choose_vector(tensor *t, int vector, unsigned kind, bool positive) {
    array *a = &t->vector[vector];
    const bn_dtype usual = t->dtype == BN_F64 ? BN_F64 : BN_F32;
    const bn_dtype dtype = take(3) ? usual : (bn_dtype)take(BN_DTYPES);
    a->strides[0] = bn_dtype_table[dtype].element_bytes;
    if (take(4) == 0)
        a->strides[0] *= take(2) ? -1 : 1 + (ptrdiff_t)take(3);
    place(a, dtype, 1, &t->channels);
    for (ptrdiff_t c = 0; c < t->channels; c++)
        put_number(a->memory + offset_of(a, &c), dtype, kind, positive, c);
}
