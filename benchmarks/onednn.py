"""oneDNN as a peer: onednn.cpp, compiled when first asked for against libdnnl."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from functools import cache
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("onednn.cpp")
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
LAYOUTS = {"NXC": 0, "NCX": 1, "blocked": 2}


@cache
def load():
    """The driver; ImportError where there is no compiler or no libdnnl (Debian: libdnnl-dev)."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise ImportError("no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "onednn.so"
        command = [compiler, "-std=c++17", "-O2", "-fopenmp", "-shared", "-fPIC", str(SOURCE)]
        done = subprocess.run([*command, "-ldnnl", "-o", str(path)], capture_output=True)
        if done.returncode:
            raise ImportError("no libdnnl to compile against")
        library = ctypes.CDLL(str(path))
    library.bn_new.restype = ctypes.c_void_p
    library.bn_run.argtypes = library.bn_free.argtypes = [ctypes.c_void_p]
    return library


def call(problem, threads, mode, layout=None):
    """A call over a problem's arrays, in `layout` (default: the problem's own), or None."""
    driver = load()
    dtype = DTYPES.get(problem.dtype.name)
    layout = layout or problem.layout
    if dtype is None or mode == "frozen-src" or (layout == "blocked" and problem.layout != "NCX"):
        return None
    dims = problem.dims
    outputs = problem.out[1:]
    vectors = (problem.mean, problem.variance, problem.gamma, *outputs)
    handle = driver.bn_new(
        len(dims),
        (ctypes.c_int64 * len(dims))(*dims),
        LAYOUTS[layout],
        dtype,
        (ctypes.c_void_p * 3)(
            *(a.ctypes.data for a in (problem.src, problem.diff_dst, problem.diff_src))
        ),
        (ctypes.c_void_p * 5)(*(np.ascontiguousarray(v).ctypes.data for v in vectors)),
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
