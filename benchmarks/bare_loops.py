"""The bare loops of bare_loops.c, compiled for this machine at their first use."""

import ctypes
from pathlib import Path

import numpy as np

from bn_ext import _core
from bn_ext._bench.problems import OPS

from .compiled import compiled, compiler, pointers

SOURCE = Path(__file__).with_name("bare_loops.c")
FLAGS = ["-O3", "-march=native"]
#: Stores bypass the cache if all tensors fill more than this share of it; bn_ext decides likewise.
NONTEMPORAL_SHARE = 0.75


def load():
    """The library; None if there is no C compiler."""
    command = compiler("CC", "cc", "gcc")
    if not command:
        return None
    wide = b"avx512" in Path("/proc/cpuinfo").read_bytes()
    flags = [*FLAGS, "-mprefer-vector-width=512"] if wide else FLAGS
    library = compiled([*command, *flags], SOURCE, "-lm")
    tensors = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    library.loop.argtypes = [*tensors, *tensors, ctypes.c_int64, *[ctypes.c_int] * 3]
    return library


def loop(library, problem, threads, passes=1, fresh=False):
    """A call that moves the bytes that the problem's operation must, and reads them `passes` times.

    With `fresh`, it writes to arrays that are allocated at every call.
    """
    streams = OPS[problem.op]
    reads = [problem.tensors[name] for name in streams.reads]
    writes = [problem.tensors[name] for name in streams.writes]
    nbytes = problem.src.nbytes
    _, last_level = _core._cache_sizes()
    nontemporal = int(len(problem.tensors) * nbytes > NONTEMPORAL_SHARE * last_level)
    given, options = (pointers(reads), len(reads)), (nbytes, passes, threads, nontemporal)
    if fresh:

        def call():
            to = [np.empty_like(a) for a in writes]
            library.loop(*given, pointers(to), len(to), *options)

        return call
    given += pointers(writes), len(writes)
    return lambda: library.loop(*given, *options)
