"""The gradient."""

from typing import Any, SupportsFloat, SupportsIndex

import dask.array as da

import bn_ext
from bn_ext import _core
from bn_ext._typing import Array, DataFormat, Flag
from bn_ext.dask._arguments import as_operands, as_options, as_vectors
from bn_ext.dask._blocks import Blocks, added

__all__ = ["batch_norm_backward"]


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

    The sums are computed in this call; diff_src is a Dask array that computes itself from src and
    diff_dst once more.

    Parameters
    ----------
    src, diff_dst, dst : dask.array.Array
        As for `bn_ext.batch_norm_backward`, chunked along any axes, the channels too; of src alone
        the chunks count: the others are rechunked. Sizes of chunks may be unknown, but for the
        channels'.
    mean, variance, gamma, beta : array or dask.array.Array
        As for `bn_ext.batch_norm_backward`; a Dask array is computed.
    epsilon, data_format, is_training, param_grads, relu
        As for `bn_ext.batch_norm_backward`.
    exact : bool, optional
        If True, the sums are exact, and the bits of the results depend on the values alone. If
        False they are sums of blocks' sums, which takes less time, and the bits depend on the
        chunks.
    num_threads : int or None, optional
        As for `bn_ext.batch_norm_backward`, of each task: Dask's workers have threads of their own.

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
    Nothing is computed before everything is checked. The sums go to the scheduler that Dask uses at
    the time of this call. With ``is_training=False, param_grads=False`` there are none.

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
