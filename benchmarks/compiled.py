"""A library of our own for ctypes, compiled on this machine when first asked for."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["compiled", "compiler", "pointers"]

SHARED = ["-fopenmp", "-shared", "-fPIC"]


def compiler(variable, *names):
    """The one that an environment variable names, or else the first that is installed, or None."""
    found = (shutil.which(name) for name in names)
    return os.environ.get(variable) or next((path for path in found if path), None)


def compiled(command, source, *libraries, stderr=None):
    """The library that `command` (compiler and flags) makes; CalledProcessError if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        command = [*command, *SHARED, str(source), *libraries, "-o", str(path)]
        subprocess.run(command, check=True, stderr=stderr)
        return ctypes.CDLL(str(path))


def pointers(arrays):
    """Where each begins."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
