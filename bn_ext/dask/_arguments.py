"""The arguments: Dask arrays over the same blocks, and vectors that fit in memory.

A dry run of the general function checks dtypes, shapes and options. Here the chunks are checked,
which it cannot see.
"""

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from numpy.typing import NDArray

from bn_ext import _core

__all__ = ["as_operands", "as_options", "as_vectors", "channel_axis"]


def as_operands(data_format: object, **given: object) -> dict[str, da.Array]:
    """Those that are given, with src's chunks; src is the first."""
    operands = {name: _as_dask(name, a) for name, a in given.items() if a is not None}
    src = operands["src"]
    if src.ndim < 2:
        raise ValueError(f"src: expected at least 2 dimensions, got shape {src.shape}")
    if math.isnan(src.shape[channel_axis(src, data_format)]):
        raise ValueError(
            f"src: expected channels in chunks of known sizes, got chunks {src.chunks}; "
            "src.compute_chunk_sizes() finds them"
        )
    return {name: _over_the_chunks_of(src, name, a) for name, a in operands.items()}


def channel_axis(src: da.Array, data_format: object) -> int:
    """Where the channels are; a wrong format is refused later."""
    return 1 if data_format == "NCX" else int(src.ndim) - 1


def as_vectors(**given: Any) -> dict[str, NDArray[Any]]:
    """Those that are given, in memory."""
    lazy = {name: a for name, a in given.items() if isinstance(a, da.Array)}
    (known,) = compute(lazy)  # all at once
    return {
        name: _core._as_array(known.get(name, a), name)
        for name, a in given.items()
        if a is not None
    }


def as_options(
    epsilon: object, data_format: object, relu: object, num_threads: object
) -> dict[str, Any]:
    """Those that all functions have, converted: a task gets no object of the caller's."""
    return {
        "epsilon": _core._as_epsilon(epsilon),
        "data_format": data_format,
        "relu": _core._as_flag(relu, "relu"),
        "num_threads": num_threads,
    }


def _as_dask(name: str, a: object) -> da.Array:
    if not isinstance(a, da.Array):
        hint = ""
        if isinstance(getattr(a, "data", None), da.Array):
            hint = f"; pass {name}.data"
        elif isinstance(a, np.ndarray):
            hint = f"; pass dask.array.from_array({name}), or all as NumPy arrays to bn_ext itself"
        raise TypeError(
            f"{name}: expected a Dask array, got {type(a).__module__}.{type(a).__qualname__}{hint}"
        )
    kind = type(a._meta)
    if kind is not np.ndarray:
        raise TypeError(
            f"{name}: expected chunks that are NumPy arrays, got {kind.__module__}.{kind.__name__}"
        )
    return a


def _over_the_chunks_of(src: da.Array, name: str, a: da.Array) -> da.Array:
    """The array a, rechunked if need be."""
    like_src = a.ndim == src.ndim and all(
        n == m or math.isnan(n) or math.isnan(m) for n, m in zip(a.shape, src.shape, strict=True)
    )
    if not like_src:
        raise ValueError(f"{name}: expected shape {src.shape}, like src, got {a.shape}")
    wanted = {}
    for axis, (ours, its) in enumerate(zip(src.chunks, a.chunks, strict=True)):
        if not any(map(math.isnan, (*ours, *its))):
            wanted[axis] = ours
        elif len(ours) != len(its):
            raise ValueError(
                f"{name}: expected {len(ours)} chunks along axis {axis}, like src, as their sizes "
                f"are unknown, got {len(its)}; compute_chunk_sizes() finds them"
            )
    result: da.Array = a.rechunk(wanted)
    return result
