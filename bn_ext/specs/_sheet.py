"""What every wrapper needs: conversion, a spec's type table, and its names in our messages.

A wrapper first converts each argument, once, by the general function's own rules; then
it checks the results and passes them on.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, SupportsFloat, TypeVar

import numpy as np
from numpy.typing import NDArray

from bn_ext._core import _as_array as as_array
from bn_ext._core import _as_epsilon as as_epsilon
from bn_ext._core import _as_flag as as_flag
from bn_ext._core import _DefaultMode
from bn_ext._core import _shown as shown

__all__ = [
    "as_array",
    "as_epsilon",
    "as_flag",
    "as_number",
    "count_of",
    "in_default_mode",
    "renamed",
    "require_dtype",
    "require_shape",
    "rounded",
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


#: What a message shows of the caller's, behind "got": a string, a list or a table, or all up
#: to a hint.
_SHOWN = r"""(?<=\bgot )(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\[{].*[\]}]|[^;]*)"""


@contextmanager
def renamed(words: dict[str, str]) -> Iterator[None]:
    """In errors, replace the general function's words with the spec's, and leave the caller's."""
    ours = "|".join(map(re.escape, words))
    pattern = re.compile(rf"{_SHOWN}|(?<!\w)({ours})(?!\w)", re.DOTALL)
    try:
        yield
    except (TypeError, ValueError) as error:
        message = pattern.sub(lambda found: words[found[1]] if found[1] else found[0], str(error))
        raise type(error)(message) from None


def as_number(value: SupportsFloat, name: str) -> float:
    """The double, if it is finite: by as_epsilon's rules, but of either sign."""
    with renamed({"epsilon": name}):
        try:
            return as_epsilon(value)
        except ValueError:
            pass
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {shown(value)}")
    return number
