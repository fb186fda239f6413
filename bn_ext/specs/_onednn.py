"""What oneDNN Graph's operators share: their type table, and positive attributes."""

from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from bn_ext.specs._sheet import as_real, require_dtype, shown

__all__ = ["as_positive", "check_types"]

# Type of the data -> types of mean, variance, gamma and their gradients.
_TYPES = {
    "float32": ("float32",),
    "float16": ("float32",),
    "bfloat16": ("float32", "bfloat16"),
}


def check_types(arrays: dict[str, NDArray[Any]], data: int) -> None:
    """Look the dtypes up in the table: the first `data` arrays are the data."""
    names = list(arrays)
    for name in names[:data]:
        require_dtype(name, arrays[name], _TYPES)
    for name in names[data:]:
        require_dtype(name, arrays[name], _TYPES[arrays[names[0]].dtype.name])


def as_positive(value: SupportsFloat, name: str) -> float:
    """The double, if it is positive and finite as a float32."""
    expected = "a number that is positive and finite as a float32"
    number = as_real(value, name, expected)
    as_float32 = np.float32(number)
    if not (np.isfinite(as_float32) and as_float32 > 0):
        raise ValueError(f"{name}: expected {expected}, got {shown(value)}")
    return number
