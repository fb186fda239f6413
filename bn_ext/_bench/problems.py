"""The problems, in tables by name, and the arrays of one."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bn_ext._dtypes import dtype_of

__all__ = [
    "BEHIND", "LAYOUTS", "OPS", "SETS", "VIEWS", "Array", "Behind", "Case", "Layout",
    "Op", "Problem", "Shape", "View", "cases_of", "shape_text",
]  # fmt: skip

Array = NDArray[Any]
Shape = tuple[int, ...]
Layout = Literal["NXC", "NCX"]

Op = Literal[
    "backward", "backward-frozen", "backward-frozen-src", "backward-relu", "training",
    "training-relu", "inference", "inference-add-relu", "double-backward",
]  # fmt: skip


class Streams(NamedTuple):
    """The operands that are read and written, each as large as the problem."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


GRADIENT = Streams(("src", "diff_dst"), ("diff_src",))
#: What can be timed. The gradient: in training; with frozen statistics, also diff_src alone;
#: through a ReLU. The forward pass: in training, also with a ReLU; in inference, also with an
#: addition and a ReLU. The gradient of the gradient.
OPS: dict[Op, Streams] = {
    "backward": GRADIENT,
    "backward-frozen": GRADIENT,
    "backward-frozen-src": Streams(("diff_dst",), ("diff_src",)),
    "backward-relu": GRADIENT,
    "training": Streams(("src",), ("dst",)),
    "training-relu": Streams(("src",), ("dst",)),
    "inference": Streams(("src",), ("dst",)),
    "inference-add-relu": Streams(("src", "src_1"), ("dst",)),
    "double-backward": Streams(("src", "diff_dst", "diff_diff_src"), ("diff_src", "diff_diff_dst")),
}

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

#: What a tensor that is read may be of a larger array: all but its border, every other sample, all
#: in reverse order along an axis, or half of its channels.
View = Literal["", "crop", "step", "flip", "half"]
VIEWS: tuple[View, ...] = get_args(View)

#: What stands before each timed call: nothing, an elementwise pass of NumPy, a matrix product.
Behind = Literal["nothing", "pass", "product"]
BEHIND: tuple[Behind, ...] = get_args(Behind)

#: A shape as (N, C, ...), the layouts it is timed in, and the view its tensors are.
Row = tuple[Shape, tuple[Layout, ...], View]


def dense(*shapes: Shape) -> list[Row]:
    return [(shape, LAYOUTS, "") for shape in shapes]


SETS: dict[str, list[Row]] = {
    "resnet": dense(
        (50, 64, 112, 112), (50, 256, 56, 56), (50, 64, 56, 56), (50, 512, 28, 28),
        (50, 256, 14, 14), (50, 2048, 7, 7), (8, 64, 28, 28),
    ),
    "mlp": dense((256, 1024), (4096, 4096), (65536, 256), (1024, 64, 100), (32, 768, 512)),
    "odd": dense(
        (5, 33, 27, 27), (4, 200, 17, 16), (64, 23, 5, 5), (16, 12, 31, 33), (1, 19, 4, 6, 6),
        (128, 1000), (1, 3, 512, 512), (2, 1, 700, 701),
    ),
    "small": dense(
        (1, 8), (16, 64), (128, 64), (128, 512), (4, 6, 300), (2, 64, 14, 14), (8, 32, 14, 14),
        (32, 64, 14, 14),
    ),
    "few": dense(
        (1, 2048, 7, 7), (1, 1000, 10, 10), (1, 512, 14, 14), (1, 2000, 40), (5, 333, 8, 8),
        (1, 20000), (3, 10000),
    ),
    "views": [
        ((8, 64, 28, 28), ("NCX",), "crop"),
        ((32, 64, 56, 56), ("NCX",), "crop"),
        ((32, 256, 12, 12), ("NCX",), "crop"),
        ((32, 64, 56, 56), ("NXC",), "crop"),
        ((32, 64, 56, 56), ("NXC",), "step"),
        ((8, 64, 28, 28), ("NXC",), "flip"),
        ((32, 128, 28, 28), ("NXC",), "half"),
    ],
}  # fmt: skip


def shape_text(shape: Shape, view: str) -> str:
    return f"{'x'.join(map(str, shape))} {view}".strip()


