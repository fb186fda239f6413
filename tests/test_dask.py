"""bn_ext.dask gives what the general functions give, in the memory of a few blocks."""

import multiprocessing
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, FORMATS, LARGE, Family, all_bits, bits, shapes
from needs import needs_openmp

import bn_ext
from bn_ext import _core

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
import bn_ext.dask as lazily  # noqa: E402

SHAPE = {"NXC": (6, 5, 4, 8), "NCX": (6, 8, 5, 4)}
#: Chunks of N, C, H and W.
CHUNKINGS = shapes("6x8x5x4 1x8x5x4 6x3x5x4 6x8x2x4 6x8x5x1 4x5x3x3")
CHUNKINGS += [((1, 0, 5), (7, 0, 1), (2, 2, 1), (1, 3))]
UNEVEN = ((1, 0, 5), (2, 2, 1), (1, 3), (7, 1))
TENSORS = "src", "diff_dst", "src_1", "dst"
BACKWARD = "src", "diff_dst", "mean", "variance", "gamma"
TRAINING = "src", "gamma", "beta"
INFERENCE = "src", "mean", "variance", "gamma", "beta"
RUNNING = "running_mean", "running_variance"


def problem(rng, data="float32", data_format="NXC", shape=None):
    p = Family(rng, shape or SHAPE[data_format], data_format, data, ratio=3.0)
    if len(p.src) > 1:  # two samples of diff_dst cancel, so another order of sums shows
        p.diff_dst[0] *= p.diff_dst.dtype.type(1000)
        p.diff_dst[1] = -p.diff_dst[0]
    return p


def in_chunks(p, chunks=UNEVEN):
    arguments = {k: da.from_array(a, chunks=chunks) for k, a in vars(p).items() if k in TENSORS}
    return SimpleNamespace(**{**vars(p), **arguments})


def call(module, name, p, *names, **options):
    """Call a function with arguments of these names; exact sums are the only ones in Dask."""
    if module is bn_ext and name != "batch_norm_inference":
        options["exact"] = True
    options = {"epsilon": EPSILON, "data_format": p.data_format, **options}
    return getattr(module, name)(*(getattr(p, k) for k in names), **options)


def backward(p, **options):
    return call(lazily, "batch_norm_backward", p, *BACKWARD, **options)


def training(p, **options):
    return call(lazily, "batch_norm_training", p, *TRAINING, **options)


def whole(name, p, *names, **options):
    return all_bits(call(bn_ext, name, p, *names, **options))


def computed(result):
    return all_bits(dask.compute(*result))


def running(p):
    kept = {name: getattr(p, name).copy() for name in RUNNING}
    return {**kept, "exponential_avg_factor": 0.25, "correction": 1}


@pytest.mark.parametrize("name", ["batch_norm_inference", "batch_norm_backward"])
def test_a_negative_variance_is_told_in_the_call(rng, name):
    """There, np.errstate is the caller's, and so is the line. Tasks are silent."""
    p = in_chunks(problem(rng))
    p.variance[0] = -1
    function, names = getattr(lazily, name), INFERENCE if "inf" in name else BACKWARD
    arguments, options = [getattr(p, k) for k in names], {"epsilon": 0.5, "data_format": "NXC"}
    with pytest.warns(RuntimeWarning, match="^invalid value encountered in sqrt$") as told:
        results = dask.compute(function(*arguments, **options))
    assert [warning.filename for warning in told] == [__file__]
    first = results[0] if isinstance(results[0], np.ndarray) else results[0][0]
    assert np.isnan(first[..., 0]).all()
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        function(*arguments, **options)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_the_same_bits_for_any_chunks(rng, data, data_format):
    p = problem(rng, data, data_format)
    expected = [
        whole("batch_norm_backward", p, *BACKWARD),
        whole("batch_norm_training", p, *TRAINING),
    ]
    for n, c, h, w in CHUNKINGS:
        q = in_chunks(p, (n, h, w, c) if data_format == "NXC" else (n, c, h, w))
        q.diff_dst = q.diff_dst.rechunk(3)
        results = backward(q), training(q)
        assert [*map(computed, results)] == expected, q.src.chunks
        for lazy, *vectors in results:
            assert lazy.chunks == q.src.chunks
            assert {type(a) for a in (lazy._meta, *vectors)} == {np.ndarray}


def test_schedulers_change_no_bit(rng):
    p = problem(rng)
    expected = whole("batch_norm_backward", p, *BACKWARD)
    spawn = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, spawn) as processes:
        for options in [
            {"scheduler": "synchronous"},
            {"scheduler": "threads", "pool": threads},
            {"scheduler": "processes", "pool": processes},
        ]:
            with dask.config.set(**options):
                assert computed(backward(in_chunks(p))) == expected, options


