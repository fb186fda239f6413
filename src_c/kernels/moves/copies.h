/* copies.h: copies of two axes, for each size of elements. arrays/copies.c cuts arrays into these;
 * kernels/moves/copies.inc has the code. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An axis's length, and its strides in the two arrays, in bytes. */
typedef struct {
    ptrdiff_t size, from, to;
} bn_axis_pair;

/* Append an axis; or merge it into the previous one if, in both arrays, the stride of the previous
 * axis is as long as all of the new one. */
static inline void bn_add_axis(bn_axis_pair *axes, int *n, bn_axis_pair axis) {
    const bn_axis_pair last = *n ? axes[*n - 1] : (bn_axis_pair){1, 0, 0};
    if (*n && last.from == axis.from * axis.size && last.to == axis.to * axis.size)
        axes[*n - 1] = (bn_axis_pair){last.size * axis.size, axis.from, axis.to};
    else
        axes[(*n)++] = axis;
}

enum { BN_WIDEST_PICK = 64 };

/* How rows of `columns` adjacent elements, `next` bytes apart, are copied to lie side by side: so
 * many rows are read as two registers, the second `second` bytes behind the first, which is `base`
 * bytes from the first row (rows may go backwards). Each element of the register that is written
 * has the number of the one that is read. With 0 rows, nothing is picked. */
typedef struct {
    int64_t rows, columns;
    ptrdiff_t next, base, second;
    _Alignas(BN_WIDEST_PICK) unsigned char number[BN_WIDEST_PICK];
} bn_picks;

typedef struct {
    void (*set_picks)(bn_picks *picks, bn_axis_pair other, bn_axis_pair last);
    /* Neither reads nor writes a byte that is not between the first and the last element. Writes
     * nothing but elements. With `fetch`, what lies ahead in `from` is fetched, because it comes
     * from memory. */
    void (*copy)(const char *from, char *to, bn_axis_pair other, bn_axis_pair last,
                 const bn_picks *picks, bool fetch);
} bn_copy_kernels;

/* For elements of 2, 4 and 8 bytes. */
enum { BN_COPY_SIZES = 3 };
