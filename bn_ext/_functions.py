"""What users call: the functions, with types and documentation. `_core` does the work.

batch_norm_training, batch_norm_inference       src -> dst
batch_norm_backward                             src, diff_dst -> diff_src, diff_gamma, diff_beta
batch_norm_double_backward                      the gradient of batch_norm_backward
batch_norm_statistics_backward                  with respect to given statistics
"""

from __future__ import annotations  # help shows names, not what they stand for

from typing import Any, Literal, SupportsFloat, SupportsIndex, overload

import numpy as np

import bn_ext._core as _core
from bn_ext._derivatives import statistics_backward, vectors_alike
from bn_ext._results import (
    BatchNormAddGradients,
    BatchNormDoubleBackward,
    BatchNormGradients,
    BatchNormTraining,
)
from bn_ext._sums import GradientSums, as_sums
from bn_ext._typing import Array, Data, DataFormat, Flag, NDArray, Out, Scalar


def batch_norm_training(
    src: Data[Scalar],
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
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
) -> BatchNormTraining[NDArray[Scalar]]:
    """Batch normalization with the statistics of the batch itself.

    For each channel, over its M elements::

        mean     = sum(src) / M
        variance = sum((src - mean)**2) / M
        dst      = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, if requested, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        What is normalized: any src that `batch_norm_backward` accepts, of float32, float64, float16
        or bfloat16, with at least two dimensions and any strides.
    gamma, beta : array, shape (C,), optional
        The scale and the shift, each in any of the four dtypes. None means a scale of ones, a
        shift of zeros.
    epsilon, data_format, num_threads
        As for `batch_norm_backward`, which has the gradient.
    running_mean, running_variance : ndarray, shape (C,), optional
        Statistics to keep for inference, updated in place after everything else has succeeded. Each
        may have any dtype that src may have. In 16-bit types, updates below half an ulp are lost.
        Pass both with exponential_avg_factor and correction, or none of these four.
    exponential_avg_factor : float, optional
        The weight of the batch, any finite number:
        ``running = (1 - factor) * running + factor * batch``. With 1, the old values are ignored.
    correction : {0, 1}, optional
        The running variance is updated with ``sum((src - mean)**2) / (M - correction)`` of the
        batch. PyTorch and TensorFlow use 1; oneDNN, Flax and Keras use 0.
    src_1 : array, optional
        Added to the result before the ReLU; of src's shape and dtype.
    relu : bool, optional
        If True, results that are 0 or less become 0; a NaN stays.
    workspace : ndarray of uint8, shape (ceil(src.size / 8) + src.ndim + 8,), optional
        A contiguous array in which the call records which elements the ReLU passed, for
        `batch_norm_backward`: a bit each, and behind them what tells the order of axes and the
        shape. It needs ``relu=True``.
    out : tuple (dst, mean, variance), optional
        Arrays to write to; any of them may be None. ``dst`` may occupy exactly the memory of src or
        src_1. ``mean`` and ``variance`` may have any of the four dtypes.
    exact : bool, optional
        As for `batch_norm_backward`, with `Statistics` for data in parts. A call takes 1.9 to 6
        times as long, with few elements per channel about 40 times.

    Returns
    -------
    BatchNormTraining
        Named tuple of dst (src's shape, dtype and memory order), mean and variance (shape (C,),
        float64). Arrays passed in `out` are themselves returned.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`; also a ValueError for ``correction=1`` with one element per
        channel, which has no unbiased variance.

    Notes
    -----
    What the Notes of `batch_norm_backward` say of errors, copies and bits holds here, too.

    Mean and variance are accurate even if the mean is far from 0, or squares overflow or underflow.
    A constant channel has a variance of 0 and dst = beta, unless rstd or gamma * rstd exceeds the
    range of the arithmetic: its dst is then NaN, as with an epsilon of 0, or one below 8.636e-78 if
    the data is not float64. In an array in `out`, a variance too large for its dtype is Inf, and
    the diff_src and diff_gamma computed from it are 0: in float16 from a standard deviation of 256
    on, in float32 from 1.8e19 on.

    An empty src gives an empty dst and NaN statistics. The running statistics do not change.

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
    """
    return _core.training(
        src, gamma, beta, epsilon, data_format, running_mean, running_variance,
        exponential_avg_factor, correction, src_1, relu, workspace, out, num_threads, exact,
    )  # fmt: skip


