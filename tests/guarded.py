"""Calls in which every array ends, or starts, at a page that must not be touched.

Run by test_memory.py in a process of its own, one per instruction-set level: reading or
writing one byte too many kills the process.

    python tests/guarded.py v4 0 0     the level, and cache sizes
"""

import ctypes
import functools
import itertools
import mmap
import sys
from types import SimpleNamespace

import numpy as np
from cases import DATA_DTYPES, FORMATS, Family, dtype

import bn_ext
from bn_ext import _core

PAGE = mmap.PAGESIZE
READ = ["src", "diff_dst", "diff_diff_src", "src_1"]
WRITTEN = ["result", "another"]
VECTORS = ["mean", "variance", "gamma", "beta", "diff_diff_gamma", "diff_diff_beta"]
VECTORS_WRITTEN = ["vector", "another_vector"]
RUNNING = ["running_mean", "running_variance"]


class Region:
    """Pages between two pages that must not be touched."""

    def __init__(self, pages):
        self.size = pages * PAGE
        self.memory = mmap.mmap(-1, self.size + 2 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for guard in (self.address, self.address + PAGE + self.size):
            if protect(guard, PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def array(self, shape, dtype, gaps, at_end):
        """An array that ends right before the second guard, or starts right after the first.

        gaps: for each axis, the elements to skip after each index; none on the last axis.
        """
        strides, step = [], dtype.itemsize
        for n, gap in zip(reversed(shape), reversed(gaps), strict=True):
            step += gap * dtype.itemsize
            strides.insert(0, step)
            step *= n
        extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
        assert extent <= self.size
        start = PAGE + (self.size - extent if at_end else 0)
        return np.ndarray(shape, dtype, self.memory, start, strides)


def shapes():
    """(shape, layout): many numbers of channels and lengths of runs, around every boundary."""
    for channels in [*range(1, 72), 127, 128, 129, 200, 257]:
        for n in (1, 2, 9, 19):
            yield (n, channels), "NXC"
    for length in [*range(1, 72), 127, 129, *range(255, 262), 511, 513, 1023, 1030]:
        for n in (1, 2, 3, 9):
            yield (n, 3, length), "NCX"
    yield (2, 3, 5, 7), "NCX"
    yield (4, 5, 6, 3), "NXC"


def gaps_of(shape, layout):
    """No gaps; gaps on the last axis but one; with more than two axes, gaps on the first."""
    zeros = (0,) * len(shape)
    yield zeros
    yield tuple(3 if axis == len(shape) - 2 else 0 for axis in range(len(shape)))
    if len(shape) > 2:
        yield tuple(5 if axis == 0 else 0 for axis in range(len(shape)))


# ---- calls that are ready to be made -------------------------------------------------------


def calls(a, options):
    """Calls of every function: plain, with each fused option, in place."""

    def ready(function, names, **more):
        return functools.partial(function, *(getattr(a, n) for n in names.split()), **more)

    vectors = a.vector, a.another_vector
    epsilon, factor = getattr(a, "epsilon", 1e-3), getattr(a, "factor", 0.1)
    given = {"epsilon": epsilon, **options}
    relu, bits = {"relu": True}, {"relu": True, "workspace": a.workspace}
    running = {
        "running_mean": a.running_mean, "running_variance": a.running_variance,
        "exponential_avg_factor": factor, "correction": 0,
    }  # fmt: skip
    yield ready(bn_ext.Statistics, "src", **options)
    for function, names in (
        (bn_ext.batch_norm_training, "src gamma beta"),
        (bn_ext.batch_norm_inference, "src mean variance gamma beta"),
    ):
        alone = function is bn_ext.batch_norm_inference
        for dst, more in (
            (a.result, {}),
            (a.src, {} if alone else running),
            (a.result, relu),
            (a.src_1, {"src_1": a.src_1, **relu}),
            (a.result, bits),
            (a.src_1, {"src_1": a.src_1, **bits}),
            (a.result, {"src_1": a.src_1}),
        ):
            yield ready(function, names, out=dst if alone else (dst, *vectors), **more, **given)

    operands, statistics = "src diff_dst mean", "src diff_dst mean variance gamma"
    from_src, gates = {"beta": a.beta, **relu}, ({"dst": a.src_1, **relu}, bits)
    known = {"variance": a.variance, "epsilon": epsilon}
    for more in ({}, {"gamma": a.gamma, **from_src, **known}, *gates):
        yield ready(bn_ext.GradientSums, operands, **more, **options)
    results = (a.result, *vectors)
    sums = bn_ext.GradientSums(a.src, a.diff_dst, a.mean, **options)
    sums._sums = a.sums
    for total in ({}, {"sums": sums}):
        for out, more in (
            (results, {}),
            ((a.src, *vectors), {}),
            ((a.diff_dst, *vectors), from_src),
            *((results, gate) for gate in gates),
            *(((*results, a.another), {"diff_src_1": True, **gate}) for gate in gates),
        ):
            for is_training in (True, False):
                yield ready(
                    bn_ext.batch_norm_backward, statistics, out=out, is_training=is_training,
                    **more, **total, **given,
                )  # fmt: skip
    for is_training, two in itertools.product(
        (True, False), ((a.result, a.another), (a.src, a.diff_diff_src))
    ):
        yield ready(
            bn_ext.batch_norm_double_backward,
            f"{statistics} diff_diff_src diff_diff_gamma diff_diff_beta",
            is_training=is_training, out=(*two, a.vector), **given,
        )  # fmt: skip

    yield ready(bn_ext.batch_norm_statistics_backward, "beta mean variance gamma", epsilon=epsilon)

    exact = {"exact": True, **options}
    for more in ({}, {**from_src, **known}, bits):
        yield ready(bn_ext.GradientSums, operands, **more, **exact)
    yield ready(bn_ext.Statistics, "src", **exact)
    yield ready(bn_ext.batch_norm_training, "src", out=results, epsilon=epsilon, **exact)
    sums = bn_ext.GradientSums(a.src, a.diff_dst, a.mean, **exact)
    yield ready(bn_ext.batch_norm_backward, statistics, out=results, sums=sums, **given)


def dense(rng, shape, layout, data):
    """The operands of the calls, in ordinary memory."""
    a = Family(rng, shape, layout, data)
    a.result, a.another = np.empty_like(a.src), np.empty_like(a.src)
    a.vector, a.another_vector = np.empty_like(a.mean), np.empty_like(a.mean)
    a.sums = np.ones((2, len(a.mean)))
    a.workspace = np.full(-(-a.src.size // 8), 0x5A, np.uint8)
    return a


def operands(regions, rng, shape, layout, data, gaps, at_end):
    """All arrays that functions read and write, each in its region."""
    channels = shape[FORMATS[layout]]
    a = SimpleNamespace()

    def put(name, shape, kind, values, gaps=None):
        gaps = gaps or (0,) * len(shape)
        array = regions[name].array(shape, np.dtype(kind), gaps, at_end)
        array[...] = values
        setattr(a, name, array)

    for name in (*READ, *WRITTEN):
        put(name, shape, dtype(data), rng.standard_normal(shape, np.float32), gaps)
    for name in (*VECTORS, *VECTORS_WRITTEN):
        put(name, (channels,), dtype(rng.choice(DATA_DTYPES)), 1)
    for name in RUNNING:
        put(name, (channels,), np.float64 if at_end else np.float32, 1)
    put("sums", (2, channels), np.float64, 1)
    put("workspace", (-(-a.src.size // 8),), np.uint8, 0x5A)
    return a


def run():
    """Make all calls; return their number."""
    regions = {name: Region(80) for name in (*READ, *WRITTEN)}
    for name in (*VECTORS, *VECTORS_WRITTEN, *RUNNING, "sums", "workspace"):
        regions[name] = Region(10)
    rng = np.random.default_rng(0)
    count = 0
    for shape, layout in shapes():
        some_gaps = list(gaps_of(shape, layout))
        for data, at_end in itertools.product(DATA_DTYPES, (False, True)):
            # Trying all gaps with each shape and dtype would make 2.5 times as many calls.
            gaps = some_gaps[rng.integers(len(some_gaps))]
            a = operands(regions, rng, shape, layout, data, gaps, at_end)
            for call in calls(a, {"data_format": layout}):
                call()
                count += 1
    return count


if __name__ == "__main__":
    _core._use_isa(sys.argv[1])
    # Small caches make even these problems use nontemporal stores, which begin and end within rows.
    _core._set_cache_sizes(*map(int, sys.argv[2:4]))
    print(run(), "calls")
