from collections.abc import Callable, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Never,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    overload,
)

import numpy as np
from numpy import float64, int64
from numpy.typing import NDArray

from bn_ext._typing import Array, Data, DataFormat, Flag, Out, Scalar, Vector

__all__ = [
    "BatchNormAddGradients",
    "BatchNormDoubleBackward",
    "BatchNormGradients",
    "BatchNormTraining",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
    "batch_norm_canonical",
    "batch_norm_count",
    "batch_norm_double_backward",
    "batch_norm_inference",
    "batch_norm_sums",
    "batch_norm_training",
    "batch_norm_training_apply",
    "batch_norm_training_merge",
    "batch_norm_training_reduce",
    "batch_norm_training_stats",
]

_Data = TypeVar("_Data", covariant=True)
_Vector = TypeVar("_Vector", covariant=True)

class BatchNormDoubleBackward(NamedTuple, Generic[_Data, _Vector]):
    """Result of `batch_norm_double_backward`.

    Attributes
    ----------
    diff_src, diff_diff_dst : ndarray
        Gradients with respect to ``src`` and ``diff_dst``, in src's shape, dtype and memory order.
    diff_gamma : ndarray
        Gradient with respect to ``gamma``, shape (C,), in the dtype of the statistics.
    """

    diff_src: _Data
    diff_diff_dst: _Data
    diff_gamma: _Vector

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

class BatchNormAddGradients(NamedTuple, Generic[_Data, _Vector]):
    """Result of `batch_norm_backward` with ``diff_src_1=True``.

    Attributes
    ----------
    diff_src, diff_gamma, diff_beta
        As in `BatchNormGradients`.
    diff_src_1 : ndarray
        Gradient with respect to what the forward pass added, ``src_1``, in src's shape, dtype and
        memory order: diff_dst where ReLU let the element pass, 0 elsewhere.
    """

    diff_src: _Data
    diff_gamma: _Vector
    diff_beta: _Vector
    diff_src_1: _Data

@overload
def batch_norm_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[True] = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
    exact: Flag = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector]]: ...