def batch_norm_inference(
    src: Data[Scalar],
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
    src_1: Array | None = None,
    relu: Flag = False,
    workspace: NDArray[np.uint8] | None = None,
    out: NDArray[Any] | None = None,
    num_threads: SupportsIndex | None = None,
) -> NDArray[Scalar]:
    """Batch normalization with given statistics.

    For each channel::

        dst = gamma * (src - mean) / sqrt(variance + epsilon) + beta

    then, if requested, ``dst += src_1`` and ``dst = max(dst, 0)``.

    Parameters
    ----------
    src, mean, variance, gamma, epsilon, data_format, num_threads
        As for `batch_norm_backward`, which has the gradient, with ``is_training=False``.
    beta, src_1, relu, workspace
        As for `batch_norm_training`.
    out : ndarray, optional
        Array to write to, as ``dst`` for `batch_norm_training`.

    Returns
    -------
    ndarray
        dst, in src's shape, dtype and memory order.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_training`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> mean, variance = np.array([1.0, 0.0]), np.array([4.0, 100.0])
    >>> bn_ext.batch_norm_inference(src, mean, variance, epsilon=0.0)
    array([[0., 1.],
           [1., 3.]])
    """
    return _core.inference(
        src, mean, variance, gamma, beta, epsilon, data_format, src_1, relu, workspace, out,
        num_threads,
    )  # fmt: skip


