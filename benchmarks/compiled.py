"""Compiles C and C++ files on this machine to libraries for ctypes."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["compiled", "compiler", "pointers"]

SHARED = ["-fopenmp", "-shared", "-fPIC"]


def compiler(variable, *names):
    """The words of an environment variable, or else the first name that is installed, if any."""
    found = [path for path in map(shutil.which, names) if path]
    return shlex.split(os.environ.get(variable, "")) or found[:1]


def compiled(command, source, *libraries, stderr=None):
    """The library that `command` (compiler and flags) makes, or a CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        command = [*command, *SHARED, str(source), *libraries, "-o", str(path)]
        subprocess.run(command, check=True, stderr=stderr)
        return ctypes.CDLL(str(path))


def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
