"""Any strides: right results, in src's order of axes, with no more copies than promised."""

import itertools
import tracemalloc
from functools import partial

import guarded
import numpy as np
import pytest
from cases import (
    DATA_DTYPES,
    EPSILON,
    FORMATS,
    Problem,
    all_bits,
    dtype,
    full_order,
    placed,
    team_of,
)
from members import MEMBERS, laid, problem

import bn_ext
from bn_ext import _core
from bn_ext.testing import _formulas as reference

pytestmark = [pytest.mark.fast, pytest.mark.results]


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
    member = MEMBERS[name]
    for data_format, dims, axis in BOUNDS[apart]:
        p = problem(rng, dims, data_format, rng.choice(DATA_DTYPES))
        options = {"is_training": bool(rng.random() < 0.7), "summed": bool(rng.random() < 0.3)}
        _, bits = member.run(p, **options)
        tensors = [*member.reads, *(k for k, kind in enumerate(member.returns) if kind == "tensor")]
        for chosen in (*([tensor] for tensor in tensors), tensors):
            read = [tensor for tensor in chosen if tensor in member.reads]
            arguments = {tensor: longer(getattr(p, tensor), axis) for tensor in read}
            out = [longer(p.src, axis) if k in chosen else None for k in range(len(member.returns))]
            assert member.run(p, arguments, out=out, **options)[1] == bits, (dims, chosen)
            for base in (view.base for view in out if view is not None):
                assert np.isnan(base.astype(np.float32)).sum() == base.size - p.src.size


#: With channels last, what is larger than an array, and the part of it that the array is: rows that
#: tasks read and write where they are (plan.c, choose_copies).
ROWS = {
    "some of the channels": ((12, 12, 13, 96), np.s_[..., 16:80]),
    "every second column": ((12, 12, 26, 64), np.s_[:, :, ::2]),
    "every second row": ((12, 24, 13, 64), np.s_[:, ::2]),
    "rows backwards": ((12, 12, 13, 64), np.s_[:, ::-1]),
    "crop": ((12, 14, 15, 64), np.s_[:, 1:-1, 1:-1]),
    "crop of every second image": ((24, 14, 15, 64), np.s_[::2, 1:-1, 1:-1]),
}


@pytest.mark.parametrize("view", ROWS)
@pytest.mark.parametrize("name", MEMBERS)
def test_dense_rows_of_views(rng, name, view):
    """Operands that are such views, one or all: the bits of dense ones, and nothing else written,
    whether stores bypass the cache or not.
    """
    member, (room, index), teams = MEMBERS[name], ROWS[view], set()
    for data in DATA_DTYPES:
        p = problem(rng, (12, 12, 13, 64), "NXC", data)
        options = {
            "is_training": bool(rng.random() < 0.7),
            "num_threads": int(rng.choice([1, 3, 3])),
        }
        _, bits = member.run(p, **options)
        tensors = [*member.reads, *(k for k, kind in enumerate(member.returns) if kind == "tensor")]
        for chosen in (*([tensor] for tensor in tensors), tensors):
            whole = {tensor: np.full(room, 7, p.src.dtype) for tensor in chosen}
            views = {tensor: array[index] for tensor, array in whole.items()}
            read = {tensor: views[tensor] for tensor in chosen if tensor in member.reads}
            for tensor, array in read.items():
                array[...] = getattr(p, tensor)
            out = [views.get(k) for k in range(len(member.returns))]
            _core.set_cache_sizes(1 << 20, int(rng.choice([1, 1 << 40])))
            assert member.run(p, read, out=out, **options)[1] == bits, (data, chosen)
            teams.add(team_of(options["num_threads"]))
            for tensor in chosen:
                views[tensor][...] = 7
                assert (whole[tensor] == 7).all(), (data, chosen)
    assert max(teams) > 1


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
            assert full_order(src) == sorted(order, key=lambda axis: src.shape[axis] == 1)
            results = p.run(bn_ext.batch_norm_backward)
            assert results.diff_src.transpose(order).flags.c_contiguous
            dense = (placed(a, order=order) for a in (src, p.diff_dst))
            wanted = p.run(bn_ext.batch_norm_backward, *dense)
            assert all_bits(results) == all_bits(wanted)


