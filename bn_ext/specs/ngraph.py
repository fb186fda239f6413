"""nGraph: ``BatchNormTraining``, ``BatchNormInference`` and ``BatchNormTrainingBackprop``."""

from typing import Any, Generic, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._typing import Array, Data, Scalar
from bn_ext.specs._sheet import as_array, as_epsilon, in_words, require_dtype

__all__ = [
    "BatchNormTraining",
    "BatchNormTrainingBackprop",
    "batch_norm_inference",
    "batch_norm_training",
    "batch_norm_training_backprop",
]


def __dir__() -> list[str]:
    return __all__


_TYPES = ("float32", "float64", "float16", "bfloat16")


class BatchNormTraining(NamedTuple, Generic[Scalar]):
    """Outputs of `batch_norm_training`, in the spec's order."""

    normalized: NDArray[Scalar]
    batch_mean: NDArray[Scalar]
    batch_variance: NDArray[Scalar]


class BatchNormTrainingBackprop(NamedTuple, Generic[Scalar]):
    """Outputs of `batch_norm_training_backprop`, in the spec's order."""

    input_delta: NDArray[Scalar]
    gamma_delta: NDArray[Scalar]
    beta_delta: NDArray[Scalar]


# There is no data_format here.
_ON_AXIS_1 = "pass np.moveaxis(input, -1, 1)"
_FORWARD = in_words("NCX", {"src": "input", "NXC": f"{_ON_AXIS_1}, which copies nothing"})
_BACKWARD = in_words(
    "NCX",
    {
        "src": "input",
        "diff_dst": "normalized_delta",
        "NXC": f"{_ON_AXIS_1}, and normalized_delta likewise, which copies nothing",
    },
)


def _checked(input: Array, **vectors: Array) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """The data and the vectors, all of one dtype."""
    data = as_array(input, "input")
    arrays = {name: as_array(vector, name) for name, vector in vectors.items()}
    require_dtype("input", data, _TYPES)
    for name, array in arrays.items():
        require_dtype(name, array, (data.dtype.name,))
    return data, arrays


def batch_norm_training(
    input: Data[Scalar], gamma: Array, beta: Array, *, epsilon: SupportsFloat
) -> BatchNormTraining[Scalar]:
    """Operator ``BatchNormTraining`` of nGraph.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        What is normalized: float32, float64, float16 or bfloat16, at least two
        dimensions, channels first: on axis 1.
    gamma, beta : array, shape (C,)
        Scale and shift, in input's dtype.
    epsilon : float
        Added to the variance: finite, at least 0. It is used as a double.

    Returns
    -------
    BatchNormTraining
        normalized, batch_mean and batch_variance, which is biased, all in input's dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`, with this operator's names; also TypeError
        if the arrays do not all have the same dtype.

    See Also
    --------
    bn_ext.batch_norm_training
    batch_norm_training_backprop : The gradient.

    Notes
    -----
    What counts as an array, and what is copied, is as for `bn_ext.batch_norm_training`;
    lists of Python floats are float64. Without elements, the statistics are NaN;
    C = 0 gives empty results.

    nGraph differs: its reference kernel casts epsilon to float, and C = 0 is refused.

    Definition: nGraph core operation "BatchNormTraining".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import ngraph
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> found = ngraph.batch_norm_training(x, np.ones(2), np.zeros(2), epsilon=0.0)
    >>> found.normalized
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> found.batch_variance
    array([1., 4.])
    """
    value = as_epsilon(epsilon)
    data, vectors = _checked(input, gamma=gamma, beta=beta)
    statistics = np.empty_like(vectors["gamma"]), np.empty_like(vectors["gamma"])
    found = _core.batch_norm_training(
        data,
        vectors["gamma"],
        vectors["beta"],
        epsilon=value,
        data_format=_FORWARD,
        out=(None, *statistics),
    )
    return BatchNormTraining(*found)


def batch_norm_inference(
    input: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat,
) -> NDArray[Scalar]:
    """Operator ``BatchNormInference`` of nGraph.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        What is normalized: float32, float64, float16 or bfloat16, at least two
        dimensions, channels first: on axis 1.
    gamma, beta : array, shape (C,)
        Scale and shift, in input's dtype.
    mean, variance : array, shape (C,)
        The statistics to normalize with, in input's dtype.
    epsilon : float
        Added to the variance: finite, at least 0. It is used as a double.

    Returns
    -------
    ndarray
        normalized, in input's shape and dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_inference`, with this operator's names; also TypeError
        if the arrays do not all have the same dtype.

    See Also
    --------
    bn_ext.batch_norm_inference

    Notes
    -----
    What counts as an array, and what is copied, is as for `bn_ext.batch_norm_inference`;
    lists of Python floats are float64. C = 0 gives an empty result.

    nGraph differs: its reference kernel casts epsilon to float, and C = 0 is refused.

    Definition: nGraph core operation "BatchNormInference".

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
    value = as_epsilon(epsilon)
    data, vectors = _checked(input, gamma=gamma, beta=beta, mean=mean, variance=variance)
    return _core.batch_norm_inference(
        data,
        vectors["mean"],
        vectors["variance"],
        vectors["gamma"],
        vectors["beta"],
        epsilon=value,
        data_format=_FORWARD,
    )


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
    """Operator ``BatchNormTrainingBackprop`` of nGraph.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        What the forward pass normalized: float32, float64, float16 or bfloat16, at least
        two dimensions, channels first: on axis 1.
    gamma, beta : array, shape (C,)
        Scale and shift, in input's dtype. beta is required but has no influence.
    mean, variance : array, shape (C,)
        The batch's mean and biased variance, in input's dtype.
    normalized_delta : array
        The gradient with respect to the output, with input's shape and dtype.
    epsilon : float
        Added to the variance: finite, at least 0. It is used as a double.

    Returns
    -------
    BatchNormTrainingBackprop
        input_delta, gamma_delta and beta_delta, all in input's dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`, with this operator's names; also TypeError
        if the arrays do not all have the same dtype.

    See Also
    --------
    bn_ext.batch_norm_backward
    batch_norm_training : What it is the gradient of.

    Notes
    -----
    What counts as an array, and what is copied, is as for `bn_ext.batch_norm_backward`;
    lists of Python floats are float64. C = 0 gives empty results.

    nGraph differs: its reference kernel casts epsilon to float, and C = 0 is refused.

    Definition: nGraph core operation "BatchNormTrainingBackprop".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import ngraph
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> ones = np.ones(2)
    >>> grads = ngraph.batch_norm_training_backprop(
    ...     x, ones, ones, x.mean(axis=0), x.var(axis=0), np.ones((2, 2)), epsilon=1e-3)
    >>> grads.beta_delta
    array([2., 2.])
    """
    data, vectors = _checked(
        input,
        gamma=gamma,
        beta=beta,
        mean=mean,
        variance=variance,
        normalized_delta=normalized_delta,
    )
    value = as_epsilon(epsilon)
    # A gamma of the wrong length is left to the general function to refuse.
    if data.ndim > 1 and vectors["gamma"].shape == data.shape[1:2] != vectors["beta"].shape:
        raise ValueError(
            f"beta: expected shape {data.shape[1:2]}, like gamma, got {vectors['beta'].shape}"
        )
    grads = _core.batch_norm_backward(
        data,
        vectors["normalized_delta"],
        vectors["mean"],
        vectors["variance"],
        vectors["gamma"],
        epsilon=value,
        data_format=_BACKWARD,
    )
    return BatchNormTrainingBackprop(*grads)
