/* axes.c: see axes.h. */
#include "arrays/axes.h"

#include <string.h>

#include "base/sizes.h"

/* ---- order -------------------------------------------------------------- */

/* Fill `moving` with the axes that are longer than 1 and have a nonzero stride, largest |stride|
 * first; return their number. */
static int sort_moving(const bn_view *view, int moving[BN_MAX_AXES]) {
    int n = 0;
    for (int axis = 0; axis < view->ndim; axis++) {
        if (view->shape[axis] == 1 || view->strides[axis] == 0)
            continue;
        const size_t far = bytes_apart(view->strides[axis]);
        int k = n++;
        for (; k > 0 && bytes_apart(view->strides[moving[k - 1]]) < far; k--)
            moving[k] = moving[k - 1];
        moving[k] = axis;
    }
    return n;
}

static void add_axis(bn_axes *axes, int axis, int channel_axis) {
    if (axis == channel_axis)
        axes->channel = axes->n;
    axes->axis[axes->n++] = (signed char)axis;
}

void bn_axes_of(const bn_view *src, int channel_axis, bn_axes *axes) {
    int moving[BN_MAX_AXES];
    sort_moving(src, moving);
    axes->n = 0;
    axes->channel = -1;
    for (int axis = 0, next = 0; axis < src->ndim; axis++)
        if (src->shape[axis] != 1)
            add_axis(axes, src->strides[axis] == 0 ? axis : moving[next++], channel_axis);
}

/* What tells a workspace of this shape from others of its size: a hash. */
static uint64_t mark_of_shape(const bn_view *view, int channel_axis) {
    uint64_t hash = mixed((uint64_t)channel_axis);
    for (int axis = 0; axis < view->ndim; axis++)
        hash = mixed(hash ^ (uint64_t)view->shape[axis]);
    return hash;
}

void bn_write_axes(const bn_view *src, int channel_axis, const bn_axes *axes, unsigned char *to) {
    const uint64_t mark = mark_of_shape(src, channel_axis);
    int n = 0;
    for (; n < axes->n; n++)
        to[n] = (unsigned char)axes->axis[n];
    for (int axis = 0; axis < src->ndim; axis++)
        if (src->shape[axis] == 1)
            to[n++] = (unsigned char)axis;
    memcpy(to + n, &mark, sizeof mark);
}

bool bn_read_axes(const unsigned char *from, const bn_view *src, int channel_axis, bn_axes *axes) {
    const uint64_t mark = mark_of_shape(src, channel_axis);
    bool seen[BN_MAX_AXES] = {false};
    axes->n = 0;
    axes->channel = -1;
    for (int k = 0; k < src->ndim; k++) {
        const int axis = from[k];
        if (axis >= src->ndim || seen[axis])
            return false;
        seen[axis] = true;
        if (src->shape[axis] != 1)
            add_axis(axes, axis, channel_axis);
    }
    return memcmp(from + src->ndim, &mark, sizeof mark) == 0;
}

bool bn_follows(const bn_view *view, const bn_axes *axes, bool dense) {
    const int channel = axes->channel;
    const size_t itemsize = (size_t)view->itemsize;
    size_t next = itemsize; /* modulo 2^64, as strides of no elements may be any */
    int k = axes->n - 1;
    for (; k > channel; k--) {
        if ((size_t)view->strides[axes->axis[k]] != next)
            return false;
        next *= (size_t)view->shape[axes->axis[k]];
    }
    if (channel < 0)
        return true;
    const size_t run = next / itemsize, channels = (size_t)view->shape[axes->axis[channel]];
    if ((size_t)view->strides[axes->axis[channel]] != next && (dense || run < BN_ALWAYS_LONG))
        return false;
    next *= channels;
    dense = dense || (run == 1 && channels < BN_FULL_ROW);
    for (k = channel - 1; k >= 0; k--) {
        const size_t here = (size_t)view->strides[axes->axis[k]];
        if ((k < channel - 1 || dense) && here != next)
            return false;
        next = here * (size_t)view->shape[axes->axis[k]];
    }
    return true;
}

/* ---- axes of a problem -------------------------------------------------- */

void bn_set_axes(bn_problem *p, const bn_view views[BN_OPERANDS], const bn_axes *axes,
                 int channel_axis) {
    const bn_view *src = &views[BN_SRC];
    const int channel = axes->channel;
    p->positions = p->run = 1;
    p->channels = src->shape[channel_axis];
    for (int k = 0; k < channel; k++)
        p->positions *= src->shape[axes->axis[k]];
    for (int k = channel + 1; k < axes->n; k++)
        p->run *= src->shape[axes->axis[k]];
    const int64_t run_bytes = p->run * src->itemsize;
    for (int o = 0; o < BN_OPERANDS; o++) {
        const ptrdiff_t *strides = views[o].strides;
        p->data[o] = views[o].data;
        p->next_channel[o] = channel >= 0 ? strides[axes->axis[channel]] : run_bytes;
        p->next_position[o] =
            channel > 0 ? strides[axes->axis[channel - 1]] : p->channels * run_bytes;
    }
    p->next_channel[BN_GATE] = p->run;
    p->next_position[BN_GATE] = p->channels * p->run;
}

/* ---- where arrays lie --------------------------------------------------- */

static bool is_empty(const bn_view *view) {
    for (int axis = 0; axis < view->ndim; axis++)
        if (view->shape[axis] == 0)
            return true;
    return false;
}

bool bn_same_shape(const bn_view *a, const bn_view *b) {
    if (a->ndim != b->ndim)
        return false;
    for (int axis = 0; axis < a->ndim; axis++)
        if (a->shape[axis] != b->shape[axis])
            return false;
    return true;
}

bool bn_same_place(const bn_view *a, const bn_view *b) {
    if (a->data != b->data)
        return false;
    for (int axis = 0; axis < a->ndim; axis++)
        if (a->shape[axis] > 1 && a->strides[axis] != b->strides[axis])
            return false;
    return true;
}

bool bn_overlaps_itself(const bn_view *view) {
    if (is_empty(view))
        return false;
    for (int axis = 0; axis < view->ndim; axis++)
        if (view->shape[axis] > 1 && view->strides[axis] == 0)
            return true;
    int moving[BN_MAX_AXES];
    size_t reach = (size_t)view->itemsize;
    for (int k = sort_moving(view, moving) - 1; k >= 0; k--) {
        const size_t stride = bytes_apart(view->strides[moving[k]]);
        if (stride < reach)
            return true;
        reach += stride * (size_t)(view->shape[moving[k]] - 1);
    }
    return false;
}

/* Addresses from begin up to, but not including, end; for an empty array 0 and 0. */
typedef struct {
    uintptr_t begin, end;
} extent;

static extent extent_of(const bn_view *view) {
    if (is_empty(view))
        return (extent){0, 0};
    extent e = {(uintptr_t)view->data, (uintptr_t)view->data + (uintptr_t)view->itemsize};
    for (int axis = 0; axis < view->ndim; axis++) {
        const ptrdiff_t reach = (view->shape[axis] - 1) * view->strides[axis];
        if (reach < 0)
            e.begin += (uintptr_t)reach;
        else
            e.end += (uintptr_t)reach;
    }
    return e;
}

bool bn_extents_meet(const bn_view *a, const bn_view *b) {
    const extent one = extent_of(a), other = extent_of(b);
    return one.begin < other.end && other.begin < one.end;
}
