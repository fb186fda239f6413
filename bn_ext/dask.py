"""Batch normalization and its gradient for Dask arrays, chunked along any axes.

The functions have the names and arguments of those in bn_ext itself. A call computes what depends
on all the data (statistics, or the sums of the gradient) block by block. Results as large as the
data are lazy Dask arrays.

    src (chunks) --reduce--> sums of a block --tree of +--> sums of all
         |                                                      |
         '---------------apply, when it is asked for <----------'

Reduce and apply are two graphs: in a single one, each chunk would stay in memory until all are
summed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

try:
    import dask.array as da
    from dask.base import compute
except ImportError as _error:
    raise ModuleNotFoundError(
        f"bn_ext.dask: expected Dask, got {_error!r:.200}; python -m pip install 'dask[array]'",
        name="dask",
    ) from _error

import bn_ext
from bn_ext import _core
from bn_ext._names import refuses_other_names
from bn_ext._typing import Array, DataFormat, Flag

__all__ = ["batch_norm_backward", "batch_norm_inference", "batch_norm_training"]


def __dir__() -> list[str]:
    return __all__


# ---- a function on every block ----------------------------------------------------------------
#
# The function's results are merged by a tree of tasks, or form a lazy array. A task holds one
# block of each operand and nothing else of that size, and Dask fuses reading into the task. So only
# the blocks of running tasks are in memory.


@dataclass
class _Blocks:
    """The arguments of a function that is called on every block. The function gets one block of
    each operand, and the channels of this block from each vector.
    """

    operands: dict[str, da.Array]
    vectors: dict[str, NDArray[Any]]
    options: dict[str, Any]

    def check(self, function: Callable[..., Any], **options: Any) -> None:
        """Raise the errors that `function` would raise for the whole arrays."""
        try:
            _core._dry_run(function, **self._shapes(), **self.vectors, **self.options, **options)
        except TypeError as error:  # NumPy would load a whole operand to convert it
            name = str(error).partition(":")[0]
            if name not in self.operands:
                raise
            lazy = str(error).replace(f"np.asarray({name}, ", f"{name}.astype(")
            raise TypeError(lazy) from None

    def on_nothing(self, function: Callable[..., Any], **options: Any) -> Any:
        """What `function` returns for a part without elements."""
        empty = {name: a[:0] for name, a in self._shapes().items()}
        return function(**empty, **self.vectors, **self.options, **options)

    def map(self, function: Callable[..., Any], **options: Any) -> da.Array:
        """The first result of `function` on every block, a Dask array like src."""
        return self._on_each(_result, function, self._axes, self.operands["src"].dtype, options)

    def reduce(
        self,
        function: Callable[..., Any],
        merge: Callable[[NDArray[Any]], NDArray[Any]],
        **options: Any,
    ) -> NDArray[Any]:
        """The merged results of `function` on every block, computed now."""
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
        # An array from another process may not be aligned.
        return np.require(total.compute(), requirements=["C", "A"])

    @property
    def _axes(self) -> tuple[str, ...]:
        """Names of src's axes."""
        return tuple(map(str, range(self.operands["src"].ndim)))

    @property
    def _channel(self) -> int:
        return _channel_axis(self.operands["src"], self.options["data_format"])

    def _shapes(self) -> dict[str, NDArray[Any]]:
        """Arrays of the operands' shapes, with one element in memory each. An unknown size is taken
        from another operand; if unknown in all, it is 0.
        """
        sizes = zip(*(a.shape for a in self.operands.values()), strict=True)
        known = [next((n for n in ns if not math.isnan(n)), 0) for ns in sizes]
        return {
            name: np.broadcast_to(
                np.zeros((), a.dtype),
                [m if math.isnan(n) else n for n, m in zip(a.shape, known, strict=True)],
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
        """The results of `task` on every block."""
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


def _added(parts: NDArray[Any]) -> NDArray[Any]:
    with _core._DefaultMode():
        total: NDArray[Any] = parts.sum(axis=0)
    # Fewer than 2**20 states can be added. A canonical state counts as one, however many it sums,
    # so the number of blocks is not limited.
    return total if total.dtype == np.float64 else bn_ext.batch_norm_canonical(total)


# ---- what tasks do ----------------------------------------------------------------


def _packed(rows: NDArray[Any]) -> NDArray[Any]:
    """Pack sums into an array whose only axis is the channels. If this array had an axis that no
    operand has, Dask would take the task for a reduction and not fuse reading into it.
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
    result = _call(*arrays, **call)
    return result if isinstance(result, np.ndarray) else result[0]


def _summed(*arrays: NDArray[Any], **call: Any) -> NDArray[Any]:
    """A function's sums, as a block of size 1 along every axis of src except the channels."""
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
    """Merge parts that lie side by side along the first axes."""
    number, shape = math.prod(parts.shape[: len(axis)]), parts.shape[len(axis) :]
    if parts.size:
        total = merge(parts.reshape(number, *shape))
    else:  # no channels; or Dask infers the result from empty arrays
        total = np.zeros(shape, parts.dtype)
    return total.reshape((1,) * len(axis) + total.shape) if keepdims else total


# ---- arguments --------------------------------------------------------------------------------
#
# A dry run of the function in bn_ext itself checks dtypes, shapes and options. It cannot see
# chunks, so they are checked here.


def _blocks(
    data: dict[str, Any],
    vectors: dict[str, Any],
    epsilon: object,
    data_format: object,
    relu: object,
    num_threads: object,
) -> _Blocks:
    """Rechunk data like src; convert vectors to arrays in memory, epsilon and relu to plain values.
    Omit optional arrays that are None.
    """
    operands = {name: _as_dask(name, a) for name, a in data.items() if _is_given(name, a)}
    src = operands["src"]
    if src.ndim < 2:
        raise ValueError(f"src: expected at least 2 dimensions, got shape {src.shape}")
    if math.isnan(src.shape[_channel_axis(src, data_format)]):
        raise ValueError(
            f"src: expected channels in chunks of known sizes, got chunks {src.chunks}; "
            "src.compute_chunk_sizes() finds them"
        )
    operands = {name: _over_the_chunks_of(src, name, a) for name, a in operands.items()}
    (vectors,) = compute(vectors)  # those that are Dask arrays, all at once
    vectors = {name: _core._as_array(a, name) for name, a in vectors.items() if _is_given(name, a)}
    options = {
        "epsilon": _core._as_epsilon(epsilon),
        "data_format": data_format,
        "relu": _core._as_flag(relu, "relu"),
        "num_threads": num_threads,
    }
    return _Blocks(operands, vectors, options)


def _is_given(name: str, a: object) -> bool:
    return a is not None or name not in ("src_1", "dst", "gamma", "beta")


def _channel_axis(src: da.Array, data_format: object) -> int:
    """Where the channels are; a wrong format is refused later."""
    return 1 if data_format == "NCX" else int(src.ndim) - 1


def _as_dask(name: str, a: object) -> da.Array:
    if not isinstance(a, da.Array):
        hint = ""
        if isinstance(a, np.ndarray):
            hint = f"; pass dask.array.from_array({name}), or call bn_ext itself with NumPy arrays"
        elif isinstance(getattr(a, "data", None), da.Array):
            hint = f"; pass {name}.data"
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
                f"{name}: expected {len(ours)} chunks along axis {axis}, like src (sizes are "
                f"unknown), got {len(its)}; compute_chunk_sizes() finds them"
            )
    result: da.Array = a.rechunk(wanted)
    return result


# ---- what is public ---------------------------------------------------------------------------


@refuses_other_names
def batch_norm_training(
    src: da.Array,
    gamma: Array | da.Array | None = None,
    beta: Array | da.Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    running_mean: NDArray[Any] | None = None,
    running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsIndex | None = None,
    src_1: da.Array | None = None,
    relu: Flag = False,
    exact: Flag = True,
    num_threads: SupportsIndex | None = 1,
) -> bn_ext.BatchNormTraining[da.Array]:
    """Batch normalization with the statistics of the whole Dask array.

    This call computes the statistics and updates the running ones. dst is a Dask array, which reads
    src again when it is computed. If you need only the statistics, ignore dst.

    Parameters
    ----------
    src, src_1 : dask.array.Array
        As for `bn_ext.batch_norm_training`, chunked as for `batch_norm_backward`.
    gamma, beta : array or dask.array.Array, optional
        As for `bn_ext.batch_norm_training`; Dask arrays are computed.
    epsilon, data_format, relu
        As for `bn_ext.batch_norm_training`.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `bn_ext.batch_norm_training`: NumPy arrays, which this call updates.
    exact : bool, optional
        If True, mean and variance come from exact sums: the bits of all results depend on the
        values alone. If False, the statistics of the blocks are merged: the bits depend on the
        chunks.
    num_threads : int or None, optional
        As for `batch_norm_backward`.

    Returns
    -------
    BatchNormTraining
        Named tuple of dst (a Dask array with src's shape, dtype and chunks), mean and variance
        (NumPy arrays).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_training` and `batch_norm_backward`.

    Examples
    --------
    >>> import numpy as np, dask.array as da, bn_ext.dask
    >>> src = da.from_array(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]]), chunks=(2, 1))
    >>> dst, mean, variance = bn_ext.dask.batch_norm_training(src, epsilon=0.0)
    >>> mean
    array([ 2., 30.])
    >>> variance.round(6)
    array([  0.666667, 466.666667])
    >>> dst.compute().round(6)
    array([[-1.224745, -0.92582 ],
           [ 0.      , -0.46291 ],
           [ 1.224745,  1.38873 ]])
    """
    data = {"src": src, "src_1": src_1}
    vectors = {"gamma": gamma, "beta": beta}
    blocks = _blocks(data, vectors, epsilon, data_format, relu, num_threads)
    running = {
        "running_mean": running_mean,
        "running_variance": running_variance,
        "exponential_avg_factor": exponential_avg_factor,
        "correction": correction,
    }
    blocks.check(bn_ext.batch_norm_training, **running)
    statistics = _exact_statistics if _core._as_flag(exact, "exact") else _plain_statistics
    how = {"data_format": data_format, "num_threads": num_threads}
    blocks.vectors["stats"] = statistics(_Blocks({"src": blocks.operands["src"]}, {}, how))
    dst = blocks.map(bn_ext.batch_norm_training_apply)
    of_all = blocks.on_nothing(bn_ext.batch_norm_training_apply, **running)
    return bn_ext.BatchNormTraining(dst, of_all.mean, of_all.variance)


def _plain_statistics(blocks: _Blocks) -> NDArray[np.float64]:
    return blocks.reduce(bn_ext.batch_norm_training_reduce, bn_ext.batch_norm_training_merge)


def _exact_statistics(blocks: _Blocks) -> NDArray[np.float64]:
    state = blocks.reduce(bn_ext.batch_norm_training_reduce, _added, exact=True)
    return bn_ext.batch_norm_training_stats(state)


@refuses_other_names
def batch_norm_inference(
    src: da.Array,
    mean: Array | da.Array,
    variance: Array | da.Array,
    gamma: Array | da.Array | None = None,
    beta: Array | da.Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    src_1: da.Array | None = None,
    relu: Flag = False,
    num_threads: SupportsIndex | None = 1,
) -> da.Array:
    """Batch normalization with given statistics, for Dask arrays.

    Parameters
    ----------
    src, src_1, mean, variance, gamma, beta, epsilon, data_format, relu
        As for `bn_ext.batch_norm_inference`, with src and src_1 as in `batch_norm_training`.
        Vectors that are Dask arrays are computed.
    num_threads : int or None, optional
        As for `batch_norm_backward`.

    Returns
    -------
    dask.array.Array
        dst, a lazy array with src's shape, dtype and chunks.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`.

    Examples
    --------
    >>> import numpy as np, dask.array as da, bn_ext.dask
    >>> src = da.from_array(np.array([[1.0, 10.0], [3.0, 30.0]]), chunks=1)
    >>> mean, variance = np.array([1.0, 0.0]), np.array([4.0, 100.0])
    >>> bn_ext.dask.batch_norm_inference(src, mean, variance, epsilon=0.0).compute()
    array([[0., 1.],
           [1., 3.]])
    """
    data = {"src": src, "src_1": src_1}
    vectors = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    blocks = _blocks(data, vectors, epsilon, data_format, relu, num_threads)
    blocks.check(bn_ext.batch_norm_inference)
    return blocks.map(bn_ext.batch_norm_inference)


@refuses_other_names
def batch_norm_backward(
    src: da.Array,
    diff_dst: da.Array,
    mean: Array | da.Array,
    variance: Array | da.Array,
    gamma: Array | da.Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    exact: Flag = True,
    relu: Flag = False,
    beta: Array | da.Array | None = None,
    dst: da.Array | None = None,
    num_threads: SupportsIndex | None = 1,
) -> bn_ext.BatchNormGradients[da.Array, Any]:
    """Gradient of batch normalization, for Dask arrays.

    This call computes the sums. diff_src is a Dask array, which reads src and diff_dst again when
    it is computed.

    Parameters
    ----------
    src, diff_dst, dst : dask.array.Array
        As for `bn_ext.batch_norm_backward`, chunked along any axes, including the channels. All are
        rechunked like src. Sizes of chunks may be unknown, except along the channels.
    mean, variance, gamma, beta : array or dask.array.Array
        As for `bn_ext.batch_norm_backward`; Dask arrays are computed.
    epsilon, data_format, is_training, param_grads, relu
        As for `bn_ext.batch_norm_backward`.
    exact : bool, optional
        If True, sums are exact, and the bits of the results depend on the values alone. If False,
        the sums of the blocks are added, which is faster; the bits depend on the chunks.
    num_threads : int or None, optional
        As for `bn_ext.batch_norm_backward`, for each task. The default is 1, because Dask's workers
        have threads of their own.

    Returns
    -------
    BatchNormGradients
        Named tuple of diff_src (a Dask array with src's shape, dtype and chunks), diff_gamma and
        diff_beta (NumPy arrays).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`; TypeError for data that is not a Dask array, or whose
        chunks are not NumPy arrays; ValueError for chunks of unknown sizes that do not pair up.

    Notes
    -----
    Shapes and chunks are checked first. Then vectors that are Dask arrays are computed, and
    everything else is checked. Last, the scheduler that Dask uses at the time of this call computes
    the sums. With ``is_training=False, param_grads=False`` there are no sums.

    There is no ``workspace``, because its bits would cross chunk boundaries. The gradient with
    respect to a ``src_1`` is ``dask.array.where(dst <= 0, 0, diff_dst)``.

    Examples
    --------
    >>> import numpy as np, dask.array as da, bn_ext.dask
    >>> src = da.from_array(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]]), chunks=(2, 1))
    >>> diff_dst = da.from_array(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]]), chunks=(2, 1))
    >>> grads = bn_ext.dask.batch_norm_backward(
    ...     src, diff_dst, src.mean(axis=0), src.var(axis=0), epsilon=0.0)
    >>> grads.diff_beta
    array([1., 3.])
    >>> grads.diff_src.chunks
    ((2, 1), (1, 1))
    >>> grads.diff_src.compute().round(6)
    array([[ 0.204124,  0.013226],
           [-0.408248, -0.016533],
           [ 0.204124,  0.003307]])
    """
    data = {"src": src, "diff_dst": diff_dst, "dst": dst}
    vectors = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    blocks = _blocks(data, vectors, epsilon, data_format, relu, num_threads)
    exact = _core._as_flag(exact, "exact")
    training = _core._as_flag(is_training, "is_training")
    wanted = _core._as_flag(param_grads, "param_grads")
    write: dict[str, Any] = {"is_training": training, "param_grads": False}
    blocks.check(bn_ext.batch_norm_backward, **write)
    if not training and not wanted:
        diff_src = blocks.map(bn_ext.batch_norm_backward, **write)
        return bn_ext.BatchNormGradients(diff_src, None, None)
    blocks.vectors["sums"] = blocks.reduce(bn_ext.batch_norm_backward_reduce, _added, exact=exact)
    if gamma is None:
        write["gamma"] = None
    diff_src = blocks.map(bn_ext.batch_norm_backward_apply, **write)
    write["param_grads"] = wanted
    of_all = blocks.on_nothing(bn_ext.batch_norm_backward_apply, **write)
    return bn_ext.BatchNormGradients(diff_src, of_all.diff_gamma, of_all.diff_beta)
