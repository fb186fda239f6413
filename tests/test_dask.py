"""bn_ext.dask gives what the general functions give, in the memory of a few blocks."""

import multiprocessing
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from cases import DATA_DTYPES, EPSILON, FORMATS, Family, all_bits, bits
from needs import needs_linux, needs_openmp
from processes import in_new_process

import bn_ext

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
import bn_ext.dask  # noqa: E402
from bn_ext.dask import _added as merged_states  # noqa: E402

SHAPE = {"NXC": (6, 5, 4, 8), "NCX": (6, 8, 5, 4)}
#: {name: chunks of N, C, H and W}
CHUNKINGS = {
    "whole": (6, 8, 5, 4),
    "samples": (1, 8, 5, 4),
    "channels": (6, 3, 5, 4),
    "height": (6, 8, 2, 4),
    "width": (6, 8, 5, 1),
    "all": (4, 5, 3, 3),
    "uneven": ((1, 0, 5), (7, 1), (2, 2, 1), (1, 3)),
}
RUNNING = ("running_mean", "running_variance")


def chunks_of(how, data_format="NXC"):
    n, c, h, w = CHUNKINGS[how]
    return (n, h, w, c) if data_format == "NXC" else (n, c, h, w)


def problem(rng, data="float32", data_format="NXC", shape=None):
    p = Family(rng, shape or SHAPE[data_format], data_format, data, ratio=3.0)
    if len(p.src) > 1:  # two samples of diff_dst cancel, so another order of sums shows
        p.diff_dst[0] *= p.diff_dst.dtype.type(1000)
        p.diff_dst[1] = -p.diff_dst[0]
    return p


class Lazily:
    """Both passes over a problem's tensors as Dask arrays."""

    def __init__(self, p, chunks, data=da.from_array):
        self.p = p
        for name in ("src", "diff_dst", "src_1"):
            setattr(self, name, data(getattr(p, name), chunks=chunks))

    def backward(self, **options):
        given = {"data_format": self.p.data_format, "epsilon": EPSILON, **options}
        return bn_ext.dask.batch_norm_backward(
            self.src, given.pop("diff_dst", self.diff_dst), *self.p.vectors(), **given
        )

    def training(self, **options):
        given = {"data_format": self.p.data_format, "epsilon": EPSILON, **options}
        return bn_ext.dask.batch_norm_training(self.src, self.p.gamma, self.p.beta, **given)


def backward_of_all(p, **options):
    return p.run(bn_ext.batch_norm_backward, data_format=p.data_format, **options)


def training_of_all(p, **options):
    return p.take(
        bn_ext.batch_norm_training, "src", "gamma", "beta", data_format=p.data_format, **options
    )


def computed(result):
    return all_bits(dask.compute(*result))


def running(p):
    return {name: getattr(p, name).copy() for name in RUNNING} | {
        "exponential_avg_factor": 0.25,
        "correction": 1,
    }


# ---- the same results ---------------------------------------------------------------------


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("data", DATA_DTYPES)
def test_exact_sums_give_the_same_bits_for_any_chunks(rng, data, data_format):
    p = problem(rng, data, data_format)
    expected = [all_bits(f(p, exact=True)) for f in (backward_of_all, training_of_all)]
    for how in CHUNKINGS:
        lazily = Lazily(p, chunks_of(how, data_format))
        assert [computed(lazily.backward()), computed(lazily.training())] == expected, how


@pytest.mark.parametrize("data_format", FORMATS)
def test_plain_sums_agree(rng, data_format):
    p = problem(rng, "float64", data_format)
    expected = [*backward_of_all(p), *training_of_all(p)]
    for how in CHUNKINGS:
        lazily = Lazily(p, chunks_of(how, data_format))
        found = dask.compute(*lazily.backward(exact=False), *lazily.training(exact=False))
        for a, b in zip(found, expected, strict=True):
            assert np.allclose(a, b, rtol=1e-9, atol=1e-9), how


