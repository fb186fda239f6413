"""TensorFlow: ``FusedBatchNormV3`` and ``FusedBatchNormGradV3``.

An attribute that is None gets its default, and a word may be given as bytes, as in TensorFlow.
Both raise what `fused_batch_norm_v3` raises.
"""

from __future__ import annotations  # help shows names, not what they stand for

from typing import Any, Generic, Literal, NamedTuple, SupportsFloat, TypeAlias

import numpy as np
from numpy import float32

import bn_ext._core as _core
from bn_ext._typing import Array, Data, Flag, NDArray, Scalar
from bn_ext.specs._rules import Rules, as_word

__all__ = [
    "FusedBatchNormGradV3",
    "FusedBatchNormV3",
    "fused_batch_norm_grad_v3",
    "fused_batch_norm_v3",
]
__dir__ = __all__.copy


# A word tells only where C is, not how many axes x has.
_FORMATS = {"NHWC": "NXC", "NDHWC": "NXC", "NCHW": "NCX", "NCDHW": "NCX"}
_TYPES = {name: ["float32"] for name in ("float16", "bfloat16", "float32")}
_NAMES = {"src": "x", "diff_dst": "y_backprop", "gamma": "scale", "beta": "offset"}
_RUNNING = {"running_mean": "mean", "running_variance": "variance"}
_RESERVED = {"mean": "reserve_space_1", "variance": "reserve_space_2"}
_V3 = Rules(_TYPES, _NAMES | _RUNNING, ranks=(4, 5))
_GRAD = Rules(_TYPES, _NAMES | _RESERVED, ranks=(4, 5))

_Format: TypeAlias = Literal["NHWC", "NDHWC", "NCHW", "NCDHW"] | bytes | None


def _shared(epsilon: Any, data_format: Any, is_training: Any) -> dict[str, Any]:
    """Convert the attributes that both operators have."""
    word = "NHWC" if data_format is None else data_format
    word = word.decode(errors="replace") if isinstance(word, bytes) else word
    return {
        "epsilon": _core.as_epsilon(1e-4 if epsilon is None else epsilon),
        "data_format": as_word(word, "data_format", _FORMATS),
        "is_training": is_training is None or _core.as_flag(is_training, "is_training"),
    }


class FusedBatchNormV3(NamedTuple, Generic[Scalar]):
    """Outputs of `fused_batch_norm_v3`, in the operator's order."""

    y: NDArray[Scalar]
    batch_mean: NDArray[float32]
    batch_variance: NDArray[float32]
    reserve_space_1: NDArray[float32]
    reserve_space_2: NDArray[float32]
    reserve_space_3: NDArray[float32]


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
) -> FusedBatchNormV3[Scalar]:
    """Operator ``tf.raw_ops.FusedBatchNormV3`` of the TensorFlow API.

    Parameters
    ----------
    x : array, rank 4 or 5
        What is normalized: any src of `bn_ext.batch_norm_training` but float64.
    scale, offset : array of float32, shape (C,)
        Scale and shift.
    mean, variance : array of float32, shape (C,)
        With is_training, the running statistics before this step; ``exponential_avg_factor=1``
        ignores them, whatever their length. Without it, the statistics to normalize with.
    epsilon : float, optional
        Added to the variance: finite, at least 0, used as a double. None means the default for this
        and the other attributes.
    exponential_avg_factor : float, optional
        The weight of the batch's statistics in the new running ones, any finite number:
        ``running = (1 - factor)*old + factor*batch``.
    data_format : {"NHWC", "NDHWC", "NCHW", "NCDHW"}, optional
        Whether the channels are on the last axis or on axis 1, for either rank. It may be bytes.
    is_training : bool, optional
        Whether to normalize with the batch's own statistics.
    name : str, optional
        Not used.

    Returns
    -------
    FusedBatchNormV3
        y (x's dtype); batch_mean and batch_variance, the new running statistics, the variance
        divided by ``max(M - 1, 1)``; reserve_space_1 and reserve_space_2, the batch's mean and its
        biased variance, for the gradient; and reserve_space_3, empty. With ``is_training=False``,
        both pairs are the arguments mean and variance. For an empty x, batch_mean and
        batch_variance are NaN, and the reserve spaces are zeros.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`, with this operator's names, ranks and types: lists of
        Python numbers, which are float64, are refused.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import tensorflow
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    >>> ones, none = np.ones(2, np.float32), np.empty(0, np.float32)
    >>> outputs = tensorflow.fused_batch_norm_v3(x, ones, ones, none, none)
    >>> outputs.batch_mean
    array([3., 4.], dtype=float32)
    >>> outputs.batch_variance, outputs.reserve_space_2
    (array([6.6666665, 6.6666665], dtype=float32), array([5., 5.], dtype=float32))
    """
    shared = _shared(epsilon, data_format, is_training)
    arrays = _V3.arrays(src=x, gamma=scale, beta=offset, mean=mean, variance=variance)
    factor = 1 if exponential_avg_factor is None else exponential_avg_factor
    factor = _core.as_real(factor, "exponential_avg_factor", "a finite number")
    src, gamma = arrays["src"], arrays["gamma"]
    running = [arrays.pop("mean"), arrays.pop("variance")]
    trains = shared.pop("is_training")
    if trains and factor == 1:  # the old statistics have no weight
        for key, old in zip(("mean", "variance"), running, strict=True):
            if old.ndim != 1:
                raise ValueError(f"{key}: expected one dimension, got shape {old.shape}")
        running = [np.zeros_like(gamma)] * 2
    new_mean, new_variance = (old.copy() for old in running)
    if trains:
        arrays |= {"running_mean": new_mean, "running_variance": new_variance}
        correction = int(src.size > gamma.size)  # the divisor is max(M - 1, 1)
        update = {"exponential_avg_factor": factor, "correction": correction}
        out = None, np.empty_like(gamma), np.empty_like(gamma)
        y, *reserved = _core.training(**arrays, **update, **shared, out=out)
    else:
        y = _core.inference(**arrays, **shared, mean=new_mean, variance=new_variance)
        reserved = [new_mean.copy(), new_variance.copy()]
    if src.size == 0:
        new_mean[:] = new_variance[:] = np.nan
        reserved = [np.zeros_like(gamma), np.zeros_like(gamma)]
    return FusedBatchNormV3._make([y, new_mean, new_variance, *reserved, np.empty(0, float32)])


