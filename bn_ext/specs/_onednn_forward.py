"""oneDNN Graph's forward operators: ``BatchNormForwardTraining`` and ``BatchNormInference``."""

from typing import Generic, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bn_ext import _core
from bn_ext._typing import Array, Data, DataFormat, Scalar, Vector
from bn_ext.specs._onednn import as_positive, check_types
from bn_ext.specs._sheet import as_array, in_default_mode, in_words, require_dtype, rounded

__all__ = ["BatchNormForwardTraining", "batch_norm_forward_training", "batch_norm_inference"]


class BatchNormForwardTraining(NamedTuple, Generic[Scalar, Vector]):
    """Outputs of `batch_norm_forward_training`, in the spec's order."""

    dst: NDArray[Scalar]
    running_mean: NDArray[Vector]
    running_variance: NDArray[Vector]
    batch_mean: NDArray[Vector]
    batch_variance: NDArray[Vector]


@in_default_mode
def batch_norm_forward_training(
    src: Data[Scalar],
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    momentum: SupportsFloat = 0.5,
    data_format: DataFormat = "NXC",
) -> BatchNormForwardTraining[Scalar, Vector]:
    """Operator ``BatchNormForwardTraining`` of the oneDNN Graph API.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        Input 0: what is normalized; float32, float16 or bfloat16.
    mean, variance : array, shape (C,)
        Inputs 1 and 2: the running statistics before this step; float32, or bfloat16 if
        the data is bfloat16.
    gamma, beta : array, shape (C,), optional
        Inputs 3 and 4: scale and shift, in mean's dtype; both or neither. None means
        ones and zeros.
    epsilon : float
        Added to the variance: positive and finite as a float32.
    momentum : float, optional
        The weight of the old running statistics, positive and finite as a float32:
        ``running = momentum*old + (1 - momentum)*batch``. The specification has no
        default; 0.5 is what the library uses.
    data_format : {"NXC", "NCX"}, optional
        Whether the channels are on the last axis (channels last: NHWC, ...) or on
        axis 1 (channels first: NCHW, ...).

    Returns
    -------
    BatchNormForwardTraining
        dst (src's dtype), running_mean, running_variance, batch_mean and batch_variance
        (mean's dtype, shape (C,)). Both variances are biased: divided by the number of
        elements. All are new arrays; mean and variance stay as they are.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training`, with this operator's names; also TypeError
        for float64 and for float16 vectors, ValueError for an epsilon or a momentum that
        is not positive and for gamma without beta or the reverse.

    See Also
    --------
    bn_ext.batch_norm_training
    batch_norm_training_backward : The gradient.

    Notes
    -----
    Any rank from 2 up is accepted; epsilon and momentum are used as doubles. What counts
    as an array, and what is copied, is as for `bn_ext.batch_norm_training`; lists of
    Python numbers are float64 or integers, so their types are refused. An empty src gives
    a batch_mean and a batch_variance of NaN, and running statistics as they were.

    In other packages "momentum" may be the weight of the new statistics, and the running
    variance the unbiased one: torch and TensorFlow have both.

    Definition: oneDNN developer guide, Graph API, "BatchNormForwardTraining".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import onednn_graph
    >>> x = np.array([[1, 2], [3, 6]], np.float32)
    >>> found = onednn_graph.batch_norm_forward_training(
    ...     x, np.zeros(2, np.float32), np.ones(2, np.float32), epsilon=1e-3, momentum=0.75)
    >>> found.batch_variance
    array([1., 4.], dtype=float32)
    >>> found.running_variance
    array([1.  , 1.75], dtype=float32)
    """
    if (gamma is None) != (beta is None):
        given, absent = ("beta", "gamma") if gamma is None else ("gamma", "beta")
        raise ValueError(f"gamma, beta: expected both or neither, got {given} without {absent}")
    arrays = {
        "src": as_array(src, "src"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    if gamma is not None and beta is not None:
        arrays["gamma"], arrays["beta"] = as_array(gamma, "gamma"), as_array(beta, "beta")
    value, old_weight = as_positive(epsilon, "epsilon"), as_positive(momentum, "momentum")
    check_types(arrays, data=1)
    data, old_mean, old_variance, *scale_and_shift = arrays.values()
    for name in list(arrays)[2:]:
        require_dtype(name, arrays[name], (old_mean.dtype.name,))
    running = old_mean.astype(np.float32), old_variance.astype(np.float32)
    words = {"running_mean": "mean", "running_variance": "variance"}
    found = _core.batch_norm_training(
        data,
        *scale_and_shift,
        epsilon=value,
        data_format=in_words(data_format, words),
        running_mean=running[0],
        running_variance=running[1],
        exponential_avg_factor=1 - old_weight,
        correction=0,
        out=(None, np.empty_like(old_mean), np.empty_like(old_variance)),
    )
    new_mean, new_variance = (rounded(a, old_mean.dtype) for a in running)
    return BatchNormForwardTraining(found.dst, new_mean, new_variance, found.mean, found.variance)


@in_default_mode
def batch_norm_inference(
    src: Data[Scalar],
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
) -> NDArray[Scalar]:
    """Operator ``BatchNormInference`` of the oneDNN Graph API.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        Input 0: what is normalized; float32, float16 or bfloat16.
    gamma, beta : array, shape (C,)
        Inputs 1 and 2: scale and shift; float32, or bfloat16 if the data is bfloat16.
    mean, variance : array, shape (C,)
        Inputs 3 and 4: the statistics to normalize with, in gamma's dtype.
    epsilon : float
        Added to the variance: positive and finite as a float32.
    data_format : {"NXC", "NCX"}, optional
        Whether the channels are on the last axis (channels last: NHWC, ...) or on
        axis 1 (channels first: NCHW, ...).

    Returns
    -------
    ndarray
        dst, in src's shape and dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_inference`; also TypeError for float64 and for float16
        vectors, ValueError for an epsilon that is not positive.

    See Also
    --------
    bn_ext.batch_norm_inference

    Notes
    -----
    Any rank from 2 up is accepted; epsilon is used as a double. What counts as an array,
    and what is copied, is as for `bn_ext.batch_norm_inference`; lists of Python numbers
    are float64 or integers, so their types are refused.

    Definition: oneDNN developer guide, Graph API, "BatchNormInference".

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
    arrays = {
        "src": as_array(src, "src"),
        "gamma": as_array(gamma, "gamma"),
        "beta": as_array(beta, "beta"),
        "mean": as_array(mean, "mean"),
        "variance": as_array(variance, "variance"),
    }
    value = as_positive(epsilon, "epsilon")
    check_types(arrays, data=1)
    return _core.batch_norm_inference(
        arrays["src"],
        arrays["mean"],
        arrays["variance"],
        arrays["gamma"],
        arrays["beta"],
        epsilon=value,
        data_format=data_format,
    )
