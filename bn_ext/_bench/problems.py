"""What is timed: cases, and the arrays of one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bn_ext._dtypes import dtype_of

Array = NDArray[Any]
Shape = tuple[int, ...]


class Streams(NamedTuple):
    """The operands that are read and written, each as large as the problem."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


#: The gradient in training; the forward pass in training and in inference.
OPS = {
    "backward": Streams(("src", "diff_dst"), ("diff_src",)),
    "training": Streams(("src",), ("dst",)),
    "inference": Streams(("src",), ("dst",)),
}
LAYOUTS = ("NXC", "NCX")
#: ResNet-50's with a batch of 50, and one that fits a cache.
SHAPES: list[Shape] = [
    (50, 64, 112, 112), (50, 256, 56, 56), (50, 64, 56, 56), (50, 512, 28, 28), (50, 256, 14, 14),
    (50, 2048, 7, 7), (8, 64, 28, 28),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What a row is about. The shape is (N, C, ...); threads: None is each package's default."""

    shape: Shape
    layout: str
    dtype: str
    op: str = "backward"
    threads: int | None = None
    behind: str = "nothing"

    ops: ClassVar[Mapping[str, Streams]] = OPS

    @property
    def title(self) -> str:
        return "x".join(map(str, self.shape))


class Problem:
    """The arguments of a case, allocated once."""

    src: Array
    diff_dst: Array

    def __init__(self, case: Case):
        self.case, self.op, self.layout, self.threads = case, case.op, case.layout, case.threads
        self.dtype, self.epsilon = dtype_of(case.dtype), 1e-5
        self.streams, (count, channels, *more) = case.ops[case.op], case.shape
        self.axis = -1 if case.layout == "NXC" else 1
        #: The sizes in memory.
        self.sizes: Shape = (count, *more, channels) if self.axis < 0 else case.shape
        some = np.random.default_rng(0).standard_normal(min(math.prod(self.sizes), 1 << 20))
        self.tensors: dict[str, Array] = {}
        for name in dict.fromkeys(("src", *self.streams.reads)):  # src for its shape, too
            self.tensors[name] = self.new()
            self.tensors[name][...] = np.resize(some.astype(self.dtype), self.sizes)
            setattr(self, name, self.tensors[name])
        number = np.float64 if case.dtype == "float64" else np.float32
        self.mean, self.variance, self.gamma, self.beta = (
            np.full(channels, value, number) for value in (0.01, 0.9, 1.1, 0.1)
        )
        #: Arguments of all operations but the training forward pass.
        self.vectors = self.mean, self.variance, self.gamma

    def new(self) -> Array:
        """An array for a tensor."""
        return np.empty(self.sizes, self.dtype)
