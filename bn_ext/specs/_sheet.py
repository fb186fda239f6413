"""What every wrapper needs: conversion, a spec's type table, and its names in messages.

A wrapper first converts each argument, once, by the general function's own rules; then
it checks the results and passes them on.
"""

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import (
    _as_array as as_array,
    _as_epsilon as as_epsilon,
    _as_flag as as_flag,
    _as_real as as_real,
    _DefaultMode,
    _share_memory as share_memory,
    _shown as shown,
    _Words,
)

__all__ = [
    "as_array",
    "as_epsilon",
    "as_flag",
    "as_number",
    "as_real",
    "count_of",
    "in_default_mode",
    "in_words",
    "require_dtype",
    "require_shape",
    "rounded",
    "share_memory",
    "shown",
]


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def in_default_mode(operator: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """An operator that computes in Python too: as all else here, whatever the caller's mode is."""

    @wraps(operator)
    def computed(*given: _Given.args, **options: _Given.kwargs) -> _Result:
        with _DefaultMode():
            return operator(*given, **options)

    return computed


def require_dtype(name: str, array: NDArray[Any], allowed: Iterable[str]) -> None:
    """Raise TypeError unless array's dtype is one of these, in native byte order."""
    dtype = array.dtype
    if dtype.name not in allowed:
        raise TypeError(f"{name}: expected {' or '.join(allowed)}, got {dtype}")
    if not dtype.isnative:
        raise TypeError(
            f"{name}: expected native byte order, got {dtype.str}; "
            f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        )


def require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless array has this shape."""
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")


def count_of(data: NDArray[Any], axis: int) -> int:
    """How many elements a channel has."""
    return math.prod(data.shape[:axis]) * math.prod(data.shape[axis:][1:])


def rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """In another dtype."""
    return values.astype(dtype, copy=False)


def in_words(data_format: str, words: dict[str, str]) -> Any:
    """The data format for a general function, whose messages then use the spec's names."""
    return _Words(data_format, words)


def as_number(value: object, name: str) -> float:
    """The double, if it is finite."""
    return as_real(value, name, "a finite number")
