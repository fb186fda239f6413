"""torch: ``native_batch_norm``, its gradient, and running statistics.

Vectors go on as doubles, and what comes of them is rounded once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import _share_memory, batch_norm_training_reduce
from bn_ext.specs._sheet import (
    Given,
    Result,
    as_doubles,
    backward,
    inference,
    require_shape,
    sheet,
    training,
)

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


def _check_update(a: Given) -> None:
    """Both running statistics can be updated, and nothing else with them; or there are none."""
    if a.src.size == 0:
        raise ValueError(f"input: expected at least one element, got shape {a.src.shape}")
    if (a.mean is None) != (a.variance is None):
        raise ValueError("running_mean, running_var: expected both or neither")
    if a.mean is None:
        return
    others = {"weight": a.gamma, "bias": a.beta, "input": a.src}
    for name, array in (("running_mean", a.mean), ("running_var", a.variance)):
        require_shape(name, array, (a.channels,))
        if not array.flags.writeable:
            raise ValueError(f"{name}: expected a writable array, got a read-only one")
        if a.channels > 1 and abs(array.strides[0]) < array.itemsize:
            raise ValueError(f"{name}: overlaps itself in memory")
        for other, given in others.items():
            if given is not None and _share_memory(array, given):
                raise ValueError(f"{name}: shares memory with {other}")
        others["running_mean"] = a.mean


def _update(a: Given, mean: NDArray[np.float64], variance: NDArray[np.float64]) -> None:
    """Running statistics after a step; the variance becomes unbiased, NaN of one element."""
    if a.mean is None:
        return
    unbiased = variance * a.count / np.float64(a.count - 1)
    pairs = (a.mean, mean), (a.variance, unbiased)
    new = [(1 - a.momentum) * old.astype(np.float64) + a.momentum * batch for old, batch in pairs]
    for (old, _), value in zip(pairs, new, strict=True):
        old[...] = _rounded(value, old.dtype)


@sheet("pytorch.native_batch_norm")
def native_batch_norm(a: Given) -> Result:
    wide = as_doubles(a)
    if not a.training:
        _require_statistics(a, "training")
        return inference(wide), np.empty(0, a.dtype), np.empty(0, a.dtype)
    _check_update(a)
    mean, variance = np.empty(a.channels), np.empty(a.channels)
    output = training(wide, out=(None, mean, variance)).dst
    spread = variance + a.epsilon
    for channel in np.flatnonzero(spread == 0):
        output[:, channel] = 0 if wide.beta is None else wide.beta[channel]
    invstd = np.where(spread == 0, 0, 1 / np.sqrt(spread))  # 0, not 1 / 0: as torch has it
    found = output, _rounded(mean, a.dtype), _rounded(invstd, a.dtype)
    _update(a, mean, variance)
    return found


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
    _check_update(a)
    mean, squares = batch_norm_training_reduce(a.src, data_format=a.data_format)[:2]
    variance = squares / a.count
    found = _rounded(mean, a.dtype), _rounded(variance, a.dtype)
    _update(a, mean, variance)
    return found


BatchNormUpdateStats = batch_norm_update_stats.result
NativeBatchNorm = native_batch_norm.result
NativeBatchNormBackward = native_batch_norm_backward.result
