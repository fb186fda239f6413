"""torch: ``native_batch_norm``, its gradient, and running statistics."""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._typing import Array, Data, Flag, Scalar
from bn_ext.specs._pytorch import (
    NCX,
    NCX_RUNNING,
    NCX_SAVED,
    as_data,
    as_vectors,
    doubles,
    inverse_deviation,
    refuse_copies,
    running_pair,
    update,
    variance_of,
)
from bn_ext.specs._sheet import (
    as_array,
    as_epsilon,
    as_flag,
    as_number,
    count_of,
    in_default_mode,
    rounded,
    shown,
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


class NativeBatchNorm(NamedTuple, Generic[Scalar]):
    """Outputs of `native_batch_norm`."""

    output: NDArray[Scalar]
    save_mean: NDArray[Any]
    save_invstd: NDArray[Any]


class NativeBatchNormBackward(NamedTuple, Generic[Scalar]):
    """Outputs of `native_batch_norm_backward`: None where the mask says so."""

    grad_input: NDArray[Scalar] | Any
    grad_weight: NDArray[Any] | Any
    grad_bias: NDArray[Any] | Any


class BatchNormUpdateStats(NamedTuple):
    """Outputs of `batch_norm_update_stats`."""

    mean: NDArray[Any]
    var: NDArray[Any]


def _require_elements(data: NDArray[Any]) -> None:
    if data.size == 0:
        raise ValueError(f"input: expected at least one element, got shape {data.shape}")


@in_default_mode
def native_batch_norm(
    input: Data[Scalar],
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: Flag,
    momentum: SupportsFloat,
    eps: SupportsFloat,
) -> NativeBatchNorm[Scalar]:
    """Operator ``aten::native_batch_norm`` of torch.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        What is normalized: float32, float64, float16 or bfloat16, at least two
        dimensions, channels on axis 1, in any memory order (channels last, too).
    weight, bias : array, shape (C,), or None
        Scale and shift. All vectors have input's dtype or, with 16-bit data, float32.
    running_mean, running_var : array, shape (C,), or None
        Running statistics, both or neither. With `training` they are updated in place;
        without, they are what input is normalized with, and required.
    training : bool
        Whether to normalize with the batch's own statistics.
    momentum : float
        The weight of the batch's statistics in the new running ones:
        ``running = (1 - momentum)*old + momentum*batch``, the variance unbiased.
    eps : float
        Added to the variance: finite, at least 0. It is used as a double.

    Returns
    -------
    NativeBatchNorm
        output, in input's shape, dtype and memory order; save_mean and save_invstd,
        ``1 / sqrt(variance + eps)`` of the biased variance, in the vectors' dtype
        (input's if there are none), shape (C,); shape (0,) without `training`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`, with this operator's names; also ValueError
        for an input without elements with `training`, and for running statistics that
        are lacking, not writable or not of their own memory. Nothing has been written
        then.

    See Also
    --------
    bn_ext.batch_norm_training, bn_ext.batch_norm_inference
    native_batch_norm_backward : Its gradient.

    Notes
    -----
    As in torch, save_invstd is 0 and output is bias where variance and eps are 0 with
    `training`, and running_var becomes NaN where a channel has one element.

    torch 2.13 on a CPU differs: it does not check lengths, momentum or eps; values around
    1e30 give an infinite variance.

    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> running_mean, running_var = np.zeros(2), np.ones(2)
    >>> pytorch.native_batch_norm(x, None, None, running_mean, running_var, True, 0.5, 0.0)
    NativeBatchNorm(output=array([[-1., -1.],
           [ 1.,  1.]]), save_mean=array([2., 4.]), save_invstd=array([1. , 0.5]))
    >>> running_mean, running_var
    (array([1., 2.]), array([1.5, 4.5]))
    """
    if from_batch := as_flag(training, "training"):
        refuse_copies(running_mean=running_mean, running_var=running_var)
    data, value, factor = as_data(input), as_epsilon(eps, "eps"), as_number(momentum, "momentum")
    dtype, vectors = as_vectors(
        data, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
    )
    scale, shift = doubles(vectors["weight"]), doubles(vectors["bias"])
    channels = data.shape[1]
    if not from_batch:
        given = doubles(vectors["running_mean"]), doubles(vectors["running_var"])
        if given[0] is None or given[1] is None:
            raise ValueError("running_mean, running_var: expected both with training=False")
        output = _core.batch_norm_inference(
            data, given[0], given[1], scale, shift, epsilon=value, data_format=NCX_RUNNING
        )
        return NativeBatchNorm(output, np.empty(0, dtype), np.empty(0, dtype))
    _require_elements(data)
    count, pair = count_of(data, 1), running_pair(vectors, channels, input=data)
    mean, variance = np.empty(channels), np.empty(channels)
    output = _core.batch_norm_training(
        data, scale, shift, epsilon=value, data_format=NCX, out=(None, mean, variance)
    ).dst
    if value == 0:
        for channel in np.flatnonzero(variance == 0):
            output[:, channel] = 0 if shift is None else shift[channel]
    invstd = inverse_deviation(variance, value)
    found = NativeBatchNorm(output, rounded(mean, dtype), rounded(invstd, dtype))
    update(pair, mean, variance, count, factor)
    return found


@in_default_mode
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
) -> NativeBatchNormBackward[Scalar]:
    """Operator ``aten::native_batch_norm_backward`` of torch.

    Parameters
    ----------
    grad_out : array
        The gradient with respect to the output, with input's shape and dtype.
    input : array, shape (N, C, ...)
        What the forward pass normalized: float32, float64, float16 or bfloat16.
    weight : array, shape (C,), or None
        The scale. All vectors that are used have input's dtype or, with 16-bit data,
        float32.
    running_mean, running_var : array, shape (C,), or None
        The statistics without `train`; not used, and not looked at, with it.
    save_mean, save_invstd : array, shape (C,), or None
        The statistics with `train`; not used, and not looked at, without it.
    train : bool
        Whether the statistics depend on input.
    eps : float
        Added to running_var: finite, at least 0.
    output_mask : list of three bools
        Which of the three gradients are wanted.

    Returns
    -------
    NativeBatchNormBackward
        grad_input (input's dtype), grad_weight and grad_bias (the vectors' dtype, shape
        (C,)), or None for those that are not wanted.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`, with this operator's names; also ValueError
        if the statistics that are used are None.

    See Also
    --------
    bn_ext.batch_norm_backward
    native_batch_norm : What it is the gradient of.

    Notes
    -----
    torch 2.13 on a CPU differs: the process ends if statistics are lacking or input has
    no elements, and lengths are not checked.

    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> _, mean, invstd = pytorch.native_batch_norm(x, None, None, None, None, True, 0.1, 0.0)
    >>> grads = pytorch.native_batch_norm_backward(
    ...     x, x, None, None, None, mean, invstd, True, 0.0, [False, True, True])
    >>> grads.grad_input is None
    True
    >>> grads.grad_weight, grads.grad_bias
    (array([2., 4.]), array([4., 8.]))
    """
    from_batch = as_flag(train, "train")
    if not isinstance(output_mask, (list, tuple)) or len(output_mask) != 3:
        raise TypeError(f"output_mask: expected three flags, got {shown(output_mask)}")
    wanted = [as_flag(flag, "output_mask") for flag in output_mask]
    diff, data, value = as_array(grad_out, "grad_out"), as_data(input), as_epsilon(eps, "eps")
    names = ("save_mean", "save_invstd") if from_batch else ("running_mean", "running_var")
    given = (save_mean, save_invstd) if from_batch else (running_mean, running_var)
    dtype, vectors = as_vectors(data, weight=weight, **dict(zip(names, given, strict=True)))
    mean, spread = doubles(vectors[names[0]]), doubles(vectors[names[1]])
    if mean is None or spread is None:
        raise ValueError(f"{', '.join(names)}: expected both with train={from_batch}")
    if from_batch:
        spread, value = variance_of(spread), 0.0
    found = _core.batch_norm_backward(
        data,
        diff,
        mean,
        spread,
        doubles(vectors["weight"]),
        epsilon=value,
        data_format=NCX_SAVED if from_batch else NCX_RUNNING,
        is_training=from_batch,
        param_grads=wanted[1] or wanted[2],
    )
    return NativeBatchNormBackward(
        found.diff_src if wanted[0] else None,
        rounded(found.diff_gamma, dtype) if wanted[1] else None,
        rounded(found.diff_beta, dtype) if wanted[2] else None,
    )


