"""Calls whose every array ends, or starts, at a page that must not be touched.

Run by test_memory.py in a process of its own, one per instruction-set level: reading or
writing one byte too many ends it.

    python tests/guarded.py v4
"""

import ctypes
import functools
import itertools
import mmap
import sys
from types import SimpleNamespace

import numpy as np
from cases import DATA_DTYPES, FORMATS, dtype

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
        """An array with its last byte before the guard behind, or its first after the one before.

        gaps: elements left out after each position of an axis; the last axis has none.
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
    """(shape, layout): every number of channels, every length of a run, around every boundary."""
    for channels in [*range(1, 72), 127, 128, 129, 200, 257]:
        for n in (1, 2, 9, 19):
            yield (n, channels), "NXC"
    for length in [*range(1, 72), 127, 129, *range(255, 262), 511, 513, 1023, 1030]:
        for n in (1, 2, 3, 9):
            yield (n, 3, length), "NCX"
    yield (2, 3, 5, 7), "NCX"
    yield (4, 5, 6, 3), "NXC"


def gaps_of(shape, layout):
    """No gaps; gaps between n; gaps between the axes behind (never in the last axis)."""
    zeros = (0,) * len(shape)
    yield zeros
    yield tuple(3 if axis == len(shape) - 2 else 0 for axis in range(len(shape)))
    if len(shape) > 2:
        yield tuple(5 if axis == 0 else 0 for axis in range(len(shape)))


# ---- the members, each a list of calls that are ready to be made --------------------------


def forward_calls(a, options):
    """Training, its halves and inference: plain, with each of what is fused, in place."""
    given = {"epsilon": 1e-3, **options}
    running = {
        "running_mean": a.running_mean, "running_variance": a.running_variance,
        "exponential_avg_factor": 0.1, "correction": 0,
    }  # fmt: skip
    vectors = a.vector, a.another_vector
    training = functools.partial(bn_ext.batch_norm_training, a.src, a.gamma, a.beta, **given)
    apply = functools.partial(
        bn_ext.batch_norm_training_apply, a.src, a.stats, a.gamma, a.beta, **given
    )
    inference = functools.partial(
        bn_ext.batch_norm_inference, a.src, a.mean, a.variance, a.gamma, a.beta, **given
    )
    yield functools.partial(bn_ext.batch_norm_training_reduce, a.src, **options)
    yield functools.partial(bn_ext.batch_norm_training_merge, a.parts)
    for call in (training, apply):
        yield functools.partial(call, out=(a.result, *vectors))
        yield functools.partial(call, out=(a.src, *vectors), **running)
    yield functools.partial(inference, out=a.result)
    yield functools.partial(inference, out=a.src)
    for call, over in (
        (training, lambda dst: (dst, *vectors)),
        (apply, lambda dst: (dst, *vectors)),
        (inference, lambda dst: dst),
    ):
        for relu in ({"relu": True}, {"relu": True, "workspace": a.workspace}):
            yield functools.partial(call, out=over(a.result), **relu)
            yield functools.partial(call, out=over(a.src_1), src_1=a.src_1, **relu)
        yield functools.partial(call, out=over(a.result), src_1=a.src_1)


def backward_calls(a, options):
    """The gradient and its halves: with each gate, in place."""
    vectors = a.vector, a.another_vector
    statistics = a.src, a.diff_dst, a.mean, a.variance, a.gamma
    given = {"epsilon": 1e-3, **options}
    backward = functools.partial(bn_ext.batch_norm_backward, *statistics, **given)
    apply = functools.partial(bn_ext.batch_norm_backward_apply, *statistics, a.sums, **given)
    reduce = functools.partial(
        bn_ext.batch_norm_backward_reduce, a.src, a.diff_dst, a.mean, **options
    )
    from_src = {"relu": True, "beta": a.beta}
    gates = {"relu": True, "dst": a.src_1}, {"relu": True, "workspace": a.workspace}
    yield reduce
    yield functools.partial(reduce, **from_src, variance=a.variance, gamma=a.gamma, epsilon=1e-3)
    for gate in gates:
        yield functools.partial(reduce, **gate)
    for call, is_training in itertools.product((backward, apply), (True, False)):
        call = functools.partial(call, is_training=is_training)
        yield functools.partial(call, out=(a.result, *vectors))
        yield functools.partial(call, out=(a.src, *vectors))
        yield functools.partial(call, out=(a.diff_dst, *vectors), **from_src)
        for gate in gates:
            yield functools.partial(call, out=(a.result, *vectors), **gate)
            yield functools.partial(
                call, out=(a.result, *vectors, a.another), diff_src_1=True, **gate
            )


def exact_calls(a, options):
    """Exact sums, with each gate, and what takes them."""
    statistics, vectors = (a.src, a.diff_dst, a.mean), (a.vector, a.another_vector)
    reduce = functools.partial(
        bn_ext.batch_norm_backward_reduce, *statistics, exact=True, **options
    )
    moments = functools.partial(bn_ext.batch_norm_training_reduce, a.src, exact=True, **options)
    from_src = {"relu": True, "beta": a.beta, "variance": a.variance, "epsilon": 1e-3}
    yield reduce
    yield functools.partial(reduce, **from_src)
    yield functools.partial(reduce, relu=True, workspace=a.workspace)
    yield functools.partial(moments, mean=a.mean)
    state, results = reduce(), (a.result, *vectors)
    yield functools.partial(
        bn_ext.batch_norm_backward_apply, *statistics, a.variance, a.gamma, state, out=results,
        epsilon=1e-3, **options,
    )  # fmt: skip
    yield functools.partial(
        bn_ext.batch_norm_training, a.src, exact=True, out=results, epsilon=1e-3, **options
    )
    yield functools.partial(bn_ext.batch_norm_training_stats, moments())
    for function in (
        bn_ext.batch_norm_sums,
        bn_ext.batch_norm_count,
        bn_ext.batch_norm_canonical,
    ):
        yield functools.partial(function, state)


def double_backward_calls(a, options):
    """The gradient of the gradient: apart, and over two of what it reads."""
    for is_training, results in itertools.product(
        (True, False), ((a.result, a.another), (a.src, a.diff_diff_src))
    ):
        yield functools.partial(
            bn_ext.batch_norm_double_backward, a.src, a.diff_dst, a.mean, a.variance, a.gamma,
            a.diff_diff_src, a.diff_diff_gamma, a.diff_diff_beta, epsilon=1e-3,
            is_training=is_training, out=(*results, a.vector), **options,
        )  # fmt: skip


MEMBERS = forward_calls, backward_calls, exact_calls, double_backward_calls


def operands(regions, rng, shape, layout, data, vector, gaps, at_end):
    """All that the members read and write, each in its region."""
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
        put(name, (channels,), dtype(vector), 1)
    for name in RUNNING:
        put(name, (channels,), np.float64 if at_end else np.float32, 1)
    count = int(np.prod(shape)) // channels
    put("sums", (3, channels), np.float64, [[1], [1], [count]])
    put("stats", (4, channels), np.float64, [[1], [1], [count], [1]])
    put("parts", (2, *a.stats.shape), np.float64, a.stats)
    put("workspace", (-(-a.src.size // 8),), np.uint8, 0x5A)
    return a


def run():
    """All of them; the number of calls."""
    regions = {name: Region(80) for name in (*READ, *WRITTEN)}
    for name in (*VECTORS, *VECTORS_WRITTEN, *RUNNING, "sums", "stats", "parts", "workspace"):
        regions[name] = Region(10)
    rng = np.random.default_rng(0)
    calls = 0
    for shape, layout in shapes():
        for data, gaps, at_end in itertools.product(
            DATA_DTYPES, gaps_of(shape, layout), (False, True)
        ):
            vector = rng.choice(_core._TABLE[data])
            a = operands(regions, rng, shape, layout, data, vector, gaps, at_end)
            for call in itertools.chain(*(each(a, {"data_format": layout}) for each in MEMBERS)):
                call()
                calls += 1
    return calls


if __name__ == "__main__":
    _core._use_isa(sys.argv[1])
    # Nontemporal stores begin and end inside rows: with small caches even here.
    _core._set_cache_sizes(*map(int, sys.argv[2:4]))
    print(run(), "calls")
