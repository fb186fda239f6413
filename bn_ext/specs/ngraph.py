"""nGraph: ``BatchNormTrainingBackprop``."""

from typing import Any, Generic, NamedTuple, SupportsFloat, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import batch_norm_backward
from bn_ext._typing import Array
from bn_ext.specs._sheet import as_array, as_epsilon, renamed, require_dtype

__all__ = ["BatchNormTrainingBackprop", "batch_norm_training_backprop"]

_Data = TypeVar("_Data", bound=np.generic)

_TYPES = ("float32", "float64", "float16", "bfloat16")


class BatchNormTrainingBackprop(NamedTuple, Generic[_Data]):
    """Outputs of `batch_norm_training_backprop`, in the spec's order."""

    input_delta: NDArray[_Data]
    gamma_delta: NDArray[_Data]
    beta_delta: NDArray[_Data]


@overload
def batch_norm_training_backprop(
    input: NDArray[_Data],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    normalized_delta: Array,
    *,
    epsilon: SupportsFloat,
) -> BatchNormTrainingBackprop[_Data]: ...
@overload
def batch_norm_training_backprop(
    input: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    normalized_delta: Array,
    *,
    epsilon: SupportsFloat,
) -> BatchNormTrainingBackprop[Any]: ...
def batch_norm_training_backprop(
    input: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    normalized_delta: Array,
    *,
    epsilon: SupportsFloat,
) -> BatchNormTrainingBackprop[Any]:
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

    Notes
    -----
    What counts as an array, and what is copied, is as for `bn_ext.batch_norm_backward`;
    lists of Python floats are float64. C = 0 gives empty results.

    nGraph differs in one way: its reference kernel casts epsilon to float.

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
    data = as_array(input, "input")
    vectors = {
        "gamma": as_array(gamma, "gamma"),
        "beta": as_array(beta, "beta"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    delta = as_array(normalized_delta, "normalized_delta")
    value = as_epsilon(epsilon)
    require_dtype("input", data, _TYPES)
    for name, array in {**vectors, "normalized_delta": delta}.items():
        require_dtype(name, array, (data.dtype.name,))
    # A gamma of the wrong length is left to the general function to refuse.
    if data.ndim > 1 and vectors["gamma"].shape == data.shape[1:2] != vectors["beta"].shape:
        raise ValueError(
            f"beta: expected shape {data.shape[1:2]}, like gamma, got {vectors['beta'].shape}"
        )
    words = {
        "src": "input",
        "diff_dst": "normalized_delta",
        # There is no such attribute.
        'pass data_format="NXC"': "pass np.moveaxis(input, -1, 1), and normalized_delta likewise, "
        "which copies nothing",
    }
    with renamed(words):
        grads = batch_norm_backward(
            data,
            delta,
            vectors["mean"],
            vectors["variance"],
            vectors["gamma"],
            epsilon=value,
            data_format="NCX",
        )
    return BatchNormTrainingBackprop(*grads)
