from collections.abc import Sequence
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    overload,
)

import numpy as np
from numpy import float64, generic
from numpy.typing import NDArray

from bn_ext._typing import Array, DataFormat, Flag, Out

__all__ = [
    "BatchNormGradients",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
]

# The dtypes of src and of mean.
_S = TypeVar("_S", bound=generic)
_V = TypeVar("_V", bound=generic)
_Data = TypeVar("_Data", bound=NDArray[Any], covariant=True)
_Vector = TypeVar("_Vector", bound=NDArray[Any] | None, covariant=True)

class BatchNormGradients(NamedTuple, Generic[_Data, _Vector]):
    """Result of `batch_norm_backward`.

    Attributes
    ----------
    diff_src : ndarray
        Gradient with respect to ``src``, in src's shape, dtype and memory order.
    diff_gamma, diff_beta : ndarray or None
        Gradients with respect to the scale and the shift, shape (C,), in the dtype of
        the statistics; None with ``param_grads=False``.
    """

    diff_src: _Data
    diff_gamma: _Vector
    diff_beta: _Vector

@overload
def batch_norm_backward(
    src: NDArray[_S],
    diff_dst: Array,
    mean: NDArray[_V],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[True] = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V]]: ...
@overload
def batch_norm_backward(
    src: NDArray[_S],
    diff_dst: Array,
    mean: NDArray[_V],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[False],
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], None]: ...
@overload
def batch_norm_backward(
    src: NDArray[_S],
    diff_dst: Array,
    mean: NDArray[_V],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V] | None]: ...
@overload
def batch_norm_backward(
    src: Array,
    diff_dst: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[Any], Any]:
    """Gradient of batch normalization.

    For each channel, with the sums over its M elements, ``dy = diff_dst``,
    ``xc = src - mean`` and ``rstd = 1 / sqrt(variance + epsilon)``::

        diff_beta  = sum(dy)
        diff_gamma = rstd * sum(dy * xc)
        diff_src   = gamma*rstd * (dy - (diff_beta/M + xc * rstd*diff_gamma/M))  # training
        diff_src   = gamma*rstd * dy                                             # frozen

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        Input of the forward pass: float32, float64, float16 or bfloat16
        (``ml_dtypes.bfloat16``), at least two dimensions, any strides. An array of
        NumPy, or what NumPy can see as one through ``__array__``,
        ``__array_interface__``, the buffer protocol or DLPack in the CPU's memory:
        torch, JAX and pyarrow tensors are not copied. A list or tuple becomes what
        NumPy makes of it: float64.
    diff_dst : array
        Gradient with respect to the output of the forward pass; src's shape and dtype.
    mean, variance : array, shape (C,)
        The statistics that the forward pass normalized with, used as given;
        ``variance`` is the biased one (divided by M). With float64 data float64,
        with float32 data float32, with 16-bit data float32 or the data's own dtype.
    gamma : array, shape (C,), optional
        The scale, of mean's dtype. None stands for ones.
    epsilon : float
        What the forward pass added to the variance: finite, at least 0. It is a
        double and stays one; pass ``float(np.float32(1e-3))`` to mimic a float32
        attribute.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are: on the last axis (NHWC, channels last), or on axis 1
        (NCHW, channels first), whatever the rank.
    is_training : bool, optional
        True if mean and variance were computed from src and so depend on it; False
        if they are constants (population statistics).
    param_grads : bool, optional
        With False, diff_gamma and diff_beta are None; diff_src is the same.
    out : tuple (diff_src, diff_gamma, diff_beta), optional
        Arrays to write to, any of them None. ``diff_src`` may be exactly src or
        exactly diff_dst; no other shared memory is accepted.
    num_threads : int, optional
        Threads to use, at most one per task, and no more than the system can start.
        None: as many as OpenMP and the affinity of the calling thread allow at this
        call, and the container allowed when bn_ext was imported; fewer where several
        calls run at once; one for a small problem. A forked child uses one.

    Returns
    -------
    BatchNormGradients
        Named tuple of diff_src (src's shape, dtype and memory order), diff_gamma
        and diff_beta (shape (C,), mean's dtype). Arrays given in `out` are
        returned themselves.

    Raises
    ------
    TypeError
        If an argument is no array, or lies on an accelerator, or its dtype is none of
        the above, or not in native byte order, or masked; if src and diff_dst, or mean,
        variance and gamma, differ in dtype; if a number or flag is none.
    ValueError
        If shapes do not fit, src has fewer than two dimensions, an attribute is out
        of range, or an array in `out` has the wrong shape or dtype, is read-only, or
        shares memory.
    MemoryError
        If there is no memory for outputs or partial sums.

    In every case nothing has been written.

    Notes
    -----
    The memory layout is read from src's strides: a channels-last array is handled as
    such however its axes are named, and nothing is copied. Only three things are:
    src, if its innermost run in memory is not contiguous; diff_dst or
    ``out[0]``, if theirs is not or their axes lie in another order than src's.

    The bits of the result depend on the values and on the order of src's axes in
    memory alone: not on the CPU, the number of threads, alignment, `out`, or the
    floating-point mode of the caller.

    No warning is given for NaN, infinite, or negative variances: the result is that
    of IEEE arithmetic on the formula. An empty problem gives an empty diff_src and
    zeros.

    The definition is that of oneDNN's batch normalization primitive [1]_, shared by
    the operators in `bn_ext.specs`.

    References
    ----------
    .. [1] oneDNN developer guide, "Batch Normalization".

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> diff_dst = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    >>> mean, variance = src.mean(axis=0), src.var(axis=0)
    >>> grads = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, epsilon=0.0)
    >>> grads.diff_beta
    array([1., 3.])
    >>> grads.diff_gamma.round(6)
    array([-1.224745,  4.16619 ])
    >>> grads.diff_src.round(6)
    array([[ 0.204124,  0.013226],
           [-0.408248, -0.016533],
           [ 0.204124,  0.003307]])
    """

