"""More to time than `bn-ext bench` does: operations, sets of shapes, tensors with gaps."""

from dataclasses import dataclass

import numpy as np

from bn_ext import _bench
from bn_ext._bench import LAYOUTS, SHAPES, Streams

from .views import placed

GRADIENT = _bench.OPS["backward"]
FORWARD = _bench.OPS["training"]
#: The gradient also with frozen statistics, then of src alone, too; through a ReLU. The forward
#: pass also with a ReLU, or an addition and a ReLU. The gradient of the gradient.
OPS = {
    **_bench.OPS,
    "backward-frozen": GRADIENT,
    "backward-frozen-src": Streams(("diff_dst",), ("diff_src",)),
    "backward-relu": GRADIENT,
    "training-relu": FORWARD,
    "inference-add-relu": Streams(("src", "src_1"), ("dst",)),
    "double-backward": Streams(("src", "diff_dst", "diff_diff_src"), ("diff_src", "diff_diff_dst")),
}
#: What a tensor that is read may be of a larger array: all but its border, every other sample, all
#: in reverse order along an axis, or half of its channels.
VIEWS = ("", "crop", "step", "flip", "half")


def dense(*shapes):
    return [(shape, LAYOUTS, "") for shape in shapes]


#: {set: (shape as (N, C, ...), the layouts it is timed in, the view its tensors are)}
SETS = {
    "resnet": dense(*SHAPES),
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


@dataclass(frozen=True)
class Case(_bench.Case):
    """A case with views; `set` is the name of its set."""

    view: str = ""
    set: str = ""

    ops = OPS

    @property
    def title(self):
        return f"{super().title} {self.view}".strip()

    def __str__(self):
        threads = f", {self.threads} threads" if self.threads else ""
        return (
            f"{self.title}, {self.op}, {self.dtype}, {self.layout}{threads}, behind {self.behind}"
        )


def as_view(sizes, layout, dtype, view):
    """An array of zeros with these sizes in memory, as a view of a larger one."""
    spatial = range(2, len(sizes)) if layout == "NCX" else range(1, len(sizes) - 1)
    channels = 1 if layout == "NCX" else len(sizes) - 1
    axes, scale, margin, taken = {
        "": ((), 1, 0, slice(None)),
        "crop": (spatial, 1, 2, slice(1, -1)),
        "step": ((0,), 2, 0, slice(None, None, 2)),
        "flip": (spatial[:1], 1, 0, slice(None, None, -1)),
        "half": ((channels,), 2, 0, slice(sizes[channels])),
    }[view]
    whole = tuple(scale * n + margin if i in axes else n for i, n in enumerate(sizes))
    index = tuple(taken if i in axes else slice(None) for i in range(len(sizes)))
    return placed(whole, dtype)[index]


class Problem(_bench.Problem):
    """Arguments and outputs of a case, allocated once, also as views."""

    def __init__(self, case):
        super().__init__(case)
        for name in self.streams.writes:
            self.tensors[name] = placed(self.sizes, self.dtype)
        op = case.op
        count = 0 if op.startswith("inference") else 1 if op == "double-backward" else 2
        self.out = (
            *(self.tensors[name] for name in self.streams.writes),
            *(np.empty_like(self.mean) for _ in range(count)),
        )

    def new(self):
        return as_view(self.sizes, self.layout, self.dtype, self.case.view)
