# cython: language_level=3, embedsignature=False, freethreading_compatible=True
"""The only way into the C code: arrays are checked here, and become one `bn_problem` (run.pxi).

Methods of the caller's objects (`__array__`, `__float__`, properties of a subclass)
may change any array while they run. So all of them run before the first array is
pinned. What follows reads only base-class arrays, by NumPy's C API.

Where memory is too short for a traceback, Cython 3.3.1 ends the process in a `with` block of Python's,
at a `return` in an `except` clause, and in a list comprehension of new objects. So here are none.

An array is read once, when it is pinned: its address, and copies of its shape and strides. (To
request its buffer instead takes ten times as long.)
"""

import reprlib
import sys
import warnings
from types import ModuleType

import numpy as np

from bn_ext._results import (
    BatchNormAddGradients,
    BatchNormDoubleBackward,
    BatchNormGradients,
    BatchNormTraining,
)

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyObject_CheckBuffer
from cpython.contextvars cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject_CallFunctionObjArgs
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SetItem
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY, NAN, isfinite
from libc.string cimport memcpy, memmove, memset

cdef object ndarray = np.ndarray
cdef object new_tuple = tuple.__new__

# Each needs only those above it.
include "c.pxi"
include "dtypes.pxi"
include "messages.pxi"
include "fp_mode.pxi"
include "roles.pxi"
include "objects.pxi"
include "kept.pxi"
include "call.pxi"
include "arguments.pxi"
include "exact.pxi"
include "inputs.pxi"
include "outputs.pxi"
include "run.pxi"
include "process.pxi"


# The functions below do the work of those in bn_ext/_functions.py and bn_ext/_sums.py, which describe
# the arguments. Adapters, which may know the arguments by other names, pass `words` (Words).
# With `dry`, all arguments are checked, and nothing is computed or written.

def training(src, gamma=None, beta=None, epsilon=None, data_format=None, running_mean=None,
             running_variance=None, exponential_avg_factor=None, correction=None, src_1=None,
             relu=False, workspace=None, out=None, num_threads=None, exact=False, words=None,
             dry=False, tracked=None):
    cdef Call c = new_call(TRAINING)
    count = next_count(tracked)
    c.exact = as_flag(exact, "exact")
    convert_options(c, data_format, num_threads, words, dry)
    convert(c, SRC, src)
    convert_affine(c, gamma, beta, epsilon, src_1, relu, workspace)
    convert_running(c, running_mean, running_variance, exponential_avg_factor, correction)
    result = run_call(c, out)
    set_count(tracked, count, dry or c.is_empty)
    return result


def inference(src, mean, variance, gamma=None, beta=None, epsilon=None, data_format=None,
              src_1=None, relu=False, workspace=None, out=None, num_threads=None, words=None,
              dry=False):
    cdef Call c = new_call(INFERENCE)
    convert_options(c, data_format, num_threads, words, dry)
    convert(c, SRC, src)
    convert(c, MEAN, mean)
    convert(c, VARIANCE, variance)
    convert_affine(c, gamma, beta, epsilon, src_1, relu, workspace)
    return run_call(c, out)


def backward(src, diff_dst, mean, variance, gamma=None, epsilon=None, data_format=None,
             is_training=True, param_grads=True, out=None, num_threads=None, relu=False, beta=None,
             dst=None, workspace=None, diff_src_1=False, exact=False, sums=None, words=None,
             dry=False):
    """`sums`: those of all parts as an array, their number of elements per channel, the dtype
    of the data, and the mean."""
    cdef Call c = new_call(BACKWARD)
    c.exact = as_flag(exact, "exact")
    c.problem.training = as_flag(is_training, "is_training")
    c.vectors_wanted = as_flag(param_grads, "param_grads")
    convert_options(c, data_format, num_threads, words, dry)
    convert_gate(c, relu, beta, dst, workspace, diff_src_1)
    convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
    convert_sums(c, sums)
    return run_call(c, out)


def double_backward(src, diff_dst, mean, variance, gamma, diff_diff_src, diff_diff_gamma=None,
                    diff_diff_beta=None, epsilon=None, data_format=None, is_training=True, out=None,
                    num_threads=None, words=None, dry=False):
    cdef Call c = new_call(DOUBLE_BACKWARD)
    c.problem.training = as_flag(is_training, "is_training")
    convert_options(c, data_format, num_threads, words, dry)
    convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
    convert(c, DIFF_DIFF_SRC, diff_diff_src)
    convert(c, DIFF_DIFF_GAMMA, diff_diff_gamma)
    convert(c, DIFF_DIFF_BETA, diff_diff_beta)
    return run_call(c, out)


def training_sums(src, data_format=None, exact=False, num_threads=None, words=None):
    """The sums, the number of elements per channel, the dtype of the data. Of float64 data, the sums
    have a third row: what rounding took from the mean."""
    cdef Call c = new_call(TRAINING_SUMS)
    c.exact = as_flag(exact, "exact")
    convert_options(c, data_format, num_threads, words, False)
    convert(c, SRC, src)
    sums = run_call(c, None)
    return sums, c.elements, DTYPES[c.dtype]


def backward_sums(src, diff_dst, mean, data_format=None, exact=False, num_threads=None, relu=False,
                  beta=None, dst=None, workspace=None, variance=None, gamma=None, epsilon=None,
                  words=None):
    """The sums, the number of elements per channel, the dtype of the data, the mean."""
    cdef Call c = new_call(BACKWARD_SUMS)
    c.exact = as_flag(exact, "exact")
    convert_options(c, data_format, num_threads, words, False)
    convert_gate(c, relu, beta, dst, workspace, False)
    convert_backward(c, src, diff_dst, mean, variance, gamma, epsilon)
    sums = run_call(c, None)
    return sums, c.elements, DTYPES[c.dtype], doubles_of(c, MEAN)


cdef Words OF_SUMS = Words({"src": "statistics"})


def update_running(statistics, double count, running_mean, running_variance,
                   exponential_avg_factor, correction, tracked=None):
    """Update running statistics with those of `count` elements per channel, a dense array of
    doubles: means and squares, as `training_sums` returns them."""
    cdef Call c = new_call(RUNNING)
    batches = next_count(tracked)
    if statistics.dtype != FLOAT64 or statistics.ndim != 2 or statistics.shape[0] != BN_SUMS:
        raise ValueError(f"statistics: expected float64 of shape (2, C), got {statistics!r}")
    c.words = OF_SUMS
    keep(c, SRC, np.empty((0, statistics.shape[1])))
    convert_running(c, running_mean, running_variance, exponential_avg_factor, correction)
    keep(c, SUMS, statistics)
    c.parts.count = count
    c.dry = count == 0
    run_call(c, None)
    set_count(tracked, batches, c.dry)


# A layer, `tracked`, has a count of the batches that its running statistics have seen.
# It is set in the call that updates them, since Python raises a KeyboardInterrupt after a call.

cdef object next_count(tracked):
    """The count after this batch, which fits an int64, as in a layer's state."""
    name = "num_batches_tracked"
    if tracked is None:
        return None
    return as_index(tracked.num_batches_tracked, name, "an integer", 0, INT64_MAX - 1) + 1


cdef int set_count(tracked, count, bint unchanged) except -1:
    if tracked is not None and not unchanged:
        tracked.num_batches_tracked = count
    return 0