def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
) -> NDArray[float64]:
    """First half of `batch_norm_backward`: the sums over a part of the data.

    Add the sums of all parts (chunks of an array larger than memory, shards on
    several machines) and hand them to `batch_norm_backward_apply`, part by part.

    Parameters
    ----------
    src, diff_dst, mean, data_format, num_threads
        As for `batch_norm_backward`; src and diff_dst are one part.

    Returns
    -------
    ndarray of float64, shape (2, C)
        ``sum(diff_dst)`` and ``sum(diff_dst * (src - mean))`` of each channel.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `batch_norm_backward`.

    Notes
    -----
    Over the same arrays, reduce and apply give the same bits as the one call. Sums
    added over several parts are the same for the same split, but not the same bits
    as those of the whole. For float64 data the bound of their error grows by
    ``2**-53 * sum(abs(terms))`` for each part beyond the first; for the other dtypes
    that is nothing beside the bound itself. What is copied is as for
    `batch_norm_backward`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(6.0).reshape(3, 2)
    >>> bn_ext.batch_norm_backward_reduce(src, np.ones((3, 2)), np.array([2.0, 0.0]))
    array([[3., 3.],
           [0., 9.]])
    """

@overload
def batch_norm_backward_apply(
    src: NDArray[_S],
    diff_dst: Array,
    mean: NDArray[_V],
    variance: Array,
    gamma: Array | None,
    sums: Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[True] = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V]]: ...
@overload
def batch_norm_backward_apply(
    src: NDArray[_S],
    diff_dst: Array,
    mean: NDArray[_V],
    variance: Array,
    gamma: Array | None,
    sums: Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[False],
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], None]: ...
@overload
def batch_norm_backward_apply(
    src: NDArray[_S],
    diff_dst: Array,
    mean: NDArray[_V],
    variance: Array,
    gamma: Array | None,
    sums: Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[_S], NDArray[_V] | None]: ...
@overload
def batch_norm_backward_apply(
    src: Array,
    diff_dst: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None,
    sums: Array,
    count: SupportsIndex,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormGradients[NDArray[Any], Any]:
    """Second half of `batch_norm_backward`: the gradient of a part, from the sums of all.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma
        As for `batch_norm_backward`; src and diff_dst are one part; gamma may be None.
    sums : array of float64, shape (2, C)
        What `batch_norm_backward_reduce` returned, added over all parts.
    count : int
        Elements per channel, over all parts, so no fewer than this part has.
    epsilon, data_format, is_training, param_grads, out, num_threads
        As for `batch_norm_backward`.

    Returns
    -------
    BatchNormGradients
        diff_src of this part; diff_gamma and diff_beta of the whole, the same for every
        part, one without elements included.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `batch_norm_backward`.

    Notes
    -----
    What is copied is as for `batch_norm_backward`; sums that are not C-contiguous are
    copied too.

    Examples
    --------
    A batch in two parts:

    >>> import numpy as np, bn_ext
    >>> rng = np.random.default_rng(0)
    >>> src, diff_dst = rng.standard_normal((2, 8, 4))
    >>> mean, variance = src.mean(axis=0), src.var(axis=0)
    >>> parts = [(src[:5], diff_dst[:5]), (src[5:], diff_dst[5:])]
    >>> sums = sum(bn_ext.batch_norm_backward_reduce(*part, mean) for part in parts)
    >>> diff_src = np.concatenate([
    ...     bn_ext.batch_norm_backward_apply(*part, mean, variance, None, sums, 8,
    ...                                      epsilon=1e-5).diff_src
    ...     for part in parts])
    >>> whole = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, epsilon=1e-5)
    >>> np.allclose(diff_src, whole.diff_src, rtol=1e-12)
    True
    """

def _available_isas() -> tuple[str, ...]: ...
def _get_isa() -> str: ...
def _use_isa(name: str) -> None: ...
def _set_cpu_quota(threads: int) -> None: ...
def _cache_sizes() -> tuple[int, int]: ...
def _set_cache_sizes(l2: int, last_level: int) -> None: ...
def _default_threads() -> int: ...
def _has_openmp() -> bool: ...
def _openmp_address() -> int: ...
def _forked() -> bool: ...
def _last_call() -> tuple[int, int]: ...
def _as_array(a: object, name: str) -> NDArray[Any]: ...
def _as_epsilon(epsilon: object) -> float: ...
def _as_flag(value: object, name: str) -> bool: ...
def _shown(value: object) -> str: ...
def _run_kernel(
    isa: str,
    dtype: str,
    name: str,
    block: tuple[Sequence[int], Sequence[int], Sequence[int], int, int, int, bool, bool],
    coefs: NDArray[np.uint8],
    planes: NDArray[np.float64],
    running: NDArray[np.float32] | None,
    stride: int,
    calls: int = 1,
) -> None: ...
def _run_sums_kernel(
    isa: str,
    dtype: str,
    name: str,
    planes: NDArray[np.float64],
    running: NDArray[np.float32] | None,
    n: int,
    other: NDArray[np.float64] | None,
) -> None: ...
def _run_expand(
    isa: str,
    dtype: str,
    channel: NDArray[np.uint8],
    all_: int,
    channels: int,
    each: int,
    column: NDArray[np.uint8],
) -> None: ...