@overload
def batch_norm_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[True],
    exact: Flag = False,
) -> BatchNormAddGradients[NDArray[Scalar], NDArray[Vector] | Any]: ...
@overload
def batch_norm_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
    exact: Flag = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector] | Any]:
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
        (``ml_dtypes.bfloat16``), at least two dimensions, any strides. A NumPy array,
        or anything in CPU memory that NumPy can view as one through ``__array__``,
        ``__array_interface__``, the buffer protocol or DLPack: torch, JAX and pyarrow
        tensors are not copied. A list or tuple is converted by NumPy, which makes
        Python floats float64.
    diff_dst : array
        Gradient with respect to the output of the forward pass, with src's shape and
        dtype.
    mean, variance : array, shape (C,)
        The statistics that the forward pass normalized with, used as given;
        ``variance`` is the biased one (divided by M). float64 with any data, float32 with
        any but float64 data, or the data's own dtype.
    gamma : array, shape (C,), optional
        The scale, in mean's dtype. None means ones.
    epsilon : float
        What the forward pass added to the variance: finite, at least 0. It is used
        as a double; pass ``float(np.float32(1e-3))`` to mimic a float32 attribute.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are, for any rank: ``"NXC"`` is channels last (NC, NHWC,
        NDHWC, ...), ``"NCX"`` channels first, on axis 1 (NCHW, NCDHW, ...).
    is_training : bool, optional
        True if mean and variance were computed from src and so depend on it; False
        if they are constants (population statistics).
    param_grads : bool, optional
        If False, diff_gamma and diff_beta are None; diff_src is the same.
    out : tuple (diff_src, diff_gamma, diff_beta[, diff_src_1]), optional
        Arrays to write to; any of them may be None. ``diff_src`` may be exactly src or
        exactly diff_dst, and so may ``diff_src_1``, and either may be exactly dst; no other
        shared memory is accepted, not even of the two.
    num_threads : int, optional
        Number of threads: at most one per task is used, and no more than the system
        can start. None means as many as OpenMP and the affinity of the calling thread
        allow at the time of the call and the container allowed when bn_ext was
        imported; fewer while several calls run at once; one for a small problem. With
        OpenMP, a forked child uses one.
    relu : bool, optional
        True if the forward pass ended in a ReLU. Then ``dy = diff_dst`` where that let the
        element pass, and 0 elsewhere; it lets all pass that is not 0 or less, so a NaN too. Which
        elements those are is said by exactly one of the next three.
    beta : array, shape (C,), optional
        The shift of the forward pass, in mean's dtype: its result is computed again, from src.
        See Notes.
    dst : array, optional
        The result of the forward pass, with src's shape and dtype.
    workspace : array of uint8, optional
        What the forward pass wrote to its ``workspace``, for a src whose axes have the same order
        in memory.
    diff_src_1 : bool, optional
        If True, there is a fourth result: the gradient with respect to what the forward pass added
        before the ReLU, which is dy. It takes dst or workspace, since src alone does not tell.
    exact : bool, optional
        If True, sums are exact until they are rounded once: the bits of the result then depend on
        the values alone, and are those of any parts of the data, see `batch_norm_backward_reduce`.
        It takes 1.1 to 2.5 times as long; 8 times with few elements in thousands of channels, and
        longer where exponents differ widely, see `batch_norm_backward_reduce`.

    Returns
    -------
    BatchNormGradients
        Named tuple of diff_src (src's shape, dtype and memory order), diff_gamma
        and diff_beta (shape (C,), mean's dtype). Arrays passed in `out` are
        themselves returned. With ``diff_src_1=True`` a `BatchNormAddGradients`, which has
        diff_src_1 (as diff_src) too.

    Raises
    ------
    TypeError
        If an argument is not an array, is masked, is on an accelerator, has a dtype
        other than those above or is not in native byte order; if src and diff_dst, or
        mean, variance and gamma, differ in dtype; if a number or a flag has the wrong
        type.
    ValueError
        If shapes do not fit, src has fewer than two dimensions, an option is out of
        range, ``relu=True`` comes without exactly one of beta, dst and workspace, or one of those
        without it, ``diff_src_1=True`` comes without dst or workspace, a vector is in `out` with
        ``param_grads=False``, or an array in `out` has the wrong shape or dtype, is read-only, or
        shares memory.
    MemoryError
        If there is not enough memory for outputs or partial sums.

    See Also
    --------
    batch_norm_training : The forward pass.
    batch_norm_double_backward : The gradient of this one.
    batch_norm_backward_reduce, batch_norm_backward_apply : For data in parts.

    Notes
    -----
    If an error is raised, nothing has been written.

    The memory layout is read from src's strides: memory that is channels-last is
    handled as such, however its axes are named, and nothing is copied. Only these are
    copied: src, if its last axis in memory is not contiguous; diff_dst, dst or
    what is written, if theirs is not, or if their axes are in a different memory order from
    src's.

    With beta nothing more is read than without ReLU, and the result of the forward pass comes
    out bit for bit as `batch_norm_inference` gives it for the same mean, variance, gamma and beta.
    `batch_norm_training` computes with float64 statistics: if mean and variance are kept in
    float64, which goes with any data (``out=`` of the forward pass; gamma and beta are float64
    then too), the same elements pass. Rounded to float32, they may let others pass where the
    result is within rounding of 0. With dst or workspace working memory of one bit for each
    element is taken, and dst is read once.

    The bits of the result depend only on the values and on the order of src's axes in
    memory: not on the CPU, the number of threads, alignment, `out`, or the
    floating-point mode of the caller.

    No warning is given for NaN, infinite, or negative variances: the result is what
    IEEE arithmetic makes of the formula. An empty problem gives an empty diff_src, and
    zeros for diff_gamma and diff_beta.

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

@overload
def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    variance: Array | None = None,
    gamma: Array | None = None,
    epsilon: SupportsFloat | None = None,
    exact: Literal[False] = False,
) -> NDArray[float64]: ...
@overload
def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    variance: Array | None = None,
    gamma: Array | None = None,
    epsilon: SupportsFloat | None = None,
    exact: Literal[True],
) -> NDArray[int64]: ...
@overload
def batch_norm_backward_reduce(
    src: Array,
    diff_dst: Array,
    mean: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    variance: Array | None = None,
    gamma: Array | None = None,
    epsilon: SupportsFloat | None = None,
    exact: Flag,
) -> NDArray[Any]:
    """First half of `batch_norm_backward`: the sums over one part of the data.

    Add the sums of all parts (slices of an array larger than memory, or shards on several
    machines), by ``+``, ``sum`` or what adds arrays between machines, and pass the total to
    `batch_norm_backward_apply` for each part. It has counted.

    Parameters
    ----------
    src, diff_dst, mean, data_format, num_threads
        As for `batch_norm_backward`; src and diff_dst are one part.
    relu, beta, dst, workspace
        As for `batch_norm_backward`, of this part.
    variance, gamma, epsilon
        As for `batch_norm_backward`; variance and epsilon must be given with beta; without it they
        are checked, and not used.
    exact : bool, optional
        If True, the sums are exact.

    Returns
    -------
    ndarray of float64, shape (3, C)
        Of each channel ``sum(dy)`` and ``sum(dy * (src - mean))``, where dy is diff_dst, or what
        came through the ReLU of it; and the number of its elements.
    ndarray of int64, shape (k, 2, C)
        With ``exact=True``, a state: the sums of dy and of ``dy * (src - mean)``, where the
        difference and the product are each rounded as elements are computed (in float32, or
        float64 for float64 data), and nothing else is. mean is rounded to float32 first, unless
        the data is float64: apply takes that into account, `batch_norm_sums` does not. k is 11,
        and 57 for float64 data.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`.

    See Also
    --------
    batch_norm_backward_apply : The second half.
    batch_norm_sums : The sums of a state.

    Notes
    -----
    Over the same arrays, reduce and apply give the same bits as the single call. Sums
    added over several parts are the same every time for the same parts, but not bit for
    bit those of the whole. For float64 data the bound on their error grows by
    ``2**-53 * sum(abs(terms))`` for each part after the first; for the other dtypes that
    is negligible next to the bound itself. Arrays are copied in the same cases as by
    `batch_norm_backward`.

    States are added too: by NumPy's ``+``, MPI's sum of int64, Dask's, any. The sum of all states
    is the state of all the data, whatever the parts, their order and that of their axes: what
    `batch_norm_backward_apply` makes of it depends on the values alone. It refuses a sum of states
    about another mean, or of another dtype, and of 2**20 states or more: before that
    `batch_norm_canonical` makes one of those added so far. Of which ReLU dy came through, a state
    does not know. Data whose exponents differ widely, NaN and Inf take longer, up to sixty
    times as long as plain sums.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(6.0).reshape(3, 2)
    >>> mean = np.array([2.0, 0.0])
    >>> bn_ext.batch_norm_backward_reduce(src, np.ones((3, 2)), mean)
    array([[3., 3.],
           [0., 9.],
           [3., 3.]])
    >>> states = [bn_ext.batch_norm_backward_reduce(part, np.ones((len(part), 2)), mean, exact=True)
    ...           for part in (src[:1], src[1:])]
    >>> bn_ext.batch_norm_sums(states[0] + states[1])
    array([[3., 3.],
           [0., 9.]])
    """

