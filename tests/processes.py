"""Run Python code in other processes, with other environment variables."""

import os
import subprocess
import sys

import pytest
from tree import TESTS


def python(*arguments, cwd=None, timeout=120, **environment):
    """Run Python with these arguments; an environment variable that is None is unset."""
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def python_code(code, *options, **more):
    """Run code that imports the installed package, not files of the current folder."""
    return python("-P", *options, "-c", code, **more)


def strict(code, **more):
    """python_code with warnings as errors, and without a forced level."""
    return python_code(code, "-W", "error", **{"BN_EXT_ISA": None, **more})


def printed_by(code, *options, **more):
    """Run code, which must succeed; return what it prints."""
    done = python_code(code, *options, **more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


# ---- processes that make calls --------------------------------------------------------

IMPORTS = "import numpy as np, bn_ext, os\nfrom bn_ext import _core\n"

#: call(n): the number of threads of a call on n rows of 64 channels; threads(): of the process.
CALL = """
def call(n, **options):
    x = np.ones((n, 64), np.float32)
    v = np.ones(64, np.float32)
    bn_ext.batch_norm_backward(x, x, v, v, epsilon=1e-3, **options)
    return _core._last_call()["threads"]
def threads():
    return len(os.listdir("/proc/self/task"))
"""

#: Access to the OpenMP runtime that bn_ext has loaded; region(): run a function in its threads.
GOMP = f"""
import ctypes, sys, threading
sys.path.insert(0, {str(TESTS)!r})
paths = bn_ext.show_config(mode="dicts")["openmp_libraries"]
gomp = ctypes.CDLL(next((p for p in paths if "libgomp" in p), None))
if not hasattr(gomp, "GOMP_parallel"):
    print("no libgomp")
    sys.exit()
def region(threads, function):
    gomp.GOMP_parallel(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function), None, threads, 0)
"""


def in_new_process(code, **environment):
    """The words that a fresh interpreter prints."""
    return printed_by(IMPORTS + code, **environment).split()


def with_libgomp(code, **environment):
    """in_new_process with region(); skips the test if the runtime is not libgomp."""
    printed = in_new_process(GOMP + code, **environment)
    if printed == ["no", "libgomp"]:
        pytest.skip("not linked against libgomp")
    return printed
