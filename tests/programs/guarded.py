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


def forbid(page):
    """From now on, whoever touches the page is ended."""
    if sys.platform == "win32":
        protect, no_access = ctypes.WinDLL("kernel32").VirtualProtect, 1
        done = protect(ctypes.c_void_p(page), PAGE, no_access, ctypes.byref(ctypes.c_ulong()))
    else:
        done = ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0
    assert done


class Region:
    """Pages between two pages that must not be touched."""

    def __init__(self, pages):
        self.size = pages * PAGE
        self.memory = mmap.mmap(-1, self.size + 2 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for guard in (self.address, self.address + PAGE + self.size):
            forbid(guard)

    def array(self, shape, dtype, strides, at_end):
        """An array that ends right before the second guard, or starts right after the first."""
        reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
        low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + dtype.itemsize
        assert high - low <= self.size
        start = PAGE + (self.size - (high - low) if at_end else 0)
        return np.ndarray(shape, dtype, self.memory, start - low, strides)


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
    yield (3, 4, 5, 64), "NXC"
    yield (9, 3, 4, 32), "NXC"


def strides_of(shape, itemsize, axis):
    """Strides, the last first, with a gap after each index of an axis; None: without gaps."""
    step = itemsize
    for k, n in reversed([*enumerate(shape)]):
        step += (k == axis) * 5 * itemsize
        yield step
        step *= n


@functools.cache
def region(name, pages):
    return Region(pages)


def operands(rng, shape, layout, data, axis, at_end):
    """A problem with each array in its region; vectors have any dtype."""
    p = problem(rng, shape, layout, data)

    def put(name, array, kind, pages, axis=None):
        strides = [*strides_of(array.shape, kind.itemsize, axis)][::-1]
        guarded = region(name, pages).array(array.shape, kind, strides, at_end)
        guarded[...] = array
        setattr(p, name, guarded)

    for name, array in {**vars(p)}.items():
        if name in ("workspace", "sums"):
            put(name, array, array.dtype, 10)
        elif isinstance(array, np.ndarray) and array.ndim == 1:
            put(name, array, dtype(rng.choice(DATA_DTYPES)), 10)
        elif isinstance(array, np.ndarray) and name != "passes":
            put(name, array, array.dtype, 80, axis)
    return p


def run():
    rng, count = np.random.default_rng(0), 0
    for shape, layout in shapes():
        # No gaps, gaps on the last axis but one, or, of more than two axes, on the first.
        axes = [None, len(shape) - 2, 0][: len(shape)]
        for data, at_end in itertools.product(DATA_DTYPES, (False, True)):
            # Trying all gaps with each shape and dtype would make 2.5 times as many calls.
            axis = axes[rng.integers(len(axes))]
            for call in calls(operands(rng, shape, layout, data, axis, at_end), data_format=layout):
                call()
                count += 1
    return count


if __name__ == "__main__":
    _core.use_isa(sys.argv[1])
    # Small caches make even these problems use nontemporal stores, which begin and end within rows.
    _core.set_cache_sizes(*map(int, sys.argv[2:4]))
    print(run(), "calls")
