"""Batch normalization and its gradient for Dask arrays, chunked along any axes.

A call computes what depends on all the data, from exact sums of the blocks. Results as large as the
data are lazy Dask arrays.

    src (chunks) --Statistics, GradientSums--> of each block --tree of +--> of all
         |                                                                    |
         '------batch_norm_inference, _backward, when it is asked for <-------'

In a single graph, each chunk would stay in memory until all are summed. A task holds one block of
each operand and nothing else of that size, because Dask fuses reading into it.
"""

from __future__ import annotations  # help shows names, not what they stand for

import math
import re
from functools import partial
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

import bn_ext._core as _core
import bn_ext._functions as _functions
from bn_ext._results import BatchNormGradients, BatchNormTraining
from bn_ext._runtime import missing
from bn_ext._sums import GradientSums, Statistics
from bn_ext._typing import Array, DataFormat, Flag

try:
    import dask.array as da
    from dask.base import compute
except ImportError as _error:
    raise missing(__name__, _error, "'dask[array]'") from _error

__all__ = ["batch_norm_backward", "batch_norm_inference", "batch_norm_training"]
__dir__ = __all__.copy

_Named = dict[str, Any]
_TRACKING = "running_mean", "running_variance", "exponential_avg_factor", "correction"


def _check(check: Any, data: _Named, vectors: _Named, options: _Named) -> Any:
    """Raise what a dry run of `check` raises. Return the axis of the channels, data chunked like
    src, the vectors of each block of channels, and options.
    """
    data = {k: _lazy(k, a) for k, a in data.items() if a is not None or k in ("src", "diff_dst")}
    src, stand_ins = data["src"], data | vectors
    lazy = [k for k, a in stand_ins.items() if isinstance(a, da.Array)]
    for k in lazy:
        a = stand_ins[k]
        if math.isnan(a.size):
            expected = f"{k}: expected chunks of known sizes"
            raise ValueError(f"{expected}, got {a.chunks}; {k}.compute_chunk_sizes() finds them")
        stand_ins[k] = np.broadcast_to(np.zeros((), a.dtype), a.shape)
    try:
        check(**stand_ins, **options, dry=True)
    except TypeError as error:  # NumPy would load a whole Dask array to convert it
        hint = re.sub(rf"np\.asarray\(({'|'.join(lazy)}), ", r"\1.astype(", str(error))
        raise TypeError(hint) from None
    data = {k: a.rechunk(src.chunks) for k, a in data.items()}
    (vectors,) = compute({k: a for k, a in vectors.items() if a is not None})
    options = {**options, "epsilon": _core.as_epsilon(options["epsilon"])}
    if "variance" in vectors and src.size:
        with _core.DefaultMode():
            variance = _core.as_array(vectors["variance"], "variance").astype(np.float64)
            negative = (variance < -options["epsilon"]).any()
        if negative:
            _core.warn_of_root()
    axis = _core.channel_axis_of(options["data_format"]) % src.ndim
    ends = np.cumsum(src.chunks[axis])
    pieces = {k: np.split(_core.as_array(a, k), ends) for k, a in vectors.items()}
    by_block = [{k: parts[i].copy() for k, parts in pieces.items()} for i in range(len(ends))]
    return axis, data, by_block, options


def _lazy(name: str, a: Any) -> Any:
    expected, kind, hint = "a Dask array", type(a), ""
    if isinstance(a, da.Array):
        expected, kind = "chunks that are NumPy arrays", type(a._meta)
        if kind is np.ndarray:
            return a
    elif isinstance(a, np.ndarray):
        hint = f"; pass dask.array.from_array({name}), or call bn_ext itself with NumPy arrays"
    elif isinstance(getattr(a, "data", None), da.Array):
        hint = f"; pass {name}.data"
    raise TypeError(f"{name}: expected {expected}, got {kind.__module__}.{kind.__qualname__}{hint}")


