"""Statistics of parts become those of the whole."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bn_ext import _core

__all__ = ["batch_norm_training_merge"]


def batch_norm_training_merge(
    stats: ArrayLike, counts: Iterable[SupportsIndex]
) -> NDArray[np.float64]:
    """Statistics of all parts, from those of each.

    Parameters
    ----------
    stats : array of float64, shape (k, 2, C), or sequence of k arrays
        What `batch_norm_training_reduce` returned for each of k parts.
    counts : sequence of k ints
        Number of elements per channel of each part.

    Returns
    -------
    ndarray of float64, shape (2, C)
        The mean of each channel, and ``sum((src - mean)**2)``, for
        `batch_norm_training_apply`; zeros if no part has elements.

    Raises
    ------
    TypeError
        If stats is not an array of float64, or a count not an integer.
    ValueError
        If shapes do not fit, or a count is negative.

    See Also
    --------
    batch_norm_training_reduce : The statistics of a part.
    batch_norm_training_apply : What takes those of the whole.

    Notes
    -----
    Parts are merged in order [1]_, so the same parts give the same bits every time, but not bit for
    bit those of the whole.

    References
    ----------
    .. [1] Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
       sample variances", 1979.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> parts = np.array([[1.0], [3.0]]), np.array([[8.0]])
    >>> stats = [bn_ext.batch_norm_training_reduce(part) for part in parts]
    >>> bn_ext.batch_norm_training_merge(stats, [2, 1])
    array([[ 4.],
           [26.]])
    """
    if not isinstance(stats, (list, tuple)):
        given = _core._as_array(stats, "stats")
    else:
        parts = [_core._as_array(part, "stats") for part in stats]
        if len({part.shape for part in parts}) > 1:
            shapes = ", ".join(str(part.shape) for part in parts)
            raise ValueError(f"stats: expected shape (k, 2, C), got parts of shapes {shapes}")
        given = np.array(parts)
    if given.dtype != np.float64:
        raise TypeError(f"stats: expected float64, got {given.dtype}")
    if given.ndim != 3 or given.shape[1] != 2:
        raise ValueError(f"stats: expected shape (k, 2, C), got {given.shape}")
    numbers = _counts(counts)
    if len(numbers) != len(given):
        raise ValueError(
            f"counts: expected {len(given)} of them, one for each of stats, got {len(numbers)}"
        )
    merged = np.zeros(given.shape[1:])
    count = 0
    with _core._DefaultMode():
        for (mean, squares), number in zip(given, numbers, strict=True):
            if number == 0:
                continue
            off = mean - merged[0]
            total = count + number
            if count == 0:
                merged[0] = mean
                merged[1] = squares
            else:
                merged[0] += off * (number / total)
                merged[1] += squares + off * off * (count * (number / total))
            count = total
    return merged


def _counts(counts: Iterable[SupportsIndex]) -> Sequence[int]:
    try:
        numbers = [index(count) for count in counts]
    except TypeError:
        raise TypeError(f"counts: expected integers, got {counts!r:.80}") from None
    for number in numbers:
        if number < 0:
            raise ValueError(f"counts: expected at least 0, got {number}")
        if number >= 2**63:
            raise ValueError(
                f"counts: expected less than 2**63, got a number of {number.bit_length()} bits"
            )
    return numbers
