/* axes.c: see axes.h. */
#include "axes.h"

/* ---- order -------------------------------------------------------------- */

/* Fill `moving` with the axes that are longer than 1 and have a nonzero stride, largest |stride|
 * first; return their number. */
static int sort_moving(const bn_view *view, int moving[BN_MAX_AXES]) {
    int n = 0;
    for (int axis = 0; axis < view->ndim; axis++) {
        if (view->shape[axis] == 1 || view->strides[axis] == 0)
            continue;
        const ptrdiff_t far = bytes_apart(view->strides[axis]);
        int k = n++;
        for (; k > 0 && bytes_apart(view->strides[moving[k - 1]]) < far; k--)
            moving[k] = moving[k - 1];
        moving[k] = axis;
    }
    return n;
}

void bn_order_of(const bn_view *src, int channel_axis, bn_order *order) {
    int moving[BN_MAX_AXES];
    sort_moving(src, moving);
    order->n = 0;
    order->channel_place = -1;
    for (int axis = 0, next = 0; axis < src->ndim; axis++) {
        if (src->shape[axis] == 1)
            continue;
        const int here = src->strides[axis] == 0 ? axis : moving[next++];
        if (here == channel_axis)
            order->channel_place = order->n;
        order->axis[order->n++] = here;
    }
}

bool bn_follows(const bn_view *view, const bn_order *order) {
    if (order->n && view->strides[order->axis[order->n - 1]] != view->itemsize)
        return false;
    ptrdiff_t before = 0;
    for (int k = 0; k < order->n; k++) {
        const ptrdiff_t here = bytes_apart(view->strides[order->axis[k]]);
        if (here == 0)
            continue;
        if (before && here > before)
            return false;
        before = here;
    }
    return true;
}

/* ---- axes of a problem -------------------------------------------------- */

void bn_add_axis(bn_axis *axes, int *n, const bn_axis *axis) {
    bool merges = *n > 0;
    for (int o = 0; o < BN_OPERANDS && merges; o++)
        merges = axes[*n - 1].stride[o] == axis->stride[o] * axis->size;
    if (!merges) {
        axes[(*n)++] = *axis;
        return;
    }
    axes[*n - 1].size *= axis->size;
    for (int o = 0; o < BN_OPERANDS; o++)
        axes[*n - 1].stride[o] = axis->stride[o];
}

static bn_axis axis_of(const bn_view views[BN_OPERANDS], int axis) {
    bn_axis a;
    a.size = views[BN_SRC].shape[axis];
    for (int o = 0; o < BN_OPERANDS; o++)
        a.stride[o] = views[o].strides[axis];
    return a;
}

void bn_set_axes(bn_problem *p, const bn_view views[BN_OPERANDS], const bn_order *order,
                 int channel_axis) {
    for (int o = 0; o < BN_OPERANDS; o++)
        p->data[o] = views[o].data;
    p->n_outer = p->n_inner = 0;
    p->channel = axis_of(views, channel_axis);
    for (int k = 0; k < order->n; k++) {
        if (k == order->channel_place)
            continue;
        const bn_axis axis = axis_of(views, order->axis[k]);
        if (k < order->channel_place)
            bn_add_axis(p->outer, &p->n_outer, &axis);
        else
            bn_add_axis(p->inner, &p->n_inner, &axis);
    }
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
    ptrdiff_t reach = view->itemsize;
    for (int k = sort_moving(view, moving) - 1; k >= 0; k--) {
        const ptrdiff_t stride = bytes_apart(view->strides[moving[k]]);
        if (stride < reach)
            return true;
        reach += stride * (view->shape[moving[k]] - 1);
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