def test_schedulers_change_no_bit(rng):
    lazily = Lazily(problem(rng), chunks_of("all"))
    found = []
    spawn = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, spawn) as processes:
        for how in [
            {"scheduler": "synchronous"},
            {"scheduler": "threads", "pool": threads},
            {"scheduler": "processes", "pool": processes},
        ]:
            with dask.config.set(**how):
                plain = *lazily.backward(exact=False), *lazily.training(exact=False)
                found.append(all_bits(dask.compute(*plain, *lazily.backward())))
    assert found == found[:1] * 3


@pytest.mark.parametrize("gate", ["beta", "dst"])
def test_the_gradient_of_a_relu(rng, gate):
    p = problem(rng)
    dst = p.take(bn_ext.batch_norm_inference, "src", "mean", "variance", "gamma", "beta", relu=True)
    expected = backward_of_all(
        p, exact=True, relu=True, **{gate: {"beta": p.beta, "dst": dst}[gate]}
    )
    given = {"beta": p.beta, "dst": da.from_array(dst, chunks=2)}[gate]
    found = Lazily(p, chunks_of("uneven")).backward(relu=True, **{gate: given})
    assert computed(found) == all_bits(expected)


@pytest.mark.parametrize(
    ("is_training", "param_grads"), [(False, True), (False, False), (True, False)]
)
def test_frozen_statistics_and_gradients_that_are_not_wanted(rng, is_training, param_grads):
    p = problem(rng)
    options = {"is_training": is_training, "param_grads": param_grads, "exact": True}
    found = Lazily(p, chunks_of("uneven")).backward(**options)
    assert computed(found) == all_bits(backward_of_all(p, **options))


@pytest.mark.parametrize("data", DATA_DTYPES)
def test_inference(rng, data):
    p = problem(rng, data)
    names = "mean", "variance", "gamma", "beta"
    dst = p.take(bn_ext.batch_norm_inference, "src", *names, src_1=p.src_1, relu=True)
    lazily = Lazily(p, chunks_of("uneven"))
    found = bn_ext.dask.batch_norm_inference(
        lazily.src, *(getattr(p, name) for name in names), epsilon=EPSILON, src_1=lazily.src_1,
        relu=True)  # fmt: skip
    assert bits(found.compute()) == bits(dst)


@pytest.mark.parametrize("exact", [True, False])
def test_running_statistics(rng, exact):
    p = problem(rng)
    ours, theirs = running(p), running(p)
    found = Lazily(p, -1).training(exact=exact, src_1=da.from_array(p.src_1), relu=True, **ours)
    expected = training_of_all(p, exact=exact, src_1=p.src_1, relu=True, **theirs)
    assert computed(found) == all_bits(expected)
    for name in RUNNING:
        assert bits(ours[name]) == bits(theirs[name]) != bits(getattr(p, name))


def test_vectors_may_be_dask_arrays(rng):
    p = problem(rng)
    expected = all_bits(backward_of_all(p, exact=True))
    p.mean, p.gamma = da.from_array(p.mean, chunks=3), da.from_array(p.gamma)
    assert computed(Lazily(p, chunks_of("all")).backward()) == expected


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", [(0, 5, 4, 8), (6, 5, 0, 8), (6, 5, 4, 0)])
def test_no_elements(rng, shape, exact):
    p = problem(rng, shape=shape)
    lazily, ours = Lazily(p, 3), running(p)
    assert computed(lazily.backward(exact=exact)) == all_bits(backward_of_all(p))
    assert computed(lazily.training(exact=exact, **ours)) == all_bits(training_of_all(p))
    assert all(bits(ours[name]) == bits(getattr(p, name)) for name in RUNNING)


