"""What is summed of two parts becomes that of both."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext import _core

__all__ = ["added"]


def added(parts: NDArray[Any]) -> NDArray[Any]:
    """Sums of parts, along the first axis, become one."""
    with _core._DefaultMode():
        total: NDArray[Any] = parts.sum(axis=0)
    # Canonical digits have room for many more parts, so no number of them is too large.
    return total if total.dtype == np.float64 else bn_ext.batch_norm_canonical(total)
