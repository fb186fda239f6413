"""Derivatives that Python computes around the compiled functions: by given statistics, and of the
gradient through a fused ReLU.

Arithmetic with one number per channel is in float64, in the default floating-point mode, with
canonical NaNs, as in C.
"""

from functools import reduce
from typing import Any

import numpy as np

import bn_ext._core as _core
from bn_ext._results import BatchNormDoubleBackward
from bn_ext._typing import NDArray


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


def workspace_size(elements: int, ndim: int) -> int:
    """Bytes of a workspace: a bit for each element of src, then the order of src's axes."""
    return (elements + 7) // 8 + ndim + 8


def gated(
    diff: Any, src: Any, mean: Any, *, workspace: Any, data_format: Any, out: Any = None
) -> Any:
    """`diff` where the ReLU passed the element, as `workspace` tells, and 0 elsewhere.

    Computed as a gradient with frozen statistics and a scale of 1.
    """
    ones, frozen = np.ones_like(mean), {"is_training": False, "param_grads": False, "epsilon": 0}
    gate = {"relu": True, "workspace": workspace, "data_format": data_format}
    return _core.backward(src, diff, ones, ones, **frozen, **gate, out=(out, None, None)).diff_src


def gated_double_backward(
    src: Any, diff_dst: Any, mean: Any, *rest: Any, of_src_1: Any, workspace: Any, **options: Any
) -> BatchNormDoubleBackward[NDArray[Any]]:
    """`_core.double_backward` that also takes the gradient with respect to diff_src_1 and, given a
    workspace, goes through a ReLU.
    """
    gate = {"workspace": workspace, "data_format": options["data_format"]}
    if workspace is not None:
        diff_dst = gated(diff_dst, src, mean, **gate)
    second = _core.double_backward(src, diff_dst, mean, *rest, **options)
    diff_diff_dst = second.diff_diff_dst
    if of_src_1 is not None:
        with _core.DefaultMode():
            diff_diff_dst += of_src_1
    if workspace is not None:
        gated(diff_diff_dst, src, mean, **gate, out=diff_diff_dst)
    return second