#: Strides, in elements, of an array of shape (4, 7, 6, 5) -> the order of its axes.
BROADCAST = {
    (0, 30, 5, 1): [0, 1, 2, 3],
    (0, 1, 35, 7): [0, 2, 3, 1],
    (0, 1, -35, 7): [0, 2, 3, 1],
    (210, 1, 0, 7): [0, 3, 2, 1],
    (1, 0, 20, 4): [2, 1, 3, 0],
    (1, 4, 0, 0): [1, 0, 2, 3],
    (0, 0, 0, 0): [0, 1, 2, 3],
}


@pytest.mark.parametrize("steps", BROADCAST, ids=str)
@pytest.mark.parametrize("data_format", FORMATS)
def test_an_axis_of_stride_0_keeps_its_place_in_the_shape(rng, data_format, steps):
    """The others are sorted into the places that are left (docs/howto/reproducibility.md)."""
    order, p = BROADCAST[steps], Problem(rng, (4, 7, 6, 5), data_format)
    p.src = view_of("float32", p.src.shape, steps)
    p.src.base[...] = rng.standard_normal(p.src.base.shape)
    results = p.run(bn_ext.batch_norm_backward)
    assert results.diff_src.transpose(order).flags.c_contiguous
    dense = (placed(a, order=order) for a in (p.src, p.diff_dst))
    assert all_bits(results) == all_bits(p.run(bn_ext.batch_norm_backward, *dense))


def test_more_axes_than_anyone_has(rng):
    dims = (2,) * 10 + (1,) * 20
    for data_format in FORMATS:
        p = Problem(rng, dims, data_format)
        grads = p.run(bn_ext.batch_norm_backward)
        want = p.run(reference.batch_norm_backward, axis=p.axis)
        np.testing.assert_allclose(grads.diff_src, want.diff_src, atol=1e-4)


BIG = (40, 30, 8, 64)  # 2.4 MB of float32
SLACK = 100_000


def peak(call):
    call()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call()
    after = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return after - before


#: A format, the shape of an array, a view of it that is not copied, and the order of its axes.
UNCOPIED = {
    **{
        f"{data_format}, {name}": (data_format, BIG, np.s_[:], order)
        for data_format in FORMATS
        for name, order in {"dense": None, "moved": (0, 3, 1, 2), "mixed": (2, 0, 1, 3)}.items()
    },
    "NXC, some of the batch": ("NXC", (80, 30, 8, 64), np.s_[20:60], None),
    "NXC, some of the channels": ("NXC", (40, 8, 8, 300), np.s_[..., 50:250], None),
    "NXC, as few channels as may have gaps": ("NXC", (4000, 200), np.s_[:, :128], None),
    "NCX, runs as short as may have gaps": ("NCX", (40, 60, 300), np.s_[..., :256], None),
    "NCX, some of the batch": ("NCX", (80, 64, 8, 30), np.s_[::2], None),
    "NCX, backwards along the batch": ("NCX", (40, 64, 8, 30), np.s_[::-1], None),
    "NCX, some of the channels": ("NCX", (40, 128, 9, 30), np.s_[:, 84:20:-1], None),
    "NCX, some rows of an image": ("NCX", (10, 64, 40, 30), np.s_[:, :, 5:35], None),
}


@pytest.mark.parametrize("data", ["float32", "bfloat16"])
@pytest.mark.parametrize("view", UNCOPIED.values(), ids=UNCOPIED)
def test_what_kernels_can_read_is_not_copied(rng, data, view):
    data_format, room, index, order = view
    whole = [placed(np.zeros(room, dtype(data)), order=order) for _ in range(3)]
    src, diff_dst, diff_src = (array[index] for array in whole)
    p = Problem(rng, src.shape, data_format, data)
    src[...], diff_dst[...] = p.src, p.diff_dst
    out = (diff_src, np.empty_like(p.mean), np.empty_like(p.mean))
    call = partial(p.run, bn_ext.batch_norm_backward, src=src, diff_dst=diff_dst, out=out)
    for is_training in (True, False):
        assert peak(partial(call, is_training=is_training)) < SLACK