class FusedBatchNormGradV3(NamedTuple, Generic[Scalar]):
    """Outputs of `fused_batch_norm_grad_v3`, in the operator's order."""

    x_backprop: NDArray[Scalar]
    scale_backprop: NDArray[float32]
    offset_backprop: NDArray[float32]
    reserve_space_4: NDArray[float32]
    reserve_space_5: NDArray[float32]


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
) -> FusedBatchNormGradV3[Scalar]:
    """Operator ``tf.raw_ops.FusedBatchNormGradV3`` of the TensorFlow API.

    Parameters
    ----------
    y_backprop : array
        The gradient with respect to y: float16, bfloat16 or float32.
    x : array, rank 4 or 5
        The input of the forward pass, with the shape and dtype of y_backprop.
    scale : array of float32, shape (C,)
        The scaling factor.
    reserve_space_1, reserve_space_2 : array of float32, shape (C,)
        The mean and the biased variance: the batch's if `is_training`, otherwise the population's.
        Of cuDNN's inverse standard deviation, pass ``1 / inverse**2 - epsilon``.
    reserve_space_3 : array of float32, or None
        Only its dtype is checked.
    is_training : bool, optional
        Whether the statistics depend on x.
    epsilon, data_format, name
        As for `fused_batch_norm_v3`.

    Returns
    -------
    FusedBatchNormGradV3
        x_backprop (x's dtype), scale_backprop and offset_backprop (float32, shape (C,)), and two
        empty float32 arrays, reserve_space_4 and reserve_space_5.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import tensorflow
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    >>> ones = np.ones(2, np.float32)
    >>> grads = tensorflow.fused_batch_norm_grad_v3(
    ...     np.ones_like(x), x, ones, x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2)), None)
    >>> grads.offset_backprop
    array([4., 4.], dtype=float32)
    """
    shared = _shared(epsilon, data_format, is_training)
    data, unused = {"src": x, "diff_dst": y_backprop}, {"reserve_space_3": reserve_space_3}
    stats = {"mean": reserve_space_1, "variance": reserve_space_2}
    arrays = _GRAD.arrays(unused, **data, gamma=scale, **stats)
    arrays.pop("reserve_space_3", None)
    empty = [np.empty(0, float32), np.empty(0, float32)]
    return FusedBatchNormGradV3(*_core.backward(**arrays, **shared), *empty)
