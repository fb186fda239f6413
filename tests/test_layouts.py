"""Any strides: the right numbers, in src's memory order, with no more copies than promised."""

import tracemalloc

import numpy as np
import pytest
import reference
from cases import (
    DATA_DTYPES,
    DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    all_bits,
    arithmetic,
    dtype,
    half_ulp,
    placed,
    unit,
)

import bn_ext

pytestmark = pytest.mark.quick


def axis_order(array):
    """The rule: length 1 dropped, |stride| descending, ties and stride 0 keep their place."""
    axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1]
    moving = [axis for axis in axes if array.strides[axis] != 0]
    order = iter(sorted(moving, key=lambda axis: -abs(array.strides[axis])))
    return [axis if array.strides[axis] == 0 else next(order) for axis in axes]


def full_order(array):
    """The same with all axes: those of length 1 lie anywhere."""
    order = axis_order(array)
    return [*order, *(axis for axis in range(array.ndim) if axis not in order)]


def any_shape(rng):
    """Up to five axes, now and then a long one, of a few thousand elements together."""
    while True:
        dims = [int(n) for n in rng.choice([1, 2, 3, 5, 8, 40], rng.integers(2, 6))]
        if rng.random() < 0.3:
            dims[rng.integers(len(dims))] = int(rng.integers(200, 3000))
        if np.prod(dims) <= 20_000:
            return tuple(dims)


def any_view(rng, dims, dtype):
    """An array of this shape: axes permuted, with gaps, steps, backwards, or broadcast."""
    order = rng.permutation(len(dims))
    steps = rng.choice([1, 1, 1, 2, 3], len(dims))
    gaps = rng.choice([0, 0, 1, 4], len(dims))
    room = [int(dims[axis] * steps[axis] + gaps[axis]) for axis in order]
    whole = rng.standard_normal(room, np.float32).astype(dtype)
    view = whole[tuple(slice(0, dims[a] * steps[a], steps[a]) for a in order)]
    view = view[tuple(slice(None, None, rng.choice([1, 1, -1])) for _ in order)]
    view = view.transpose(np.argsort(order))
    for axis in range(len(dims)):
        if rng.random() < 0.05:
            view = np.broadcast_to(view.take([0], axis), dims)
    assert view.shape == dims
    return view


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
def test_any_strides(rng, data, vector, data_format):
    for _ in range(60):
        dims = any_shape(rng)
        p = Problem(rng, dims, data_format, data, vector)
        p.src, p.diff_dst = (any_view(rng, dims, a.dtype) for a in (p.src, p.diff_dst))
        is_training = bool(rng.random() < 0.6)
        options = {"data_format": data_format, "is_training": is_training}
        grads = p.run(bn_ext.batch_norm_backward, **options)

        want = p.run(
            reference.batch_norm_backward, axis=p.axis, is_training=is_training, wide=np.longdouble
        )
        error = abs(grads.diff_src.astype(np.longdouble) - want.diff_src)
        bound = 8 * unit(arithmetic(data)) * (want.diff_src_terms + want.diff_src_sums)
        assert (error <= bound + half_ulp(want.diff_src, data)).all()

        order = full_order(p.src)
        dense = p.run(
            bn_ext.batch_norm_backward,
            src=placed(p.src, order=order),
            diff_dst=placed(p.diff_dst, order=order),
            **options,
        )
        assert all_bits(grads) == all_bits(dense)
        assert grads.diff_src.transpose(order).flags.c_contiguous

        out = any_view(rng, dims, p.src.dtype)
        if out.flags.writeable and 0 not in [
            s for s, n in zip(out.strides, dims, strict=True) if n > 1
        ]:
            given = p.run(bn_ext.batch_norm_backward, out=(out, None, None), **options)
            assert given.diff_src is out
            assert all_bits(given) == all_bits(grads)


@pytest.mark.parametrize("dims", [(4, 3), (2, 5, 6), (2, 3, 4, 5), (1, 3, 1, 5), (2, 1, 4, 5)])
def test_result_lies_as_src_does(rng, dims):
    for data_format in FORMATS:
        p = Problem(rng, dims, data_format)
        for order in np.array(list(np.ndindex(*(len(dims),) * len(dims)))):
            if len(set(order)) < len(dims):
                continue
            src = placed(p.src, order=order)
            grads = p.run(bn_ext.batch_norm_backward, src=src, data_format=data_format)
            # A new array, and no more than that.
            whole = grads.diff_src if grads.diff_src.base is None else grads.diff_src.base
            assert whole.flags.owndata
            assert whole.nbytes == src.nbytes
            assert not np.shares_memory(whole, src)
            for axis, n in enumerate(dims):
                assert n == 1 or grads.diff_src.strides[axis] == src.strides[axis]


