"""How the published operators of bn_ext.specs are called, and where their results stand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import bn_ext._core as _core
from bn_ext.testing._cases import OLD, OLD_WEIGHT, OPERANDS, Kind


class Operator(NamedTuple):
    """An operator, which in TensorFlow may have a mode for inference as well."""

    operation: str
    arrays: tuple[str, ...]  # our names, in the operator's order
    #: The same; those that have no right value are not judged.
    results: tuple[str, ...] = ("diff_src", "diff_gamma", "diff_beta")


#: {package: what its operators allow}
PACKAGES: dict[str, dict[str, Any]] = {
    "tensorflow": {
        "dtypes": ("float32", "float16", "bfloat16"), "axes": 4, "unbiased": True,
    },
    "ngraph": {"like_data": True},
    "onednn_graph": {"dtypes": ("float32", "float16", "bfloat16")},
}  # fmt: skip
_FORWARD = "src", "gamma", "beta", "mean", "variance"
_RUNNING, _BATCH = ("running_mean", "running_variance"), ("mean", "variance")
_ONEDNN = Operator("backward", ("src", "diff_dst", "mean", "variance", "gamma"))
OPERATORS = {
    "tensorflow.FusedBatchNormV3": Operator(
        "training", _FORWARD, ("dst", *_RUNNING, *_BATCH, "reserve_space_3")
    ),
    "tensorflow.FusedBatchNormGradV3": Operator(
        "backward",
        ("diff_dst", "src", "gamma", "mean", "variance", "reserve_space_3"),
        (*_ONEDNN.results, "reserve_space_4", "reserve_space_5"),
    ),
    "ngraph.BatchNormTraining": Operator("training", _FORWARD[:3], ("dst", *_BATCH)),
    "ngraph.BatchNormInference": Operator("inference", _FORWARD, ("dst",)),
    "ngraph.BatchNormTrainingBackprop": Operator("backward", (*_FORWARD, "diff_dst")),
    "onednn_graph.BatchNormForwardTraining": Operator(
        "training", ("src", "mean", "variance", "gamma", "beta"), ("dst", *_RUNNING, *_BATCH)
    ),
    "onednn_graph.BatchNormInference": Operator("inference", _FORWARD, ("dst",)),
    "onednn_graph.BatchNormTrainingBackprop-1": _ONEDNN,
    "onednn_graph.BatchNormTrainingBackward": _ONEDNN,
}


@dataclass(frozen=True)
class Operated:
    """A function that is called as this operator, in place of a plain one."""

    function: Callable[..., Any]
    operator: Operator
    package: str
    kind: Kind

    def __call__(self, *arrays: Any, epsilon: float) -> Any:
        passed, options = self.passed(*arrays, epsilon=epsilon)
        return self.function(*passed.values(), **options)

    def passed(self, *arrays: Any, epsilon: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the function gets: arrays by position, and options."""
        kind, onednn = self.kind, self.package == "onednn_graph"
        known = dict(zip(OPERANDS[kind.operation], arrays, strict=True))
        absent = {known[name] is None for name in ("gamma", "beta") if name in known}
        optional = onednn and kind.is_training
        if absent == {True, False} or (True in absent and not optional):
            raise NotImplementedError("the operator demands gamma, and beta with it")
        if onednn and not epsilon:
            raise NotImplementedError("the operator demands a positive epsilon")
        src = known["src"]
        zeros = np.zeros(src.shape[kind.axis], kind.vectors(src.dtype))
        known = {**{name: zeros + old for name, old in OLD.items()}, "beta": zeros, **known}
        known["reserve_space_3"] = np.empty(0, np.float32)
        options: dict[str, Any] = {"epsilon": epsilon}
        trains = self.operator.operation == "training"
        if self.package == "tensorflow":
            depth = "D" if src.ndim == 5 else ""
            layout = f"NC{depth}HW" if kind.data_format == "NCX" else f"N{depth}HWC"
            options |= {"data_format": layout, "is_training": kind.is_training}
            options |= {"exponential_avg_factor": 1 - OLD_WEIGHT} if trains else {}
        elif onednn:
            options["data_format"] = kind.data_format
            options |= {"momentum": OLD_WEIGHT} if trains else {}
        return {name: known[name] for name in self.operator.arrays}, options


def as_operator(
    function: Callable[..., Any], name: object, kind: Kind
) -> tuple[Callable[..., Any], Kind]:
    """A function like those that have no operator, which calls this one; and what it allows."""
    if name is None:
        return function, kind
    short = {full: full.partition(".")[2] for full in OPERATORS}
    named = [n for n in OPERATORS if name in (n, short[n], short[n].removesuffix("-1"))]
    if len(named) != 1:
        expected = ", ".join(named or OPERATORS)
        raise ValueError(f"operator: expected one of {expected}, got {_core.shown(name)}")
    (full,) = named
    operator, package = OPERATORS[full], full.partition(".")[0]
    if (operator.operation == "backward") != (kind.operation == "backward"):
        expected = "backward" if kind.operation == "backward" else "training or inference"
        raise ValueError(f"operator: expected one of {expected}, got {full}")
    if package != "tensorflow" and kind.is_training != (operator.operation != "inference"):
        raise ValueError(f"is_training: expected {not kind.is_training} for {full}")
    for flag in ("relu", "add", "own_statistics"):
        if getattr(kind, flag):
            raise ValueError(f"{flag}: expected False for {full}")
    data_format = "NCX" if package == "ngraph" else kind.data_format
    options = {**PACKAGES[package], "results": operator.results}
    kind = Kind(kind.operation, data_format, kind.is_training, **options)
    return Operated(function, operator, package, kind), kind
