"""oneDNN as a peer: onednn.cpp, compiled when first asked for against libdnnl."""

import ctypes
import subprocess
import weakref
from functools import cache
from pathlib import Path

from .compiled import compiled, compiler

SOURCE = Path(__file__).with_name("onednn.cpp")
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
LAYOUTS = {"NXC": 0, "NCX": 1, "blocked": 2}


@cache
def load():
    """The driver; ImportError where there is no compiler or no libdnnl (Debian: libdnnl-dev)."""
    command = compiler("CXX", "g++", "c++")
    if command is None:
        raise ImportError("no C++ compiler")
    try:
        library = compiled(
            [command, "-std=c++17", "-O2"], SOURCE, "-ldnnl", stderr=subprocess.DEVNULL
        )
    except subprocess.CalledProcessError:
        raise ImportError("no libdnnl to compile against") from None
    library.bn_new.restype = ctypes.c_void_p
    library.bn_run.argtypes = library.bn_free.argtypes = [ctypes.c_void_p]
    return library


def pointers(arrays):
    """Where each begins."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def call(problem, threads, mode, layout=None):
    """A call over a problem's arrays, in `layout` (default: the problem's own), or None."""
    driver = load()
    dtype = DTYPES.get(problem.dtype.name)
    layout = layout or problem.layout
    if dtype is None or mode == "frozen-src" or (layout == "blocked" and problem.layout != "NCX"):
        return None
    dims = problem.dims
    vectors = (*problem.vectors, *problem.out[1:])
    handle = driver.bn_new(
        len(dims),
        (ctypes.c_int64 * len(dims))(*dims),
        LAYOUTS[layout],
        dtype,
        pointers(problem.tensors),
        pointers(vectors),
        ctypes.c_float(problem.epsilon),
        int(mode == "frozen"),
        threads,
    )
    if not handle:
        return None

    def run():
        driver.bn_run(handle)

    weakref.finalize(run, driver.bn_free, handle)
    return run
