"""Calls in which every array ends, or starts, at a page that must not be touched.

Run by test_memory.py in a process of its own, one per instruction-set level: reading or
writing one byte too many kills the process.

    python tests/programs/guarded.py v4 0 0     the level, and cache sizes
"""

import ctypes
import functools
import itertools
import mmap
import sys
from pathlib import Path

import numpy as np

from bn_ext import _core

sys.path.append(str(Path(__file__).parent.parent / "shared"))
from cases import DATA_DTYPES, dtype
from members import calls, problem

PAGE = mmap.PAGESIZE


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


# ---- calls ---------------------------------------------------------------------------------


@functools.cache
def region(name, pages):
    """The region of an argument."""
    return Region(pages)


def operands(rng, shape, layout, data, gaps, at_end):
    """A problem with each array in its region; vectors have any dtype."""
    p = problem(rng, shape, layout, data)

    def put(name, array, dtype=None, gaps=None):
        pages, gaps = (80, gaps) if gaps else (10, (0,) * array.ndim)
        guarded = region(name, pages).array(array.shape, dtype or array.dtype, gaps, at_end)
        guarded[...] = array
        setattr(p, name, guarded)

    for name, array in {**vars(p)}.items():
        if name in ("workspace", "sums"):
            put(name, array)
        elif isinstance(array, np.ndarray) and name != "passes":
            is_vector = array.ndim == 1
            put(
                name,
                array,
                dtype(rng.choice(DATA_DTYPES)) if is_vector else None,
                None if is_vector else gaps,
            )
    return p


def run():
    """Make all calls; return their number."""
    rng, count = np.random.default_rng(0), 0
    for shape, layout in shapes():
        some_gaps = list(gaps_of(shape, layout))
        for data, at_end in itertools.product(DATA_DTYPES, (False, True)):
            # Trying all gaps with each shape and dtype would make 2.5 times as many calls.
            gaps = some_gaps[rng.integers(len(some_gaps))]
            for call in calls(operands(rng, shape, layout, data, gaps, at_end), data_format=layout):
                call()
                count += 1
    return count


if __name__ == "__main__":
    _core.use_isa(sys.argv[1])
    # Small caches make even these problems use nontemporal stores, which begin and end within rows.
    _core.set_cache_sizes(*map(int, sys.argv[2:4]))
    print(run(), "calls")
