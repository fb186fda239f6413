/* fuzz.h: what the parts of the fuzzer share. See fuzz.c.
 *
 * fuzz.c            problems, calls, and what must hold
 * fuzz_arrays.c     what the input decides: numbers, arrays as they lie in memory
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>

#include "axes.h"

enum { MOST_AXES = 6, MOST_ELEMENTS = 60000, MOST_CHANNELS = 600, LONGEST = 9000 };

typedef struct {
    bn_dtype dtype;
    bn_view view; /* data is NULL where there is no array */
    ptrdiff_t strides[MOST_AXES];
    bool owns;        /* memory of its own? Else it shares another array's */
    char *memory;     /* all of it: elements, gaps, and what is around them */
    char *expected;   /* what `memory` must hold after the call */
    ptrdiff_t bytes;  /* of each of these two blocks */
    ptrdiff_t before; /* bytes in memory ahead of its lowest element */
    ptrdiff_t reach;  /* bytes from the lowest element to the end of the highest one */
    bool nested;      /* each axis steps past all elements of faster axes */
} array;

/* A tensor's shape, with the arrays of that shape and of (C,) that a call is given. */
typedef struct {
    bn_dtype dtype;
    ptrdiff_t shape[MOST_AXES];
    int ndim, channel;
    ptrdiff_t elements;
    array operand[BN_OPERANDS], vector[BN_VECTORS];
    int order[MOST_AXES], n; /* the n axes longer than 1, by the rule of axes.h */
    ptrdiff_t outer, channels, inner;
} tensor;

/* A tensor's arrays as dense copies, (outer, channels, inner) and (C,). The results are those of
 * the plainest call. */
typedef struct {
    char *data[BN_OPERANDS], *vector[BN_VECTORS];
    double *sums;   /* of reduce; NULL: there is none */
    int64_t *state; /* the exact sums, with room around them */
} plain;

void demand(bool holds, const char *what, const tensor *t);

/* ---- fuzz_arrays.c ------------------------------------------------------ */

void start(const uint8_t *data, size_t size);
unsigned take(unsigned below); /* the input's next choice */
void *allocate(ptrdiff_t bytes);

void choose_shape(tensor *t);
/* Kinds of numbers: 0 ordinary, 1 small integers, 2 some with any bits, 3 by each channel's
 * character (fuzz_arrays.c). */
enum { KINDS = 4, BY_CHANNEL = KINDS - 1 };
void choose_operands(tensor *t, unsigned reads, unsigned writes, unsigned kind);
void choose_vector(tensor *t, int vector, unsigned kind, bool positive);

/* gather: copy an array's elements to contiguous memory, in the tensor's order. scatter: copy such
 * elements to their places in `memory`, which is the array's own or a copy of it. */
void gather(const tensor *t, const array *a, char *to);
void scatter(const tensor *t, const array *a, const char *from, char *memory);
void gather_vector(const tensor *t, int vector, char *to);
void scatter_vector(const tensor *t, int vector, const char *from, char *memory);

#endif
