# cython: language_level=3, embedsignature=False, freethreading_compatible=True
"""The only way into the C code: arrays are checked here, and become one `bn_problem`.

    src, diff_dst, mean, variance, gamma, sums, out     Python objects
        |   each is converted to a base-class array, a number or a flag
        v                              (_arguments: the caller's methods run here)
    buffers, by role
        |   are dtypes supported?  do shapes fit?  are outputs writable?  is memory shared?
        v                              (_inputs, _outputs: nothing has been written so far)
    axis order, from src's strides only (the rule: src_c/axes.h)
        |   an operand gets a dense copy if its axes are in another order, or if its last
        |   axis in this order is not contiguous; so does diff_src_1 if it overwrites src
        v                                                                   (_call)
    bn_problem: outer axes | channel | inner axes, merged where all operands allow it
        |
        v   without the GIL, unless the problem is small
    bn_backward, bn_training, bn_inference, bn_double_backward, and their halves

Methods of the caller's objects (`__array__`, `__float__`, properties of a subclass)
may change any array while they run. So all of them run before the first buffer is
requested. What follows reads only base-class arrays and their buffers, in C.

One buffer is requested per array, and released when the call ends. No format is requested,
since NumPy exports none for bfloat16. Instead, the dtype is checked against the buffer's
item size.
"""

import operator
import reprlib
import sys
from collections import namedtuple
from inspect import signature
from types import ModuleType

import numpy as np

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_STRIDES,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.object cimport Py_TYPE, descrgetfunc
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SetItem
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY, floor, isfinite
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cdef object ndarray = np.ndarray
cdef object empty = np.empty
cdef object new_tuple = tuple.__new__

include "_results.pxi"
include "_dtypes.pxi"
include "_messages.pxi"
include "_fp_mode.pxi"
include "_roles.pxi"
include "_call.pxi"
include "_arguments.pxi"
include "_inputs.pxi"
include "_outputs.pxi"
include "_exact.pxi"
include "_raw_kernels.pxi"
include "_process.pxi"
include "_forward.pxi"
include "_double_backward.pxi"