@overload
def batch_norm_backward_apply(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    sums: Array | Literal[0],
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Literal[True] = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector]]: ...
@overload
def batch_norm_backward_apply(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    sums: Array | Literal[0],
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[True],
) -> BatchNormAddGradients[NDArray[Scalar], NDArray[Vector] | Any]: ...
@overload
def batch_norm_backward_apply(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    sums: Array | Literal[0],
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    param_grads: Flag,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    relu: Flag = False,
    beta: Array | None = None,
    dst: Array | None = None,
    workspace: Array | None = None,
    diff_src_1: Literal[False] = False,
) -> BatchNormGradients[NDArray[Scalar], NDArray[Vector] | Any]:
    """Second half of `batch_norm_backward`: the gradient of a part, from the sums of all.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma
        As for `batch_norm_backward`; src and diff_dst are one part; gamma may be None.
    sums : array of float64, shape (3, C), or of int64, shape (k, 2, C)
        What `batch_norm_backward_reduce` returned, added over all parts, this one too: sums, or a
        state.
    epsilon, data_format, is_training, param_grads, out, num_threads
        As for `batch_norm_backward`.
    relu, beta, dst, workspace, diff_src_1
        As for `batch_norm_backward`, of this part; the same gate as for its sums.

    Returns
    -------
    BatchNormGradients
        diff_src of this part, and diff_src_1 if it is asked for; diff_gamma and diff_beta
        of the whole, the same for every part, even one without elements.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`.

    See Also
    --------
    batch_norm_backward_reduce : The first half.

    Notes
    -----
    Arrays are copied in the same cases as by `batch_norm_backward`; sums that are not
    C-contiguous are copied too.

    Examples
    --------
    A batch split into two parts:

    >>> import numpy as np, bn_ext
    >>> rng = np.random.default_rng(0)
    >>> src, diff_dst = rng.standard_normal((2, 8, 4))
    >>> mean, variance = src.mean(axis=0), src.var(axis=0)
    >>> parts = [(src[:5], diff_dst[:5]), (src[5:], diff_dst[5:])]
    >>> sums = sum(bn_ext.batch_norm_backward_reduce(*part, mean) for part in parts)
    >>> diff_src = np.concatenate([
    ...     bn_ext.batch_norm_backward_apply(*part, mean, variance, None, sums,
    ...                                      epsilon=1e-5).diff_src
    ...     for part in parts])
    >>> whole = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, epsilon=1e-5)
    >>> np.allclose(diff_src, whole.diff_src, rtol=1e-12)
    True
    """

