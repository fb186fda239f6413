from typing import Generic, NamedTuple, SupportsFloat

from numpy.typing import NDArray

from bn_ext._typing import Array, Data, Scalar

__all__ = [
    "BatchNormTraining",
    "BatchNormTrainingBackprop",
    "batch_norm_inference",
    "batch_norm_training",
    "batch_norm_training_backprop",
]

class BatchNormTraining(NamedTuple, Generic[Scalar]):
    normalized: NDArray[Scalar]
    batch_mean: NDArray[Scalar]
    batch_variance: NDArray[Scalar]

class BatchNormTrainingBackprop(NamedTuple, Generic[Scalar]):
    input_delta: NDArray[Scalar]
    gamma_delta: NDArray[Scalar]
    beta_delta: NDArray[Scalar]

def batch_norm_training(
    input: Data[Scalar], gamma: Array, beta: Array, *, epsilon: SupportsFloat
) -> BatchNormTraining[Scalar]: ...
def batch_norm_inference(
    input: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat,
) -> NDArray[Scalar]: ...
def batch_norm_training_backprop(
    input: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    normalized_delta: Array,
    *,
    epsilon: SupportsFloat,
) -> BatchNormTrainingBackprop[Scalar]: ...
