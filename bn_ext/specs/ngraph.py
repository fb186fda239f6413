"""nGraph: ``BatchNormTraining``, ``BatchNormInference`` and ``BatchNormTrainingBackprop``.

All raise what `batch_norm_training` raises.
"""

from __future__ import annotations  # help shows names, not what they stand for

from typing import Generic, NamedTuple, SupportsFloat

import numpy as np

import bn_ext._core as _core
from bn_ext._typing import Array, Data, NDArray, Scalar
from bn_ext.specs._rules import Rules

__all__ = [
    "BatchNormTraining",
    "BatchNormTrainingBackprop",
    "batch_norm_inference",
    "batch_norm_training",
    "batch_norm_training_backprop",
]
__dir__ = __all__.copy


_RULES = Rules(
    {name: (name,) for name in _core.DTYPES}, {"src": "input", "diff_dst": "normalized_delta"}
)


class BatchNormTraining(NamedTuple, Generic[Scalar]):
    """Outputs of `batch_norm_training`, in the operator's order."""

    normalized: NDArray[Scalar]
    batch_mean: NDArray[Scalar]
    batch_variance: NDArray[Scalar]


def batch_norm_training(
    input: Data[Scalar], gamma: Array, beta: Array, *, epsilon: SupportsFloat
) -> BatchNormTraining[Scalar]:
    """Operator ``BatchNormTraining``, a core operation of nGraph.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        What is normalized: any src of `bn_ext.batch_norm_training`, channels first: on axis 1.
        C = 0, which nGraph refuses, gives empty results.
    gamma, beta : array, shape (C,)
        Scale and shift, in input's dtype.
    epsilon : float
        Added to the variance: finite, at least 0, used as a double.

    Returns
    -------
    BatchNormTraining
        All in input's dtype: normalized, batch_mean and batch_variance (biased). Without elements,
        the statistics are NaN.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`, with this operator's names; also TypeError if the
        arrays do not all have the same dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import ngraph
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> outputs = ngraph.batch_norm_training(x, np.ones(2), np.zeros(2), epsilon=0.0)
    >>> outputs.normalized
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> outputs.batch_variance
    array([1., 4.])
    """
    epsilon = _core.as_epsilon(epsilon)
    arrays = _RULES.arrays(src=input, gamma=gamma, beta=beta)
    out = None, np.empty_like(arrays["gamma"]), np.empty_like(arrays["gamma"])
    results = _core.training(**arrays, epsilon=epsilon, data_format="NCX", out=out)
    return BatchNormTraining(*results)


def batch_norm_inference(
    input: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat,
) -> NDArray[Scalar]:
    """Operator ``BatchNormInference``, a core operation of nGraph.

    Parameters
    ----------
    input, gamma, beta, epsilon
        As for `batch_norm_training`.
    mean, variance : array, shape (C,)
        The statistics to normalize with, in input's dtype.

    Returns
    -------
    ndarray
        The result, in input's shape and dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import ngraph
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> ones, zeros = np.ones(2), np.zeros(2)
    >>> ngraph.batch_norm_inference(x, 2 * ones, ones, zeros, 3 * ones, epsilon=1.0)
    array([[2., 3.],
           [4., 7.]])
    """
    epsilon = _core.as_epsilon(epsilon)
    arrays = _RULES.arrays(src=input, gamma=gamma, beta=beta, mean=mean, variance=variance)
    return _core.inference(**arrays, epsilon=epsilon, data_format="NCX")


class BatchNormTrainingBackprop(NamedTuple, Generic[Scalar]):
    """Outputs of `batch_norm_training_backprop`, in the operator's order."""

    input_delta: NDArray[Scalar]
    gamma_delta: NDArray[Scalar]
    beta_delta: NDArray[Scalar]


def batch_norm_training_backprop(
    input: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    normalized_delta: Array,
    *,
    epsilon: SupportsFloat,
) -> BatchNormTrainingBackprop[Scalar]:
    """Operator ``BatchNormTrainingBackprop``, a core operation of nGraph.

    Parameters
    ----------
    input, gamma, beta, epsilon
        As for `batch_norm_training`. beta is required but has no influence.
    mean, variance : array, shape (C,)
        The batch's mean and biased variance, in input's dtype.
    normalized_delta : array
        The gradient with respect to the output, with input's shape and dtype.

    Returns
    -------
    BatchNormTrainingBackprop
        input_delta, gamma_delta and beta_delta, all in input's dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import ngraph
    >>> x, ones = np.array([[1.0, 2.0], [3.0, 6.0]]), np.ones(2)
    >>> grads = ngraph.batch_norm_training_backprop(
    ...     x, ones, ones, x.mean(axis=0), x.var(axis=0), np.ones((2, 2)), epsilon=1e-3)
    >>> grads.beta_delta
    array([2., 2.])
    """
    epsilon = _core.as_epsilon(epsilon)
    arrays = _RULES.arrays(
        src=input, gamma=gamma, beta=beta, mean=mean, variance=variance, diff_dst=normalized_delta
    )
    shape, expected = arrays.pop("beta").shape, arrays["gamma"].shape
    wrong = shape != expected  # errors of what is used come first
    grads = _core.backward(**arrays, epsilon=epsilon, data_format="NCX", dry=wrong)
    if wrong:
        raise ValueError(f"beta: expected shape {expected}, like gamma, got {shape}")
    return BatchNormTrainingBackprop(*grads)
