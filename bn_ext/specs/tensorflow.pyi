from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, SupportsFloat, TypeAlias

from numpy import float32
from numpy.typing import NDArray

from bn_ext._typing import Array, Data, Flag, Scalar

__all__ = [
    "FusedBatchNormEx",
    "FusedBatchNormGradV3",
    "FusedBatchNormV3",
    "fused_batch_norm_ex",
    "fused_batch_norm_grad_v3",
    "fused_batch_norm_v3",
]

_Format: TypeAlias = Literal["NHWC", "NDHWC", "NCHW", "NCDHW"] | bytes | None

class FusedBatchNormV3(NamedTuple, Generic[Scalar]):
    y: NDArray[Scalar]
    batch_mean: NDArray[float32]
    batch_variance: NDArray[float32]
    reserve_space_1: NDArray[float32]
    reserve_space_2: NDArray[float32]
    reserve_space_3: NDArray[float32]

class FusedBatchNormEx(NamedTuple, Generic[Scalar]):
    y: NDArray[Scalar]
    batch_mean: NDArray[float32]
    batch_variance: NDArray[float32]
    reserve_space_1: NDArray[float32]
    reserve_space_2: NDArray[float32]
    reserve_space_3: NDArray[float32]

class FusedBatchNormGradV3(NamedTuple, Generic[Scalar]):
    x_backprop: NDArray[Scalar]
    scale_backprop: NDArray[float32]
    offset_backprop: NDArray[float32]
    reserve_space_4: NDArray[float32]
    reserve_space_5: NDArray[float32]

def fused_batch_norm_v3(
    x: Data[Scalar],
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat | None = 0.0001,
    exponential_avg_factor: SupportsFloat | None = 1.0,
    data_format: _Format = "NHWC",
    is_training: Flag | None = True,
    name: str | None = None,
) -> FusedBatchNormV3[Scalar]: ...
def fused_batch_norm_ex(
    x: Data[Scalar],
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    side_input: Sequence[Any] = (),
    *,
    epsilon: SupportsFloat | None = 0.0001,
    exponential_avg_factor: SupportsFloat | None = 1.0,
    activation_mode: Literal["Identity", "Relu"] | bytes | None = "Identity",
    data_format: Literal["NHWC", "NCHW"] | bytes | None = "NHWC",
    is_training: Flag | None = True,
    name: str | None = None,
) -> FusedBatchNormEx[Scalar]: ...
def fused_batch_norm_grad_v3(
    y_backprop: Array,
    x: Data[Scalar],
    scale: Array,
    reserve_space_1: Array,
    reserve_space_2: Array,
    reserve_space_3: Array | None,
    *,
    epsilon: SupportsFloat | None = 0.0001,
    data_format: _Format = "NHWC",
    is_training: Flag | None = True,
    name: str | None = None,
) -> FusedBatchNormGradV3[Scalar]: ...
