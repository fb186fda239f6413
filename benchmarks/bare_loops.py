"""The bare loops of bare_loops.c, compiled for this machine when first asked for."""

import ctypes
from pathlib import Path

from bn_ext import _core

from .compiled import compiled, compiler

SOURCE = Path(__file__).with_name("bare_loops.c")
FLAGS = ["-O3", "-march=native"]
#: Stores bypass the cache from this many bytes of all tensors on, as bn_ext decides it too.
NONTEMPORAL_SHARE = 0.75


def load():
    """The library, or None without a C compiler."""
    command = compiler("CC", "cc", "gcc")
    if command is None:
        return None
    wide = b"avx512" in Path("/proc/cpuinfo").read_bytes()
    flags = [*FLAGS, "-mprefer-vector-width=512"] if wide else FLAGS
    library = compiled([command, *flags], SOURCE, "-lm")
    for name in ("two", "three", "five"):
        getattr(library, name).argtypes = [ctypes.c_void_p] * 3 + [
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
        ]
    return library


def loop(library, name, problem, threads):
    """One of the loops over a problem's arrays."""
    pointers = [a.ctypes.data for a in problem.tensors]
    nbytes = problem.src.nbytes
    _, last_level = _core._cache_sizes()
    nontemporal = int(len(pointers) * nbytes > NONTEMPORAL_SHARE * last_level)
    call = getattr(library, name)
    return lambda: call(*pointers, nbytes, threads, nontemporal)
