"""What every wrapper needs: conversion, a spec's type table, and its names in our messages.

A wrapper first converts each argument, once, by the general function's own rules; then
it checks the results and passes them on.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from bn_ext._core import _as_array as as_array
from bn_ext._core import _as_epsilon as as_epsilon
from bn_ext._core import _as_flag as as_flag
from bn_ext._core import _shown as shown

__all__ = ["as_array", "as_epsilon", "as_flag", "renamed", "require_dtype", "shown"]


def require_dtype(name: str, array: NDArray[Any], allowed: Iterable[str]) -> None:
    """Raise TypeError unless array's dtype is one of these."""
    if array.dtype.name not in allowed:
        raise TypeError(f"{name}: expected {' or '.join(allowed)}, got {array.dtype}")


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
