"""More to time than `bn-ext bench` does: operations, sets of shapes."""

from dataclasses import dataclass

import numpy as np

from bn_ext import _bench
from bn_ext._bench import SHAPES, Streams

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
#: {set: shapes as (N, C, ...)}
SETS = {
    "resnet": SHAPES,
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


@dataclass(frozen=True)
class Case(_bench.Case):
    """A case of more operations; `set` is the name of its set."""

    set: str = ""

    ops = OPS

    def __str__(self):
        threads = f", {self.threads} threads" if self.threads else ""
        return (
            f"{self.title}, {self.op}, {self.dtype}, {self.layout}{threads}, behind {self.behind}"
        )


class Problem(_bench.Problem):
    """Arguments and outputs of a case, allocated once."""

    def __init__(self, case):
        super().__init__(case)
        for name in self.streams.writes:
            self.tensors[name] = self.new()
        op = case.op
        count = 0 if op.startswith("inference") else 1 if op == "double-backward" else 2
        self.out = (
            *(self.tensors[name] for name in self.streams.writes),
            *(np.empty_like(self.mean) for _ in range(count)),
        )

    def new(self):
        return placed(self.sizes, self.dtype)
