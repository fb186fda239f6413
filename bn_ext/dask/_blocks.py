"""A function on every block; its results are merged by a tree, or lie lazily side by side.

A task holds one block of each operand and nothing else as large, and reading is fused into it: only
the blocks of running tasks are in memory.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext import _core
from bn_ext.dask._arguments import channel_axis

__all__ = ["Blocks", "added"]


@dataclass
class Blocks:
    """Arguments of a function on every block, which gets its part of each operand, and the channels
    of that part from each vector.
    """

    operands: dict[str, da.Array]
    vectors: dict[str, NDArray[Any]]
    options: dict[str, Any]

    def check(self, function: Callable[..., Any], **options: Any) -> None:
        """Refuse what function would refuse of the whole."""
        _core._dry_run(function, **self._shapes(), **self.vectors, **self.options, **options)

    def on_nothing(self, function: Callable[..., Any], **options: Any) -> Any:
        """What function returns for a part without elements."""
        empty = {name: a[:0] for name, a in self._shapes().items()}
        return function(**empty, **self.vectors, **self.options, **options)

    def map(self, function: Callable[..., Any], **options: Any) -> da.Array:
        """The first result of function on every block, a Dask array like src."""
        return self._on_each(_result, function, self._axes, self.operands["src"].dtype, options)

    def reduce(
        self,
        function: Callable[..., Any],
        merge: Callable[[NDArray[Any]], NDArray[Any]],
        **options: Any,
    ) -> NDArray[Any]:
        """What function gives of every block, merged; computed now."""
        of_none = self.on_nothing(function, **options)
        *rows, _ = of_none.shape
        others = [*self._axes]
        channel = others.pop(self._channel)
        new = [f"row {i}" for i in range(len(rows))]
        parts = self._on_each(
            _summed,
            function,
            (*others, *new, channel),
            of_none.dtype,
            options,
            adjust_chunks=dict.fromkeys(others, 1),
            new_axes=dict(zip(new, rows, strict=True)),
        )
        total: da.Array = da.reduction(
            parts,
            chunk=_as_it_is,
            aggregate=partial(_merged, merge=merge),
            axis=tuple(range(len(others))),
            dtype=parts.dtype,
            meta=np.empty((0,) * of_none.ndim, of_none.dtype),
            name=f"{function.__name__}-merge",
        )
        # What came from another process may lie at any address.
        return np.require(total.compute(), requirements=["C", "A"])

    @property
    def _axes(self) -> tuple[str, ...]:
        """Names of all that src has."""
        return tuple(map(str, range(self.operands["src"].ndim)))

    @property
    def _channel(self) -> int:
        return channel_axis(self.operands["src"], self.options["data_format"])

    def _shapes(self) -> dict[str, NDArray[Any]]:
        """Operands of one element in memory each; a size that is unknown is 0."""
        return {
            name: np.broadcast_to(
                np.zeros((), a.dtype), [0 if math.isnan(n) else n for n in a.shape]
            )
            for name, a in self.operands.items()
        }

    def _on_each(
        self,
        task: Callable[..., Any],
        function: Callable[..., Any],
        out: tuple[str, ...],
        dtype: np.dtype[Any],
        options: dict[str, Any],
        **more: Any,
    ) -> da.Array:
        """The task on each block."""
        src, axes, channel = self.operands["src"], self._axes, self._channel
        pairs: list[Any] = []
        for operand in self.operands.values():
            pairs += [operand, axes]
        for vector in self.vectors.values():
            of_channels = da.from_array(_packed(vector), chunks=(src.chunks[channel],))
            pairs += [of_channels, axes[channel : channel + 1]]
        on_a_block = partial(
            task,
            function=function,
            names=(*self.operands, *self.vectors),
            dtype=src.dtype,
            options=self.options | options,
        )
        result: da.Array = da.blockwise(
            on_a_block,
            out,
            *pairs,
            token=function.__name__,
            dtype=dtype,
            meta=np.empty((0,) * len(out), dtype),
            align_arrays=False,
            **more,
        )
        return result


def added(parts: NDArray[Any]) -> NDArray[Any]:
    """The sum of the parts along the first axis."""
    with _core._DefaultMode():
        total: NDArray[Any] = parts.sum(axis=0)
    # Canonical limbs leave room for many more parts, so there may be any number of blocks.
    return total if total.dtype == np.float64 else bn_ext.batch_norm_canonical(total)


# ---- what tasks do ----------------------------------------------------------------


def _packed(rows: NDArray[Any]) -> NDArray[Any]:
    """Sums as an array over the channels alone: with an axis that no operand has, Dask would take
    the task for a reduction, and fuse no reading into it.
    """
    if rows.ndim == 1:
        return rows
    packed = np.empty(rows.shape[-1], [("rows", rows.dtype, rows.shape[:-1])])
    packed["rows"] = np.moveaxis(rows, -1, 0)
    return packed


def _unpacked(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.names is None:
        return array
    return np.array(np.moveaxis(array["rows"], 0, -1), order="C")


def _call(
    *arrays: NDArray[Any],
    function: Callable[..., Any],
    names: tuple[str, ...],
    dtype: np.dtype[Any],
    options: Mapping[str, Any],
) -> Any:
    src = arrays[0]
    if src.dtype != dtype:
        raise TypeError(
            f"src: expected chunks of {dtype}, which is the Dask array's dtype, got {src.dtype}"
        )
    given = dict(zip(names, map(_unpacked, arrays), strict=True))
    return function(**given, **options)


def _result(*arrays: NDArray[Any], **call: Any) -> Any:
    """What a function writes."""
    result = _call(*arrays, **call)
    return result if isinstance(result, np.ndarray) else result[0]


def _summed(*arrays: NDArray[Any], **call: Any) -> NDArray[Any]:
    """The sums that a function returns, as a block with one element along each axis of src but the
    channels.
    """
    part: NDArray[Any] = _call(*arrays, **call)
    return part.reshape((1,) * (arrays[0].ndim - 1) + part.shape)


def _as_it_is(parts: NDArray[Any], axis: object, keepdims: object) -> NDArray[Any]:
    return parts


def _merged(
    parts: NDArray[Any],
    axis: tuple[int, ...],
    keepdims: bool,
    *,
    merge: Callable[[NDArray[Any]], NDArray[Any]],
) -> NDArray[Any]:
    """Parts that lie side by side along the first axes."""
    number, shape = math.prod(parts.shape[: len(axis)]), parts.shape[len(axis) :]
    if parts.size:
        total = merge(parts.reshape(number, *shape))
    else:  # no channels; or Dask asks for what comes out
        total = np.zeros(shape, parts.dtype)
    return total.reshape((1,) * len(axis) + total.shape) if keepdims else total
