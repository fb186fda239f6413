"""The problems: shapes as (N, C, ...), each in any layout."""

import math
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "NUMPYS",
    "OPS",
    "SETS",
    "Layout",
    "Op",
    "Places",
    "Problem",
    "Shape",
    "aligned",
    "dims",
    "dtype_of",
]

Array = NDArray[Any]
Shape = tuple[int, ...]
Layout = Literal["NXC", "NCX"]


@dataclass(frozen=True)
class Streams:
    """The operands that are read and written, each as large as the problem."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.reads) + len(self.writes)


Op = Literal[
    "backward", "backward-frozen", "backward-frozen-src", "backward-relu", "training",
    "training-relu", "inference", "inference-add-relu", "double-backward",
]  # fmt: skip

#: What can be timed. The gradient: in training; with frozen statistics, also diff_src alone;
#: through a ReLU. The forward pass: in training, also with a ReLU; in inference, also with an
#: addition and a ReLU. The gradient of the gradient.
OPS: dict[Op, Streams] = {
    "backward": Streams(("src", "diff_dst"), ("diff_src",)),
    "backward-frozen": Streams(("src", "diff_dst"), ("diff_src",)),
    "backward-frozen-src": Streams(("diff_dst",), ("diff_src",)),
    "backward-relu": Streams(("src", "diff_dst"), ("diff_src",)),
    "training": Streams(("src",), ("dst",)),
    "training-relu": Streams(("src",), ("dst",)),
    "inference": Streams(("src",), ("dst",)),
    "inference-add-relu": Streams(("src", "src_1"), ("dst",)),
    "double-backward": Streams(("src", "diff_dst", "diff_diff_src"), ("diff_src", "diff_diff_dst")),
}

DTYPES = ("float32", "bfloat16", "float16", "float64")
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

SETS: dict[str, list[Shape]] = {
    "resnet": [
        (50, 64, 112, 112), (50, 256, 56, 56), (50, 64, 56, 56), (50, 512, 28, 28),
        (50, 256, 14, 14), (50, 2048, 7, 7), (8, 64, 28, 28),
    ],
    "mlp": [(256, 1024), (4096, 4096), (65536, 256), (1024, 64, 100), (32, 768, 512)],
    "odd": [
        (5, 33, 27, 27), (4, 200, 17, 16), (64, 23, 5, 5), (16, 12, 31, 33), (1, 19, 4, 6, 6),
        (128, 1000), (1, 3, 512, 512), (2, 1, 700, 701),
    ],
    "small": [
        (1, 8), (16, 64), (128, 64), (128, 512), (4, 6, 300), (2, 64, 14, 14), (8, 32, 14, 14),
        (32, 64, 14, 14),
    ],
    "few": [
        (1, 2048, 7, 7), (1, 1000, 10, 10), (1, 512, 14, 14), (1, 2000, 40), (5, 333, 8, 8),
        (1, 20000), (3, 10000),
    ],
}  # fmt: skip

#: Where the first three operands begin, in bytes past a page; further operands: the same again.
Places = tuple[int, int, int]
#: Where NumPy's large arrays begin: malloc maps pages for each, and uses the first 16 bytes itself.
NUMPYS: Places = (16, 16, 16)


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name in DTYPES; ImportError for bfloat16 without ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401  (NumPy knows the name from then on)
    return np.dtype(name)


def dims(shape: Shape, layout: Layout) -> Shape:
    """The shape as it is in memory."""
    return shape if layout == "NCX" else (shape[0], *shape[2:], shape[1])


def aligned(shape: Shape, dtype: np.dtype[Any], offset: int = 0) -> Array:
    """An array of zeros that starts `offset` bytes past a page."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(nbytes + 4096 + offset, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    found: Array = memory[start : start + nbytes].view(dtype).reshape(shape)
    return found


class Problem:
    """Arguments and outputs of an operation, allocated once."""

    src: Array
    src_1: Array
    diff_dst: Array
    diff_diff_src: Array

    def __init__(
        self,
        shape: Shape,
        layout: Layout,
        dtype: str,
        places: Places = NUMPYS,
        op: Op = "backward",
    ):
        here = dims(shape, layout)
        self.dims, self.dtype, self.op = shape, dtype_of(dtype), op
        self.layout: Layout = layout
        # The gradient needs src for its shape, even if it does not read it.
        reads, writes = dict.fromkeys(("src", *OPS[op].reads)), OPS[op].writes
        self.tensors: dict[str, Array] = {
            name: aligned(here, self.dtype, place)
            for name, place in zip((*reads, *writes), cycle(places), strict=False)
        }
        rng = np.random.default_rng(0)
        some = rng.standard_normal(min(self.tensors["src"].size, 1 << 20)).astype(self.dtype)
        for name in reads:
            self.tensors[name].reshape(-1)[:] = np.resize(some, self.tensors[name].size)
            setattr(self, name, self.tensors[name])
        number = np.float64 if dtype == "float64" else np.float32
        channels = shape[1]
        self.mean: Array = np.full(channels, 0.01, number)
        self.variance: Array = np.full(channels, 0.9, number)
        self.gamma: Array = np.full(channels, 1.1, number)
        self.beta: Array = np.full(channels, 0.1, number)
        vectors = 0 if op.startswith("inference") else 1 if op == "double-backward" else 2
        self.out = (
            *(self.tensors[name] for name in writes),
            *(np.empty(channels, number) for _ in range(vectors)),
        )
        self.axis = -1 if layout == "NXC" else 1
        self.epsilon = 1e-5

    @property
    def vectors(self) -> tuple[Array, ...]:
        """Mean, variance and gamma: arguments of all operations but the training forward pass."""
        return self.mean, self.variance, self.gamma

    @property
    def vector_shape(self) -> list[int]:
        """The shape with which a (C,) vector broadcasts over a tensor."""
        shape = [1] * self.src.ndim
        shape[self.axis] = -1
        return shape

    @property
    def summed_axes(self) -> tuple[int, ...]:
        """All axes but that of the channels."""
        return tuple(i for i in range(self.src.ndim) if i != self.axis % self.src.ndim)
