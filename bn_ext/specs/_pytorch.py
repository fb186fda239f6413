"""What torch's operators share: dtypes, running statistics and inverse deviations.

Channels are on axis 1. Vectors have the data's dtype; with 16-bit data, they may all be
float32. They go on as doubles, and what comes of them is rounded once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bn_ext._typing import Array
from bn_ext.specs._sheet import (
    as_array,
    in_words,
    require_dtype,
    require_shape,
    rounded,
    share_memory,
)

__all__ = [
    "NCX",
    "NCX_RUNNING",
    "NCX_SAVED",
    "as_data",
    "as_vectors",
    "doubles",
    "inverse_deviation",
    "refuse_copies",
    "running_pair",
    "update",
    "variance_of",
]

#: The general function's words, and torch's.
_WORDS = {
    "src": "input",
    "diff_dst": "grad_out",
    "gamma": "weight",
    "beta": "bias",
    "running_variance": "running_var",
    "epsilon": "eps",
    "NXC": "pass np.moveaxis(input, -1, 1), which copies nothing",
}

#: Channels on axis 1; and with statistics that are called something else.
NCX = in_words("NCX", _WORDS)
NCX_RUNNING = in_words("NCX", {**_WORDS, "mean": "running_mean", "variance": "running_var"})
NCX_SAVED = in_words("NCX", {**_WORDS, "mean": "save_mean", "variance": "save_invstd"})

# Type of the data -> types of the vectors, the first the one that the data is computed in.
_TYPES = {
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
}


def as_data(a: Array, name: str = "input") -> NDArray[Any]:
    """Data with an axis for the channels."""
    data = as_array(a, name)
    require_dtype(name, data, _TYPES)
    if data.ndim < 2:
        raise ValueError(f"{name}: expected at least 2 dimensions, got shape {data.shape}")
    return data


def as_vectors(
    data: NDArray[Any], **vectors: Array | None
) -> tuple[np.dtype[Any], dict[str, NDArray[Any] | None]]:
    """The dtype that all of them have, the data's if there are none; and the arrays."""
    arrays = {n: None if v is None else as_array(v, n) for n, v in vectors.items()}
    given = {n: a for n, a in arrays.items() if a is not None}
    allowed, dtype = _TYPES[data.dtype.name], data.dtype
    for name, array in given.items():
        require_dtype(name, array, allowed)
        allowed, dtype = (array.dtype.name,), array.dtype
    return dtype, arrays


def doubles(vector: NDArray[Any] | None) -> NDArray[np.float64] | None:
    """The same numbers, if there are any."""
    return None if vector is None else vector.astype(np.float64)


def variance_of(invstd: NDArray[np.float64]) -> NDArray[np.float64]:
    """What eps is part of: infinite where invstd is 0, so that nothing is left there."""
    return 1 / (invstd * invstd)


def inverse_deviation(variance: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    """1 / sqrt(variance + eps), but 0 where that is 1 / 0, as torch has it."""
    spread = variance + eps
    return np.where(spread == 0, 0, 1 / np.sqrt(spread))


def refuse_copies(**arrays: Array | None) -> None:
    """What is updated in place has memory of its own: `__array__` may give a copy of it."""
    for name, given in arrays.items():
        lends = isinstance(given, np.ndarray) or any(
            hasattr(given, way) for way in ("__dlpack__", "__array_interface__", "__buffer__")
        )
        copied = isinstance(given, (list, tuple)) or hasattr(given, "__array__")
        if copied and not lends:
            what = type(given).__name__
            raise TypeError(f"{name}: expected an array, which is updated in place, got a {what}")


def running_pair(
    vectors: dict[str, NDArray[Any] | None], channels: int, **others: NDArray[Any] | None
) -> list[NDArray[Any]]:
    """Both running statistics, if they can be updated and nothing else with them; or none."""
    pair = [a for a in (vectors["running_mean"], vectors["running_var"]) if a is not None]
    if len(pair) == 1:
        raise ValueError("running_mean, running_var: expected both or neither")
    for name, array in zip(("running_mean", "running_var"), pair, strict=False):
        require_shape(name, array, (channels,))
        if not array.flags.writeable:
            raise ValueError(f"{name}: expected a writable array, got a read-only one")
        if channels > 1 and abs(array.strides[0]) < array.itemsize:
            raise ValueError(f"{name}: overlaps itself in memory")
        for other, given in {**vectors, **others}.items():
            if given is None or other in ("running_mean", "running_var"):
                continue
            if share_memory(array, given):
                raise ValueError(f"{name}: shares memory with {other}")
    if pair and share_memory(pair[0], pair[1]):
        raise ValueError("running_var: shares memory with running_mean")
    return pair


def update(
    pair: list[NDArray[Any]],
    mean: NDArray[np.float64],
    variance: NDArray[np.float64],
    count: int,
    momentum: float,
) -> None:
    """Running statistics after a step: momentum is the weight of the new ones.

    The variance becomes unbiased, NaN of one element.
    """
    unbiased = variance * count / np.float64(count - 1)
    new = [
        rounded((1 - momentum) * old.astype(np.float64) + momentum * of_batch, old.dtype)
        for old, of_batch in zip(pair, (mean, unbiased), strict=False)
    ]
    for old, value in zip(pair, new, strict=True):
        old[...] = value
