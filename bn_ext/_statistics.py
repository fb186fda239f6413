"""Gradients with respect to given statistics."""

from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._names import refuses_other_names
from bn_ext._typing import Array

__all__ = ["batch_norm_statistics_backward"]


@refuses_other_names
def batch_norm_statistics_backward(
    diff_gamma: Array,
    diff_beta: Array,
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gradient of batch normalization with respect to a given mean and variance.

    Use it if the statistics do not come from src but depend on other trained parameters. It reads
    no data: `batch_norm_backward` with ``is_training=False`` has already computed the sums.

    Parameters
    ----------
    diff_gamma, diff_beta : array, shape (C,)
        What `batch_norm_backward` returned with ``is_training=False``.
    variance, gamma, epsilon
        What was passed to `batch_norm_backward`. All vectors have the same dtype.

    Returns
    -------
    diff_mean, diff_variance : ndarray, shape (C,)
        In the same dtype: ``-gamma * rstd * diff_beta`` and ``-gamma * rstd**2 * diff_gamma / 2``
        with ``rstd = 1 / sqrt(variance + epsilon)``, computed in float64 and rounded once.

    Raises
    ------
    TypeError
        If an argument is not an array or not of diff_gamma's dtype, or epsilon is not a number.
    ValueError
        If a vector does not have diff_gamma's shape, or epsilon is negative or not finite.

    See Also
    --------
    bn_ext.autograd.batch_norm_inference : Gives these derivatives to autograd.

    Notes
    -----
    The formulas are the derivatives of ``dst = gamma * (src - mean) * rstd + beta``. With
    ``is_training=True``, mean and variance depend on src, and diff_src includes their contribution.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src, diff_dst = np.array([[1.0], [2.0], [6.0]]), np.array([[1.0], [0.0], [1.0]])
    >>> mean, variance = np.array([2.0]), np.array([4.0])
    >>> grads = bn_ext.batch_norm_backward(
    ...     src, diff_dst, mean, variance, epsilon=0.0, is_training=False)
    >>> bn_ext.batch_norm_statistics_backward(
    ...     grads.diff_gamma, grads.diff_beta, variance, epsilon=0.0)
    (array([-1.]), array([-0.1875]))
    """
    given = {"diff_gamma": diff_gamma, "diff_beta": diff_beta, "variance": variance, "gamma": gamma}
    if gamma is None:
        del given["gamma"]
    vectors = {name: _core._as_array(vector, name) for name, vector in given.items()}
    first = vectors["diff_gamma"]
    for name, vector in vectors.items():
        like, shape = (", like diff_gamma", first.shape) if vector is not first else ("", "(C,)")
        if vector.ndim != 1 or vector.shape != first.shape:
            raise ValueError(f"{name}: expected shape {shape}{like}, got {vector.shape}")
        types = [first.dtype.name] if like else [*_core._TABLE]
        if vector.dtype.name not in types or not vector.dtype.isnative:
            raise _core._wrong_dtype(name, vector, _core._or(types) + like, types[0])
    epsilon = _core._as_epsilon(epsilon, "epsilon")
    with _core._DefaultMode(), np.errstate(all="ignore"):
        wide = {name: vector.astype(np.float64) for name, vector in vectors.items()}
        rstd = 1 / np.sqrt(wide["variance"] + epsilon)
        scale = -rstd * wide.get("gamma", 1.0)
        found = scale * wide["diff_beta"], scale * rstd * wide["diff_gamma"] / 2
        for diff in found:
            diff[np.isnan(diff)] = np.nan  # the canonical one, as in C
        return found[0].astype(first.dtype), found[1].astype(first.dtype)
