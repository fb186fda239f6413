"""torch's halves for data in parts, which its SyncBatchNorm calls: six operators.

forward     stats of each part -> gather_stats of all -> elemt of each part
backward    backward_reduce of each part -> sums added -> backward_elemt of each part
"""

from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext import _core
from bn_ext._typing import Array, Data, Scalar
from bn_ext.specs._pytorch import (
    NCX,
    as_counts,
    as_data,
    as_numbers,
    as_vectors,
    doubles,
    inverse_deviation,
    number_of,
    refuse_copies,
    running_pair,
    update,
    variance_of,
)
from bn_ext.specs._sheet import (
    as_array,
    as_epsilon,
    as_index,
    as_number,
    count_of,
    in_default_mode,
    rounded,
    shown,
)

__all__ = [
    "BatchNormStats",
    "batch_norm_elemt",
    "batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_stats",
]


class BatchNormStats(NamedTuple):
    """Outputs of `batch_norm_stats` and of both ways to gather them."""

    mean: NDArray[Any]
    invstd: NDArray[Any]


@in_default_mode
def batch_norm_stats(input: Array, eps: SupportsFloat) -> BatchNormStats:
    """Operator ``aten::batch_norm_stats`` of torch: the statistics of one part.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        One part: float32, float64, float16 or bfloat16.
    eps : float
        Added to the variance: finite, at least 0.

    Returns
    -------
    BatchNormStats
        mean, and invstd = ``1 / sqrt(variance + eps)`` of the biased variance, 0 where
        both are 0; shape (C,), float64 with float64 data, otherwise float32. NaN without
        elements.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training_reduce`, with this operator's names.

    See Also
    --------
    batch_norm_gather_stats_with_counts : Statistics of all parts, from these.
    bn_ext.batch_norm_training_reduce

    Notes
    -----
    `bn_ext.batch_norm_training_reduce` gives doubles, which lose nothing on the way.

    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> pytorch.batch_norm_stats(np.array([[1.0, 2.0], [3.0, 6.0]]), 0.0)
    BatchNormStats(mean=array([2., 4.]), invstd=array([1. , 0.5]))
    """
    data, value = as_data(input), as_epsilon(eps, "eps")
    dtype, count = number_of(data), count_of(data, 1)
    mean, squares = _core.batch_norm_training_reduce(data, data_format=NCX)[:2]
    if not count:
        mean, squares = mean * np.nan, squares * np.nan
    invstd = inverse_deviation(squares / max(count, 1), value)
    return BatchNormStats(rounded(mean, dtype), rounded(invstd, dtype))


@in_default_mode
def batch_norm_elemt(
    input: Data[Scalar],
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    invstd: Array,
    eps: SupportsFloat,
) -> NDArray[Scalar]:
    """Operator ``aten::batch_norm_elemt`` of torch: normalize with given statistics.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        One part: float32, float64, float16 or bfloat16.
    weight, bias : array, shape (C,), or None
        Scale and shift: in input's dtype or, with 16-bit data, float32.
    mean, invstd : array, shape (C,)
        The statistics of all parts, in the type that input is computed in: float32, or
        float64 with float64 data.
    eps : float
        Not used, since invstd has it: finite, at least 0.

    Returns
    -------
    ndarray
        ``(input - mean) * invstd * weight + bias``, in input's shape and dtype.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_inference`, with this operator's names.

    See Also
    --------
    batch_norm_gather_stats_with_counts : The statistics to normalize with.
    bn_ext.batch_norm_inference

    Notes
    -----
    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> pytorch.batch_norm_elemt(x, None, None, np.zeros(2), np.array([1.0, 0.5]), 0.0)
    array([[1., 1.],
           [3., 3.]])
    """
    data = as_data(input)
    as_epsilon(eps, "eps")
    _, vectors = as_vectors(data, weight=weight, bias=bias)
    center, inverse = as_numbers(data, data.shape[1:2], mean=mean, invstd=invstd)
    return _core.batch_norm_inference(
        data,
        center,
        variance_of(inverse),
        doubles(vectors["weight"]),
        doubles(vectors["bias"]),
        epsilon=0.0,
        data_format=NCX,
    )