@pytest.mark.parametrize("exact", [True, False])
def test_chunks_of_unknown_sizes(rng, exact):
    p = problem(rng)
    keep = rng.random(6) < 0.7
    lazily = Lazily(p, chunks_of("all"))
    assert not keep.all()
    for name in ("src", "diff_dst"):
        setattr(lazily, name, getattr(lazily, name)[da.from_array(keep, chunks=4)])
        setattr(p, name, getattr(p, name)[keep])
    found = dask.compute(*lazily.backward(exact=exact), *lazily.training(exact=exact))
    expected = [*backward_of_all(p, exact=exact), *training_of_all(p, exact=exact)]
    sized = lazily.diff_dst.copy().compute_chunk_sizes()  # works in place, hence the copy
    lazily.src = da.from_array(p.src, chunks=sized.chunks)
    assert np.isnan(lazily.diff_dst.shape[0])
    found += dask.compute(*lazily.backward(exact=exact))  # unknown sizes beside known ones
    expected += backward_of_all(p, exact=exact)
    for a, b in zip(found, expected, strict=True):
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3)
        assert not exact or bits(a) == bits(b)


# ---- what is computed when ------------------------------------------------------------------


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
    p = problem(rng)
    src, diff_dst = Stored((6, 5, 4, 8)), Stored((6, 5, 4, 8))
    lazily = Lazily(p, -1)
    lazily.src, lazily.diff_dst = (da.from_array(a, chunks=(2, 5, 4, 8)) for a in (src, diff_dst))
    reads = []
    src.read.clear(), diff_dst.read.clear()  # da.from_array has read empty slices
    for step in [
        lambda: lazily.backward(is_training=False, param_grads=False),
        lambda: bn_ext.dask.batch_norm_inference(lazily.src, *p.vectors(), epsilon=EPSILON),
        lambda: lazily.backward(),
        lambda: lazily.backward(exact=False),
        lambda: lazily.training(exact=False),
        lambda: lazily.training(),
        lambda: lazily.backward(exact=False).diff_src.compute(),
    ]:
        step()
        reads.append((len(src.read), len(diff_dst.read)))
        src.read.clear(), diff_dst.read.clear()
    assert reads == [(0, 0), (0, 0), (3, 3), (3, 3), (3, 0), (3, 0), (6, 6)]


def test_results_are_like_src(rng):
    lazily = Lazily(problem(rng, "float16"), chunks_of("uneven"))
    backward, training = lazily.backward(), lazily.training()
    for result in (backward.diff_src, training.dst):
        assert result.chunks == lazily.src.chunks
        assert result.dtype == np.float16
        assert type(result._meta) is np.ndarray
    assert type(backward) is bn_ext.BatchNormGradients
    assert type(training) is bn_ext.BatchNormTraining
    assert all(type(a) is np.ndarray for a in (*backward[1:], *training[1:]))


def test_the_same_call_has_the_same_tasks(rng):
    """So Dask computes nothing twice. The name tells a dashboard what the task does."""
    p = problem(rng)
    names = {Lazily(p, 3).backward().diff_src.name for _ in range(2)}
    assert len(names) == 1
    assert names.pop().startswith("batch_norm_backward_apply-")


def test_a_block_is_one_task(rng):
    """Each task reads its block itself: a scheduler keeps blocks that tasks pass on."""
    p = problem(rng, shape=(40, 5, 4, 8))
    lazily = Lazily(p, -1)
    lazily.src, lazily.diff_dst = (
        da.from_array(Stored((40, 5, 4, 8)), chunks=(1, 5, 4, 8)) for _ in range(2)
    )
    (diff_src,) = dask.optimize(lazily.backward().diff_src)
    assert 40 <= len(dict(diff_src.__dask_graph__())) < 60


