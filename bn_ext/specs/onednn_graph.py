"""oneDNN Graph: the forward pass of training and of inference; the gradient, under two names.

The gradient is the versioned operator ``BatchNormTrainingBackprop-1`` in the oneDNN Graph
specification, and ``BatchNormTrainingBackward`` in the library's Graph API. All operators raise
what `batch_norm_forward_training` raises.
"""

from __future__ import annotations  # help shows names, not what they stand for

from typing import Any, Generic, Literal, NamedTuple, SupportsFloat

import numpy as np

import bn_ext._core as _core
from bn_ext._typing import Array, Data, Flag, NDArray, Scalar, Vector
from bn_ext.specs._rules import Rules, as_positive, as_word

__all__ = [
    "BatchNormForwardTraining",
    "BatchNormTrainingBackprop",
    "BatchNormTrainingBackward",
    "batch_norm_forward_training",
    "batch_norm_inference",
    "batch_norm_training_backprop",
    "batch_norm_training_backward",
]
__dir__ = __all__.copy


_TYPES = {"float32": ["float32"], "float16": ["float32"], "bfloat16": ["float32", "bfloat16"]}
_RULES = Rules(_TYPES, {})
_FORWARD = Rules(_TYPES, {"running_mean": "mean", "running_variance": "variance"})
_BACKPROP = Rules(_TYPES, {"src": "input_forward", "diff_dst": "output_delta"})


def _shared(epsilon: Any, data_format: Any) -> dict[str, Any]:
    """Convert the attributes that all operators have."""
    return {
        "epsilon": as_positive(epsilon, "epsilon"),
        "data_format": as_word(data_format, "data_format", {"NXC": "NXC", "NCX": "NCX"}),
    }


class BatchNormForwardTraining(NamedTuple, Generic[Scalar, Vector]):
    """Outputs of `batch_norm_forward_training`, in the operator's order."""

    dst: NDArray[Scalar]
    running_mean: NDArray[Vector]
    running_variance: NDArray[Vector]
    batch_mean: NDArray[Vector]
    batch_variance: NDArray[Vector]


def batch_norm_forward_training(
    src: Data[Scalar],
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    momentum: SupportsFloat = 0.5,
    data_format: Literal["NXC", "NCX"] = "NXC",
) -> BatchNormForwardTraining[Scalar, Vector]:
    """Operator ``BatchNormForwardTraining`` of oneDNN: developer guide, Graph API.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        Input 0: what is normalized: any src of `bn_ext.batch_norm_training` but float64.
    mean, variance : array, shape (C,)
        Inputs 1 and 2: the running statistics before this step; float32 or, only with bfloat16
        data, bfloat16.
    gamma, beta : array, shape (C,), optional
        Inputs 3 and 4: scale and shift, in mean's dtype; both or neither. None: ones and zeros.
    epsilon : float
        Added to the variance: positive and finite as a float32, used as a double.
    momentum : float, optional
        The weight of the old running statistics (in torch: of the new), positive and finite as a
        float32, used as a double. The specification has no default; 0.5 is what the library uses.
    data_format : {"NXC", "NCX"}, optional
        Whether the channels are on the last axis (NHWC, ...) or on axis 1 (NCHW, ...).

    Returns
    -------
    BatchNormForwardTraining
        dst (src's dtype), running_mean, running_variance, batch_mean and batch_variance (mean's
        dtype, shape (C,)), all new arrays. Both variances are biased: divided by the number of
        elements. If src is empty, batch_mean and batch_variance are NaN, and the running statistics
        do not change.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`, with this operator's names and types: lists of Python
        numbers, which are float64, are refused. ValueError also for gamma without beta.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> outputs = onednn_graph.batch_norm_forward_training(
    ...     x, np.zeros(2, np.float32), np.ones(2, np.float32), epsilon=1e-3, momentum=0.75)
    >>> outputs.batch_variance
    array([1., 4.], dtype=float32)
    >>> outputs.running_variance
    array([1.  , 1.75], dtype=float32)
    """
    shared, momentum = _shared(epsilon, data_format), as_positive(momentum, "momentum")
    if (gamma is None) != (beta is None):
        present, absent = ("beta", "gamma") if gamma is None else ("gamma", "beta")
        raise ValueError(f"gamma, beta: expected both or neither, got {present} without {absent}")
    affine = {"gamma": gamma, "beta": beta}
    arrays = _FORWARD.arrays(affine, src=src, running_mean=mean, running_variance=variance)
    old = arrays["running_mean"], arrays["running_variance"]
    with _core.DefaultMode():
        new = [a.astype(np.float32) for a in old]
        arrays |= {"running_mean": new[0], "running_variance": new[1]}
        update = {"exponential_avg_factor": 1 - momentum, "correction": 0}
        out = None, *map(np.empty_like, old)
        dst, *batch = _core.training(**arrays, **update, **shared, out=out)
        running = [a.astype(old[0].dtype, copy=False) for a in new]
    return BatchNormForwardTraining(dst, *running, *batch)


