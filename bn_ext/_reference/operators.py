"""How the published operators of bn_ext.specs are called, and where their results stand."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bn_ext import _core
from bn_ext._reference.cases import OPERANDS, Kind

__all__ = ["OPERATORS", "Operator", "operator_of"]


class Operator(NamedTuple):
    """An operator whose operation is "training" may have a mode for inference."""

    operation: str
    arrays: tuple[str, ...]  # our names, in the operator's order
    places: tuple[int, ...]  # of our results among the operator's
    vectors: dict[str, str]  # {dtype of the data: that of vectors}
    ranks: tuple[int, ...] = ()
    epsilon: float = 0.0  # the least
    optional: bool = False  # may gamma and beta be None?


_TF = {name: "float32" for name in ("float32", "float16", "bfloat16")}
_NGRAPH = {name: name for name in ("float32", "float64", "float16", "bfloat16")}
_FORWARD = "src", "gamma", "beta", "mean", "variance"
_BACKWARD = "src", "diff_dst", "mean", "variance", "gamma"
_ONEDNN = Operator("backward", _BACKWARD, (0, 1, 2), _TF, (), 1e-30, True)

OPERATORS = {
    "tensorflow.FusedBatchNormV3": Operator("training", _FORWARD, (0, 3, 4, 2), _TF, (4, 5)),
    "tensorflow.FusedBatchNormGradV3": Operator(
        "backward", ("diff_dst", "src", "gamma", "mean", "variance", "reserve_space_3"), (0, 1, 2),
        _TF, (4, 5),
    ),
    "ngraph.BatchNormTraining": Operator("training", _FORWARD[:3], (0, 1, 2), _NGRAPH),
    "ngraph.BatchNormInference": Operator("inference", _FORWARD, (0,), _NGRAPH),
    "ngraph.BatchNormTrainingBackprop": Operator(
        "backward", (*_FORWARD, "diff_dst"), (0, 1, 2), _NGRAPH
    ),
    "onednn_graph.BatchNormForwardTraining": Operator(
        "training", ("src", "mean", "variance", "gamma", "beta"), (0, 3, 4), _TF, (), 1e-30, True
    ),
    "onednn_graph.BatchNormInference": Operator("inference", _FORWARD, (0,), _TF, (), 1e-30),
    "onednn_graph.BatchNormTrainingBackprop-1": _ONEDNN,
    "onednn_graph.BatchNormTrainingBackward": _ONEDNN,
}  # fmt: skip


def _plain(name: str) -> str:
    """The same for an operator, its function in bn_ext.specs and what its package calls it."""
    return name.replace("tf.raw_ops.", "tensorflow.").replace("_", "").lower()


def operator_of(name: object, kind: Kind) -> tuple[str, Kind, Operator]:
    """The operator's full name, and `kind` as it allows."""
    wanted = _plain(name) if isinstance(name, str) else name
    found = []
    for full in OPERATORS:
        names = {_plain(full), _plain(full.partition(".")[2])}
        if wanted in names | {each.removesuffix("-1") for each in names}:
            found.append(full)
    if len(found) != 1:
        text = f"expected one of {', '.join(found or OPERATORS)}, got {_core.shown(name)}"
        raise ValueError(f"operator: {text}")
    full = found[0]
    operator, package = OPERATORS[full], full.partition(".")[0]
    operation = operator.operation
    if operation == "training" and package == "tensorflow" and not kind.is_training:
        operation = "inference"
    expected = "backward" if kind.operation == "backward" else "training or inference"
    if (operation == "backward") != (kind.operation == "backward"):
        raise ValueError(f"operator: expected one of {expected}, got {full}")
    if package != "tensorflow" and kind.is_training != (operation != "inference"):
        raise ValueError(f"is_training: expected {operation != 'inference'} for {full}")
    for flag in ("relu", "add"):
        if getattr(kind, flag):
            raise ValueError(f"{flag}: expected False for {full}")
    data_format = "NCX" if package == "ngraph" else kind.data_format
    unbiased = package == "tensorflow"
    return full, Kind(
        operation, data_format, kind.is_training, unbiased=unbiased, ranks=operator.ranks
    ), operator  # fmt: skip


def adapted(function: Callable[..., Any], full: str, kind: Kind) -> Callable[..., Any]:
    """A function like that of check_forward or check_backward, which calls the operator's."""
    operator, package = OPERATORS[full], full.partition(".")[0]

    def call(*arrays: Any, epsilon: float) -> Any:
        given = dict(zip(OPERANDS[kind.operation], arrays, strict=True))
        absent = {given[name] is None for name in ("gamma", "beta") if name in given}
        if True in absent and not (operator.optional and len(absent) == 1):
            raise NotImplementedError("the operator demands gamma, and beta with it")
        if epsilon < operator.epsilon:
            raise NotImplementedError("the operator demands a positive epsilon")
        src = given["src"]
        channels = src.shape[1 if kind.data_format == "NCX" else -1]
        like = np.zeros(channels, operator.vectors[src.dtype.name])
        given = {"mean": like + 3, "variance": like + 2, "beta": like, **given}
        given["reserve_space_3"] = np.empty(0, np.float32)
        how: dict[str, Any] = {"epsilon": epsilon}
        if package == "tensorflow":
            depth = "D" if src.ndim == 5 else ""
            how["data_format"] = f"NC{depth}HW" if kind.data_format == "NCX" else f"N{depth}HWC"
            how["is_training"] = kind.is_training
        elif package == "onednn_graph":
            how["data_format"] = kind.data_format
        found = function(*(given[name] for name in operator.arrays), **how)
        if not isinstance(found, (tuple, list)):
            return found
        places = operator.places[:1] if kind.operation == "inference" else operator.places
        return [found[place] for place in places] if len(found) > max(places) else found

    return call