def test_fewer_than_four_chunks_in_memory_for_each_worker():
    """Each worker gets 44 chunks. Memory of graphs, results and sums counts, too."""
    workers, chunk = 2, (64, 128, 64)
    shape = (44 * workers * chunk[0], *chunk[1:])
    src, diff_dst = (da.from_array(Stored(shape), chunks=chunk) for _ in range(2))
    ones = np.ones(chunk[-1], np.float32)
    peaks = []

    def step(src, diff_dst):
        tracemalloc.start()
        grads = bn_ext.dask.batch_norm_backward(src, diff_dst, ones, ones, epsilon=EPSILON)
        da.store(grads.diff_src, Sink(), lock=False)
        result = bn_ext.dask.batch_norm_training(src, epsilon=EPSILON)
        da.store(result.dst, Sink(), lock=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    with ThreadPoolExecutor(workers) as pool, dask.config.set(pool=pool, scheduler="threads"):
        step(src[:1], diff_dst[:1])  # so that imports are not measured
        step(src, diff_dst)
    assert peaks[1] < 4 * workers * 4 * np.prod(chunk)


THREADS = """
import bn_ext.dask, dask, dask.array as da, time
from concurrent.futures import ThreadPoolExecutor
x = da.ones((40000, 64), dtype=np.float32, chunks=(10000, 64))
v = np.ones(64, np.float32)
def threads():
    return len(os.listdir("/proc/self/task"))
with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool, scheduler="threads"):
    list(pool.map(time.sleep, [0.1, 0.1]))
    before = threads()
    for option in {}, {"num_threads": 3}:
        bn_ext.dask.batch_norm_training(x, epsilon=1.0, **option).dst.compute()
        bn_ext.dask.batch_norm_backward(x, x, v, v, epsilon=1.0, **option).diff_src.compute()
        print(threads() - before)
"""


@needs_linux
@needs_openmp
def test_threads_of_kernels_do_not_multiply_those_of_workers():
    """Only num_threads=3 gives each of the two workers two more threads."""
    assert in_new_process(THREADS, OMP_NUM_THREADS="3") == ["0", "4"]


# ---- what is refused ------------------------------------------------------------------------

DATA = SHAPE["NXC"]


def never_read(shape=DATA, dtype=np.float32, chunks=3):
    """An array that raises if anything is computed from it."""
    array = da.from_array(Stored(shape, dtype), chunks=chunks)
    return array.map_blocks(
        lambda block: 1 // 0, dtype=dtype, meta=np.empty((0,) * len(shape), dtype)
    )


def of_unknown_sizes(axis, chunks):
    whole = da.from_array(np.ones(DATA, np.float32), chunks=chunks)
    return whole[(slice(None),) * axis + (da.ones(DATA[axis], chunks=chunks[axis]) > 0,)]


@pytest.mark.parametrize(
    ("kind", "message", "changed"),
    [
        (TypeError, r"^src: expected a Dask array, got numpy.ndarray; pass dask.array.from_array",
         {"src": np.ones(DATA, np.float32)}),
        (TypeError, "^diff_dst: expected a Dask array, got builtins.list$", {"diff_dst": [1.0]}),
        (TypeError, r"^src: expected a Dask array, got types.SimpleNamespace; pass src.data$",
         {"src": SimpleNamespace(data=never_read())}),
        (TypeError, r"^diff_dst: expected a Dask array, got types.SimpleNamespace; pass diff_dst",
         {"diff_dst": SimpleNamespace(data=never_read())}),
        (TypeError, "^src: expected chunks that are NumPy arrays, got numpy.ma.*MaskedArray$",
         {"src": da.ma.masked_equal(never_read(), 0)}),
        (ValueError, r"^src: expected at least 2 dimensions, got shape \(6,\)$",
         {"src": never_read((6,))}),
        (ValueError, r"^src: expected at least 2 dimensions, got shape \(\)$",
         {"src": da.from_array(np.float32(1))}),
        (TypeError, "^src: expected float32, .*, got int64; ", {"src": never_read(dtype=np.int64)}),
        (ValueError, r"^diff_dst: expected shape \(6, 5, 4, 8\), like src, got \(5, 5, 4, 8\)$",
         {"diff_dst": never_read((5, 5, 4, 8))}),
        (ValueError, r"^diff_dst: expected shape \(6, 5, 4, 8\), like src, got \(6, 160\)$",
         {"diff_dst": never_read((6, 160))}),
        (TypeError,
         r"^diff_dst: expected float32, like src, got float64; pass diff_dst.astype\(np.float32\)$",
         {"diff_dst": never_read(dtype=np.float64)}),
        (ValueError, r"^mean: expected shape \(8,\), ", {"mean": np.ones(7, np.float32)}),
        (TypeError, "^mean: .* got int64; pass np.asarray", {"mean": np.ones(8, np.int64)}),
        (ValueError, "^epsilon: expected a finite number >= 0", {"epsilon": -1.0}),
        (ValueError, "^data_format: expected 'NXC' or 'NCX'", {"data_format": "NHWC"}),
        (TypeError, "^exact: expected True or False", {"exact": "no"}),
        (TypeError, "^param_grads: expected True or False", {"param_grads": None}),
        (ValueError, "^num_threads: expected at least 1", {"num_threads": 0}),
        (ValueError, "^beta, dst and workspace: expected exactly one", {"relu": True}),
        (TypeError, "unexpected keyword argument 'workspace'", {"workspace": np.ones(1)}),
        (ValueError, "^src: expected channels in chunks of known sizes",
         {"src": of_unknown_sizes(3, DATA)}),
        (ValueError,
         "^diff_dst: expected 1 chunks along axis 0, like src .sizes are unknown., got 2;",
         {"src": of_unknown_sizes(0, DATA), "diff_dst": never_read()}),
        (ValueError,
         "^diff_dst: expected 2 chunks along axis 0, like src .sizes are unknown., got 1;",
         {"src": of_unknown_sizes(0, (3, 5, 4, 8)), "diff_dst": never_read(chunks=DATA)}),
    ],
)  # fmt: skip
def test_refused_before_anything_is_read(kind, message, changed):
    vector = np.ones(8, np.float32)
    given = {"src": never_read(), "diff_dst": never_read(), "mean": vector, "variance": vector,
             "epsilon": EPSILON}  # fmt: skip
    with pytest.raises(kind, match=message):
        bn_ext.dask.batch_norm_backward(**{**given, **changed})


@pytest.mark.parametrize(
    ("kind", "message", "changed"),
    [
        (TypeError, "^momentum: not accepted", {"momentum": 0.1}),
        (TypeError, "^running_mean: expected a numpy.ndarray, got Array$",
         {"running_mean": da.zeros(8, dtype=np.float32)}),
        (ValueError, "^running_mean.*: expected all four or none", {"correction": None}),
        (TypeError, "^src_1: expected a Dask array", {"src_1": np.ones(DATA, np.float32)}),
        (ZeroDivisionError, "by zero", {}),
    ],
)  # fmt: skip
def test_running_statistics_stay_if_training_fails(rng, kind, message, changed):
    p = problem(rng)
    given = {**running(p), **changed}
    with pytest.raises(kind, match=message):
        bn_ext.dask.batch_norm_training(never_read(), epsilon=EPSILON, **given)
    assert bits(given["running_variance"]) == bits(p.running_variance)


def test_correction_of_one_element(rng):
    p = problem(rng, shape=(1, 8))
    given = running(p)
    with pytest.raises(ValueError, match="^src: expected more than one element in each channel"):
        Lazily(p, 3).training(**given)
    assert all(bits(given[name]) == bits(getattr(p, name)) for name in RUNNING)


def test_chunks_of_another_dtype_than_said(rng):
    lazily = Lazily(problem(rng), 3)
    lazily.src = lazily.src.map_blocks(lambda a: a.astype(np.float64), dtype=np.float32)
    lazily.diff_dst = lazily.diff_dst.map_blocks(lambda a: a.astype(np.float64), dtype=np.float32)
    with pytest.raises(TypeError, match="^src: expected chunks of float32, .*, got float64$"):
        lazily.backward()


@pytest.mark.quick
def test_no_number_of_blocks_is_too_large():
    """More than twice as many states as `+` can add are merged, in pairs."""
    total = bn_ext.batch_norm_training_reduce(np.ones((3, 2), np.float32), exact=True)
    for _ in range(21):
        total = merged_states(np.stack([total, total]))
    assert bn_ext.batch_norm_count(total) == 3 * 2**21
    assert bn_ext.batch_norm_sums(total).tolist() == [[3 * 2**21] * 2] * 2