def batch_norm_double_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Data[Vector],
    variance: Array,
    gamma: Array | None,
    diff_diff_src: Array,
    diff_diff_gamma: Array | None = None,
    diff_diff_beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    is_training: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormDoubleBackward[NDArray[Scalar], NDArray[Vector]]:
    """Gradient of the gradient: what `batch_norm_backward` returns, differentiated once more.

    With ``loss`` a function of the three results of `batch_norm_backward`, of which
    ``diff_diff_src``, ``diff_diff_gamma`` and ``diff_diff_beta`` are its derivatives with respect
    to each, this gives the derivatives of ``loss`` with respect to src, diff_dst and gamma. For
    each channel, with ``dy = diff_dst``, ``g = diff_diff_src``,
    ``rstd = 1 / sqrt(variance + epsilon)``, ``xhat = (src - mean) * rstd`` and ``avg(...)`` the
    mean over the M elements::

        # training
        away(u)       = u - avg(u) - xhat * avg(u*xhat)
        bent          = avg(g)*avg(dy) - avg(g*dy) + 3*avg(dy*xhat)*avg(g*xhat)
        diff_src      = gamma*rstd**2 * (xhat*bent + avg(g*xhat) * (avg(dy) - dy)
                                         + avg(dy*xhat) * (avg(g) - g))
                        + diff_diff_gamma*rstd * away(dy)
        diff_diff_dst = gamma*rstd * away(g) + diff_diff_gamma*xhat + diff_diff_beta
        diff_gamma    = rstd * sum(g * away(dy))

        # frozen
        diff_src      = diff_diff_gamma*rstd * dy
        diff_diff_dst = gamma*rstd * g + diff_diff_gamma*xhat + diff_diff_beta
        diff_gamma    = rstd * sum(g * dy)

    Parameters
    ----------
    src, diff_dst, mean, variance
        As for `batch_norm_backward`; of training, mean and variance are those of src itself, and
        what they do to the result is in it.
    gamma : array, shape (C,), or None
        The scale, in mean's dtype. None means ones.
    diff_diff_src : array
        Gradient with respect to diff_src, with src's shape and dtype.
    diff_diff_gamma, diff_diff_beta : array, shape (C,), optional
        Gradients with respect to diff_gamma and diff_beta, in mean's dtype. None means zeros.
    epsilon, data_format, is_training, num_threads
        As for `batch_norm_backward`.
    out : tuple (diff_src, diff_diff_dst, diff_gamma), optional
        Arrays to write to; any of them may be None. ``diff_src`` may be exactly src, diff_dst or
        diff_diff_src, and so may ``diff_diff_dst``, but not the same one; no other shared memory
        is accepted.

    Returns
    -------
    BatchNormDoubleBackward
        Named tuple of diff_src and diff_diff_dst (src's shape, dtype and memory order) and
        diff_gamma (shape (C,), mean's dtype). Arrays passed in `out` are themselves returned.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`.

    See Also
    --------
    batch_norm_backward : The gradient itself.

    Notes
    -----
    If an error is raised, nothing has been written.

    src, diff_dst and diff_diff_src are read once for five sums, and once more for both results,
    which are written together; with frozen statistics they are read once in all. Arrays are copied
    in the same cases as by `batch_norm_backward`, and bits depend on no more.

    Factors of each channel are rounded to the type that the data is computed in. In float32,
    ``rstd**3`` times means of products has to lie between 2**-126 and 2**127: deviations from
    about 1e-12 to 1e12, if all else is near 1. Beyond, and where gamma, diff_diff_gamma or the
    data is infinite, results may be NaN, Inf or 0 where the formula's value is another; float64
    data reaches further.

    A vector that is absent gives the bits of zeros: where src or diff_dst is infinite, what it is
    multiplied by is NaN. An empty problem gives empty arrays, and zeros for diff_gamma.

    Examples
    --------
    The penalty ``sum(diff_src**2)`` of a gradient, and where it leads:

    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> diff_dst = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    >>> mean, variance, gamma = src.mean(axis=0), src.var(axis=0), np.ones(2)
    >>> grads = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=1.0)
    >>> second = bn_ext.batch_norm_double_backward(
    ...     src, diff_dst, mean, variance, gamma, 2 * grads.diff_src, epsilon=1.0)
    >>> second.diff_gamma.round(6)
    array([0.416   , 0.000917])

    The penalty is quadratic in diff_dst and in gamma, so each leads to twice the penalty:

    >>> penalty = (grads.diff_src**2).sum(axis=0)
    >>> np.allclose((diff_dst * second.diff_diff_dst).sum(axis=0), 2 * penalty)
    True
    >>> np.allclose(gamma * second.diff_gamma, 2 * penalty)
    True
    """

