"""torch: ``native_batch_norm``, its gradient, and running statistics.

Vectors go on as doubles, and what comes of them is rounded once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import (
    _dry_run,
    batch_norm_training,
    batch_norm_training_apply,
    batch_norm_training_reduce,
)
from bn_ext.specs._sheet import Given, Result, as_doubles, backward, inference, sheet, training

__all__ = [
    "BatchNormUpdateStats",
    "NativeBatchNorm",
    "NativeBatchNormBackward",
    "batch_norm_update_stats",
    "native_batch_norm",
    "native_batch_norm_backward",
]


def __dir__() -> list[str]:
    return __all__


def _rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return values.astype(dtype, copy=False)


def _require_statistics(a: Given, flag: str) -> None:
    if a.mean is None or a.variance is None:
        both = f"{a.words['mean']}, {a.words['variance']}"
        raise ValueError(f"{both}: expected both with {flag}={getattr(a, flag)}")


def _step(a: Given) -> dict[str, Any]:
    """How the running statistics move, if there are any; they are checked, as they are written."""
    if a.src.size == 0:
        raise ValueError(f"input: expected at least one element, got shape {a.src.shape}")
    if (a.mean is None) != (a.variance is None):
        raise ValueError("running_mean, running_var: expected both or neither")
    if a.mean is None:
        return {}
    step = {
        "running_mean": a.mean,
        "running_variance": a.variance,
        "exponential_avg_factor": a.momentum,
        "correction": int(a.count > 1),  # the general function refuses 1 for one element
    }
    options = {"epsilon": 0, "data_format": a.data_format, **step}
    _dry_run(batch_norm_training, a.src, a.gamma, a.beta, **options)
    return step


def _lose_unbiased(a: Given) -> None:
    """One element has no unbiased variance: 0 / 0."""
    if a.variance is not None and a.count == 1:
        a.variance[...] = np.nan


@sheet("pytorch.native_batch_norm")
def native_batch_norm(a: Given) -> Result:
    wide = as_doubles(a)
    if not a.training:
        _require_statistics(a, "training")
        return inference(wide), np.empty(0, a.dtype), np.empty(0, a.dtype)
    mean, variance = np.empty(a.channels), np.empty(a.channels)
    output = training(wide, out=(None, mean, variance), **_step(a)).dst
    spread = variance + a.epsilon
    for channel in np.flatnonzero(spread == 0):
        output[:, channel] = 0 if wide.beta is None else wide.beta[channel]
    invstd = np.where(spread == 0, 0, 1 / np.sqrt(spread))  # 0, not 1 / 0: as torch has it
    _lose_unbiased(a)
    return output, _rounded(mean, a.dtype), _rounded(invstd, a.dtype)


@sheet("pytorch.native_batch_norm_backward")
def native_batch_norm_backward(a: Given) -> Result:
    _require_statistics(a, "train")
    wide = as_doubles(a)
    if a.train:
        # What eps is part of: infinite where invstd is 0, so that nothing is left there.
        wide.variance, wide.epsilon = 1 / (wide.variance * wide.variance), 0.0
    with_src, with_weight, with_bias = a.output_mask
    found = backward(wide, is_training=a.train, param_grads=with_weight or with_bias)
    return (
        found.diff_src if with_src else None,
        _rounded(found.diff_gamma, a.dtype) if with_weight else None,
        _rounded(found.diff_beta, a.dtype) if with_bias else None,
    )


@sheet("pytorch.batch_norm_update_stats")
def batch_norm_update_stats(a: Given) -> Result:
    mean, variance = np.empty(a.channels), np.empty(a.channels)
    step = _step(a)
    stats = batch_norm_training_reduce(a.src, data_format=a.data_format)
    batch_norm_training_apply(
        a.src[:0], stats=stats, epsilon=0, data_format=a.data_format,
        out=(None, mean, variance), **step,
    )  # fmt: skip
    _lose_unbiased(a)
    return _rounded(mean, a.dtype), _rounded(variance, a.dtype)


BatchNormUpdateStats = batch_norm_update_stats.result
NativeBatchNorm = native_batch_norm.result
NativeBatchNormBackward = native_batch_norm_backward.result
