"""Speed of each kernel by itself, at each instruction-set level: for who tunes one loop.

One thread; a block of eight (reduce) or four (apply, scale) rows that fits the first-level
cache with its sums and coefficients. GB/s of the bytes of src, diff_dst and diff_src that the
kernel must touch.
"""

import math
import time

import numpy as np

import bn_ext
from bn_ext import _core

from . import rows, sets

COLUMNS, PAD, REPEATS = 128, 64, 2
TENSORS = {"reduce": 2, "apply": 3, "scale": 2}


def call_of(isa, dtype, name, uniform, calls):
    """A function that runs a kernel `calls` times, and the bytes of one run."""
    storage = sets.DTYPES[dtype]
    number = np.float64 if dtype == "float64" else np.float32
    n = 8 if name == "reduce" else 4
    # Rows 64 bytes further apart than they are long: no two of them in one cache set.
    pitch = COLUMNS * storage.itemsize + 64
    data = [np.zeros(n * REPEATS * pitch + 8192, np.uint8) for _ in range(3)]
    addresses = [a.ctypes.data + -a.ctypes.data % 4096 for a in data]
    for a in data[:2]:
        a.view(storage)[:] = np.linspace(-1, 1, a.size // storage.itemsize)
    coefs = np.full((4, COLUMNS), 0.1, number)
    sums = np.zeros((4, COLUMNS + PAD))
    running = np.zeros((2, COLUMNS + PAD), np.float32)
    block = (addresses, [pitch] * 3, [n * pitch] * 3, REPEATS, n, COLUMNS, False, uniform)

    def call():
        assert data
        _core._run_kernel(
            isa, dtype, name, block, coefs.view(np.uint8), sums, running, COLUMNS, calls
        )

    return call, TENSORS[name] * n * REPEATS * COLUMNS * storage.itemsize


def measure(dtypes, seconds, advance=lambda: None):
    """{(dtype, kernel): {level: GB/s}}"""
    found = {}
    kinds = [("reduce", False), ("apply", False), ("apply", True), ("scale", False)]
    for dtype in dtypes:
        for name, uniform in kinds:
            line = found[dtype, f"{name}, one channel" if uniform else name] = {}
            for isa in bn_ext.available_isas():
                calls = 5000
                call, nbytes = call_of(isa, dtype, name, uniform, calls)
                best, end = math.inf, time.perf_counter() + seconds
                while (before := time.perf_counter()) < end:
                    call()
                    best = min(best, time.perf_counter() - before)
                line[isa] = 1e-9 * nbytes * calls / best
                advance()
    return found


def table(found):
    isas = list(next(iter(found.values())))
    lines = [[*key, *(f"{speeds[isa]:.0f}" for isa in isas)] for key, speeds in found.items()]
    return rows.markdown(["dtype", "kernel", *isas], lines)