@pytest.mark.parametrize("name", ["batch_norm_training", "batch_norm_inference"])
def test_a_residual_relu_and_its_gradient(rng, name):
    p = problem(rng)
    names = TRAINING if name == "batch_norm_training" else INFERENCE
    results = call(lazily, name, in_chunks(p), *names, relu=True, src_1=in_chunks(p).src_1)
    expected = call(bn_ext, name, p, *names, relu=True, src_1=p.src_1)
    assert computed([*results]) == all_bits([*expected])
    p.dst = call(bn_ext, "batch_norm_inference", p, *INFERENCE, relu=True)
    for gate in "beta", "dst":
        results = backward(in_chunks(p), relu=True, **{gate: getattr(in_chunks(p), gate)})
        options = {"relu": True, gate: getattr(p, gate)}
        assert computed(results) == whole("batch_norm_backward", p, *BACKWARD, **options)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_frozen_statistics_and_gradients_that_are_not_wanted(rng, training, wanted):
    p, options = problem(rng), {"is_training": training, "param_grads": wanted}
    expected = whole("batch_norm_backward", p, *BACKWARD, **options)
    assert computed(backward(in_chunks(p), **options)) == expected


@pytest.mark.parametrize("shape", [SHAPE["NXC"], (0, 5, 4, 8), (6, 5, 0, 8), (6, 5, 4, 0)])
def test_running_statistics_and_no_elements(rng, shape):
    p = problem(rng, shape=shape)
    tracked, expected = running(p), running(p)
    results = training(in_chunks(p, 3), **tracked)
    assert computed(results) == whole("batch_norm_training", p, *TRAINING, **expected)
    for name in RUNNING:
        assert bits(tracked[name]) == bits(expected[name])
        assert (bits(tracked[name]) == bits(getattr(p, name))) == (p.src.size == 0)
    assert computed(backward(in_chunks(p, 3))) == whole("batch_norm_backward", p, *BACKWARD)


@pytest.mark.parametrize("chunks", [(0, 3, 5), (3, 0, 5), (3, 5, 0), (0, 0, 8, 0)])
@pytest.mark.parametrize("data_format", FORMATS)
def test_chunks_without_channels(rng, data_format, chunks):
    """The first, a middle and the last one are as if they were not there, as after a mask."""
    p = problem(rng, data_format=data_format)
    axis = 3 if data_format == "NXC" else 1
    q = in_chunks(p, tuple(chunks if i == axis else -1 for i in range(4)))
    tracked, expected = running(p), running(p)
    results = training(q, **tracked)
    assert computed(results) == whole("batch_norm_training", p, *TRAINING, **expected)
    assert [bits(tracked[name]) for name in RUNNING] == [bits(expected[name]) for name in RUNNING]
    assert bits(tracked["running_mean"]) != bits(p.running_mean)
    assert computed(backward(q)) == whole("batch_norm_backward", p, *BACKWARD)


def test_vectors_may_be_dask_arrays_and_change_later(rng):
    p = problem(rng)
    q = in_chunks(p)
    q.mean, q.gamma, q.variance = da.from_array(p.mean, chunks=3), p.gamma.copy(), [*p.variance]
    expected = whole("batch_norm_backward", p, *BACKWARD)
    results = backward(q)
    q.gamma[...] = 0
    assert computed(results) == expected


class Stored:
    """Data outside memory that records which parts are read."""

    def __init__(self, shape, dtype=np.float32):
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self.read = []

    def __dask_tokenize__(self):
        return id(self)  # a token that no other data has

    def __getitem__(self, where):
        self.read.append(where)
        size = [len(range(*a.indices(n))) for a, n in zip(where, self.shape, strict=True)]
        return np.full(size, 1.5, self.dtype)


class Sink:
    def __setitem__(self, where, block):
        pass


def test_what_is_read_when(rng):
    q = in_chunks(problem(rng))
    stored = [Stored((6, 5, 4, 8)), Stored((6, 5, 4, 8))]
    q.src, q.diff_dst = (da.from_array(a, chunks=(2, 5, 4, 8)) for a in stored)
    for step, reads in [
        (lambda: None, None),  # da.from_array has read empty slices
        (lambda: backward(q, is_training=False, param_grads=False), [0, 0]),
        (lambda: call(lazily, "batch_norm_inference", q, *INFERENCE), [0, 0]),
        (lambda: training(q), [3, 0]),
        (lambda: training(q).dst.compute(), [6, 0]),
        (lambda: backward(q), [3, 3]),
        (lambda: backward(q).diff_src.compute(), [6, 6]),
    ]:
        step()
        assert reads in (None, [len(a.read) for a in stored])
        [a.read.clear() for a in stored]


def test_a_block_is_one_task(rng):
    """Each task reads its block itself: a scheduler keeps blocks that tasks pass on. The same call
    has the same tasks, so Dask computes nothing twice. A dashboard shows what they do.
    """
    q = in_chunks(problem(rng))
    q.src, q.diff_dst = (
        da.from_array(Stored((40, 5, 4, 8)), chunks=(1, 5, 4, 8)) for _ in range(2)
    )
    lazy, again = backward(q).diff_src, backward(q).diff_src
    assert lazy.name == again.name
    assert lazy.name.startswith("batch_norm_backward-")
    assert 40 <= len(dict(dask.optimize(lazy)[0].__dask_graph__())) < 60


