"""What every sheet needs: a spec's type table, and its names in our messages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def dtype_name(array: Any) -> str:
    """Name of an array's dtype, torch's without its module; of anything else, its type's."""
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return type(array).__name__
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def require_dtype(name: str, array: Any, allowed: tuple[str, ...]) -> None:
    """Raise TypeError unless array has a dtype of these names.

    What is no array at all is left to the general function to refuse.
    """
    if hasattr(array, "dtype") and dtype_name(array) not in allowed:
        raise TypeError(f"{name}: expected {' or '.join(allowed)}, got {dtype_name(array)}")


@contextmanager
def renamed(**spec_names: str) -> Iterator[None]:
    """Say in errors what the spec calls the general function's arguments."""
    words = re.compile(r"\b(" + "|".join(spec_names) + r")\b")
    try:
        yield
    except (TypeError, ValueError) as error:
        message = words.sub(lambda word: spec_names[word[0]], str(error))
        raise type(error)(message) from None