def _available_isas() -> tuple[str, ...]: ...
def _get_isa() -> str: ...
def _use_isa(name: str) -> None: ...
def _set_cpu_quota(threads: int) -> None: ...
def _cache_sizes() -> tuple[int, int]: ...
def _set_cache_sizes(l2: int, last_level: int) -> None: ...
def _default_threads() -> int: ...
def _set_threads_limit(threads: int) -> None: ...
def _has_openmp() -> bool: ...
def _openmp_address() -> int: ...
def _forked() -> bool: ...
def _last_call() -> tuple[int, int]: ...
def batch_norm_sums(state: Array) -> NDArray[float64]:
    """The sums of a state, each rounded once.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_backward_reduce` or `batch_norm_training_reduce` returned with
        ``exact=True``, or a sum of such.

    Returns
    -------
    ndarray of float64, shape (2, C)
        To nearest, ties to even; NaN where a term was NaN, or terms were both Inf and -Inf. Whether
        all parts were summed about one mean is not checked here.

    Raises
    ------
    TypeError, ValueError
        If it is no state, or a sum of 2**20 of them or more; or its digits are no sum of as many
        parts and elements as it counts.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0], [2.0**-60], [-1.0]])
    >>> bn_ext.batch_norm_sums(bn_ext.batch_norm_training_reduce(src, exact=True))[0] == 2.0**-60
    array([ True])
    """

def batch_norm_count(state: Array) -> int:
    """Number of elements per channel that a state is of.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    int
        The number of elements of each channel, over all parts; 0 if there are no channels.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`, but that digits are not looked at.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> states = [bn_ext.batch_norm_training_reduce(np.ones((n, 2)), exact=True) for n in (3, 4)]
    >>> bn_ext.batch_norm_count(states[0] + states[1])
    7
    """

def batch_norm_canonical(state: Array) -> NDArray[int64]:
    """The same state with canonical digits, as one that was never added to others.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    ndarray of int64, shape (k, 2, C)
        A new array. States of the same elements, which may differ before, are equal then. It counts
        as one where states are added.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(12.0).reshape(6, 2)
    >>> def state(*parts):
    ...     return sum(bn_ext.batch_norm_training_reduce(part, exact=True) for part in parts)
    >>> several = bn_ext.batch_norm_canonical(state(src[3:], src[:2], src[2:3]))
    >>> np.array_equal(several, state(src))
    True
    """

def batch_norm_training_stats(state: Array, mean: Array | None = None) -> NDArray[float64]:
    """Statistics from the exact sums of all parts.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_training_reduce` returned with ``exact=True``, added over all parts.
    mean : array, shape (C,), optional
        What that was given as its mean: what a first pass gave. None means that the sums are about
        zeros.

    Returns
    -------
    ndarray of float64, shape (4, C)
        What `batch_norm_training_apply` takes, as `batch_norm_training_reduce` describes it: the
        mean of each channel, ``sum((src - mean)**2)``, and the count. Without mean, the mean is
        right to half an ulp, but squares lose what they have in common: take them from a second
        pass, about the mean of the first.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`; ValueError if the state is not of sums about this mean.

    Notes
    -----
    With M elements, s and q the sums of ``src - p`` and of its square, where p is the mean, rounded
    to float32 unless the data is float64::

        stats[0] = p + s/M        stats[1] = q - s**2/M, at least 0

    in pairs of doubles. Differences are rounded before they are summed: where
    that is why p + s/M is not the mean that was given, this is returned as it is. What stands
    between, sums that no double holds too, does not overflow.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0], [2.0], [6.0]])
    >>> bn_ext.batch_norm_training_stats(bn_ext.batch_norm_training_reduce(src, exact=True))
    array([[ 3.],
           [14.],
           [ 3.],
           [ 1.]])
    """

def _outline(
    dtype: str, dims: tuple[int, ...], channel_axis: int, threads: int
) -> dict[str, Any]: ...

class _DefaultMode:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def _committed(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    state: dict[str, Any],
    after: dict[str, Any],
    undo: list[Any],
) -> Any: ...
def _as_array(a: object, name: str) -> NDArray[Any]: ...
def _as_epsilon(epsilon: object, name: str = "epsilon") -> float: ...
def _as_real(value: object, name: str, expected: str) -> float: ...
def _as_flag(value: object, name: str) -> bool: ...
def _dry_run(
    function: Callable[..., object],
    *arguments: object,
    data_format: object = "NXC",
    **options: object,
) -> None: ...

class _Words:
    def __init__(self, data_format: str, words: dict[str, str]) -> None: ...

