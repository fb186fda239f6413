/* strided.c: copies the chunks of strided operands. A chunk is one range of a dense array's
 * elements, or several equal ones. In the view, a range is cut into boxes of two axes, which
 * kernels/moves/copies.inc copies. */
#include "call/strided.h"

#include "base/sizes.h"

void bn_set_strided(bn_strided *s, const bn_view *view, const bn_axes *axes, bool written) {
    const ptrdiff_t itemsize = view->itemsize;
    s->data = view->data;
    s->written = written;
    s->fetch = false;
    s->kernels = &bn_level_current()->copies[itemsize == 8 ? 2 : itemsize == 4];
    ptrdiff_t to = itemsize;
    for (int k = axes->n - 1; k >= 0; k--)
        to *= view->shape[axes->axis[k]];
    s->n = 0;
    for (int k = 0; k < axes->n; k++) {
        const int axis = axes->axis[k];
        to /= view->shape[axis];
        bn_add_axis(s->axis, &s->n, (bn_axis_pair){view->shape[axis], view->strides[axis], to});
    }
    if (s->n == 0)
        s->axis[s->n++] = (bn_axis_pair){1, itemsize, itemsize};
    if (s->n == 1) {
        s->axis[s->n++] = s->axis[0];
        s->axis[0] = (bn_axis_pair){1, 0, s->axis[1].size * itemsize};
    }
    if (!written)
        s->kernels->set_picks(&s->picks, s->axis[s->n - 2], s->axis[s->n - 1]);
}

/* Is an axis of the view contiguous that comes just before the last one, so that the copies of a
 * chunk fill whole cache lines? A tile may have few channels, unless runs are short. */
static bool transposes_well(const bn_strided *s, const bn_view *view, const bn_axes *axes) {
    enum { SHORT_RUN = 64 };
    const bn_axis_pair other = s->axis[s->n - 2], last = s->axis[s->n - 1];
    const bool channels_meet =
        axes->channel >= 0 && view->strides[axes->axis[axes->channel]] == last.to;
    return other.from == last.to && (!channels_meet || last.size <= SHORT_RUN);
}

bool bn_suits_tasks(const bn_view *view, const bn_axes *axes, bool written) {
    enum { LONG_ROW = 16 }; /* bytes */
    bn_strided s;
    bn_set_strided(&s, view, axes, written);
    const bn_axis_pair last = s.axis[s.n - 1];
    const bool long_rows = last.from == last.to && last.size * last.to >= LONG_ROW;
    for (int k = 1; k < axes->n; k++)
        if (bytes_apart(view->strides[axes->axis[k - 1]]) <
            bytes_apart(view->strides[axes->axis[k]]))
            return transposes_well(&s, view, axes);
    return written || long_rows || s.picks.rows;
}

static void copy_box(const bn_strided *s, bn_axis_pair other, bn_axis_pair last, char *view,
                     char *dense) {
    /* Picks are for whole rows, or for the elements of one row. */
    static const bn_picks none;
    const bool whole = last.size == s->axis[s->n - 1].size || last.from != last.to;
    if (s->written) {
        other = (bn_axis_pair){other.size, other.to, other.from};
        last = (bn_axis_pair){last.size, last.to, last.from};
        s->kernels->copy(dense, view, other, last, &none, false);
    } else {
        s->kernels->copy(view, dense, other, last, whole ? &s->picks : &none, s->fetch);
    }
}

/* Copy elements `begin` to `end` of the axes from k on; `view` is the address of their first
 * element, `dense` that of element `begin`. */
static void copy_range(const bn_strided *s, int k, char *view, char *dense, int64_t begin,
                       int64_t end) {
    const bn_axis_pair axis = s->axis[k], last = s->axis[s->n - 1];
    const int64_t inner = axis.to / last.to;
    for (int64_t i = begin / inner, next; begin < end; i++, begin = next) {
        const int64_t x = begin - i * inner;
        next = at_most(end, (i + 1) * inner);
        if (k + 2 < s->n) {
            copy_range(s, k + 1, view + i * axis.from, dense, x, next - i * inner);
        } else if (x || next - begin < inner) {
            copy_box(s, (bn_axis_pair){1, axis.from, axis.to},
                     (bn_axis_pair){next - begin, last.from, last.to},
                     view + i * axis.from + x * last.from, dense);
        } else {
            const int64_t rows = (end - begin) / inner;
            copy_box(s, (bn_axis_pair){rows, axis.from, axis.to}, last, view + i * axis.from,
                     dense);
            next = begin + rows * inner;
            i += rows - 1;
        }
        dense += (next - begin) * last.to;
    }
}

void bn_copy_range(const bn_strided *s, char *dense, int64_t begin, int64_t end) {
    copy_range(s, 0, s->data, dense + begin * s->axis[s->n - 1].to, begin, end);
}

void bn_copy_chunk(const bn_strided *s, const bn_problem *p, const bn_chunk *chunk, char *dense) {
    const bool whole_runs = chunk->n == p->run;
    const bool whole_rows = whole_runs && chunk->channels == p->channels;
    const int64_t rows = whole_rows ? 1 : chunk->positions, runs = whole_runs ? 1 : chunk->channels;
    const int64_t n = chunk->positions * chunk->channels * chunk->n / (rows * runs);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t run = 0; run < runs; run++) {
            const int64_t channel = (chunk->position + row) * p->channels + chunk->channel + run;
            const int64_t begin = channel * p->run + chunk->x;
            copy_range(s, 0, s->data, dense, begin, begin + n);
            dense += n * s->axis[s->n - 1].to;
        }
}
