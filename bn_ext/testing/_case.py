"""A case: one call of a function that is checked, and what the cases of a run have in common."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext.testing import _formulas as formulas, _limits as limits
from bn_ext.testing._wide import wide_of, widened

_GRADIENT = "src", "diff_dst", "mean", "variance", "gamma"
#: {operation: the arrays that a function gets by position}
OPERANDS = {
    "training": ("src", "gamma", "beta"),
    "inference": ("src", "mean", "variance", "gamma", "beta"),
    "backward": _GRADIENT,
    "double_backward": (*_GRADIENT, "diff_diff_src", "diff_diff_gamma", "diff_diff_beta"),
}
#: {operation: its results, of which a function may return the first alone}
RESULTS = {
    "training": ("dst", "mean", "variance"),
    "inference": ("dst",),
    "backward": ("diff_src", "diff_gamma", "diff_beta"),
    "double_backward": ("diff_src", "diff_diff_dst", "diff_gamma"),
}
#: Running statistics, and the weight of the batch's in the new ones.
RUNNING, FACTOR = ("running_mean", "running_variance"), 0.25
#: Arrays of src's shape.
TENSORS = {"src", "diff_dst", "diff_diff_src", "src_1"}
TENSORS |= {"dst", "diff_src", "diff_diff_dst", "diff_src_1"}


@dataclass(frozen=True)
class Case:
    """One call of a function."""

    name: str
    kind: "Kind"
    #: None for a gamma or beta that is missing.
    arrays: dict[str, Any]
    epsilon: float
    #: What is passed by name: src_1 and running statistics forward, dst backward.
    by_name: dict[str, Any] = field(default_factory=dict)
    #: Are sums of its data exact in the arithmetic's type, in any order?
    exact_sums: bool = False
    #: Is it of a caller's data?
    is_own: bool = False

    @property
    def axis(self) -> int:
        return self.kind.axis

    @property
    def src(self) -> Any:
        return self.arrays["src"]

    @property
    def data(self) -> str:
        """The dtype of the data."""
        return str(self.src.dtype)

    @property
    def results(self) -> tuple[str, ...]:
        kind = self.kind
        gate = ("diff_src_1",) * (kind.add and kind.operation == "backward")
        return (*RESULTS[kind.operation], *gate, *kind.running)

    def least(self, name: str) -> str:
        """The narrowest dtype that a result may have: the data's; of a sum, also gamma's."""
        gamma = self.arrays.get("gamma")
        if gamma is None or name not in ("diff_gamma", "diff_beta"):
            return self.data
        return max(self.data, str(gamma.dtype), key=limits.unit)

    def like(self, result: Any, channels: Any) -> Any:
        """(C,), in the shape of a result."""
        alone = result.ndim == 1
        return channels if alone else formulas.as_before(channels[:, None], result, self.axis)

    def by_channel(self, arrays: dict[str, Any]) -> Any:
        """The operands as bn_ext.testing._limits takes them."""
        p, wide = SimpleNamespace(epsilon=self.epsilon), wide_of(self.data)
        for name, array in arrays.items():
            if array is None:
                array = np.full(self.src.shape[self.axis], float(name == "gamma"))
            elif name in TENSORS:
                array = formulas.by_channel(array, self.axis)
            setattr(p, name, widened(array, wide))
        return p


@dataclass(frozen=True)
class Kind:
    """What the cases of one run have in common."""

    operation: str
    data_format: str = "NXC"
    is_training: bool = True
    relu: bool = False
    add: bool = False
    #: Does a gradient make its own statistics, which it is not given?
    own_statistics: bool = False
    #: If there are running statistics, the batch's variance is divided by M - correction in them.
    correction: int | None = None
    #: How many axes src has, if the data format is for one number of axes.
    axes: int = 0

    def __post_init__(self) -> None:
        for name in ("is_training", "relu", "add", "own_statistics"):
            _core.as_flag(getattr(self, name), name)
        if self.own_statistics and (self.is_forward or not self.is_training):
            raise TypeError("own_statistics: expected only of a gradient with is_training=True")
        if self.relu and self.operation == "double_backward":
            raise TypeError("relu: expected only of a forward pass or its gradient")
        if self.add and self.operation == "backward" and not self.relu:
            raise TypeError("add: expected only with relu=True")
        if self.correction not in (None, 0, 1):
            raise ValueError(f"correction: expected 0 or 1, got {_core.shown(self.correction)}")
        if self.correction is not None and not (self.is_forward and self.is_training):
            raise TypeError("correction: expected only with is_training=True")
        if self.data_format is None:
            raise ValueError("data_format: expected 'NXC' or 'NCX', or another name, got None")
        axis, axes = _core.channel_axis_of(self.data_format), _core.rank_of(self.data_format)
        object.__setattr__(self, "data_format", "NXC" if axis == -1 else "NCX")
        object.__setattr__(self, "axes", axes or self.axes)

    @property
    def is_forward(self) -> bool:
        return self.operation in ("training", "inference")

    @property
    def axis(self) -> int:
        """The channels'."""
        return _core.channel_axis_of(self.data_format)

    @property
    def running(self) -> tuple[str, ...]:
        """Running statistics that the function gets, and updates."""
        return () if self.correction is None else RUNNING
