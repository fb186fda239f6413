"""Peers in C and C++, compiled on this machine when they are first used: bare loops, oneDNN."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import weakref
from functools import cache, partial
from pathlib import Path

from bn_ext import _core
from bn_ext._bench import WORK, burst

HERE = Path(__file__).parent
SHARED = ["-fopenmp", "-shared", "-fPIC"]


def usable_cpus():
    """Number of CPUs that this process may run on, by its affinity if the system has that."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiled(variable, names, source, *options, stderr=None):
    """The library that the compiler of an environment variable, or the first of these names that is
    installed, makes of a source; ImportError if there is none, CalledProcessError if it fails.
    """
    installed = [path for path in map(shutil.which, names) if path]
    command = shlex.split(os.environ.get(variable, "")) or installed[:1]
    if not command:
        raise ImportError(f"no compiler: {', '.join(names)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        command += [*SHARED, str(HERE / source), *options, "-o", str(path)]
        subprocess.run(command, check=True, stderr=stderr)
        return ctypes.CDLL(str(path))


def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


# ---- bare loops -----------------------------------------------------------------------

#: Stores bypass the cache if all tensors fill more than this share of it; bn_ext decides likewise.
NONTEMPORAL_SHARE = 0.75


@cache
def bare_loops():
    flags = ["-O3", "-march=native"]
    if b"avx512" in Path("/proc/cpuinfo").read_bytes():
        flags.append("-mprefer-vector-width=512")
    library = compiled("CC", ["cc", "gcc"], "bare_loops.c", *flags)
    tensors = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
    library.loop.argtypes = [*tensors, *tensors, ctypes.c_int64, *[ctypes.c_int] * 3]
    return library


def bare_loop_call(problem, passes):
    """Moves the bytes that the operation must, and computes nothing; reads them `passes` times. On
    one thread or on all, whichever is faster.
    """
    library = bare_loops()
    reads, writes = ([problem.tensors[name] for name in names] for names in problem.streams)
    nbytes = problem.src.nbytes
    _, last_level = _core.cache_sizes()
    nontemporal = int(len(problem.tensors) * nbytes > NONTEMPORAL_SHARE * last_level)
    arguments = pointers(reads), len(reads), pointers(writes), len(writes), nbytes, passes
    calls = [
        lambda n=n: library.loop(*arguments, n, nontemporal)
        for n in {1, problem.threads or _core.default_threads()}
    ]
    return min(calls, key=lambda call: min(burst(call, WORK["nothing"])))


floor_call = partial(bare_loop_call, passes=1)
two_passes_call = partial(bare_loop_call, passes=2)


# ---- oneDNN ---------------------------------------------------------------------------

DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
LAYOUTS = {"NXC": 0, "NCX": 1, "blocked": 2}
#: Operations of the driver, and their numbers.
DNNL_OPS = {"backward": 0, "backward-frozen": 1, "training": 2, "inference": 3}


@cache
def onednn():
    """The driver; ImportError without a compiler or oneDNN 3 (PyPI's onednn-devel in this
    environment, or the system's).
    """
    where, here = [], Path(sys.prefix)
    if (here / "include" / "dnnl.hpp").exists():
        where = [f"-I{here}/include", f"-L{here}/lib", f"-Wl,-rpath,{here}/lib"]
        where.append("-Wl,--disable-new-dtags")  # the libraries that libdnnl needs are there too
        # PyPI's oneDNN runs on SYCL, which looks for the CPU as an OpenCL device.
        os.environ.setdefault("OCL_ICD_FILENAMES", f"{here}/lib/libintelocl.so")
    flags = ["-std=c++17", "-O2", *where, "-ldnnl"]
    try:
        library = compiled("CXX", ["g++", "c++"], "onednn.cpp", *flags, stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        raise ImportError("no oneDNN 3 to compile against") from None
    library.bn_new.restype = ctypes.c_void_p
    library.bn_run.argtypes = library.bn_free.argtypes = [ctypes.c_void_p]
    return library


def onednn_version():
    numbers = (ctypes.c_int * 3)()
    onednn().bn_version(numbers)
    return ".".join(map(str, numbers)) + ("" if onednn().bn_has_openmp() else " on SYCL")


def onednn_call(problem, layout=None):
    """The call of oneDNN over a problem's arrays, in `layout` (default: the problem's own)."""
    driver, case, threads = onednn(), problem.case, problem.threads or usable_cpus()
    dtype, op, layout = DTYPES.get(case.dtype), DNNL_OPS.get(case.op), layout or case.layout
    if dtype is None or op is None or (layout == "blocked" and case.layout != "NCX"):
        return None
    if not driver.bn_has_openmp() and threads != usable_cpus():
        return None  # SYCL uses all CPUs
    dims, written = case.shape, [v for v in problem.out if v.ndim == 1]
    # In the forward pass of training, mean and variance are results.
    mean, variance = written if case.op == "training" else problem.vectors[:2]
    vectors = [mean, variance, problem.gamma]
    vectors += written if case.op.startswith("backward") else [problem.beta]
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