def batch_norm_inference(
    src: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat,
    data_format: Literal["NXC", "NCX"] = "NXC",
) -> NDArray[Scalar]:
    """Operator ``BatchNormInference`` of oneDNN: developer guide, Graph API.

    Parameters
    ----------
    src, epsilon, data_format
        As for `batch_norm_forward_training`.
    gamma, beta : array, shape (C,)
        Inputs 1 and 2: scale and shift; float32 or, only with bfloat16 data, bfloat16.
    mean, variance : array, shape (C,)
        Inputs 3 and 4: the statistics to normalize with, in gamma's dtype.

    Returns
    -------
    ndarray
        dst, in src's shape and dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    >>> onednn_graph.batch_norm_inference(x, 2 * ones, ones, zeros, 3 * ones, epsilon=1.0)
    array([[2., 3.],
           [4., 7.]], dtype=float32)
    """
    shared = _shared(epsilon, data_format)
    arrays = _RULES.arrays(src=src, gamma=gamma, beta=beta, mean=mean, variance=variance)
    return _core.inference(**arrays, **shared)


class BatchNormTrainingBackprop(NamedTuple, Generic[Scalar, Vector]):
    """Outputs of `batch_norm_training_backprop`, in the operator's order."""

    input_delta: NDArray[Scalar]
    gamma_delta: NDArray[Vector] | Any
    beta_delta: NDArray[Vector] | Any


def batch_norm_training_backprop(
    input_forward: Data[Scalar],
    output_delta: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: Literal["NXC", "NCX"] = "NXC",
    gamma_delta: Flag = True,
    beta_delta: Flag = True,
) -> BatchNormTrainingBackprop[Scalar, Vector]:
    """Operator ``BatchNormTrainingBackprop-1`` of the oneDNN Graph Specification.

    Parameters
    ----------
    input_forward : array, shape (N, ..., C) or (N, C, ...)
        Input 1: what the forward pass normalized; T1 is float32, float16 or bfloat16.
    output_delta : array
        Input 2: the gradient with respect to the output, with the shape and dtype of input_forward.
    mean, variance : array, shape (C,)
        Inputs 3 and 4: the batch's mean and biased variance; T2 is float32 or, only with bfloat16
        data, bfloat16.
    gamma : array, shape (C,), optional
        Input 5: the scale, T2. None means ones.
    epsilon, data_format
        As for `batch_norm_forward_training`.
    gamma_delta, beta_delta : bool, optional
        Whether to compute this optional output, independently of the other.

    Returns
    -------
    BatchNormTrainingBackprop
        input_delta (T1), gamma_delta and beta_delta (T2, shape (C,)). An optional output that was
        not requested is None.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> dy = np.array([[1, 1], [0, 0]], np.float32)
    >>> grads = onednn_graph.batch_norm_training_backprop(
    ...     x, dy, x.mean(axis=0), x.var(axis=0), epsilon=1e-3, gamma_delta=False)
    >>> grads.gamma_delta is None
    True
    >>> grads.beta_delta
    array([1., 1.], dtype=float32)
    """
    shared = _shared(epsilon, data_format)
    wanted = _core.as_flag(gamma_delta, "gamma_delta"), _core.as_flag(beta_delta, "beta_delta")
    data = {"src": input_forward, "diff_dst": output_delta}
    arrays = _BACKPROP.arrays({"gamma": gamma}, **data, mean=mean, variance=variance)
    grads = _core.backward(**arrays, **shared, param_grads=any(wanted))
    return BatchNormTrainingBackprop(
        grads.diff_src,
        grads.diff_gamma if wanted[0] else None,
        grads.diff_beta if wanted[1] else None,
    )


class BatchNormTrainingBackward(NamedTuple, Generic[Scalar, Vector]):
    """Outputs of `batch_norm_training_backward`, in the operator's order."""

    diff_src: NDArray[Scalar]
    diff_gamma: NDArray[Vector] | Any
    diff_beta: NDArray[Vector] | Any


def batch_norm_training_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: Literal["NXC", "NCX"] = "NXC",
    diff_gamma: Flag = True,
    diff_beta: Flag = True,
) -> BatchNormTrainingBackward[Scalar, Vector]:
    """Operator ``BatchNormTrainingBackward`` of oneDNN: developer guide, Graph API.

    Parameters
    ----------
    src, diff_dst
        Inputs 0 and 1: input_forward and output_delta of `batch_norm_training_backprop`.
    mean, variance, gamma, epsilon, data_format
        As for `batch_norm_training_backprop`: inputs 2 to 4, and attributes.
    diff_gamma, diff_beta : bool, optional
        Whether to compute the optional outputs: both or neither.

    Returns
    -------
    BatchNormTrainingBackward
        diff_src (src's dtype), diff_gamma and diff_beta (mean's dtype, shape (C,), or both None).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_forward_training`; ValueError also for one optional output alone.

    Notes
    -----
    Without the optional outputs, gamma is ignored, as the specification requires: it is not even
    checked, and diff_src follows the training formula with gamma = 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> dy = np.array([[1, 1], [0, 0]], np.float32)
    >>> grads = onednn_graph.batch_norm_training_backward(
    ...     x, dy, x.mean(axis=0), x.var(axis=0), epsilon=1e-3)
    >>> grads.diff_beta
    array([1., 1.], dtype=float32)
    """
    shared = _shared(epsilon, data_format)
    wanted = _core.as_flag(diff_gamma, "diff_gamma")
    if wanted != _core.as_flag(diff_beta, "diff_beta"):
        got = f"{diff_gamma}, {diff_beta}"
        raise ValueError(f"diff_gamma, diff_beta: expected both or neither, got {got}")
    scale = {"gamma": gamma if wanted else None}
    arrays = _RULES.arrays(scale, src=src, diff_dst=diff_dst, mean=mean, variance=variance)
    grads = _core.backward(**arrays, **shared, param_grads=wanted)
    return BatchNormTrainingBackward(*grads)