def _refuse_unknown(function: str, refused: dict[str, object]) -> None: ...
def _share_memory(a: NDArray[Any], b: NDArray[Any]) -> bool: ...
def _shown(value: object) -> str: ...
def _formulas() -> tuple[str, ...]: ...
def _kernel_interface() -> dict[str, Any]: ...
def _run_sum_kernel(
    isa: str,
    dtype: str,
    formula: str,
    folds: bool,
    block: tuple[Sequence[int], Sequence[int], Sequence[int], int, int, int],
    coefs: NDArray[np.uint8],
    stride: int,
    planes: NDArray[np.float64],
    group: NDArray[np.float64],
    calls: int = 1,
) -> None: ...
def _run_runs_kernel(
    isa: str,
    dtype: str,
    formula: str,
    folded: bool,
    parts: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], int, int, int]],
    apart: Sequence[int],
    coefs: NDArray[np.uint8],
    planes: NDArray[np.float64],
) -> None: ...
def _run_write_kernel(
    isa: str,
    dtype: str,
    formula: str,
    span: tuple[
        Sequence[int],
        Sequence[int],
        Sequence[int],
        Sequence[int],
        int,
        int,
        int,
        int,
        bool,
        bool,
    ],
    coefs: NDArray[np.uint8],
    stride: int,
    period: int,
    layout: int,
    calls: int = 1,
) -> None: ...
def _run_sums_kernel(
    isa: str,
    dtype: str,
    name: str,
    planes: NDArray[np.float64],
    n: int,
    other: NDArray[np.float64],
) -> None: ...
def _run_passed(
    isa: str, dtype: str, elements: NDArray[Any], n: int, to: NDArray[np.uint64]
) -> None: ...
def _run_expand(
    isa: str,
    dtype: str,
    ring: bool,
    channel: NDArray[np.uint8],
    channels: int,
    each: int,
    n: int,
    column: NDArray[np.uint8],
) -> None: ...

class BatchNormTraining(NamedTuple, Generic[_Data]):
    """Result of `batch_norm_training`.

    Attributes
    ----------
    dst : ndarray
        The normalized src, in src's shape, dtype and memory order.
    mean, variance : ndarray
        Statistics of each channel, shape (C,); the variance is the biased one, divided by the
        number of elements, which is what `batch_norm_backward` takes.
    """

    dst: _Data
    mean: NDArray[Any]
    variance: NDArray[Any]

def batch_norm_training(
    src: Data[Scalar],
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    running_mean: NDArray[Any] | None = None,
    running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsIndex | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    exact: Flag = False,
    **refused: Never,
) -> BatchNormTraining[NDArray[Scalar]]:
    """Batch normalization with the statistics of the batch itself.

    For each channel, over its M elements::

        mean     = sum(src) / M
        variance = sum((src - mean)**2) / M
        dst      = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, where asked for, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        float32, float64, float16 or bfloat16, at least two dimensions, any strides: whatever
        `batch_norm_backward` takes.
    gamma, beta : array, shape (C,), optional
        The scale and the shift, of one dtype: float64 with any data, float32 with any but
        float64 data, or the data's own. None means ones, and zeros.
    epsilon : float
        Added to the variance: finite, at least 0.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are: on the last axis, or on axis 1.
    running_mean, running_variance : ndarray of float32 or float64, shape (C,), optional
        Statistics to keep for inference, changed in place once everything else has succeeded.
        These two and the next two are given together, or not at all.
    exponential_avg_factor : float, optional
        The weight of the batch: ``running = (1 - factor) * running + factor * batch``, any finite
        number. With 1, what was there before is not read. There is no default, and ``momentum`` is
        not accepted, because packages disagree on both.
    correction : {0, 1}, optional
        The running variance is that of the batch divided by ``M - correction``: 1 in PyTorch and
        TensorFlow, 0 in oneDNN, Flax and Keras.
    src_1 : array, optional
        Added to the result, before ReLU: src's shape and dtype.
    relu : bool, optional
        If True, results that are 0 or less become 0; a NaN stays.
    workspace : ndarray of uint8, shape (ceil(src.size / 8),), optional
        Where to keep, for `batch_norm_backward`, which elements ReLU let pass; with ``relu=True``.
        One bit each, in the order of src's axes in memory, the first in the lowest bit of the first
        byte; contiguous.
    out : tuple (dst, mean, variance), optional
        Arrays to write to; any of them may be None. ``dst`` may be exactly src or exactly src_1.
        ``mean`` and ``variance`` may be float64 with any data, if gamma and beta, where given, are
        too.
    num_threads : int, optional
        As for `batch_norm_backward`.
    exact : bool, optional
        If True, sums are exact until they are rounded: the bits of the result then depend on the
        values alone, and are those of any parts of the data, see `batch_norm_training_reduce`.
        src is read once more, and squares take more to sum: 3 to 6 times as long in all, 10 times
        with few elements in thousands of channels, and longer where exponents differ widely.
        Where the square of a deviation from the mean overflows in float32 (float64, for float64
        data: beyond 2**64, or 2**512), the variance is Inf.
    **refused
        Nothing: any other name is an error, of which the one for ``momentum`` says more.

    Returns
    -------
    BatchNormTraining
        Named tuple of dst (src's shape, dtype and memory order), mean and variance (shape (C,)),
        in the dtype of gamma and beta; without those, in that of the first of both in `out`;
        without that too, float64 with float64 data, else float32.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`; TypeError for ``momentum``; ValueError if some, but not all
        arguments of the running statistics are given, or these share memory with others, for
        ``correction=1`` with one element in each channel, and for ``workspace`` without
        ``relu=True``.

    See Also
    --------
    batch_norm_inference : With given statistics.
    batch_norm_backward : The gradient.
    batch_norm_training_reduce, batch_norm_training_merge, batch_norm_training_apply :
        For data in parts.
    BatchNorm : As a layer.

    Notes
    -----
    If an error is raised, nothing has been written.

    src is read twice, and while a channel's data fits the cache, only once from memory; with
    workspace, dst is read once more. Arrays are copied in the same cases as by
    `batch_norm_backward`. The bits of the result depend only on the values and on the order of
    src's axes in memory.

    mean and variance are computed in one pass about a pivot near the mean, so that they are right
    however far the mean lies from 0, and where squares overflow or vanish. A constant channel has
    variance 0 (and dst NaN, if epsilon is 0 too); so may one of a variance up to 2**-150 (float64
    data: 2**-1075), if the few elements that the pivot is made of are alike. But a variance is Inf
    where its dtype does not reach, and the gradient from it 0: in float16 from a deviation of 256
    on, in float32 from 1.8e19 on. float64 vectors (`gamma`, or ``mean`` in `out`) reach further; of
    float64 data, M times the variance must stay below 1.8e308. With ``exact=True`` there are two
    passes, and mean and variance are as near, but where squares overflow.

    An empty problem gives an empty dst and NaN for mean and variance, and leaves the running
    statistics alone.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> dst, mean, variance = bn_ext.batch_norm_training(src, epsilon=0.0)
    >>> mean
    array([ 2., 30.])
    >>> variance.round(6)
    array([  0.666667, 466.666667])
    >>> dst.round(6)
    array([[-1.224745, -0.92582 ],
           [ 0.      , -0.46291 ],
           [ 1.224745,  1.38873 ]])

    Running statistics, as PyTorch keeps them with ``momentum=0.1``:

    >>> running_mean, running_variance = np.zeros(2), np.ones(2)
    >>> _ = bn_ext.batch_norm_training(
    ...     src, epsilon=1e-5, running_mean=running_mean, running_variance=running_variance,
    ...     exponential_avg_factor=0.1, correction=1)
    >>> running_mean, running_variance
    (array([0.2, 3. ]), array([ 1. , 70.9]))
    """