def _blocks(function: Any, axis: int, data: _Named, vectors: list[_Named], options: _Named) -> Any:
    """A function's results, lazy like src; or the totals of a class of sums, computed now."""
    src, axes, sums = data["src"], (*range(data["src"].ndim),), isinstance(function, type)
    dtype, options = (object, {**options, "exact": True}) if sums else (src.dtype, options)
    result = da.blockwise(
        partial(_task, function, (*data,), src.dtype, options), axes,
        *(pair for operand in data.values() for pair in (operand, axes)),
        da.from_array(np.array(vectors, object), chunks=1), (axis,), align_arrays=False,
        token=function.__name__, dtype=dtype, meta=np.empty((0,) * src.ndim, dtype),
        adjust_chunks=dict.fromkeys(axes, 1) if sums else None,
    )  # fmt: skip
    return [*result.sum(axis=tuple({*axes} - {axis})).compute()] if sums else result


def _task(function: Any, names: Any, dtype: Any, options: Any, *blocks: Any) -> Any:
    *data, (vectors,) = blocks
    if data[0].dtype != dtype:
        raise TypeError(f"src: expected chunks of {dtype}, like the array, got {data[0].dtype}")
    with np.errstate(invalid="ignore"):  # of a negative variance, the call has warned
        result = function(**dict(zip(names, data, strict=True)), **vectors, **options)
    if isinstance(function, type):
        return np.full((1,) * data[0].ndim, result, object)
    return result[0] if isinstance(result, tuple) else result


def batch_norm_training(
    src: da.Array, gamma: Array | da.Array | None = None, beta: Array | da.Array | None = None, *,
    epsilon: SupportsFloat, data_format: DataFormat | None = None,
    running_mean: NDArray[Any] | None = None, running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None, correction: SupportsIndex | None = None,
    src_1: da.Array | None = None, relu: Flag = False, num_threads: SupportsIndex | None = 1,
) -> BatchNormTraining[da.Array]:  # fmt: skip
    """Batch normalization with the statistics of the whole Dask array.

    Arguments and errors are as for `bn_ext.batch_norm_training` and `batch_norm_backward`. The call
    computes the statistics, and updates the running ones, which are NumPy arrays.

    Returns
    -------
    BatchNormTraining
        Named tuple of dst (lazy, like src), mean and variance (NumPy arrays, float64). dst reads
        src again; if you need only the statistics, ignore it.

    Examples
    --------
    >>> import numpy as np, dask.array as da, bn_ext.dask
    >>> src = da.from_array(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]]), chunks=(2, 1))
    >>> dst, mean, variance = bn_ext.dask.batch_norm_training(src, epsilon=0.0)
    >>> mean, dst.compute().round(2)[0]
    (array([ 2., 30.]), array([-1.22, -0.93]))
    """
    shared: _Named = {"data_format": data_format, "num_threads": num_threads}
    running = running_mean, running_variance, exponential_avg_factor, correction
    check = partial(_core.training, **dict(zip(_TRACKING, running, strict=True)))
    options = {"epsilon": epsilon, "relu": relu, **shared}
    axis, data, blocks, options = _check(
        check, {"src": src, "src_1": src_1}, {"gamma": gamma, "beta": beta}, options
    )
    totals = _blocks(Statistics, axis, {"src": src}, [{}] * len(blocks), shared)
    for block, total in zip(blocks, totals, strict=True):
        block |= {"mean": total.mean, "variance": total.variance}
    dst = _blocks(_functions.batch_norm_inference, axis, data, blocks, options)
    mean, variance = (np.concatenate([block[k] for block in blocks]) for k in ("mean", "variance"))
    if running_mean is not None:
        moments, counts = zip(*[total._moments() for total in totals], strict=True)
        _core.update_running(np.concatenate(moments, axis=1), counts[0], *running)
    return BatchNormTraining(dst, mean, variance)


