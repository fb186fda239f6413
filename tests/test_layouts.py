"""Any strides: right results, in src's order of axes, with no more copies than promised."""

import tracemalloc

import guarded
import numpy as np
import pytest
from bounds import assert_near
from cases import DATA_DTYPES, DTYPES, FORMATS, Problem, all_bits, full_order, placed, team_of
from members import MEMBERS, problem
from needs import needs_linux

import bn_ext
from bn_ext import _core
from bn_ext.testing import _formulas as reference

pytestmark = [pytest.mark.fast, pytest.mark.results]


def any_shape(rng):
    """Up to five axes, sometimes a long one, and at most 20,000 elements."""
    while True:
        dims = [int(n) for n in rng.choice([1, 2, 3, 5, 8, 40], rng.integers(2, 6))]
        if rng.random() < 0.3:
            dims[rng.integers(len(dims))] = int(rng.integers(200, 3000))
        if np.prod(dims) <= 20_000:
            return tuple(dims)


def any_view(rng, dims, dtype):
    """An array of this shape; axes may be permuted, reversed or broadcast, with gaps and steps."""
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


@pytest.mark.any_level
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("data", "vector"), DTYPES)
@pytest.mark.parametrize("name", MEMBERS)
def test_any_strides(rng, name, data, vector, data_format):
    """Any strides of operands and results give the bits of dense arrays in src's order of axes."""
    member = MEMBERS[name]
    for _ in range(15):
        _core.use_isa(rng.choice(bn_ext.available_isas()))
        dims = any_shape(rng)
        p = problem(rng, dims, data_format, data, vector)
        for read in member.reads:
            setattr(p, read, any_view(rng, dims, p.src.dtype))
        options = {"is_training": bool(rng.random() < 0.6), "summed": bool(rng.random() < 0.3)}
        results, bits = member.run(p, **options)
        if name == "backward":
            assert_near(p, results, options["is_training"])

        order = full_order(p.src)
        dense = {read: placed(getattr(p, read), order=order) for read in member.reads}
        assert member.run(p, dense, **options)[1] == bits, dims
        assert results[0].transpose(order).flags.c_contiguous

        out = any_view(rng, dims, p.src.dtype)
        if out.flags.writeable and 0 not in [
            s for s, n in zip(out.strides, dims, strict=True) if n > 1
        ]:
            others = [None] * (len(member.returns) - 1)
            arguments, bits_given = member.run(p, out=[out, *others], **options)
            assert arguments[0] is out
            assert bits_given == bits, dims


def longer(array, axis):
    """A copy whose memory has more elements along the axis: NaNs, which nothing may read."""
    whole = np.full([n + 3 * (k == axis) for k, n in enumerate(array.shape)], np.nan, array.dtype)
    view = whole[tuple(slice(n) for n in array.shape)]
    view[...] = array
    return view


#: A format, a shape, and an axis whose end is followed by a gap: from some width on, operands may
#: have it; narrower ones are copied (docs/design.md, "Columns").
BOUNDS = {
    "positions": [("NXC", (n, c), 1) for n in (5, 40) for c in (*range(126, 130), 64)],
    "channels": [("NCX", (n, 3, x), 2) for n in (9, 16, 20) for x in (*range(254, 258), 150)],
    "positions of runs": [("NCX", (n, 3, x), 1) for n in (3, 20) for x in (7, *range(254, 258))],
}


@pytest.mark.parametrize("apart", BOUNDS)
@pytest.mark.parametrize("name", MEMBERS)
def test_gaps_about_the_bounds_from_which_operands_may_have_them(rng, name, apart):
    """Each operand and each result, and all of them."""
    member = MEMBERS[name]
    for data_format, dims, axis in BOUNDS[apart]:
        p = problem(rng, dims, data_format, rng.choice(DATA_DTYPES))
        options = {"is_training": bool(rng.random() < 0.7), "summed": bool(rng.random() < 0.3)}
        _, bits = member.run(p, **options)
        tensors = [*member.reads, *(k for k, kind in enumerate(member.returns) if kind == "tensor")]
        for some in (*([each] for each in tensors), tensors):
            arguments = {
                each: longer(getattr(p, each), axis) for each in some if each in member.reads
            }
            out = [longer(p.src, axis) if k in some else None for k in range(len(member.returns))]
            assert member.run(p, arguments, out=out, **options)[1] == bits, (dims, some)
            for base in (view.base for view in out if view is not None):
                assert np.isnan(base.astype(np.float32)).sum() == base.size - p.src.size


# ---- axes -------------------------------------------------------------------------