def test_fewer_than_four_chunks_in_memory_for_each_worker():
    """Each worker gets 44 chunks. Memory of graphs, results and sums counts, too."""
    workers, chunk = 2, (64, 128, 64)
    shape = (44 * workers * chunk[0], *chunk[1:])
    src, diff_dst = (da.from_array(Stored(shape), chunks=chunk) for _ in range(2))
    ones, options = np.ones(chunk[-1], np.float32), {"epsilon": EPSILON, "data_format": "NXC"}
    peaks = []
    with ThreadPoolExecutor(workers) as pool, dask.config.set(pool=pool, scheduler="threads"):
        for part in slice(1), slice(None):  # the first imports, too
            tracemalloc.start()
            grads = lazily.batch_norm_backward(src[part], diff_dst[part], ones, ones, **options)
            da.store(grads.diff_src, Sink(), lock=False)
            da.store(lazily.batch_norm_training(src[part], **options).dst, Sink(), lock=False)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 4 * workers * 4 * np.prod(chunk)


@needs_openmp
def test_tasks_have_one_thread_by_default(rng):
    """So threads of kernels do not multiply those of workers."""
    q = in_chunks(problem(rng, shape=LARGE), -1)
    with dask.config.set(scheduler="synchronous"):
        for threads, options in (1, {}), (3, {"num_threads": 3}):
            for result in backward(q, **options).diff_src, training(q, **options).dst:
                assert _core.last_call()["threads"] == threads
                result.compute()
                assert _core.last_call()["threads"] == threads


DATA = SHAPE["NXC"]


def never(shape=DATA, dtype=np.float32, chunks=3):
    array = da.from_array(Stored(shape, dtype), chunks=chunks)
    meta = np.empty((0,) * len(shape), dtype)
    return array.map_blocks(lambda block: 1 // 0, dtype=dtype, meta=meta)


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("src: expected a Dask array, got numpy.ndarray; pass dask.array.from_array(src), or call",
         {"src": np.ones(DATA, np.float32)}),
        ("diff_dst: expected a Dask array, got builtins.list", {"diff_dst": [1.0]}),
        ("src: expected a Dask array, got types.SimpleNamespace; pass src.data",
         {"src": SimpleNamespace(data=never())}),
        ("src: expected chunks that are NumPy arrays, got numpy.ma",
         {"src": da.ma.masked_equal(never(), 0)}),
        ("src: expected at least 2 dimensions, got shape (6,)", {"src": never((6,))}),
        ("src: expected float32, float64, float16 or bfloat16, got int64; pass src.astype(np.float",
         {"src": never(dtype=np.int64)}),
        ("diff_dst: expected shape (6, 5, 4, 8), like src, got (5, 5, 4, 8)",
         {"diff_dst": never((5, 5, 4, 8))}),
        ("diff_dst: expected float32, like src, got float64; pass diff_dst.astype(np.float32)",
         {"diff_dst": never(dtype=np.float64)}),
        ("mean: expected shape (8,), ", {"mean": never((7,))}),
        ("mean: expected float32, float64, float16 or bfloat16, got int64; pass mean.astype(np.flo",
         {"mean": never((8,), np.int64)}),
        ("data_format: expected 'NXC' (channels last) or 'NCX'", {"data_format": None}),
        ("src: expected chunks of known sizes, got ((nan, nan), (3, 2), (3, 1), (3, 3, 2)); src.",
         {"src": never()[da.ones(6, chunks=3) > 0]}),
        ("mean: expected chunks of known sizes, got ((nan,),); mean.compute_chunk_sizes() finds",
         {"mean": never((8,), chunks=8)[da.ones(8, chunks=8) > 0]}),
    ],
)  # fmt: skip
def test_refused_before_anything_is_computed(message, changed):
    arguments = {"src": never(), "diff_dst": never(), "epsilon": EPSILON, "data_format": "NXC"}
    arguments |= {"mean": never((8,)), "variance": never((8,))}
    with pytest.raises((TypeError, ValueError)) as error:
        lazily.batch_norm_backward(**{**arguments, **changed})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("running_mean.*: expected all four or none", {"correction": None}),
        ("src: expected more than one element", {"src": never((1, 8))}),
        ("integer .* by zero", {}),
        (
            "src: expected chunks of float32, .*, got float64",
            {"src": da.zeros(DATA).map_blocks(lambda a: a, dtype=np.float32)},
        ),
    ],
)
def test_running_statistics_stay_if_training_fails(rng, message, changed):
    kept = running(problem(rng))
    before = bits(kept["running_variance"])
    arguments = {"src": never(), "data_format": "NXC", "epsilon": EPSILON, **kept, **changed}
    with pytest.raises((TypeError, ValueError, ZeroDivisionError), match=f"^{message}"):
        lazily.batch_norm_training(**arguments)
    assert bits(kept["running_variance"]) == before