def batch_norm_training_merge(stats: Array) -> NDArray[float64]:
    """Statistics of all parts, from those of each.

    Parameters
    ----------
    stats : array of float64, shape (k, 4, C), or list or tuple of k arrays
        What `batch_norm_training_reduce` returned for each of k parts, or this function for
        several. No iterator, which may have no end.

    Returns
    -------
    ndarray of float64, shape (4, C)
        As `batch_norm_training_reduce` returns them: the mean of each channel,
        ``sum((src - mean)**2)``, the number of elements, and a 1.

    Raises
    ------
    TypeError
        If stats is no array of float64, nor a list or tuple of such.
    ValueError
        If shapes do not fit, or some are no statistics: because they were added, say.

    See Also
    --------
    batch_norm_training_reduce : The statistics of a part.
    batch_norm_training_apply : What takes those of the whole.

    Notes
    -----
    Parts are merged in order [1]_, so the same parts give the same bits every time, but not bit for
    bit those of the whole. Parts without elements change nothing, and one part alone comes back bit
    for bit.

    References
    ----------
    .. [1] Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
       sample variances", 1979.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> parts = np.array([[1.0], [3.0]]), np.array([[8.0]])
    >>> stats = [bn_ext.batch_norm_training_reduce(part) for part in parts]
    >>> bn_ext.batch_norm_training_merge(stats)
    array([[ 4.],
           [26.],
           [ 3.],
           [ 1.]])
    """

def batch_norm_training_apply(
    src: Data[Scalar],
    stats: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    running_mean: NDArray[Any] | None = None,
    running_variance: NDArray[Any] | None = None,
    exponential_avg_factor: SupportsFloat | None = None,
    correction: SupportsIndex | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
    **refused: Never,
) -> BatchNormTraining[NDArray[Scalar]]:
    """Second half of `batch_norm_training`: dst of a part, from the statistics of all.

    Parameters
    ----------
    src, src_1
        As for `batch_norm_training`; one part.
    stats : array of float64, shape (4, C)
        What `batch_norm_training_reduce` returned, merged over all parts, this one too.
    gamma, beta, epsilon, data_format, relu, workspace, out, num_threads
        As for `batch_norm_training`.
    running_mean, running_variance, exponential_avg_factor, correction
        As for `batch_norm_training`; given for one of the parts alone, since each call takes a
        step.
    **refused
        Nothing, as for `batch_norm_training`.

    Returns
    -------
    BatchNormTraining
        dst of this part; mean and variance of the whole, the same for every part.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`.

    See Also
    --------
    batch_norm_training_reduce : The first half.
    batch_norm_training_merge : What comes in between.

    Examples
    --------
    A batch split into two parts:

    >>> import numpy as np, bn_ext
    >>> src = np.random.default_rng(0).standard_normal((8, 4))
    >>> parts = [src[:5], src[5:]]
    >>> stats = bn_ext.batch_norm_training_merge(
    ...     [bn_ext.batch_norm_training_reduce(part) for part in parts])
    >>> dst = np.concatenate([
    ...     bn_ext.batch_norm_training_apply(part, stats, epsilon=1e-5).dst for part in parts])
    >>> np.allclose(dst, bn_ext.batch_norm_training(src, epsilon=1e-5).dst, rtol=1e-12)
    True
    """

