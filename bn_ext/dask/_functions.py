"""The functions: what each checks, computes at once, and leaves to be asked for."""

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

__all__ = ["batch_norm_backward", "batch_norm_inference", "batch_norm_training"]


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

    This call computes the statistics and changes the running ones. dst is a Dask array, which reads
    src again when it is computed. For the statistics alone, ignore it.

    Parameters
    ----------
    src, src_1 : dask.array.Array
        As for `bn_ext.batch_norm_training`, chunked as for `batch_norm_backward`.
    gamma, beta : array or dask.array.Array, optional
        As for `bn_ext.batch_norm_training`; a Dask array is computed.
    epsilon, data_format, relu
        As for `bn_ext.batch_norm_training`.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `bn_ext.batch_norm_training`: NumPy arrays, changed in place once the statistics are
        computed.
    exact : bool, optional
        If True, mean and variance come from exact sums: the bits of all results depend on the
        values alone, and src is read twice. If False, the statistics of the blocks are merged: src
        is read once, and the bits depend on the chunks.
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
        As for `bn_ext.batch_norm_backward`, chunked along any axes, the channels too. The others
        are rechunked like src. Sizes of chunks may be unknown, except along the channels.
    mean, variance, gamma, beta : array or dask.array.Array
        As for `bn_ext.batch_norm_backward`; a Dask array is computed.
    epsilon, data_format, is_training, param_grads, relu
        As for `bn_ext.batch_norm_backward`.
    exact : bool, optional
        If True, the sums are exact, and the bits of the results depend on the values alone. If
        False, the sums of the blocks are added: that takes less time, and the bits depend on the
        chunks.
    num_threads : int or None, optional
        As for `bn_ext.batch_norm_backward`, for each task: Dask's workers have their own threads.

    Returns
    -------
    BatchNormGradients
        Named tuple of diff_src (a Dask array with src's shape, dtype and chunks), diff_gamma and
        diff_beta (NumPy arrays).

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `bn_ext.batch_norm_backward`; TypeError for data that is no Dask array, or whose
        chunks are not NumPy arrays; ValueError for unknown sizes of chunks that cannot be paired.

    Notes
    -----
    Everything is checked before anything is computed. The sums go to the scheduler that Dask uses
    at the time of this call. With ``is_training=False, param_grads=False`` there are none.

    There is no ``workspace``, whose bits cross the borders of chunks. What flows to a ``src_1`` is
    ``dask.array.where(dst <= 0, 0, diff_dst)``.

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
    blocks = Blocks(
        as_operands(data_format, src=src, diff_dst=diff_dst, dst=dst),
        as_vectors(mean=mean, variance=variance, gamma=gamma, beta=beta),
        as_options(epsilon, data_format, relu, num_threads),
    )
    exact = _core._as_flag(exact, "exact")
    training = _core._as_flag(is_training, "is_training")
    wanted = _core._as_flag(param_grads, "param_grads")
    write: dict[str, Any] = {"is_training": training, "param_grads": False}
    blocks.check(bn_ext.batch_norm_backward, **write)
    if not training and not wanted:
        diff_src = blocks.map(bn_ext.batch_norm_backward, **write)
        return bn_ext.BatchNormGradients(diff_src, None, None)
    blocks.vectors["sums"] = blocks.reduce(bn_ext.batch_norm_backward_reduce, added, exact=exact)
    if gamma is None:
        write["gamma"] = None
    diff_src = blocks.map(bn_ext.batch_norm_backward_apply, **write)
    write["param_grads"] = wanted
    of_all = blocks.on_nothing(bn_ext.batch_norm_backward_apply, **write)
    return bn_ext.BatchNormGradients(diff_src, of_all.diff_gamma, of_all.diff_beta)
