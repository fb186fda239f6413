"""nGraph: ``BatchNormTrainingBackprop``."""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext.specs._sheet import dtype_name, renamed, require_dtype

__all__ = ["BatchNormTrainingBackprop", "batch_norm_training_backprop"]

_Data = TypeVar("_Data", bound=np.generic)

_TYPES = ("float32", "float64", "float16", "bfloat16")


class BatchNormTrainingBackprop(NamedTuple, Generic[_Data]):
    """Outputs of `batch_norm_training_backprop`, in the spec's order."""

    input_delta: NDArray[_Data]
    gamma_delta: NDArray[_Data]
    beta_delta: NDArray[_Data]


def batch_norm_training_backprop(
    input: NDArray[_Data],
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    normalized_delta: Any,
    *,
    epsilon: float,
) -> BatchNormTrainingBackprop[_Data]:
    """Operator ``BatchNormTrainingBackprop`` of nGraph.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        What the forward pass normalized: float32, float64, float16 or bfloat16, at least
        two dimensions, the channels on axis 1.
    gamma, beta : array, shape (C,)
        Scale and shift, of input's dtype. beta is required, and without influence.
    mean, variance : array, shape (C,)
        The batch's mean and biased variance, of input's dtype.
    normalized_delta : array
        The gradient with respect to the output, like `input`.
    epsilon : float
        Added to the variance; a double, finite and at least 0.

    Returns
    -------
    BatchNormTrainingBackprop
        input_delta, gamma_delta and beta_delta, all of input's dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `bn_ext.batch_norm_backward`, under this operator's names; besides,
        TypeError if the arrays are not all of one dtype.

    Notes
    -----
    What is copied is as for `bn_ext.batch_norm_backward`; C = 0 gives empty results.

    Where nGraph differs: its reference kernel casts epsilon to float.

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
    require_dtype("input", input, _TYPES)
    vectors = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    if hasattr(input, "dtype"):
        for name, array in {**vectors, "normalized_delta": normalized_delta}.items():
            if array is None:
                raise TypeError(f"{name}: expected an array, got None")
            require_dtype(name, array, (dtype_name(input),))
    if hasattr(input, "shape") and len(input.shape) > 1 and np.shape(beta) != (input.shape[1],):
        raise ValueError(f"beta: expected shape ({input.shape[1]},), got {np.shape(beta)}")
    with renamed(src="input", diff_dst="normalized_delta"):
        grads = bn_ext.batch_norm_backward(
            input, normalized_delta, mean, variance, gamma, epsilon=epsilon, data_format="NCX"
        )
    return BatchNormTrainingBackprop(*grads)