@in_default_mode
def batch_norm_update_stats(
    input: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: SupportsFloat,
) -> BatchNormUpdateStats:
    """Operator ``aten::batch_norm_update_stats`` of torch.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        The batch: float32, float64, float16 or bfloat16, at least one element.
    running_mean, running_var : array, shape (C,), or None
        Running statistics, both or neither, updated in place; in input's dtype or, with
        16-bit data, float32.
    momentum : float
        The weight of the batch's statistics in the new running ones, the variance
        unbiased: NaN for one element.

    Returns
    -------
    BatchNormUpdateStats
        mean and var, which is biased, in the vectors' dtype (input's if there are none).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `native_batch_norm`.

    See Also
    --------
    native_batch_norm : Normalizes, too.

    Notes
    -----
    torch 2.13 accepts one of the running statistics alone.

    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> running_mean, running_var = np.zeros(2), np.ones(2)
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> pytorch.batch_norm_update_stats(x, running_mean, running_var, 0.5)
    BatchNormUpdateStats(mean=array([2., 4.]), var=array([1., 4.]))
    >>> running_var
    array([1.5, 4.5])
    """
    refuse_copies(running_mean=running_mean, running_var=running_var)
    data, factor = as_data(input), as_number(momentum, "momentum")
    dtype, vectors = as_vectors(data, running_mean=running_mean, running_var=running_var)
    _require_elements(data)
    pair, count = running_pair(vectors, data.shape[1], input=data), count_of(data, 1)
    mean, squares = _core.batch_norm_training_reduce(data, data_format=NCX)[:2]
    variance = squares / count
    found = BatchNormUpdateStats(rounded(mean, dtype), rounded(variance, dtype))
    update(pair, mean, variance, count, factor)
    return found