def test_what_is_copied_is_copied_once(rng):
    p = Problem(rng, BIG, "NXC")
    size = p.src.nbytes
    contiguous, permuted = p.src, placed(p.diff_dst, order=(0, 3, 1, 2))
    spread = placed(p.src, "spread")

    def call(src, diff_dst, out):
        return lambda: p.run(
            bn_ext.batch_norm_backward, src=src, diff_dst=diff_dst, out=(out, None, None)
        )

    out, other_out = np.empty_like(p.src), placed(p.src, order=(0, 3, 1, 2))
    assert peak(call(contiguous, p.diff_dst, None)) < size + SLACK  # the result
    assert peak(call(contiguous, permuted, out)) < size + SLACK
    assert peak(call(spread, p.diff_dst, out)) < size + SLACK
    assert peak(call(contiguous, p.diff_dst, other_out)) < size + SLACK
    assert peak(call(spread, permuted, other_out)) < 3 * size + SLACK


#: Shapes of more elements than a piece has: see PIECE in copies.c.
LONG = [(50_001, 3), (3, 70_001), (7, 5, 61, 67), (140_003, 1), (3, 9, 17, 61, 2, 3), (3, 1200, 61)]


@pytest.mark.parametrize("dims", LONG, ids=str)
@pytest.mark.parametrize("data", ["float32", "bfloat16", "float64"])
def test_copies_in_pieces(rng, data, dims):
    """Copies by several threads, of all or of chunks, have all elements of the operand and no
    others; so they do in place.
    """
    p = Problem(rng, dims, "NXC", data)
    dense = p.run(bn_ext.batch_norm_backward, num_threads=1)
    for order in (tuple(reversed(range(len(dims)))), tuple(range(len(dims)))):
        diff_dst, out = (placed(a, "spread", order=order) for a in (p.diff_dst, p.src))
        arrays = {"diff_dst": diff_dst, "out": (out, None, None)}
        for num_threads in (1, 3):
            out[...] = 0
            grads = p.run(bn_ext.batch_norm_backward, num_threads=num_threads, **arrays)
            assert team_of(num_threads) == num_threads
            assert all_bits(grads) == all_bits(dense)
            own = np.frombuffer(out.tobytes(), np.uint8)
            assert np.count_nonzero(out.base) == np.count_nonzero(own)  # no gap is written
        grads = p.run(bn_ext.batch_norm_backward, diff_dst=diff_dst, out=(diff_dst, None, None))
        assert all_bits(grads) == all_bits(dense)


def strided_views():
    """(shape, layout, strides in elements) of what kernels/moves/copies.inc tells apart."""
    for n in [*range(1, 40), 63, 64, 65, 127, 200]:
        for step in (2, 3, 4, 5, 21, 40, -1, -2, -3):
            yield (2, 3, n), "NCX", (3 * abs(step) * n + 3, abs(step) * n + 1, step)
        for columns, apart in ((3, 4), (3, -4), (2, 7), (5, 9), (16, 17), (17, -30)):
            yield (n, columns), "NXC", (apart, 1)
        for rows in (1, 7, 8, 17):
            yield (2, rows, n), "NCX", (rows * n + 1, 1, rows)
            yield (2, n, rows), "NCX", (n * (rows + 1), 1, -n)


