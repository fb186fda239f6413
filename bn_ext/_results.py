"""The named tuples that the functions return; the functions describe them."""

from typing import Any, Generic, NamedTuple, TypeVar

from bn_ext._typing import NDArray

#: An array like src.
_Data = TypeVar("_Data", covariant=True)


class BatchNormTraining(NamedTuple, Generic[_Data]):
    """Result of `batch_norm_training`."""

    dst: _Data
    mean: NDArray[Any]
    variance: NDArray[Any]


class BatchNormGradients(NamedTuple, Generic[_Data]):
    """Result of `batch_norm_backward`."""

    diff_src: _Data
    diff_gamma: Any
    diff_beta: Any


class BatchNormAddGradients(NamedTuple, Generic[_Data]):
    """Result of `batch_norm_backward` with ``diff_src_1=True``."""

    diff_src: _Data
    diff_gamma: Any
    diff_beta: Any
    diff_src_1: _Data


class BatchNormDoubleBackward(NamedTuple, Generic[_Data]):
    """Result of `batch_norm_double_backward`."""

    diff_src: _Data
    diff_diff_dst: _Data
    diff_gamma: NDArray[Any]
