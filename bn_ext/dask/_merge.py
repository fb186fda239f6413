"""What is summed of two parts, and how it becomes that of both.

Plain sums and statistics of parts have a third row, the count; an exact state knows it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext import _core

__all__ = ["added", "counted", "merged", "with_count"]


def with_count(sums: NDArray[Any], size: int) -> NDArray[Any]:
    """Sums of a part of so many elements, of all channels."""
    if sums.dtype != np.float64:
        return sums
    channels = sums.shape[-1]
    return np.vstack([sums, np.full(channels, size // max(1, channels))])


def added(parts: NDArray[Any]) -> NDArray[Any]:
    """Sums of parts, along the first axis, become one."""
    with _core._DefaultMode():
        total: NDArray[Any] = parts.sum(axis=0)
    # Canonical digits have room for many more parts, so no number of them is too large.
    return total if total.dtype == np.float64 else bn_ext.batch_norm_canonical(total)


def merged(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Plain statistics of parts, along the first axis, become one."""
    counts = parts[:, 2, 0].astype(np.int64)
    stats = bn_ext.batch_norm_training_merge(parts[:, :2], counts)
    return with_count(stats, int(counts.sum()) * stats.shape[1])


def counted(total: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
    """Sums or statistics, and their count; a state has counted itself."""
    if total.dtype != np.float64:
        return total, None
    return total[:2], int(total[2].max(initial=0))
