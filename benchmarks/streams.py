"""The bare loops of streams.c, compiled for this machine when first asked for."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("streams.c")
FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC"]
#: Stores bypass the cache from this many bytes of all tensors on, as bn_ext decides it too.
STREAM_SHARE = 0.75


def load():
    """The library, or None without a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "streams.so"
        flags = FLAGS if b"avx512" in Path("/proc/cpuinfo").read_bytes() else FLAGS[:2] + FLAGS[3:]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(path), "-lm"], check=True)
        library = ctypes.CDLL(str(path))
    for name in ("two", "three", "five"):
        getattr(library, name).argtypes = [ctypes.c_void_p] * 3 + [
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
        ]
    return library


def loop(library, name, problem, threads, last_level):
    """One of the loops over a problem's arrays."""
    pointers = [a.ctypes.data for a in (problem.src, problem.diff_dst, problem.diff_src)]
    nbytes = problem.src.nbytes
    streaming = int(3 * nbytes > STREAM_SHARE * last_level)
    call = getattr(library, name)
    return lambda: call(*pointers, nbytes, threads, streaming)
