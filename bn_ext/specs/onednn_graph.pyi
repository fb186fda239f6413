from typing import Any, Generic, NamedTuple, SupportsFloat

from numpy.typing import NDArray

from bn_ext._typing import Array, Data, DataFormat, Flag, Scalar, Vector

__all__ = [
    "BatchNormForwardTraining",
    "BatchNormTrainingBackprop",
    "BatchNormTrainingBackward",
    "batch_norm_forward_training",
    "batch_norm_inference",
    "batch_norm_training_backprop",
    "batch_norm_training_backward",
]

class BatchNormForwardTraining(NamedTuple, Generic[Scalar, Vector]):
    dst: NDArray[Scalar]
    running_mean: NDArray[Vector]
    running_variance: NDArray[Vector]
    batch_mean: NDArray[Vector]
    batch_variance: NDArray[Vector]

class BatchNormTrainingBackprop(NamedTuple, Generic[Scalar, Vector]):
    input_delta: NDArray[Scalar]
    gamma_delta: NDArray[Vector] | Any
    beta_delta: NDArray[Vector] | Any

class BatchNormTrainingBackward(NamedTuple, Generic[Scalar, Vector]):
    diff_src: NDArray[Scalar]
    diff_gamma: NDArray[Vector] | Any
    diff_beta: NDArray[Vector] | Any

def batch_norm_forward_training(
    src: Data[Scalar],
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    momentum: SupportsFloat = 0.5,
    data_format: DataFormat = "NXC",
) -> BatchNormForwardTraining[Scalar, Vector]: ...
def batch_norm_inference(
    src: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
) -> NDArray[Scalar]: ...
def batch_norm_training_backprop(
    input_forward: Data[Scalar],
    output_delta: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    gamma_delta: Flag = True,
    beta_delta: Flag = True,
) -> BatchNormTrainingBackprop[Scalar, Vector]: ...
def batch_norm_training_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    diff_gamma: Flag = True,
    diff_beta: Flag = True,
) -> BatchNormTrainingBackward[Scalar, Vector]: ...
