"""What the layer is given: each becomes what it is, or an error that names it."""

import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bn_ext import _core

__all__ = ["MOST_BATCHES", "as_channels", "as_number", "as_state"]

_FLOATS = ("float32", "float64", "float16", "bfloat16")
#: How many batches a state can count.
MOST_BATCHES = 2**63 - 1


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


def as_state(state: Mapping[str, Any], own: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """{name: array to be copied into the layer's own}; refused if any of these is read-only."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state: expected a mapping, got {type(state).__name__}")
    missing = own.keys() - state.keys() - {"num_batches_tracked"}
    unexpected = state.keys() - own.keys()
    if missing or unexpected:
        raise ValueError(
            f"state: expected {', '.join(own)}; missing: {', '.join(sorted(missing)) or '-'}; "
            f"unexpected: {', '.join(sorted(map(str, unexpected))) or '-'}"
        )
    new = {}
    for name, value in state.items():
        tracked = name == "num_batches_tracked"
        array = np.asarray(value) if tracked else _core._as_array(value, name)
        if array.shape != own[name].shape:
            raise ValueError(f"{name}: expected shape {own[name].shape}, got {array.shape}")
        if tracked and array.dtype.kind not in "iu":
            raise TypeError(f"{name}: expected an integer, got {array.dtype}")
        if not tracked and array.dtype.name not in _FLOATS:
            raise TypeError(f"{name}: expected {' or '.join(_FLOATS)}, got {array.dtype}")
        if tracked and not 0 <= int(array) <= MOST_BATCHES:
            raise ValueError(f"{name}: expected 0 to {MOST_BATCHES}, got {int(array)}")
        if not own[name].flags.writeable:
            raise ValueError(f"{name}: expected a writable array in the layer")
        with _core._DefaultMode():
            new[name] = array.astype(own[name].dtype)
    return new
