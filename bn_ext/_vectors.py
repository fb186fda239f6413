"""Arithmetic with one number per channel, in float64: in the default floating-point mode, with
canonical NaNs, as in C.
"""

from functools import reduce
from typing import Any

import numpy as np

from bn_ext import _core

__all__ = ["product", "rstd", "statistics_backward"]


def product(*factors: Any) -> Any:
    """Their product. It overflows or underflows only if its value does: exponents are added."""
    with _core.DefaultMode():
        numbers, exponents = zip(*map(np.frexp, factors), strict=True)
        found = np.ldexp(reduce(np.multiply, numbers), sum(exponents))
        return np.where(np.isnan(found), np.nan, found)


def rstd(variance: Any, epsilon: float) -> Any:
    with _core.DefaultMode():
        return 1 / np.sqrt(variance + epsilon)


def statistics_backward(
    diff_gamma: Any, diff_beta: Any, variance: Any, gamma: Any, epsilon: float
) -> tuple[Any, Any]:
    """diff_mean, diff_variance."""
    scale = rstd(variance, epsilon), -1.0 if gamma is None else -gamma
    return product(*scale, diff_beta), product(*scale, scale[0], diff_gamma, 0.5)
