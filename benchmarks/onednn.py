"""oneDNN as a peer: onednn.cpp, compiled against libdnnl at its first use."""

import ctypes
import os
import subprocess
import sys
import weakref
from functools import cache
from pathlib import Path

from .compiled import compiled, compiler, pointers
from .peers import usable_cpus

SOURCE = Path(__file__).with_name("onednn.cpp")
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
LAYOUTS = {"NXC": 0, "NCX": 1, "blocked": 2}


@cache
def load():
    """The driver, or an ImportError if there is no compiler or no libdnnl (onednn-devel from PyPI,
    or Debian's libdnnl-dev).
    """
    command = compiler("CXX", "g++", "c++")
    if not command:
        raise ImportError("no C++ compiler")
    where = []
    here = Path(sys.prefix)
    if (here / "include" / "dnnl.hpp").exists():
        where = [f"-I{here}/include", f"-L{here}/lib", f"-Wl,-rpath,{here}/lib"]
        where.append("-Wl,--disable-new-dtags")  # the libraries that libdnnl needs are there too
        # PyPI's oneDNN runs on SYCL, which looks for the CPU as an OpenCL device.
        os.environ.setdefault("OCL_ICD_FILENAMES", f"{here}/lib/libintelocl.so")
    try:
        library = compiled(
            [*command, "-std=c++17", "-O2"], SOURCE, *where, "-ldnnl", stderr=subprocess.DEVNULL
        )
    except subprocess.CalledProcessError:
        raise ImportError("no libdnnl to compile against") from None
    library.bn_new.restype = ctypes.c_void_p
    library.bn_run.argtypes = library.bn_free.argtypes = [ctypes.c_void_p]
    return library


def version():
    """The version as major.minor.patch, and SYCL if it has that runtime."""
    numbers = (ctypes.c_int * 3)()
    load().bn_version(numbers)
    return ".".join(map(str, numbers)) + ("" if load().bn_has_openmp() else " on SYCL")


#: The operations of the driver, and their numbers.
OPS = {"backward": 0, "backward-frozen": 1, "training": 2, "inference": 3}


def call(problem, threads, layout=None):
    """A call over a problem's arrays, in `layout` (default: the problem's own), or None."""
    driver = load()
    dtype, op = DTYPES.get(problem.dtype.name), OPS.get(problem.op)
    layout = layout or problem.layout
    if dtype is None or op is None or (layout == "blocked" and problem.layout != "NCX"):
        return None
    if not driver.bn_has_openmp() and threads != usable_cpus():
        return None  # SYCL uses all CPUs
    dims, written = problem.dims, [v for v in problem.out if v.ndim == 1]
    # In the forward pass of training, mean and variance are results.
    mean, variance = written if problem.op == "training" else problem.vectors[:2]
    vectors = [mean, variance, problem.gamma, problem.beta]
    if problem.op.startswith("backward"):
        vectors += written
    handle = driver.bn_new(
        len(dims),
        (ctypes.c_int64 * len(dims))(*dims),
        LAYOUTS[layout],
        dtype,
        pointers(list(problem.tensors.values())),
        pointers(vectors),
        ctypes.c_float(problem.epsilon),
        op,
        threads,
    )
    if not handle:
        return None

    def run():
        driver.bn_run(handle)

    weakref.finalize(run, driver.bn_free, handle)
    return run
