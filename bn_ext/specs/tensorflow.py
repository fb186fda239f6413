"""TensorFlow: ``FusedBatchNormV3``, ``_FusedBatchNormEx`` and ``FusedBatchNormGradV3``."""

import numpy as np

from bn_ext.specs._sheet import Given, Result, backward, inference, require_shape, sheet, training

__all__ = [
    "FusedBatchNormEx",
    "FusedBatchNormGradV3",
    "FusedBatchNormV3",
    "fused_batch_norm_ex",
    "fused_batch_norm_grad_v3",
    "fused_batch_norm_v3",
]


def __dir__() -> list[str]:
    return __all__


def _forward(a: Given, **options: object) -> Result:
    """The six outputs of a forward operator."""
    fresh = a.is_training and a.exponential_avg_factor == 1  # the old statistics have no weight
    for name, array in (("mean", a.mean), ("variance", a.variance)):
        if not fresh:
            require_shape(name, array, (a.channels,))
        elif array.ndim != 1:
            raise ValueError(f"{name}: expected one dimension, got shape {array.shape}")
    old = (np.zeros(a.channels, np.float32),) * 2 if fresh else (a.mean, a.variance)
    mean, variance = old[0].copy(), old[1].copy()
    if a.is_training:
        y, *reserved = training(
            a,
            running_mean=mean,
            running_variance=variance,
            exponential_avg_factor=a.exponential_avg_factor,
            correction=int(a.count > 1),  # the divisor is max(count - 1, 1)
            **options,
        )
    else:
        y = inference(a, **options)
        reserved = [mean.copy(), variance.copy()]
    if a.src.size == 0:
        mean[:] = variance[:] = np.nan
        reserved = [np.zeros(a.channels, np.float32) for _ in range(2)]
    return y, mean, variance, *reserved, np.empty(0, np.float32)


@sheet("tensorflow.fused_batch_norm_v3")
def fused_batch_norm_v3(a: Given) -> Result:
    return _forward(a)


@sheet("tensorflow.fused_batch_norm_ex")
def fused_batch_norm_ex(a: Given) -> Result:
    return _forward(a, src_1=a.src_1, relu=a.relu)


@sheet("tensorflow.fused_batch_norm_grad_v3")
def fused_batch_norm_grad_v3(a: Given) -> Result:
    grads = backward(a, is_training=a.is_training)
    return *grads, np.empty(0, np.float32), np.empty(0, np.float32)


FusedBatchNormEx = fused_batch_norm_ex.result
FusedBatchNormGradV3 = fused_batch_norm_grad_v3.result
FusedBatchNormV3 = fused_batch_norm_v3.result