@dataclass(frozen=True)
class Case:
    """What is timed in one row. threads: None is each package's default."""

    shape: Shape
    layout: Layout
    dtype: str
    op: Op = "backward"
    view: View = ""
    threads: int | None = None
    behind: Behind = "nothing"
    set: str = ""

    def __str__(self) -> str:
        shape = shape_text(self.shape, self.view)
        threads = f", {self.threads} threads" if self.threads else ""
        return f"{shape}, {self.op}, {self.dtype}, {self.layout}{threads}, behind {self.behind}"


def cases_of(
    rows: Iterable[tuple[str, Row]],
    ops: Iterable[Op],
    threads: Iterable[int | None],
    behind: Iterable[Behind],
    dtypes: Iterable[str],
    layouts: Sequence[Layout],
) -> list[Case]:
    """Every combination; rows as (name of the set, row). (N, C) is the same in all layouts."""
    return [
        Case(shape, layout, dtype, op, view, count, before, name)
        for op, count, before, dtype, layout, (name, (shape, own, view)) in product(
            ops, threads, behind, dtypes, layouts, rows
        )
        if layout in own and (len(shape) > 2 or layout == layouts[0])
    ]


def as_large_ones(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """An array of zeros where malloc puts large ones of NumPy: 16 bytes past a page."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(nbytes + 4096 + 16, np.uint8)
    start = -memory.ctypes.data % 4096 + 16
    found: Array = memory[start : start + nbytes].view(dtype).reshape(shape)
    return found


def as_view(dims: Shape, layout: Layout, dtype: np.dtype[Any], view: View) -> Array:
    """An array of zeros with these sizes in memory, as a view of a larger one."""
    spatial = range(2, len(dims)) if layout == "NCX" else range(1, len(dims) - 1)
    channels = 1 if layout == "NCX" else len(dims) - 1
    axes, scale, more, taken = {
        "": ((), 1, 0, slice(None)),
        "crop": (spatial, 1, 2, slice(1, -1)),
        "step": ((0,), 2, 0, slice(None, None, 2)),
        "flip": (spatial[:1], 1, 0, slice(None, None, -1)),
        "half": ((channels,), 2, 0, slice(dims[channels])),
    }[view]
    whole = tuple(scale * n + more if i in axes else n for i, n in enumerate(dims))
    index = tuple(taken if i in axes else slice(None) for i in range(len(dims)))
    return as_large_ones(whole, dtype)[index]


class Problem:
    """Arguments and outputs of a case, allocated once."""

    src: Array
    src_1: Array
    diff_dst: Array
    diff_diff_src: Array

    def __init__(self, case: Case):
        shape = case.shape
        self.case, self.op, self.layout, self.threads = case, case.op, case.layout, case.threads
        self.dims, self.dtype = shape, dtype_of(case.dtype)
        self.axis = -1 if case.layout == "NXC" else 1
        self.epsilon = 1e-5
        here = shape if case.layout == "NCX" else (shape[0], *shape[2:], shape[1])
        # The gradient needs src for its shape, even if it does not read it.
        reads, writes = dict.fromkeys(("src", *OPS[case.op].reads)), OPS[case.op].writes
        some = np.random.default_rng(0).standard_normal(min(math.prod(shape), 1 << 20))
        self.tensors: dict[str, Array] = {}
        for name in reads:
            self.tensors[name] = as_view(here, case.layout, self.dtype, case.view)
            self.tensors[name][...] = np.resize(some.astype(self.dtype), here)
            setattr(self, name, self.tensors[name])
        for name in writes:
            self.tensors[name] = as_large_ones(here, self.dtype)
        number = np.float64 if case.dtype == "float64" else np.float32
        channels = shape[1]
        self.mean: Array = np.full(channels, 0.01, number)
        self.variance: Array = np.full(channels, 0.9, number)
        self.gamma: Array = np.full(channels, 1.1, number)
        self.beta: Array = np.full(channels, 0.1, number)
        vectors = 0 if case.op.startswith("inference") else 1 if case.op == "double-backward" else 2
        self.out = (
            *(self.tensors[name] for name in writes),
            *(np.empty(channels, number) for _ in range(vectors)),
        )

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
