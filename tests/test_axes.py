"""Axes: read from src's strides, merged where memory allows; diff_src lies as src does."""

import numpy as np
import pytest
import reference
from cases import DTYPES, EPSILON, FORMATS, Problem, all_bits, full_order, placed

import bn_ext

pytestmark = pytest.mark.quick


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


def test_more_axes_than_anyone_has(rng):
    dims = (2,) * 10 + (1,) * 20
    for data_format in FORMATS:
        p = Problem(rng, dims, data_format)
        grads = p.run(bn_ext.batch_norm_backward, data_format=data_format)
        want = p.run(reference.batch_norm_backward, axis=p.axis)
        np.testing.assert_allclose(grads.diff_src, want.diff_src, atol=1e-4)


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


def test_layout_is_read_from_strides(rng):
    """The name of an axis is nothing to the bits: its place in memory is."""
    for types in DTYPES:
        problem = Problem(rng, (6, 21, 10), "NXC", *types)
        want = all_bits(problem.run(bn_ext.batch_norm_backward))
        moved = bn_ext.batch_norm_backward(
            np.moveaxis(problem.src, -1, 1), np.moveaxis(problem.diff_dst, -1, 1),
            *problem.vectors(), epsilon=EPSILON, data_format="NCX",
        )  # fmt: skip
        assert np.moveaxis(moved.diff_src, 1, -1).flags.c_contiguous
        assert all_bits((np.moveaxis(moved.diff_src, 1, -1), *moved[1:])) == want