def batch_norm_inference(
    src: da.Array, mean: Array | da.Array, variance: Array | da.Array,
    gamma: Array | da.Array | None = None, beta: Array | da.Array | None = None, *,
    epsilon: SupportsFloat, data_format: DataFormat | None = None, src_1: da.Array | None = None,
    relu: Flag = False, num_threads: SupportsIndex | None = 1,
) -> da.Array:  # fmt: skip
    """Batch normalization with given statistics, for Dask arrays.

    Arguments and errors are as for `bn_ext.batch_norm_inference` and `batch_norm_backward`.

    Returns
    -------
    dask.array.Array
        dst, lazy, with src's shape, dtype and chunks.

    Examples
    --------
    >>> import numpy as np, dask.array as da, bn_ext.dask
    >>> src = da.from_array(np.array([[1.0, 10.0], [3.0, 30.0]]), chunks=1)
    >>> bn_ext.dask.batch_norm_inference(src, [1.0, 0.0], [4.0, 100.0], epsilon=0.0).compute()
    array([[0., 1.],
           [1., 3.]])
    """
    options: _Named = {"epsilon": epsilon, "data_format": data_format, "relu": relu}
    options["num_threads"] = num_threads
    vectors = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    checked = _check(_core.inference, {"src": src, "src_1": src_1}, vectors, options)
    result: da.Array = _blocks(_functions.batch_norm_inference, *checked)
    return result


def batch_norm_backward(
    src: da.Array, diff_dst: da.Array, mean: Array | da.Array, variance: Array | da.Array,
    gamma: Array | da.Array | None = None, *, epsilon: SupportsFloat,
    data_format: DataFormat | None = None, is_training: Flag = True, param_grads: Flag = True,
    relu: Flag = False, beta: Array | da.Array | None = None, dst: da.Array | None = None,
    num_threads: SupportsIndex | None = 1,
) -> BatchNormGradients[da.Array]:  # fmt: skip
    """Gradient of batch normalization, for Dask arrays.

    The call raises the errors of `bn_ext.batch_norm_backward`; then it computes the sums, with the
    scheduler that Dask uses at this time. There is no ``workspace``: its bits would cross chunks.

    src, diff_dst and dst may be chunked along any axes, even the channels, in chunks of known
    sizes; all are rechunked like src. Vectors that are Dask arrays are computed. `num_threads` is
    for each task: 1, because Dask's workers have threads of their own.

    Returns
    -------
    BatchNormGradients
        Named tuple of diff_src (lazy, with src's shape, dtype and chunks; it reads src and diff_dst
        again), diff_gamma and diff_beta (NumPy arrays).

    Examples
    --------
    >>> import numpy as np, dask.array as da, bn_ext.dask
    >>> src = da.from_array(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]]), chunks=(2, 1))
    >>> grads = bn_ext.dask.batch_norm_backward(
    ...     src, src**2, src.mean(axis=0), src.var(axis=0), epsilon=0.0)
    >>> grads.diff_beta, grads.diff_src.compute().round(2)[1]
    (array([  14., 4100.]), array([ -0.82, -11.02]))
    """
    options: _Named = {"epsilon": epsilon, "data_format": data_format, "relu": relu}
    options["num_threads"] = num_threads
    check = partial(_core.backward, is_training=is_training, param_grads=param_grads)
    data = {"src": src, "diff_dst": diff_dst, "dst": dst}
    vectors = {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta}
    axis, data, blocks, options = _check(check, data, vectors, options)
    if is_training or param_grads:
        totals = _blocks(GradientSums, axis, data, blocks, options)
        blocks = [{**block, "sums": total} for block, total in zip(blocks, totals, strict=True)]
    write = {**options, "is_training": is_training, "param_grads": False}
    diff_src = _blocks(_functions.batch_norm_backward, axis, data, blocks, write)
    if not param_grads:
        return BatchNormGradients(diff_src, None, None)
    options, grads = {**options, "data_format": None}, []
    for block in blocks:  # of a part without elements, with two axes
        no_elements: _Named = dict.fromkeys(data, np.empty((0, len(block["mean"])), src.dtype))
        grads.append(_functions.batch_norm_backward(**no_elements, **block, **options)[1:])
    return BatchNormGradients(diff_src, *map(np.concatenate, zip(*grads, strict=True)))