@overload
def batch_norm_backward(
    src: Data[Scalar], diff_dst: Array, mean: Array, variance: Array, gamma: Array | None = None, *,
    epsilon: SupportsFloat, data_format: DataFormat | None = None, is_training: Flag = True,
    param_grads: Flag = True, sums: GradientSums | None = None, out: Out | None = None,
    num_threads: SupportsIndex | None = None, relu: Flag = False, beta: Array | None = None,
    dst: Array | None = None, workspace: NDArray[np.uint8] | None = None,
    diff_src_1: Literal[False] = False, exact: Flag = False,
) -> BatchNormGradients[NDArray[Scalar]]: ...  # fmt: skip
@overload
def batch_norm_backward(
    src: Data[Scalar], diff_dst: Array, mean: Array, variance: Array, gamma: Array | None = None, *,
    epsilon: SupportsFloat, data_format: DataFormat | None = None, is_training: Flag = True,
    param_grads: Flag = True, sums: GradientSums | None = None, out: Out | None = None,
    num_threads: SupportsIndex | None = None, relu: Flag, beta: Array | None = None,
    dst: Array | None = None, workspace: NDArray[np.uint8] | None = None,
    diff_src_1: Literal[True], exact: Flag = False,
) -> BatchNormAddGradients[NDArray[Scalar]]: ...  # fmt: skip
def batch_norm_backward(  # type: ignore[no-untyped-def]  # types: see the overloads
    src, diff_dst, mean, variance, gamma=None, *, epsilon, data_format=None, is_training=True,
    param_grads=True, sums=None, out=None, num_threads=None, relu=False, beta=None, dst=None,
    workspace=None, diff_src_1=False, exact=False,
):  # fmt: skip
    """Gradient of batch normalization.

    For each channel, with sums over its M elements, ``dy = diff_dst``, ``xc = src - mean``
    and ``rstd = 1 / sqrt(variance + epsilon)``::

        diff_beta  = sum(dy)
        diff_gamma = rstd * sum(dy * xc)
        diff_src   = gamma*rstd * (dy - (diff_beta/M + xc * rstd*diff_gamma/M))  # training
        diff_src   = gamma*rstd * dy                                             # frozen

    Parameters
    ----------
    src : array, shape (N, ..., C) or (N, C, ...)
        Input of the forward pass: float32, float64, float16 or bfloat16 (``ml_dtypes.bfloat16``),
        at least two dimensions, any strides. A NumPy array, or anything in CPU memory that NumPy
        can view as one, as tensors of torch, JAX and pyarrow, without a copy. A list or tuple is
        converted by NumPy, which makes Python floats float64.
    diff_dst : array
        Gradient with respect to the output of the forward pass, with src's shape and dtype.
    mean, variance : array, shape (C,)
        The statistics with which the forward pass normalized, used as given. ``variance`` is the
        biased one (divided by M). Each may have any of the four dtypes.
    gamma : array, shape (C,), optional
        The scale, in any of the four dtypes. None means ones.
    epsilon : float
        What the forward pass added to the variance: finite, at least 0. It is used as a double;
        pass ``float(np.float32(1e-3))`` to match a package that stores epsilon as float32.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are: ``"NXC"`` or ``"channels_last"``, for any number of axes, or
        ``"NLC"``, ``"NHWC"``, ``"NDHWC"``; or on axis 1: ``"NCX"`` or ``"channels_first"``, or
        ``"NCL"``, ``"NCHW"``, ``"NCDHW"``. It has no default, because packages disagree; it may be
        left out only if there are two axes.
    is_training : bool, optional
        True if mean and variance were computed from src; False if they are constants.
    param_grads : bool, optional
        If False, diff_gamma and diff_beta are not computed: both are None in the result, and
        must be None in `out`. diff_src is the same either way.
    sums : GradientSums, optional
        The sums of all parts, of which src and diff_dst are one. Then diff_src and diff_src_1 are
        those of this part, and diff_gamma and diff_beta those of the whole, from any part, even an
        empty one. `exact` is not used.
    out : tuple (diff_src, diff_gamma, diff_beta[, diff_src_1]), optional
        Arrays to write to; any of them may be None. ``diff_src`` and ``diff_src_1`` may each occupy
        exactly the memory of src, diff_dst or dst. No other overlap is accepted, nor may diff_src
        and diff_src_1 overlap.
    num_threads : int, optional
        Maximum number of threads. None means what OpenMP, the CPU affinity and the container's CPU
        quota allow, and fewer for a small problem or while other calls use several.
    relu : bool, optional
        True if the forward pass ended in a ReLU. Then dy is diff_dst where the ReLU passed the
        element, and 0 elsewhere. It passes all but those that are 0 or less, so a NaN, too. Exactly
        one of beta, dst and workspace must tell which elements passed.
    beta : array, shape (C,), optional
        The shift of the forward pass, whose result is computed again from src (see Notes).
    dst : array, optional
        The result of the forward pass, with src's shape and dtype.
    workspace : array of uint8, shape (ceil(src.size / 8) + src.ndim + 8,), optional
        What the forward pass wrote to its ``workspace``, for a src of this shape and data_format.
        If its axes now have another order in memory, the result has the bits of that of the forward
        pass.
    diff_src_1 : bool, optional
        If True, there is a fourth result: the gradient with respect to the array that the forward
        pass added before the ReLU. It equals dy, and needs ``relu=True`` and dst or workspace.
    exact : bool, optional
        If True, the sums are exact and rounded once. The bits of the result then depend on the
        values alone, and data in parts gives the same bits (see `GradientSums`). A call takes 1.6
        to 8 times as long, with few elements per channel about 30 times.

    Returns
    -------
    BatchNormGradients or BatchNormAddGradients
        Named tuple of diff_src (src's shape, dtype and memory order), diff_gamma and diff_beta
        (shape (C,), gamma's dtype, or mean's without gamma) and, with ``diff_src_1=True``,
        diff_src_1 (like diff_src). Arrays passed in `out` are themselves returned.

    Raises
    ------
    TypeError
        If epsilon is missing, or if an argument has a type or dtype other than those above, is
        a masked array, is on an accelerator, or is not in native byte order.
    ValueError
        If shapes do not fit, an option is missing, out of range or contradicts another, `sums` or
        `workspace` belong to other data, or an array in `out` has the wrong dtype, is read-only, or
        overlaps an array in a way not allowed; if exact, also if a channel has 2**39 elements.
    MemoryError
        If there is not enough memory.

    See Also
    --------
    batch_norm_double_backward : The gradient of this gradient.
    batch_norm_statistics_backward : With respect to mean and variance, if they were given.
    GradientSums : For data in parts.

    Notes
    -----
    If an error is raised, nothing has been written.

    Slices of the batch or the channels are not copied, with some exceptions; most other views that
    are not dense are, and so are operands with another order of axes in memory than src's: see
    "What is copied" in the documentation.

    With beta, the result of the forward pass has the bits that `batch_norm_inference` gives for the
    same mean, variance, gamma and beta. Pass the float64 statistics of `batch_norm_training` to
    find exactly the elements that its ReLU passed. With statistics rounded to float32, different
    elements may pass where the result is within rounding error of 0.

    The bits of the result depend only on the values and (unless exact) on the order of src's axes
    in memory: not on the CPU, the number of threads, alignment, `out`, the dtype of a vector that
    holds the same values, or the floating-point mode of the caller. Axes are ordered by the sizes
    of their strides, the largest first, equal ones as in the shape. An axis with stride 0, which a
    broadcast array has, keeps its place in the shape; one of length 1 does not count.

    Where a variance plus epsilon is negative, the result is NaN, with NumPy's RuntimeWarning of an
    invalid value, which ``np.errstate(invalid=...)`` controls. For NaN and infinite values it is
    what IEEE arithmetic makes of the formula, in float32 unless the data is float64: a mean beyond
    its range is infinite. An empty problem gives an empty diff_src, and zeros for diff_gamma and
    diff_beta.

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
    return _core.backward(
        src, diff_dst, mean, variance, gamma, epsilon, data_format, is_training, param_grads, out,
        num_threads, relu, beta, dst, workspace, diff_src_1, exact,
        None if sums is None else as_sums(sums),
    )  # fmt: skip


def batch_norm_double_backward(
    src: Data[Scalar],
    diff_dst: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None,
    diff_diff_src: Array,
    diff_diff_gamma: Array | None = None,
    diff_diff_beta: Array | None = None,
    *,
    epsilon: SupportsFloat,
    data_format: DataFormat | None = None,
    is_training: Flag = True,
    out: Out | None = None,
    num_threads: SupportsIndex | None = None,
) -> BatchNormDoubleBackward[NDArray[Scalar]]:
    """Gradient of the gradient: what `batch_norm_backward` returns, differentiated once more.

    Let ``loss`` be a function of the three results of `batch_norm_backward`, and let
    ``diff_diff_src``, ``diff_diff_gamma`` and ``diff_diff_beta`` be its derivatives with respect to
    these results. `batch_norm_double_backward` returns the derivatives of ``loss`` with respect to
    src, diff_dst and gamma. For each channel, with ``dy = diff_dst``, ``g = diff_diff_src``,
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
    src, diff_dst, mean, variance, gamma, epsilon, data_format, is_training, num_threads
        As for `batch_norm_backward`. With ``is_training=True``, mean and variance must be those of
        src itself. The result then includes the derivatives through them.
    diff_diff_src : array
        Gradient with respect to diff_src, with src's shape and dtype.
    diff_diff_gamma, diff_diff_beta : array, shape (C,), optional
        Gradients with respect to diff_gamma and diff_beta, each in any of the four dtypes. None
        means zeros.
    out : tuple (diff_src, diff_diff_dst, diff_gamma), optional
        Arrays to write to; any of them may be None. ``diff_src`` and ``diff_diff_dst`` may occupy
        exactly the memory of two of src, diff_dst and diff_diff_src.

    Returns
    -------
    BatchNormDoubleBackward
        Named tuple of diff_src, diff_diff_dst and diff_gamma, as of `batch_norm_backward`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`.

    Notes
    -----
    What the Notes of `batch_norm_backward` say of errors, copies and bits holds here, too.

    With ``is_training=True``, the coefficient of ``src - mean`` contains ``rstd**3``, in float32
    unless the data is float64. If all but rstd is near 1, this allows standard deviations from
    about 1e-12 to 1e12. Outside this range, or if gamma, diff_diff_gamma, the mean or the data is
    infinite, a result may be NaN, Inf or 0 although the formula has another value.

    A diff_diff_gamma of 0, or None, times an infinite src or diff_dst is NaN. An empty problem
    gives empty arrays, and zeros for diff_gamma.

    Examples
    --------
    The derivatives of a penalty on the gradient, ``sum(diff_src**2)``:

    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0]])
    >>> diff_dst = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    >>> mean, variance, gamma = src.mean(axis=0), src.var(axis=0), np.ones(2)
    >>> grads = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, gamma, epsilon=1.0)
    >>> second = bn_ext.batch_norm_double_backward(
    ...     src, diff_dst, mean, variance, gamma, 2 * grads.diff_src, epsilon=1.0)
    >>> second.diff_gamma.round(6)
    array([0.416   , 0.000917])
    """
    return _core.double_backward(
        src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma, diff_diff_beta,
        epsilon, data_format, is_training, out, num_threads,
    )  # fmt: skip


def batch_norm_statistics_backward(
    diff_gamma: Array,
    diff_beta: Array,
    variance: Array,
    gamma: Array | None = None,
    *,
    epsilon: SupportsFloat,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gradient of batch normalization with respect to a given mean and variance.

    Use it if the statistics do not come from src but depend on other trained parameters.

    Parameters
    ----------
    diff_gamma, diff_beta : array, shape (C,)
        What `batch_norm_backward` returned with ``is_training=False``.
    variance, gamma, epsilon
        What was passed to `batch_norm_backward`.

    Returns
    -------
    diff_mean, diff_variance : ndarray, shape (C,)
        In variance's dtype: ``-gamma * rstd * diff_beta`` and ``-gamma * rstd**2 * diff_gamma / 2``
        with ``rstd = 1 / sqrt(variance + epsilon)``, computed in float64 and rounded once. The
        products overflow or underflow only if their value does.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_backward`, like the warning of a negative variance.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src, diff_dst = np.array([[1.0], [2.0], [6.0]]), np.array([[1.0], [0.0], [1.0]])
    >>> mean, variance = np.array([2.0]), np.array([4.0])
    >>> grads = bn_ext.batch_norm_backward(
    ...     src, diff_dst, mean, variance, epsilon=0.0, is_training=False)
    >>> bn_ext.batch_norm_statistics_backward(
    ...     grads.diff_gamma, grads.diff_beta, variance, epsilon=0.0)
    (array([-1.]), array([-0.1875]))
    """
    required = {"diff_gamma": diff_gamma, "diff_beta": diff_beta, "variance": variance}
    vectors = vectors_alike(**required, **({} if gamma is None else {"gamma": gamma}))
    epsilon = _core.as_epsilon(epsilon)
    with _core.DefaultMode():
        wide = {name: vector.astype(np.float64) for name, vector in vectors.items()}
        negative = (wide["variance"] < -epsilon).any()
    if negative:
        _core.warn_of_root()
    with _core.DefaultMode():
        grads = statistics_backward(**{"gamma": None, **wide}, epsilon=epsilon)
        dtype = vectors["variance"].dtype
        return grads[0].astype(dtype), grads[1].astype(dtype)