def test_axes_of_equal_strides_keep_their_order(rng):
    """Sliding windows of a row or an image, which start at neighboring elements."""
    row = rng.standard_normal(700, np.float32)
    image = rng.standard_normal((20, 12), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view
    views = [
        (windows(row, 40), [0, 1]),  # N and C have equal strides
        (windows(row, 40)[:, :, None], [0, 1, 2]),
        (windows(row, 300)[:30, None], [0, 1, 2]),
        (windows(image, (5, 4)), [0, 2, 1, 3]),  # rows, rows of a window, then columns likewise
        (windows(image, (5, 4))[::-1, :, ::-1], [0, 2, 1, 3]),
    ]
    for src, order in views:
        for data_format in FORMATS:
            p = Problem(rng, src.shape, data_format)
            p.src = src
            assert full_order(src) == [axis for axis in order if src.shape[axis] > 1] + [
                axis for axis in order if src.shape[axis] == 1
            ]
            results = p.run(bn_ext.batch_norm_backward, data_format=data_format)
            assert results.diff_src.transpose(order).flags.c_contiguous
            wanted = p.run(
                bn_ext.batch_norm_backward,
                src=placed(src, order=order),
                diff_dst=placed(p.diff_dst, order=order),
                data_format=data_format,
            )
            assert all_bits(results) == all_bits(wanted)


def test_more_axes_than_anyone_has(rng):
    dims = (2,) * 10 + (1,) * 20
    for data_format in FORMATS:
        p = Problem(rng, dims, data_format)
        grads = p.run(bn_ext.batch_norm_backward, data_format=data_format)
        want = p.run(reference.batch_norm_backward, axis=p.axis)
        np.testing.assert_allclose(grads.diff_src, want.diff_src, atol=1e-4)


@pytest.mark.parametrize("data_format", FORMATS)
def test_out_with_an_axis_that_newaxis_made(rng, data_format):
    """The axis has stride 0, but length 1, so no two elements share memory."""
    p = Problem(rng, (6, 3, 4), data_format)
    # Without gaps, NumPy would give memoryview other strides for an axis of length 1.
    into = placed(np.zeros_like(p.src), "gaps")
    src, diff_dst, diff_src = (a[..., np.newaxis, :] for a in (p.src, p.diff_dst, into))
    assert memoryview(diff_src).strides[-2] == 0
    wanted = p.run(bn_ext.batch_norm_backward, src, diff_dst, data_format=data_format)
    results = p.run(
        bn_ext.batch_norm_backward,
        src,
        diff_dst,
        data_format=data_format,
        out=(diff_src, None, None),
    )
    assert results.diff_src is diff_src
    assert all_bits(results) == all_bits(wanted)


# ---- copies -----------------------------------------------------------------------

BIG = (40, 30, 8, 64)  # 2.4 MB of float32
SLACK = 100_000


def peak(call):
    """A call's peak of memory that tracemalloc sees, beyond what it saw before the call."""
    call()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call()
    after = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return after - before


ORDERS = {"as named": (0, 1, 2, 3), "channels moved": (0, 3, 1, 2), "mixed": (2, 0, 1, 3)}
#: A format, the shape of an array, and a view of it that is not copied.
UNCOPIED = {
    "NXC, some of the batch": ("NXC", (80, 30, 8, 64), np.s_[20:60]),
    "NXC, some of the channels": ("NXC", (40, 8, 8, 300), np.s_[..., 50:250]),
    "NXC, as few channels as may have gaps": ("NXC", (4000, 200), np.s_[:, :128]),
    "NCX, runs as short as may have gaps": ("NCX", (40, 60, 300), np.s_[..., :256]),
    "NCX, some of the batch": ("NCX", (80, 64, 8, 30), np.s_[::2]),
    "NCX, backwards along the batch": ("NCX", (40, 64, 8, 30), np.s_[::-1]),
    "NCX, some of the channels": ("NCX", (40, 128, 9, 30), np.s_[:, 84:20:-1]),
    "NCX, some rows of an image": ("NCX", (10, 64, 40, 30), np.s_[:, :, 5:35]),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("data", ["float32", "bfloat16"])
def test_dense_arrays_are_not_copied(rng, data, order):
    """Operands share an order of axes."""
    for data_format in FORMATS:
        p = Problem(rng, BIG, data_format, data)
        assert_not_copied(p, *(placed(a, order=order) for a in (p.src, p.diff_dst, p.src)))


@pytest.mark.parametrize("view", UNCOPIED.values(), ids=UNCOPIED)
def test_some_views_are_not_copied(rng, view):
    data_format, room, index = view
    views = [np.zeros(room, np.float32)[index] for _ in range(3)]
    p = Problem(rng, views[0].shape, data_format)
    for a, values in zip(views[:2], (p.src, p.diff_dst), strict=True):
        a[...] = values
    assert_not_copied(p, *views)


def assert_not_copied(p, src, diff_dst, diff_src):
    out = (diff_src, np.empty_like(p.mean), np.empty_like(p.mean))
    for is_training in (True, False):

        def call(is_training=is_training):
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


#: Shapes of more elements than a piece has: see PIECE in copies.c.
LONG = {
    "first": (50_001, 3), "last": (3, 70_001), "many": (7, 5, 61, 67), "one": (140_003, 1),
    "short": (3, 9, 17, 61, 2, 3), "several": (3, 1200, 61),
}  # fmt: skip


@pytest.mark.parametrize("dims", LONG.values(), ids=LONG)
@pytest.mark.parametrize("data", ["float32", "bfloat16", "float64"])
def test_copies_in_pieces(rng, data, dims):
    """Copies by several threads, of all or of chunks, have all elements of the operand and no
    others; so they do in place.
    """
    p = Problem(rng, dims, "NXC", data)
    dense = p.run(bn_ext.batch_norm_backward, num_threads=1)
    for order in (tuple(reversed(range(len(dims)))), tuple(range(len(dims)))):
        diff_dst, out = (
            placed(p.diff_dst, "spread", order=order),
            placed(p.src, "spread", order=order),
        )
        for num_threads in (1, 3):
            out[...] = 0
            grads = p.run(
                bn_ext.batch_norm_backward,
                diff_dst=diff_dst,
                out=(out, None, None),
                num_threads=num_threads,
            )
            assert team_of(num_threads) == num_threads
            assert all_bits(grads) == all_bits(dense)
            own = np.frombuffer(out.tobytes(), np.uint8)
            assert np.count_nonzero(out.base) == np.count_nonzero(own)  # no gap is written
        grads = p.run(bn_ext.batch_norm_backward, diff_dst=diff_dst, out=(diff_dst, None, None))
        assert all_bits(grads) == all_bits(dense)


def strided_views():
    """(shape, layout, strides in elements) of what kernels/copies.inc tells apart."""
    for n in [*range(1, 40), 63, 64, 65, 127, 200]:
        for step in (2, 3, 4, 5, 21, 40, -1, -2, -3):
            yield (2, 3, n), "NCX", (3 * abs(step) * n + 3, abs(step) * n + 1, step)
        for columns, apart in ((3, 4), (3, -4), (2, 7), (5, 9), (16, 17), (17, -30)):
            yield (n, columns), "NXC", (apart, 1)
        for rows in (1, 7, 8, 17):
            yield (2, rows, n), "NCX", (rows * n + 1, 1, rows)
            yield (2, n, rows), "NCX", (n * (rows + 1), 1, -n)


def at_a_guard(region, shape, strides, dtype, at_end):
    """A view whose last byte is right before a page that must not be touched, or whose first byte
    is right behind one; and the same bytes as a flat array.
    """
    reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + 1
    size = (high - low) * dtype.itemsize
    first = guarded.PAGE + (region.size - size if at_end else 0)
    flat = np.ndarray(high - low, dtype, region.memory, first)
    steps = tuple(stride * dtype.itemsize for stride in strides)
    return np.ndarray(shape, dtype, region.memory, first - low * dtype.itemsize, steps), flat


@needs_linux
@pytest.mark.parametrize("data", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("at_end", [False, True])
def test_steps_between_elements(rng, data, at_end):
    """Views of every second element, reversed ones, columns of wider rows, transposed ones: their
    elements are read and written, and nothing before the first, between or behind the last.
    """
    read, written = guarded.Region(128), guarded.Region(128)
    for shape, layout, strides in strided_views():
        p = Problem(rng, shape, layout, data)
        dense = p.run(bn_ext.batch_norm_backward, num_threads=1)
        diff_dst, _ = at_a_guard(read, shape, strides, p.src.dtype, at_end)
        out, flat = at_a_guard(written, shape, strides, p.src.dtype, at_end)
        flat[...] = 7
        expected = flat.copy()
        index = np.zeros(shape, np.int64) - sum(
            min(0, (n - 1) * stride) for n, stride in zip(shape, strides, strict=True)
        )
        for axis, stride in enumerate(strides):
            index += stride * np.arange(shape[axis]).reshape([-1] + [1] * (len(shape) - axis - 1))
        expected[index] = dense[0]
        diff_dst[...] = p.diff_dst
        p.run(bn_ext.batch_norm_backward, diff_dst=diff_dst, out=(out, None, None), num_threads=1)
        assert flat.tobytes() == expected.tobytes(), (shape, strides)
