"""The forward pass: training and inference."""

from functools import partial
from typing import Any, Never, SupportsFloat, SupportsIndex

import dask.array as da
import numpy as np
from numpy.typing import NDArray

import bn_ext
from bn_ext import _core
from bn_ext._typing import Array, DataFormat, Flag
from bn_ext.dask._arguments import as_operands, as_options, as_vectors
from bn_ext.dask._blocks import Blocks, added

__all__ = ["batch_norm_inference", "batch_norm_training"]


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
    **refused: Never,
) -> bn_ext.BatchNormTraining[da.Array]:
    """Batch normalization with the statistics of the whole Dask array.

    Statistics are computed in this call, and running ones changed; dst is a Dask array that
    computes itself from src once more. Who wants the statistics alone leaves it.

    Parameters
    ----------
    src, src_1 : dask.array.Array
        As for `bn_ext.batch_norm_training`, chunked as for `batch_norm_backward`.
    gamma, beta : array or dask.array.Array, optional
        As for `bn_ext.batch_norm_training`; a Dask array is computed.
    epsilon, data_format, relu
        As for `bn_ext.batch_norm_training`.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `bn_ext.batch_norm_training`: NumPy arrays, changed in place when all but dst is
        computed.
    exact : bool, optional
        If True, mean and variance are of exact sums, and the bits of all results depend on the
        values alone; src is read twice for it. If False, src is read once, statistics of blocks
        are merged, and the bits depend on the chunks.
    num_threads : int or None, optional
        As for `batch_norm_backward`.
    **refused
        Nothing, as for `bn_ext.batch_norm_training`.

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
    blocks = Blocks(
        as_operands(data_format, src=src, src_1=src_1),
        as_vectors(gamma=gamma, beta=beta),
        as_options(epsilon, data_format, relu, num_threads),
    )
    running = {
        "running_mean": running_mean,
        "running_variance": running_variance,
        "exponential_avg_factor": exponential_avg_factor,
        "correction": correction,
    }
    blocks.check(bn_ext.batch_norm_training, **running, **refused)
    statistics = _exact_statistics if _core._as_flag(exact, "exact") else _plain_statistics
    how = {"data_format": data_format, "num_threads": num_threads}
    blocks.vectors["stats"] = statistics(Blocks({"src": blocks.operands["src"]}, {}, how))
    dst = blocks.map(bn_ext.batch_norm_training_apply)
    of_all = blocks.on_nothing(bn_ext.batch_norm_training_apply, **running)
    return bn_ext.BatchNormTraining(dst, of_all.mean, of_all.variance)


def _plain_statistics(blocks: Blocks) -> NDArray[np.float64]:
    return blocks.reduce(bn_ext.batch_norm_training_reduce, bn_ext.batch_norm_training_merge)


def _exact_statistics(blocks: Blocks) -> NDArray[np.float64]:
    """Squares are summed about the mean, which takes a pass of its own."""
    reduce = partial(blocks.reduce, bn_ext.batch_norm_training_reduce, added, exact=True)
    stats = bn_ext.batch_norm_training_stats(reduce())
    if not stats[2].any():
        return stats
    blocks.vectors["mean"] = stats[0]
    return bn_ext.batch_norm_training_stats(reduce(), stats[0])


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
        As for `bn_ext.batch_norm_inference`; src and src_1 as for `batch_norm_training`. Vectors
        that are Dask arrays are computed.
    num_threads : int or None, optional
        As for `batch_norm_backward`.

    Returns
    -------
    dask.array.Array
        dst, of which nothing is computed yet, with src's shape, dtype and chunks.

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
    blocks = Blocks(
        as_operands(data_format, src=src, src_1=src_1),
        as_vectors(mean=mean, variance=variance, gamma=gamma, beta=beta),
        as_options(epsilon, data_format, relu, num_threads),
    )
    blocks.check(bn_ext.batch_norm_inference)
    return blocks.map(bn_ext.batch_norm_inference)
