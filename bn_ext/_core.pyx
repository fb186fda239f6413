# cython: language_level=3, embedsignature=False, freethreading_compatible=True
"""The one door into C: arrays come in, are checked, and leave as one problem.

    src, diff_dst, mean, variance, gamma, sums, out     Python objects
        |   each becomes what it is: an array of the base class, a number, a flag
        v                              (_arguments: the last code of the caller's runs here)
    buffers, by role
        |   dtypes of the table?  shapes?  writable?  memory shared?
        v                              (_inputs, _outputs: nothing is written so far)
    axis order, from src's strides alone (the rule: src_c/axes.h)
        |   an operand in another order, or whose last axis in it is not contiguous,
        v   goes through one dense copy                                     (_call)
    bn_problem: outer axes | channel | inner axes, merged where all operands allow
        |
        v   without the GIL, unless the problem is small
    bn_backward, bn_training, bn_inference, bn_double_backward, and their halves

Methods of the caller's objects (`__array__`, `__float__`, properties of a subclass)
may change any array while they run. So all of them run before the first buffer is
taken, and what follows asks base arrays and their buffers alone, in C.

Every array takes one buffer request, released when the call ends. Asked for without a
format, NumPy exports bfloat16 too; the dtype is held against the buffer's item size.
"""

import operator
import reprlib
import sys
from collections import namedtuple
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
from libc.string cimport memset

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


def batch_norm_backward(src, diff_dst, mean, variance, gamma=None, *, epsilon=...,
                        data_format="NXC", is_training=True, param_grads=True,
                        out=None, num_threads=None, relu=False, beta=None, dst=None,
                        workspace=None, diff_src_1=False, exact=False, **refused):
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
        Gradient by the output of the forward pass, with src's shape and dtype.
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
        If False, diff_gamma and diff_beta are None, in `out` too; diff_src is the same.
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
        The shift of the forward pass, in mean's dtype: its result is computed again (Notes).
    dst : array, optional
        The result of the forward pass, with src's shape and dtype.
    workspace : array of uint8, optional
        What the forward pass wrote to its ``workspace``, for a src with axes in the same order.
    diff_src_1 : bool, optional
        If True, there is a fourth result: the gradient with respect to what the forward pass added
        before the ReLU, which is dy. It takes dst or workspace, since src alone does not tell.
    exact : bool, optional
        If True, sums are exact until they are rounded once: the bits of the result then depend on
        the values alone, and are those of any parts of the data, see `batch_norm_backward_reduce`.
        It takes 1.1 to 2.5 times as long; 8 times with few elements in thousands of channels, and
        longer where exponents differ widely.

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
        If an argument has another type or dtype than is said above, is masked, is on an
        accelerator, or is not in native byte order.
    ValueError
        If shapes do not fit, an option is out of range or contradicts another, or an array in `out`
        has another dtype, is read-only, or shares memory.
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

    With ``is_training=False`` mean and variance are constants. If they depend on something,
    `batch_norm_statistics_backward` has their gradients.

    The definition is that of oneDNN's batch normalization primitive (developer guide, "Batch
    Normalization"), shared by the operators in `bn_ext.specs`.

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
        _refuse_unknown("batch_norm_backward", refused)
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


def batch_norm_backward_reduce(src, diff_dst, mean, *, data_format="NXC", num_threads=None,
                               relu=False, beta=None, dst=None, workspace=None, variance=None,
                               gamma=None, epsilon=None, exact=False, **refused):
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

    Notes
    -----
    Over the same arrays, reduce and apply give the same bits as the single call. Sums
    added over several parts are the same every time for the same parts, but not bit for
    bit those of the whole. For float64 data the bound on their error grows by
    ``2**-53 * sum(abs(terms))`` for each part after the first; for the other dtypes that
    is negligible next to the bound itself. Errors are those of `batch_norm_backward`, and
    arrays are copied in the same cases.

    States are added too: by NumPy's ``+``, MPI's sum of int64, Dask's, any. The sum of all states
    is the state of all the data, whatever the parts, their order and that of their axes: what
    `batch_norm_backward_apply` makes of it depends on the values alone. It refuses a sum of states
    about another mean, or of another dtype, and of 2**20 states or more: before that
    `batch_norm_canonical` makes one of those added so far. A state does not know which ReLU dy came
    through. Data whose exponents differ widely, NaN and Inf take longer, up to sixty
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
    if refused:
        _refuse_unknown("batch_norm_backward_reduce", refused)
    cdef Call *c = begin(BACKWARD_REDUCE)
    try:
        c.exact = _as_flag(exact, "exact")
        convert_options(c, data_format, num_threads)
        convert_gate(c, relu, beta, dst, workspace, False)
        convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
        return call(c, None)
    finally:
        end(c)


def batch_norm_backward_apply(src, diff_dst, mean, variance, gamma, sums, *, epsilon=...,
                              data_format="NXC", is_training=True, param_grads=True,
                              out=None, num_threads=None, relu=False, beta=None, dst=None,
                              workspace=None, diff_src_1=False, **refused):
    """Second half of `batch_norm_backward`: the gradient of a part, from the sums of all.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma
        As for `batch_norm_backward`; src and diff_dst are one part; gamma may be None.
    sums : array of float64, shape (3, C), or of int64, shape (k, 2, C)
        What `batch_norm_backward_reduce` returned, added over all parts: sums, or a state.
    epsilon, data_format, is_training, param_grads, out, num_threads
        As for `batch_norm_backward`.
    relu, beta, dst, workspace, diff_src_1
        As for `batch_norm_backward`, of this part; the same gate as for its sums.

    Returns
    -------
    BatchNormGradients
        diff_src of this part, and diff_src_1 if it is asked for; diff_gamma and diff_beta
        of the whole, the same for every part, even one without elements.

    Notes
    -----
    Errors are those of `batch_norm_backward`, and arrays are copied in the same cases; sums that
    are not C-contiguous are copied too.

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
        _refuse_unknown("batch_norm_backward_apply", refused)
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