@overload
def batch_norm_training_reduce(
    src: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    exact: Literal[False] = False,
    mean: None = None,
) -> NDArray[float64]: ...
@overload
def batch_norm_training_reduce(
    src: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    exact: Literal[True],
    mean: Array | None = None,
) -> NDArray[int64]: ...
@overload
def batch_norm_training_reduce(
    src: Array,
    *,
    data_format: DataFormat = "NXC",
    num_threads: SupportsIndex | None = None,
    exact: Flag,
    mean: Array | None = None,
) -> NDArray[Any]:
    """First half of `batch_norm_training`: the statistics of one part of the data.

    Merge those of all parts by `batch_norm_training_merge` and pass them to
    `batch_norm_training_apply` for each part.

    Parameters
    ----------
    src, data_format, num_threads
        As for `batch_norm_training`; src is one part.
    exact : bool, optional
        If True, the result is a state: exact sums.
    mean : array, shape (C,), optional
        With ``exact=True`` alone: what is taken from src before it is summed, float32 or float64
        (of float16 and bfloat16 data also theirs), rounded to float32 unless the data is float64.
        None means zeros.

    Returns
    -------
    ndarray of float64, shape (4, C)
        Of each channel the mean, ``sum((src - mean)**2)`` (both 0 without elements), the number of
        its elements, and a 1: statistics that were added, and not merged, are known by it, and
        refused.
    ndarray of int64, shape (k, 2, C)
        With ``exact=True``, a state: the sums of ``src - mean`` and of its square, each rounded as
        elements are computed (in float32, or float64 for float64 data), and nothing else is. k is
        11, and 57 for float64 data.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`.

    See Also
    --------
    batch_norm_training_merge : What follows; with ``exact=True`` it is ``+``.
    batch_norm_training_apply : The second half.
    batch_norm_training_stats : Statistics from a state.

    Notes
    -----
    Over the same array, reduce and apply give the same bits as the single call.

    States are added, as those of `batch_norm_backward_reduce` are. Statistics that depend on the
    values alone take two passes, since the squares are about the mean: the first for the mean, with
    ``mean=None``; the second about that (`batch_norm_training_stats`).

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(6.0).reshape(3, 2)
    >>> bn_ext.batch_norm_training_reduce(src)
    array([[2., 3.],
           [8., 8.],
           [3., 3.],
           [1., 1.]])
    >>> parts = src[:1], src[1:]
    >>> reduce = bn_ext.batch_norm_training_reduce
    >>> state = sum(reduce(part, exact=True) for part in parts)
    >>> mean = bn_ext.batch_norm_training_stats(state)[0]
    >>> state = sum(reduce(part, exact=True, mean=mean) for part in parts)
    >>> stats = bn_ext.batch_norm_training_stats(state, mean)
    >>> np.array_equal(stats, bn_ext.batch_norm_training_reduce(src))
    True
    """

def batch_norm_inference(
    src: Data[Scalar],
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat = "NXC",
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: NDArray[Any] | None = None,
    num_threads: SupportsIndex | None = None,
) -> NDArray[Scalar]:
    """Batch normalization with given statistics.

    For each channel::

        dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, where asked for, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src, src_1, epsilon, data_format, relu, workspace, num_threads
        As for `batch_norm_training`.
    mean, variance : array, shape (C,)
        The statistics: float64 with any data, float32 with any but float64 data, or the data's
        own dtype.
    gamma, beta : array, shape (C,), optional
        The scale and the shift, in mean's dtype. None means ones, and zeros.
    out : ndarray, optional
        Array to write to, of src's shape and dtype; it may be exactly src or exactly src_1.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`.

    See Also
    --------
    batch_norm_training : With the statistics of the batch.
    batch_norm_backward : The gradient, with ``is_training=False``.

    Notes
    -----
    src is read once. All else is as for `batch_norm_training`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> mean, variance = np.array([1.0, 0.0]), np.array([4.0, 100.0])
    >>> bn_ext.batch_norm_inference(src, mean, variance, epsilon=0.0)
    array([[0., 1.],
           [1., 3.]])
    """
