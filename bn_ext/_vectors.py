"""Arithmetic with one number per channel, in float64: in the default floating-point mode, with
canonical NaNs, as in C.
"""

from functools import reduce
from typing import Any

import numpy as np

import bn_ext._core as _core


def vectors_alike(**arrays: Any) -> dict[str, Any]:
    """Arguments as vectors, which must all have the first one's length."""
    vectors = {name: _core.as_array(vector, name) for name, vector in arrays.items()}
    like, first = next(iter(vectors.items()))
    for name, vector in vectors.items():
        if vector.ndim != 1 or vector.shape != first.shape:
            expected = "(C,)" if vector is first else f"{first.shape}, like {like}"
            raise ValueError(f"{name}: expected shape {expected}, got {vector.shape}")
        _core.require_dtype(name, vector, _core.DTYPES)
    return vectors


def product(*factors: Any) -> Any:
    """Their product. It overflows or underflows only if its value does: exponents are added."""
    with _core.DefaultMode():
        numbers, exponents = zip(*map(np.frexp, factors), strict=True)
        result = np.ldexp(reduce(np.multiply, numbers), sum(exponents))
        return np.where(np.isnan(result), np.nan, result)


def statistics_backward(
    diff_gamma: Any, diff_beta: Any, variance: Any, gamma: Any, epsilon: float
) -> tuple[Any, Any]:
    """diff_mean, diff_variance."""
    with _core.DefaultMode():
        rstd = 1 / np.sqrt(variance + epsilon)
    scale = rstd, -1.0 if gamma is None else -gamma
    return product(*scale, diff_beta), product(*scale, rstd, diff_gamma, 0.5)
