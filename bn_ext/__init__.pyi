from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, SupportsFloat, SupportsIndex

from numpy import float64, ndarray
from numpy.typing import ArrayLike, NDArray

from bn_ext._runtime import available_isas as available_isas
from bn_ext._runtime import get_isa as get_isa
from bn_ext._runtime import show_config as show_config

__all__ = [
    "BatchNormGradients",
    "__version__",
    "available_isas",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
    "get_isa",
    "show_config",
]

__version__: str

_Array = ndarray[Any, Any]
_Out = Sequence[_Array | None]
_DataFormat = Literal["NXC", "NCX"]

class BatchNormGradients(NamedTuple):
    diff_src: _Array
    # None with param_grads=False; "| Any" spares everyone else a check for it.
    diff_gamma: _Array | Any
    diff_beta: _Array | Any

def batch_norm_backward(
    src: ArrayLike,
    diff_dst: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: bool = True,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients: ...
def batch_norm_backward_reduce(
    src: ArrayLike,
    diff_dst: ArrayLike,
    mean: ArrayLike,
    *,
    data_format: _DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
) -> NDArray[float64]: ...
def batch_norm_backward_apply(
    src: ArrayLike,
    diff_dst: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    gamma: ArrayLike | None,
    sums: ArrayLike,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: bool = True,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients: ...