def batch_norm_backward(src=..., diff_dst=..., mean=..., variance=..., gamma=None, *,
                        epsilon=..., data_format="NXC", is_training=True, param_grads=True,
                        out=None, num_threads=None, relu=False, beta=None, dst=None,
                        workspace=None, diff_src_1=False, exact=False, **refused):
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
        Input of the forward pass: float32, float64, float16 or bfloat16
        (``ml_dtypes.bfloat16``), at least two dimensions, any strides. A NumPy array,
        or anything in CPU memory that NumPy can view as one through ``__array__``,
        ``__array_interface__``, the buffer protocol or DLPack. Tensors of torch, JAX
        and pyarrow are not copied. A list or tuple is converted by NumPy, which makes
        Python floats float64.
    diff_dst : array
        Gradient with respect to the output of the forward pass, with src's shape and dtype.
    mean, variance : array, shape (C,)
        The statistics with which the forward pass normalized, used as given. ``variance`` is the
        biased one (divided by M). Both have the same dtype: float64, src's, or (unless src is
        float64) float32.
    gamma : array, shape (C,), optional
        The scale, in mean's dtype. None means ones.
    epsilon : float
        What the forward pass added to the variance: finite, at least 0. It is used as a double;
        pass ``float(np.float32(1e-3))`` to match a package that stores epsilon as float32.
    data_format : {"NXC", "NCX"}, optional
        Where the channels are, for any rank: ``"NXC"`` is channels last (NC, NHWC,
        NDHWC, ...), ``"NCX"`` channels first, on axis 1 (NCHW, NCDHW, ...).
    is_training : bool, optional
        True if mean and variance were computed from src and so depend on it; False
        if they are constants (population statistics).
    param_grads : bool, optional
        If False, diff_gamma and diff_beta are not computed: both are None in the result, and
        must be None in `out`. diff_src is the same either way.
    out : tuple (diff_src, diff_gamma, diff_beta[, diff_src_1]), optional
        Arrays to write to; any of them may be None. ``diff_src`` and ``diff_src_1`` may each occupy
        exactly the memory of src, diff_dst or dst. No other overlap is accepted, nor may diff_src
        and diff_src_1 overlap.
    num_threads : int, optional
        Maximum number of threads. A call uses no more than the system can start. None means the
        least of OpenMP's maximum, the CPU affinity of the calling thread and the container's CPU
        quota (read at import). With None, a small problem uses one thread, and a call that starts
        while at least two others use several threads may use fewer.
    relu : bool, optional
        True if the forward pass ended in a ReLU. Then dy is diff_dst where the ReLU passed the
        element, and 0 elsewhere. A ReLU passes every element except those that are 0 or less, so
        it passes a NaN. Exactly one of beta, dst and workspace must tell which elements passed.
    beta : array, shape (C,), optional
        The shift of the forward pass, in mean's dtype. With beta, the result of the forward pass is
        computed again from src (see Notes).
    dst : array, optional
        The result of the forward pass, with src's shape and dtype.
    workspace : array of uint8, shape (ceil(src.size / 8),), optional
        What the forward pass wrote to its ``workspace``. The axes of src must be in the same order
        in memory as in the forward pass.
    diff_src_1 : bool, optional
        If True, there is a fourth result: the gradient with respect to the array that the forward
        pass added before the ReLU. It equals dy. This option needs ``relu=True`` and either dst or
        workspace. beta does not suffice, because dst cannot be computed again without the added
        array.
    exact : bool, optional
        If True, the sums are exact and rounded once. The bits of the result then depend on the
        values alone, and data in parts gives the same bits (see `batch_norm_backward_reduce`). A
        call takes 1 to 3.4 times as long, or up to 26 times with fewer than a hundred elements per
        channel, and longer if exponents differ widely.

    Returns
    -------
    BatchNormGradients or BatchNormAddGradients
        Named tuple of diff_src (src's shape, dtype and memory order), diff_gamma
        and diff_beta (shape (C,), mean's dtype). Arrays passed in `out` are
        themselves returned. With ``diff_src_1=True``, the tuple is a `BatchNormAddGradients`;
        its fourth field is diff_src_1 (src's shape, dtype and memory order).

    Raises
    ------
    TypeError
        If epsilon is missing, or if an argument has a type or dtype other than those above, is
        a masked array, is on an accelerator, or is not in native byte order.
    ValueError
        If shapes do not fit, an option is out of range or contradicts another, or an array in `out`
        has the wrong dtype, is read-only, or overlaps an array in a way not allowed for `out`; with
        ``exact=True``, also if a channel has 2**39 elements or more.
    MemoryError
        If there is not enough memory for outputs, sums or coefficients.

    See Also
    --------
    batch_norm_training : The forward pass.
    batch_norm_double_backward : The gradient of this gradient.
    batch_norm_backward_reduce, batch_norm_backward_apply : For data in parts.

    Notes
    -----
    If an error is raised, nothing has been written.

    The memory layout is read from src's strides. So a view with its channels last in memory is
    handled as channels-last even with ``data_format="NCX"``. Copies are made of src, if its last
    axis in memory is not contiguous; of diff_dst, dst or an output, if its last axis is not
    contiguous or its axes are in a different memory order from src's; and of diff_src_1, if it is
    written over src. No other array of src's size is copied.

    With beta, no more data is read than without a ReLU, except with ``is_training=False`` and
    either ``param_grads=False`` or ``exact=True``: src is then read once more. The result of the
    forward pass is computed again, with the bits that `batch_norm_inference` gives for the same
    mean, variance, gamma and beta. `batch_norm_training` uses float64 statistics internally. To
    find exactly the elements that its ReLU passed, keep these statistics: give
    `batch_norm_training` float64 arrays in ``out``, and float64 gamma and beta if any, whatever the
    data's dtype. With statistics rounded to float32, different elements may pass where the result
    is within rounding error of 0. With dst or workspace, the call allocates one bit for each
    element, and dst is read once.

    The bits of the result depend only on the values and (unless exact) on the order of src's axes
    in memory: not on the CPU, the number of threads, alignment, `out`, or the floating-point mode
    of the caller.

    No warning is given for NaN, infinite, or negative variances: the result is what IEEE arithmetic
    makes of the formula. If the data is not float64, a mean beyond float32's range counts as
    infinite, and xc is 0 where src equals the mean rounded to float32. Where xc is 0, a result is
    NaN if dy or ``rstd*diff_gamma/M`` is infinite. An empty problem gives an empty diff_src, and
    zeros for diff_gamma and diff_beta.

    Even with ``is_training=False``, mean and variance may depend on trained parameters.
    `batch_norm_statistics_backward` computes the gradients with respect to mean and variance.

    oneDNN defines the same formulas for its batch normalization primitive (developer guide, "Batch
    Normalization"). The gradient operators in `bn_ext.specs` use these formulas.

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
    if refused:
        refuse(batch_norm_backward, refused)
    cdef Call *c = begin(BACKWARD)
    try:
        c.exact = _as_flag(exact, "exact")
        c.problem.training = _as_flag(is_training, "is_training")
        c.vectors_wanted = _as_flag(param_grads, "param_grads")
        convert_options(c, data_format, num_threads)
        convert_gate(c, relu, beta, dst, workspace, diff_src_1)
        convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
        return call(c, out)
    finally:
        end(c)


def batch_norm_backward_reduce(src=..., diff_dst=..., mean=..., *, data_format="NXC", num_threads=None,
                               relu=False, beta=None, dst=None, workspace=None, variance=None,
                               gamma=None, epsilon=None, exact=False, **refused):
    """First half of `batch_norm_backward`: the sums over one part of the data.

    Add the sums of all parts (slices of an array larger than memory, or shards on several
    machines) with ``+``, ``sum`` or a collective such as an allreduce. Then pass the total to
    `batch_norm_backward_apply` with each part. The sums include the number of elements.

    Parameters
    ----------
    src, diff_dst, mean, data_format, num_threads
        As for `batch_norm_backward`; src and diff_dst are one part.
    relu, beta, dst, workspace
        As for `batch_norm_backward`, for this part.
    variance, gamma, epsilon
        As for `batch_norm_backward`. Without beta, these three are checked but not used; beta
        requires variance and epsilon.
    exact : bool, optional
        If True, the result is a state, which holds exact sums.

    Returns
    -------
    ndarray of float64, shape (3, C)
        Three rows, for each channel: ``sum(dy)``, ``sum(dy * (src - mean))`` and the number of
        elements. dy is diff_dst; with ``relu=True``, it is 0 where the ReLU did not pass the
        element.
    ndarray of int64, shape (k, 2, C)
        With ``exact=True``, a state: the sums of dy and of ``dy * (src - mean)``. The difference
        and the product are each rounded once, to float32 (float64 for float64 data). The sums are
        not rounded. Unless the data is float64, mean is first rounded to float32;
        `batch_norm_backward_apply` corrects for this rounding, `batch_norm_sums` does not. k is 11,
        or 57 for float64 data.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`; ValueError also if a channel has 2**53 elements or more, or
        2**39 with ``exact=True``.

    Notes
    -----
    For the same arrays, reduce and apply give the same bits as the single call. Sums of several
    parts are reproducible if the same parts are added in the same order, but their bits may differ
    from those of the whole. For float64 data, each part after the first adds at most
    ``2**-53 * sum(abs(terms))`` to the error of a sum; for the other dtypes, it adds a negligible
    amount. Arrays are copied in the same cases as in `batch_norm_backward`.

    States are added as int64 arrays, by NumPy's ``+``, MPI's SUM or any other sum of int64. The
    states of all parts add up to a state of the whole, however the data is split, in whatever order
    the parts are added, and in whatever order their axes lie in memory. So the results of
    `batch_norm_backward_apply` depend on the values alone. That function raises a ValueError if
    some states were computed with another mean or dtype, or if 2**20 states or more were added. To
    add more, replace a partial sum with its canonical state (`batch_norm_canonical`), which counts
    as one state. A state does not record `relu`: adding parts with and without a ReLU raises no
    error. Exact sums take longer if exponents differ widely, or if there are NaN or Inf.

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
    if refused:
        refuse(batch_norm_backward_reduce, refused)
    cdef Call *c = begin(BACKWARD_REDUCE)
    try:
        c.exact = _as_flag(exact, "exact")
        convert_options(c, data_format, num_threads)
        convert_gate(c, relu, beta, dst, workspace, False)
        convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
        return call(c, None)
    finally:
        end(c)


def batch_norm_backward_apply(src=..., diff_dst=..., mean=..., variance=..., gamma=..., sums=...,
                              *, epsilon=..., data_format="NXC", is_training=True, param_grads=True,
                              out=None, num_threads=None, relu=False, beta=None, dst=None,
                              workspace=None, diff_src_1=False, **refused):
    """Second half of `batch_norm_backward`: the gradient of one part, from the sums of all parts.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma
        As for `batch_norm_backward`; src and diff_dst are one part; gamma may be None.
    sums : array of float64, shape (3, C), or of int64, shape (k, 2, C)
        What `batch_norm_backward_reduce` returned, added over all parts: sums, or a state.
    epsilon, data_format, is_training, param_grads, out, num_threads
        As for `batch_norm_backward`.
    relu, beta, dst, workspace, diff_src_1
        As for `batch_norm_backward`, for this part. The elements that passed the ReLU must be the
        same as in `batch_norm_backward_reduce`.

    Returns
    -------
    BatchNormGradients or BatchNormAddGradients
        diff_src of this part, and diff_src_1 if requested; diff_gamma and diff_beta of the whole,
        the same for every part, even for one without elements.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`; ValueError also if sums have another shape, count fewer
        elements than this part has, or are a state made with another mean or dtype.

    Notes
    -----
    Arrays are copied in the same cases as in `batch_norm_backward`. Sums that are not C-contiguous
    are copied too.

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
    if refused:
        refuse(batch_norm_backward_apply, refused)
    cdef Call *c = begin(BACKWARD_APPLY)
    try:
        c.problem.training = _as_flag(is_training, "is_training")
        c.vectors_wanted = _as_flag(param_grads, "param_grads")
        convert_options(c, data_format, num_threads)
        convert_gate(c, relu, beta, dst, workspace, diff_src_1)
        convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
        convert_sums(c, sums)
        return call(c, out)
    finally:
        end(c)


__all__ = sorted([name for name in globals() if name.lower().startswith("batch")])


def _show_signatures():
    """In signatures, hide ``refused`` and the default ``...`` of required arguments. Required
    arguments have a default so that an unknown name is reported before a missing argument."""
    for name in __all__:
        function = globals()[name]
        if not isinstance(function, type):
            seen = signature(function)
            kept = [
                p.replace(default=p.empty) if p.default is ... else p
                for p in seen.parameters.values()
                if p.kind is not p.VAR_KEYWORD
            ]
            function.__signature__ = seen.replace(parameters=kept)


_show_signatures()