@pytest.mark.parametrize("data", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("at_end", [False, True])
def test_steps_between_elements(rng, data, at_end):
    """Views of every second element, reversed ones, columns of wider rows, transposed ones: their
    elements are read and written, and nothing before the first, between or behind the last.
    """
    read, written = guarded.Region(128), guarded.Region(128)
    memory = np.frombuffer(written.memory, np.uint8)[guarded.PAGE : guarded.PAGE + written.size]
    for shape, layout, steps in strided_views():
        p = Problem(rng, shape, layout, data)
        strides = [step * p.src.itemsize for step in steps]
        dense = p.run(bn_ext.batch_norm_backward, num_threads=1)
        diff_dst, out = (a.array(shape, p.src.dtype, strides, at_end) for a in (read, written))
        memory[...] = 7
        expected = memory.copy()
        first = out.ctypes.data - memory.ctypes.data
        np.ndarray(shape, p.src.dtype, expected, first, strides)[...] = dense[0]
        diff_dst[...] = p.diff_dst
        p.run(bn_ext.batch_norm_backward, diff_dst=diff_dst, out=(out, None, None), num_threads=1)
        assert np.array_equal(memory, expected), (shape, strides)


STEPS = (1, 2, 3, 4, -1, -2, -3)
MOST_ROWS, MOST_COLUMNS, MOST_CHANNELS, MOST_WIDTH = 40, 16, 8, 40
LENGTHS = range(3, MOST_ROWS + 1)


def small_views():
    """(layout, the shape but for one length, where that length belongs, strides in elements) of all
    small views: columns of wider rows, every few rows or backwards; elements that are a few apart;
    channels-first images of a few channels of more. Strides that are the same stand once.
    """
    views = []
    for columns in range(1, MOST_COLUMNS + 1):
        aparts = {w * step for w in range(columns, MOST_WIDTH + 1) for step in STEPS}
        views += [("NXC", (columns,), 0, (apart, 1)) for apart in sorted(aparts)]
        for step, gap in itertools.product(STEPS, (0, 1)):
            views.append(("NXC", (columns,), 0, (abs(step) * columns + gap, step)))
    for channels, step, gap in itertools.product(range(1, MOST_CHANNELS + 1), STEPS, (0, 1)):
        row = abs(step) * MOST_ROWS + gap
        views.append(("NCX", (2, channels), 2, ((channels + gap) * row, row, step)))
        for run in range(2, MOST_CHANNELS + 1):
            columns = (channels + gap) * run
            views.append(("NCX", (channels, run), 0, (columns * step, run, 1)))
    return dict.fromkeys(views)


def reach(shape, strides):
    """How many elements lie before a view's first one, and how many from there on."""
    ends = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    return -sum(end for end in ends if end < 0), 1 + sum(end for end in ends if end > 0)


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_every_small_view_is_read_and_written_as_it_is(isa, data):
    """Every number is another and becomes itself, (x - 0) / sqrt(1) * 1 + 0; gaps stay as they are.
    Rows and columns change places, too: then operands are copied as a whole.
    """
    kind = dtype(data)
    bits, one = np.dtype(f"u{kind.itemsize}"), np.ones(1, kind)
    numbers = np.arange(16_000, dtype=bits) + one.view(bits)
    written, normalize = np.full_like(numbers, 7), bn_ext.batch_norm_inference
    vectors = {c: (np.zeros(c, kind), np.ones(c, kind)) for c in range(1, MOST_COLUMNS + 1)}

    def check(data_format, shapes, strides, out_strides):
        sides = [reach(shapes[-1], steps) for steps in (strides, out_strides)]
        steps = [[step * kind.itemsize for step in steps] for steps in (strides, out_strides)]
        at, out_at = (before * kind.itemsize for before, _ in sides)
        everything = written[: sum(sides[1])]
        everything[...] = 7
        options = {"epsilon": 0.0, "data_format": data_format, "num_threads": 1}
        for shape in shapes:
            src = np.ndarray(shape, kind, numbers, at, steps[0])
            out = np.ndarray(shape, kind, written, out_at, steps[1])
            normalize(src, *vectors[shape[FORMATS[data_format]]], out=out, **options)
            assert out.tobytes() == src.tobytes(), (isa, shape, strides, out_strides)
        out.view(bits)[...] = 7
        assert (everything == 7).all(), (isa, shapes[-1], out_strides)

    for data_format, dims, place, strides in small_views():
        shapes = [(*dims[:place], n, *dims[place:]) for n in LENGTHS]
        check(data_format, shapes, strides, strides)
    for columns, gap in itertools.product(range(1, MOST_COLUMNS + 1), (0, 1)):
        shapes = [(n, columns) for n in LENGTHS]
        strides = (columns + gap, 1), (1, MOST_ROWS + gap)
        check("NXC", shapes, *strides)
        check("NXC", shapes, *reversed(strides))


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_gradients_of_every_few_columns_have_the_bits_of_a_copy(rng, isa, data):
    p = Problem(rng, (MOST_ROWS, MOST_COLUMNS), "NXC", data)
    memory = np.empty((4, MOST_ROWS * MOST_WIDTH), p.src.dtype)
    for columns in range(1, MOST_COLUMNS + 1):
        vectors = [vector[:columns] for vector in p.vectors()]
        tensors = [np.ascontiguousarray(a[:, :columns]) for a in (p.src, p.diff_dst)]

        def gradients(src, diff_dst, out=(None, None, None), vectors=vectors):
            options = {"epsilon": EPSILON, "num_threads": 1, "out": out}
            return bn_ext.batch_norm_backward(src, diff_dst, *vectors, **options)

        want = {n: all_bits(gradients(*(a[:n] for a in tensors))) for n in LENGTHS}
        for width in range(columns, MOST_WIDTH + 1):
            memory[...] = np.nan
            rooms = memory[:, : MOST_ROWS * width].reshape(4, MOST_ROWS, width)
            src, diff_dst, out, _ = rooms[..., width - columns :]
            src[...], diff_dst[...] = tensors
            for n in LENGTHS:
                results = gradients(src[:n], diff_dst[:n], (out[:n], None, None))
                assert all_bits(results) == want[n], (isa, n, columns, width)


def every_view(data):
    """(a layout, an array that is such a view): all that this file has."""
    for data_format, dims, place, strides in small_views():
        yield data_format, view_of(data, (*dims[:place], MOST_ROWS, *dims[place:]), strides)
    for dims, data_format, strides in strided_views():
        yield data_format, view_of(data, dims, strides)
    for room, index in ROWS.values():
        yield "NXC", placed(np.zeros(room, dtype(data)))[index]
    for data_format, room, index, order in UNCOPIED.values():
        yield data_format, placed(np.zeros(room, dtype(data)), order=order)[index]
    for data_format, dims, axis in itertools.chain(*BOUNDS.values()):
        yield data_format, longer(np.zeros(dims, dtype(data)), axis)
    for dims in LONG:
        yield "NXC", placed(np.zeros(dims, dtype(data)), "spread", order=range(len(dims))[::-1])


def view_of(data, dims, strides):
    before, behind = reach(dims, strides)
    memory = np.zeros(before + behind, dtype(data))
    steps = [step * memory.itemsize for step in strides]
    return np.ndarray(dims, memory.dtype, memory, before * memory.itemsize, steps)


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_exact_sums_of_every_view(rng, data):
    """They are those of a copy: what lies between its elements does not count."""
    numbers = rng.standard_normal(1 << 20, np.float32).astype(dtype(data))
    for data_format, src in every_view(data):
        memory = src if src.base is None else src.base
        memory.view(dtype(data)).reshape(-1)[...] = np.nan
        src[...] = numbers[: src.size].reshape(src.shape)
        diff_dst, copy = src[::-1], np.ascontiguousarray(src)
        mean = np.ones(src.shape[FORMATS[data_format]], np.float32)
        options = {"data_format": data_format, "exact": True, "num_threads": 1}
        for function, *arguments in (
            (bn_ext.Statistics, (src,), (copy,)),
            (bn_ext.GradientSums, (src, diff_dst, mean), (copy, copy[::-1].copy(), mean)),
        ):
            of_view, of_copy = (function(*each, **options) for each in arguments)
            states = [_core.canonical_state(a.array, a._format) for a in (of_view, of_copy)]
            assert np.array_equal(*states), (function, src.shape, src.strides)


#: With so many channels, a call has tiles of some, even on one thread: see WIDEST in plan.c.
MANY_CHANNELS = [((6, 9000), "NXC"), ((3, 2, 4500), "NXC"), ((3, 4500, 2), "NCX")]


@pytest.mark.parametrize("data", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", MEMBERS)
def test_views_of_more_channels_than_the_widest_tile_on_one_thread(rng, name, data):
    member, tasks = MEMBERS[name], set()
    for dims, data_format in MANY_CHANNELS:
        p = problem(rng, dims, data_format, data)
        for is_training in (True, False):
            options = {"is_training": is_training, "num_threads": 1}
            _, bits = member.run(p, **options)
            for memory in ("gaps", "backwards", "spread"):
                views = laid(p, lambda array, memory=memory: placed(array, memory))
                read = {tensor: getattr(views, tensor) for tensor in member.reads}
                out = [
                    placed(p.src, memory) if kind == "tensor" else None for kind in member.returns
                ]
                assert member.run(p, read, out=out, **options)[1] == bits, (dims, memory)
                tasks.add(_core.last_call()["tasks"])
    assert max(tasks) > 1 or member.function == "inference" or "exact" in member.flags
