"""The problems: shapes as (N, C, ...), each run in the layouts it has."""

import ml_dtypes
import numpy as np

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float64": np.dtype(np.float64),
}
LAYOUTS = ("NXC", "NCX")

SETS = {
    "resnet": [
        (50, 64, 112, 112), (50, 256, 56, 56), (50, 64, 56, 56), (50, 512, 28, 28),
        (50, 256, 14, 14), (50, 2048, 7, 7), (8, 64, 28, 28),
    ],
    "mlp": [(256, 1024), (4096, 4096), (65536, 256), (1024, 64, 100), (32, 768, 512)],
    "odd": [
        (5, 33, 27, 27), (4, 200, 17, 16), (64, 23, 5, 5), (16, 12, 31, 33), (1, 19, 4, 6, 6),
        (128, 1000), (1, 3, 512, 512), (2, 1, 700, 701),
    ],
}  # fmt: skip


def dims(shape, layout):
    """The shape as it lies in memory; None if it has only one layout and this is not it."""
    if layout == "NCX":
        return shape if len(shape) > 2 else None
    return (shape[0], *shape[2:], shape[1])


def aligned(shape, dtype, offset=0):
    """An array that starts `offset` bytes past a page, its pages touched."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(nbytes + 4096 + offset, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    return memory[start : start + nbytes].view(dtype).reshape(shape)


class Problem:
    """Arguments and outputs, allocated once."""

    def __init__(self, shape, layout, dtype):
        self.dims, self.layout, self.dtype = shape, layout, DTYPES[dtype]
        # As the bare loops need them: on cache lines, and not all at one place in a page.
        self.src, self.diff_dst, self.diff_src = (
            aligned(dims(shape, layout), self.dtype, offset) for offset in (0, 1536, 2560)
        )
        rng = np.random.default_rng(0)
        some = rng.standard_normal(min(self.src.size, 1 << 20)).astype(self.dtype)
        for array in (self.src, self.diff_dst):
            array.reshape(-1)[:] = np.resize(some, array.size)
        number = np.float64 if dtype == "float64" else np.float32
        self.mean = np.full(shape[1], 0.01, number)
        self.variance = np.full(shape[1], 0.9, number)
        self.gamma = np.full(shape[1], 1.1, number)
        self.out = (self.diff_src, np.empty(shape[1], number), np.empty(shape[1], number))
        self.axis = -1 if layout == "NXC" else 1
        self.epsilon = 1e-5
