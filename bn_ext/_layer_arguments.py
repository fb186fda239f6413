"""What the layer is made with: each becomes what it is, or an error that names it."""

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["as_channels", "as_number"]


def as_number(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype of parameters and statistics."""
    try:
        number = np.dtype(dtype)
    except TypeError:
        number = None
    if number not in (np.float32, np.float64):
        raise TypeError(f"dtype: expected float64 or float32, got {number or repr(dtype)}")
    return number


def as_channels(channels: SupportsIndex) -> int:
    """How many there are."""
    if isinstance(channels, bool) or not hasattr(channels, "__index__"):
        raise TypeError(f"channels: expected an integer, got {channels!r}")
    number = operator.index(channels)
    most = np.iinfo(np.intp).max // np.dtype(np.float64).itemsize
    if not 1 <= number <= most:
        raise ValueError(f"channels: expected 1 to {most}, got {number}")
    return number
