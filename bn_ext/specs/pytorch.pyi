from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, SupportsFloat

from numpy.typing import NDArray

from bn_ext._typing import Array, Data, Flag, Scalar

__all__ = [
    "BatchNormUpdateStats",
    "NativeBatchNorm",
    "NativeBatchNormBackward",
    "batch_norm_update_stats",
    "native_batch_norm",
    "native_batch_norm_backward",
]

class NativeBatchNorm(NamedTuple, Generic[Scalar]):
    output: NDArray[Scalar]
    save_mean: NDArray[Any]
    save_invstd: NDArray[Any]

class NativeBatchNormBackward(NamedTuple, Generic[Scalar]):
    grad_input: NDArray[Scalar] | Any
    grad_weight: NDArray[Any] | Any
    grad_bias: NDArray[Any] | Any

class BatchNormUpdateStats(NamedTuple):
    mean: NDArray[Any]
    var: NDArray[Any]

def native_batch_norm(
    input: Data[Scalar],
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: Flag,
    momentum: SupportsFloat,
    eps: SupportsFloat,
) -> NativeBatchNorm[Scalar]: ...
def native_batch_norm_backward(
    grad_out: Array,
    input: Data[Scalar],
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: Flag,
    eps: SupportsFloat,
    output_mask: Sequence[Any],
) -> NativeBatchNormBackward[Scalar]: ...
def batch_norm_update_stats(
    input: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: SupportsFloat,
) -> BatchNormUpdateStats: ...