def test_axes_of_equal_strides_keep_their_order(rng):
    """Windows of a row, or of an image, each one step from the one before it."""
    row = rng.standard_normal(700, np.float32)
    image = rng.standard_normal((20, 12), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view
    views = [
        (windows(row, 40), [0, 1]),  # N, C of equal steps
        (windows(row, 40)[:, :, None], [0, 1, 2]),
        (windows(row, 300)[:30, None], [0, 1, 2]),
        (windows(image, (5, 4)), [0, 2, 1, 3]),  # rows, rows of a window, columns, ...
        (windows(image, (5, 4))[::-1, :, ::-1], [0, 2, 1, 3]),
    ]
    for src, order in views:
        for data_format in FORMATS:
            p = Problem(rng, src.shape, data_format)
            p.src = src
            assert full_order(src) == [axis for axis in order if src.shape[axis] > 1] + [
                axis for axis in order if src.shape[axis] == 1
            ]
            found = p.run(bn_ext.batch_norm_backward, data_format=data_format)
            assert found.diff_src.transpose(order).flags.c_contiguous
            wanted = p.run(
                bn_ext.batch_norm_backward,
                src=placed(src, order=order),
                diff_dst=placed(p.diff_dst, order=order),
                data_format=data_format,
            )
            assert all_bits(found) == all_bits(wanted)


# ---- copies -----------------------------------------------------------------------

BIG = (40, 30, 8, 64)  # 2.4 MB of float32
SLACK = 100_000


def peak(call):
    """Most memory that NumPy had allocated at a time, beyond what there was."""
    call()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call()
    after = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return after - before


ORDERS = {"as named": (0, 1, 2, 3), "channels moved": (0, 3, 1, 2), "mixed": (2, 0, 1, 3)}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("how", ["contiguous", "gaps", "backwards"])
@pytest.mark.parametrize("data", ["float32", "bfloat16"])
def test_nothing_is_copied(rng, data, how, order):
    """Src and diff_dst share an axis order with a contiguous inner run."""
    for data_format in FORMATS:
        p = Problem(rng, BIG, data_format, data)
        src, diff_dst = placed(p.src, how, order=order), placed(p.diff_dst, "gaps", order=order)
        out = (placed(p.src, "gaps", order=order), np.empty_like(p.mean), np.empty_like(p.mean))
        for is_training in (True, False):

            def call(src=src, diff_dst=diff_dst, out=out, p=p, is_training=is_training):
                p.run(
                    bn_ext.batch_norm_backward, src=src, diff_dst=diff_dst, out=out,
                    data_format=p.data_format, is_training=is_training,
                )  # fmt: skip

            assert peak(call) < SLACK


def test_what_is_copied_is_copied_once(rng):
    p = Problem(rng, BIG, "NXC")
    one = p.src.nbytes
    contiguous, other = p.src, placed(p.diff_dst, order=(0, 3, 1, 2))
    spread = placed(p.src, "spread")

    def call(src, diff_dst, out):
        return lambda: p.run(
            bn_ext.batch_norm_backward, src=src, diff_dst=diff_dst, out=(out, None, None)
        )

    out, other_out = np.empty_like(p.src), placed(p.src, order=(0, 3, 1, 2))
    assert peak(call(contiguous, p.diff_dst, None)) < one + SLACK  # the result
    assert peak(call(contiguous, other, out)) < one + SLACK
    assert peak(call(spread, p.diff_dst, out)) < one + SLACK
    assert peak(call(contiguous, p.diff_dst, other_out)) < one + SLACK
    assert peak(call(spread, other, other_out)) < 3 * one + SLACK


def test_in_place_over_views(rng):
    """Out may be src or diff_dst whatever their strides, copies or not."""
    for data_format in FORMATS:
        for how in ("contiguous", "gaps", "backwards", "spread"):
            for which in ("src", "diff_dst"):
                p = Problem(rng, (6, 7, 5, 9), data_format)
                want = p.run(bn_ext.batch_norm_backward, data_format=data_format)
                setattr(p, which, placed(getattr(p, which), how))
                target = getattr(p, which)
                grads = p.run(
                    bn_ext.batch_norm_backward, data_format=data_format, out=(target, None, None)
                )
                assert grads.diff_src is target
                assert all_bits(grads) == all_bits(want)


def test_src_may_be_diff_dst(rng):
    p = Problem(rng, (6, 7, 5), "NXC")
    apart = p.run(bn_ext.batch_norm_backward, diff_dst=p.src.copy())
    assert all_bits(p.run(bn_ext.batch_norm_backward, diff_dst=p.src)) == all_bits(apart)
    together = p.src.copy()
    grads = p.run(
        bn_ext.batch_norm_backward, src=together, diff_dst=together, out=(together, None, None)
    )
    assert all_bits(grads) == all_bits(apart)


def test_more_axes_than_anyone_has(rng):
    dims = (2,) * 10 + (1,) * 20
    for data_format in FORMATS:
        p = Problem(rng, dims, data_format)
        grads = p.run(bn_ext.batch_norm_backward, data_format=data_format)
        want = p.run(reference.batch_norm_backward, axis=p.axis)
        np.testing.assert_allclose(grads.diff_src, want.diff_src, atol=1e-4)


def test_epsilon_is_never_rounded_to_float(rng):
    p = Problem(rng, (50, 6), "NXC", "float64")
    p.variance = np.zeros(6)
    exact = p.run(bn_ext.batch_norm_backward, epsilon=1e-3)
    rounded = p.run(bn_ext.batch_norm_backward, epsilon=float(np.float32(1e-3)))
    assert (exact.diff_gamma != rounded.diff_gamma).all()
    np.testing.assert_allclose(exact.diff_gamma, rounded.diff_gamma, rtol=1e-7)
    assert float(np.float32(EPSILON)) != EPSILON


@pytest.mark.quick
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("length", [5, 60, 300, 700, 1100, 5000])
@pytest.mark.parametrize("outer", [(2, 1), (3, 2), (5, 4), (2, 9), (40, 5)])
def test_outer_axes_that_do_not_merge(rng, outer, length, is_training):
    """N in two axes with a gap between them: every form, in each operand by itself."""
    channels = 3
    shape = (*outer, channels, length)
    for name in DATA_DTYPES:
        dense = [rng.standard_normal(shape).astype(dtype(name)) for _ in range(2)]
        number = np.float64 if name == "float64" else np.float32
        vectors = [np.full(channels, v, number) for v in (0.1, 0.9, 1.2)]
        options = {"epsilon": EPSILON, "data_format": "NCX", "is_training": is_training}
        # N, C, second part of N, X: only memory knows that the channel comes third.
        wanted = all_bits(
            bn_ext.batch_norm_backward(
                *(a.transpose(0, 2, 1, 3) for a in dense), *vectors, **options
            )
        )
        for which in range(3):
            gaps = np.zeros((outer[0], outer[1] + 2, channels, length), dtype(name))[:, : outer[1]]
            operands = [*dense, np.empty_like(dense[0])]
            if which < 2:
                gaps[...] = operands[which]
            operands[which] = gaps
            src, diff_dst, diff_src = (a.transpose(0, 2, 1, 3) for a in operands)
            for threads in (1, 3):
                out = (diff_src, np.empty(channels, number), np.empty(channels, number))
                found = bn_ext.batch_norm_backward(
                    src, diff_dst, *vectors, out=out, num_threads=threads, **options
                )
                assert all_bits(found) == wanted


@pytest.mark.parametrize("data_format", FORMATS)
def test_out_with_an_axis_that_newaxis_made(rng, data_format):
    """Its stride is 0, but with one position along it nothing lies twice in one place."""
    p = Problem(rng, (6, 3, 4), data_format)
    # With gaps: the buffer of a contiguous array has other strides than the array.
    into = placed(np.zeros_like(p.src), "gaps")
    src, diff_dst, diff_src = (a[..., np.newaxis, :] for a in (p.src, p.diff_dst, into))
    assert memoryview(diff_src).strides[-2] == 0
    wanted = p.run(bn_ext.batch_norm_backward, src, diff_dst, data_format=data_format)
    found = p.run(
        bn_ext.batch_norm_backward, src, diff_dst, data_format=data_format,
        out=(diff_src, None, None),
    )  # fmt: skip
    assert found.diff_src is diff_src
    assert all_bits(found) == all_bits(wanted)
