"""The functions of kernel.dll, which stands in the current folder, for `bn-ext check`."""

import ctypes
from pathlib import Path

import numpy as np

library = ctypes.CDLL(str(Path("kernel.dll").resolve()))
size, pointer = ctypes.c_size_t, ctypes.c_void_p
library.inference.argtypes = [*[pointer] * 6, size, size, ctypes.c_double]


def right(src, *vectors, epsilon):
    if any(vector is None for vector in vectors):
        raise NotImplementedError("gamma and beta are required")  # such a case does not count
    dst = np.empty_like(src)
    arrays = (a.ctypes.data for a in (src, *vectors, dst))
    library.inference(*arrays, src[..., 0].size, src.shape[-1], epsilon)
    return dst


def wrong(*arrays, epsilon):
    return right(*arrays, epsilon=2 * epsilon)


def crash(*arrays, epsilon):
    library.crash()
