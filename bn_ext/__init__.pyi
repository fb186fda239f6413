from collections.abc import Sequence
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    overload,
)

from numpy import float64, generic
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

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

# Data: what NumPy can see as an array; its dtype is then known at run time alone.
_Array: TypeAlias = ArrayLike | _SupportsDLPack
_Out: TypeAlias = Sequence[NDArray[Any] | None]
_DataFormat: TypeAlias = Literal["NXC", "NCX"]
# The dtypes of src and of mean.
_S = TypeVar("_S", bound=generic)
_V = TypeVar("_V", bound=generic)
_Data = TypeVar("_Data", bound=NDArray[Any], covariant=True)
_Vector = TypeVar("_Vector", bound=NDArray[Any] | None, covariant=True)

class BatchNormGradients(NamedTuple, Generic[_Data, _Vector]):
    diff_src: _Data
    diff_gamma: _Vector
    diff_beta: _Vector

@overload
def batch_norm_backward(
    src: NDArray[_S],
    diff_dst: _Array,
    mean: NDArray[_V],
    variance: _Array,
    gamma: _Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: Literal[True] = True,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V]]: ...
@overload
def batch_norm_backward(
    src: NDArray[_S],
    diff_dst: _Array,
    mean: NDArray[_V],
    variance: _Array,
    gamma: _Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: Literal[False],
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], None]: ...
@overload
def batch_norm_backward(
    src: NDArray[_S],
    diff_dst: _Array,
    mean: NDArray[_V],
    variance: _Array,
    gamma: _Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: bool,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V] | None]: ...
@overload
def batch_norm_backward(
    src: _Array,
    diff_dst: _Array,
    mean: _Array,
    variance: _Array,
    gamma: _Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: bool = True,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[Any], Any]: ...
def batch_norm_backward_reduce(
    src: _Array,
    diff_dst: _Array,
    mean: _Array,
    *,
    data_format: _DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
) -> NDArray[float64]: ...
@overload
def batch_norm_backward_apply(
    src: NDArray[_S],
    diff_dst: _Array,
    mean: NDArray[_V],
    variance: _Array,
    gamma: _Array | None,
    sums: _Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: Literal[True] = True,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V]]: ...
@overload
def batch_norm_backward_apply(
    src: NDArray[_S],
    diff_dst: _Array,
    mean: NDArray[_V],
    variance: _Array,
    gamma: _Array | None,
    sums: _Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: Literal[False],
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], None]: ...
@overload
def batch_norm_backward_apply(
    src: NDArray[_S],
    diff_dst: _Array,
    mean: NDArray[_V],
    variance: _Array,
    gamma: _Array | None,
    sums: _Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: bool,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V] | None]: ...
@overload
def batch_norm_backward_apply(
    src: _Array,
    diff_dst: _Array,
    mean: _Array,
    variance: _Array,
    gamma: _Array | None,
    sums: _Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: _DataFormat = "NXC",
    is_training: bool = True,
    param_grads: bool = True,
    out: _Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[Any], Any]: ...