def _gathered(
    input: Array,
    mean: Array,
    invstd: Array,
    running: tuple[Array | None, Array | None],
    momentum: SupportsFloat,
    eps: SupportsFloat,
    counts: list[int] | int,
) -> BatchNormStats:
    """Statistics of all parts; the running ones are updated."""
    refuse_copies(running_mean=running[0], running_var=running[1])
    data, value, factor = as_data(input), as_epsilon(eps, "eps"), as_number(momentum, "momentum")
    channels, rows = data.shape[1], as_array(mean, "mean")
    parts = len(rows) if rows.ndim else 0
    if isinstance(counts, int):
        total = counts * parts
    elif len(counts) != parts:
        raise ValueError(f"counts: expected one for each of {parts} parts, got {len(counts)}")
    else:
        total = sum(counts)
    spreads = as_array(invstd, "invstd")
    means, inverses = as_numbers(data, (parts, channels), mean=rows, invstd=spreads)
    _, vectors = as_vectors(data, running_mean=running[0], running_var=running[1])
    pair = running_pair(vectors, channels, input=data, mean=rows, invstd=spreads)
    if not total:
        raise ValueError("counts: expected at least one element")
    if total >= 2**53:
        raise ValueError("counts: expected fewer than 2**53 elements")
    # Nothing is left of a variance that is tiny next to eps but its rounding errors.
    variances = np.where(inverses == 0, 0, np.maximum(variance_of(inverses) - value, 0))
    numbers = np.array(counts, np.float64).reshape(-1, 1)
    stats = np.empty((parts, 4, channels))
    stats[:, 1] = variances * numbers
    stats[:, 0], stats[:, 2], stats[:, 3] = means, numbers, 1
    center, squares = bn_ext.batch_norm_training_merge(stats)[:2]
    variance, number = squares / total, number_of(data)
    inverse = inverse_deviation(variance, value)
    found = BatchNormStats(rounded(center, number), rounded(inverse, number))
    update(pair, center, variance, total, factor)
    return found


@in_default_mode
def batch_norm_gather_stats(
    input: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: SupportsFloat,
    eps: SupportsFloat,
    count: SupportsIndex,
) -> BatchNormStats:
    """Operator ``aten::batch_norm_gather_stats`` of torch: parts of one size become a whole.

    Parameters
    ----------
    input : array, shape (N, C, ...)
        Any part: only its dtype and number of channels matter.
    mean, invstd : array, shape (parts, C)
        What `batch_norm_stats` returned for each part.
    running_mean, running_var : array, shape (C,), or None
        Running statistics, both or neither, updated in place; in input's dtype or, with
        16-bit data, float32.
    momentum : float
        The weight of the new statistics in the running ones, the variance unbiased.
    eps : float
        What invstd was made with: finite, at least 0.
    count : int
        Elements per channel of each part.

    Returns
    -------
    BatchNormStats
        mean and invstd of all parts together, shape (C,), in mean's dtype.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_gather_stats_with_counts`.

    See Also
    --------
    batch_norm_gather_stats_with_counts : For parts of different sizes.
    bn_ext.batch_norm_training_merge

    Notes
    -----
    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x = np.zeros((4, 1))
    >>> pytorch.batch_norm_gather_stats(
    ...     x, np.array([[1.0], [3.0]]), np.ones((2, 1)), None, None, 0.1, 0.0, 4)
    BatchNormStats(mean=array([2.]), invstd=array([0.70710678]))
    """
    number = as_index(count, "count", "an integer")
    if number < 1:
        raise ValueError(f"count: expected at least 1, got {shown(number)}")
    return _gathered(input, mean, invstd, (running_mean, running_var), momentum, eps, number)


@in_default_mode
def batch_norm_gather_stats_with_counts(
    input: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: SupportsFloat,
    eps: SupportsFloat,
    counts: Array,
) -> BatchNormStats:
    """Operator ``aten::batch_norm_gather_stats_with_counts`` of torch: parts become a whole.

    Parameters
    ----------
    input, mean, invstd, running_mean, running_var, momentum, eps
        As for `batch_norm_gather_stats`.
    counts : array, shape (parts,) or (parts, 1)
        Elements per channel of each part: whole numbers, in any real dtype.

    Returns
    -------
    BatchNormStats
        mean and invstd of all parts together, shape (C,), in mean's dtype.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or the running statistics are not writable or not
        of their own memory. Nothing has been written then.

    See Also
    --------
    batch_norm_stats : The statistics of a part.
    batch_norm_elemt : Normalizes with those of all.
    bn_ext.batch_norm_training_merge

    Notes
    -----
    A part without elements changes nothing, whatever its statistics are. invstd loses
    digits of a variance that is small next to eps; `bn_ext.batch_norm_training_merge`
    takes doubles, which do not.

    Definition: pytorch, "aten/src/ATen/native/native_functions.yaml".

    Examples
    --------
    >>> import numpy as np
    >>> from bn_ext.specs import pytorch
    >>> x = np.array([[1.0], [3.0], [8.0]])
    >>> parts = [pytorch.batch_norm_stats(part, 0.0) for part in (x[:2], x[2:])]
    >>> mean, invstd = (np.stack(some) for some in zip(*parts))
    >>> pytorch.batch_norm_gather_stats_with_counts(
    ...     x, mean, invstd, None, None, 0.1, 0.0, np.array([2, 1])).mean
    array([4.])
    """
    numbers = as_counts(counts, "counts")
    return _gathered(input, mean, invstd, (running_mean, running_var), momentum, eps, numbers)
