"""Calls whose every array ends, or starts, at a page that must not be touched.

Run by test_memory.py in a process of its own, one per instruction-set level: reading or
writing one byte too many ends it.

    python tests/guarded.py v4
"""

import ctypes
import itertools
import mmap
import sys

import numpy as np
from cases import DATA_DTYPES, FORMATS, INPUTS, OUTPUTS, VECTORS, dtype, vector_dtype

import bn_ext
from bn_ext import _core

PAGE = mmap.PAGESIZE
TENSORS = 4  # src, diff_dst, diff_src, diff_src_1


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


def run():
    """All of them; the number of calls."""
    regions = [Region(80) for _ in (*INPUTS, *OUTPUTS, "diff_src_1")]
    bits = Region(10)
    rng = np.random.default_rng(0)
    calls = 0
    for shape, layout in shapes():
        channels = shape[FORMATS[layout]]
        for data, gaps, at_end in itertools.product(
            DATA_DTYPES, gaps_of(shape, layout), (False, True)
        ):
            tensors = [r.array(shape, dtype(data), gaps, at_end) for r in regions[:TENSORS]]
            number = dtype(vector_dtype(data))
            vectors = [r.array((channels,), number, (0,), at_end) for r in regions[TENSORS:]]
            src, diff_dst, diff_src, diff_src_1 = tensors
            for tensor in (src, diff_dst):
                tensor[:] = rng.standard_normal(shape).astype(tensor.dtype)
            for vector in vectors:
                vector[:] = 1
            read, written = vectors[: len(VECTORS)], vectors[len(VECTORS) :]
            for out, training in (
                (diff_src, True),
                (diff_src, False),
                (src, True),
                (diff_dst, False),
            ):
                bn_ext.batch_norm_backward(
                    src, diff_dst, *read, epsilon=1e-3, data_format=layout,
                    is_training=training, out=(out, *written),
                )  # fmt: skip
                calls += 1
            workspace = bits.array((-(-src.size // 8),), np.dtype(np.uint8), (0,), at_end)
            gamma = read[2]
            for training in (True, False):
                options = {"epsilon": 1e-3, "data_format": layout, "relu": True}
                bn_ext.batch_norm_inference(
                    src, *read, gamma, out=diff_src, workspace=workspace, **options
                )
                for gate in ({"beta": gamma}, {"dst": diff_dst}, {"workspace": workspace}):
                    add = "beta" not in gate
                    bn_ext.batch_norm_backward(
                        src, diff_dst, *read, **gate, **options, is_training=training,
                        diff_src_1=add, out=(diff_src, *written, diff_src_1)[: 3 + add],
                    )  # fmt: skip
                    calls += 1
    return calls


if __name__ == "__main__":
    _core._use_isa(sys.argv[1])
    # Nontemporal stores begin and end inside rows: with small caches even here.
    _core._set_cache_sizes(*map(int, sys.argv[2:4]))
    print(run(), "calls")
