# cython: language_level=3, embedsignature=False, freethreading_compatible=True
"""The one door into C: arrays come in, are checked, and leave as one problem.

    src, diff_dst, mean, variance, gamma, out        Python objects
        |   each becomes what it is: an array of the base class, a number, a flag
        v                                            (the last code of the caller's runs here)
    buffers
        |   dtypes of the table?  shapes?  writable?  memory shared?
        v                                            (nothing written so far)
    axis order, from src's strides alone
        |   an operand in another order, or without a contiguous inner run,
        v   goes through one dense copy
    bn_problem: outer axes | channel | inner axes, merged where all operands allow
        |
        v   without the GIL
    bn_backward, bn_backward_reduce, bn_backward_apply

Methods of the caller's objects (`__array__`, `__float__`, properties of a subclass)
may change any array while they run. So all of them run before the first buffer is
taken, and what follows asks base arrays and their buffers alone, in C.

Vectors and sums are read through typed memoryviews. Data arrays of any rank and
stride take one buffer request each, released in `finally`; asked for without a
format, NumPy exports bfloat16 too, and the dtype is held against the buffer's item size.

The axis order decides the bits, so it is a rule, not a guess: axes of length 1
are dropped; the rest are sorted by |stride|, largest first, equal strides in
logical order; axes of stride 0 keep their place; no axis is flipped. What comes
before the channel is outer, what comes after it inner. One channel has no place
among the others: all axes are inner then.
"""

import operator
import reprlib
import sys
from collections import namedtuple
from types import ModuleType

import numpy as np

from cpython.buffer cimport (
    PyBUF_STRIDES,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from libc.limits cimport INT_MAX
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint16_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

__all__ = [
    "BatchNormGradients",
    "batch_norm_backward",
    "batch_norm_backward_apply",
    "batch_norm_backward_reduce",
]

BatchNormGradients = namedtuple(
    "BatchNormGradients", ("diff_src", "diff_gamma", "diff_beta"), module="bn_ext"
)
BatchNormGradients.__doc__ = """Result of `batch_norm_backward`.

Attributes
----------
diff_src : ndarray
    Gradient with respect to ``src``, in src's shape, dtype and memory order.
diff_gamma, diff_beta : ndarray or None
    Gradients with respect to the scale and the shift, shape (C,), in the dtype of
    the statistics; None with ``param_grads=False``.
"""

# ---- dtypes -----------------------------------------------------------------

# The one table: data dtype -> the dtypes its (C,) vectors may have.
_TABLE = {
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
}
_CODE_OF_NAME = {"float32": BN_F32, "float64": BN_F64, "float16": BN_F16, "bfloat16": BN_BF16}
_NAME_OF_CODE = {code: name for name, code in _CODE_OF_NAME.items()}
# dtype -> code, filled with bfloat16's dtype when it is first seen: ml_dtypes is
# recognised, never imported.
cdef dict CODE_OF_DTYPE = {np.dtype(name): _CODE_OF_NAME[name] for name in ("float32", "float64", "float16")}
# code -> the dtype of new arrays. That of an argument is read once, as its buffer is taken:
# garbage collection may run a finalizer that changes it at any later allocation.
cdef dict DTYPE_OF_CODE = {code: dtype for dtype, code in CODE_OF_DTYPE.items()}

cdef bint ALLOWED[4][4]
for _data in _TABLE:
    for _vector in _TABLE:
        ALLOWED[_CODE_OF_NAME[_data]][_CODE_OF_NAME[_vector]] = _vector in _TABLE[_data]
del _data, _vector

cdef object ndarray = np.ndarray
cdef object empty = np.empty
cdef object new_tuple = tuple.__new__
cdef object none_given = (None, None, None)


cdef inline Py_ssize_t size_of(int code) noexcept nogil:
    """Bytes of an element."""
    return 8 if code == BN_F64 else 4 if code == BN_F32 else 2


cdef int code_of(object dtype) except -2:
    """The code of a dtype, -1 if it is not in the table. Runs nobody else's code."""
    code = CODE_OF_DTYPE.get(dtype)
    if code is not None:
        return code
    module = sys.modules.get("ml_dtypes")
    if type(module) is ModuleType and dtype.type is module.__dict__.get("bfloat16"):
        if dtype.isnative and dtype.itemsize == 2:
            CODE_OF_DTYPE[dtype] = BN_BF16
            DTYPE_OF_CODE[BN_BF16] = np.dtype(dtype.type)
            return BN_BF16
    return -1


cdef str shortened(str text):
    """No longer than a line of a message."""
    return text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}"


def _shown(value):
    """Its repr for a message, shortened; its type where that fails."""
    try:
        # Of containers in one another reprlib reads no more than it shows.
        text = reprlib.repr(value) if isinstance(value, CONTAINERS) else repr(value)
        text = str.__getitem__(text, slice(None))  # of a subclass of str, a str
    except Exception:
        return "an object of type " + type_name(value)
    return shortened(text)


cdef str type_name(object a):
    """Its type's name, which a metaclass may refuse to tell."""
    try:
        name = f"{type(a).__module__}.{type(a).__qualname__}".removeprefix("builtins.")
    except Exception:
        return "an unnamed type"
    return name if len(name) <= 80 else name[:77] + "..."


cdef str dtype_text(object dtype):
    """As NumPy prints it, shortened: fields may have long names, or be many."""
    try:
        text = str(dtype)
    except Exception:
        text = dtype.str
    return shortened(text)


def _or(names):
    names = list(names)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]


cdef object wrong_dtype(str name, object a, str expected):
    dtype = a.dtype
    if not dtype.isnative and code_of(dtype.newbyteorder("=")) >= 0:
        return TypeError(
            f"{name}: expected native byte order, got {dtype.str}; "
            f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    return TypeError(f"{name}: expected {expected}, got {dtype_text(dtype)}")


# ---- what comes in ----------------------------------------------------------

# DLPack's devices whose memory the CPU reads: its own, and what CUDA and ROCm share with it.
cdef frozenset HOST_DEVICES = frozenset((1, 3, 11, 13))


cdef bint lies_elsewhere(object a) except -1:
    """Is it in the memory of an accelerator?"""
    if not hasattr(a, "__dlpack_device__"):
        return hasattr(a, "__cuda_array_interface__")
    device = a.__dlpack_device__()
    try:
        kind, _ = device
        return operator.index(kind) not in HOST_DEVICES
    except (TypeError, ValueError):
        raise TypeError(
            f"its __dlpack_device__ returned {_shown(device)}, not (type, id)"
        ) from None


cdef object base_array(object a, str name):
    """The base-class array over the memory of an array of any class.

    What a subclass says of itself, by a property or a method, counts for nothing.
    """
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: masked arrays are not accepted, because the mask would be lost; "
            f"pass {name}.filled(value)"
        )
    return np.asarray(a)


# In variables: of a tuple written where it is used, Cython asks each member, and drops the
# error of an object whose __class__ raises one.
cdef tuple SEQUENCES = (list, tuple)
cdef tuple NO_ARRAYS = (str, bytes, np.generic)
cdef tuple SCALARS = (int, float, complex, str, bytes, np.generic)
cdef tuple CONTAINERS = (list, tuple, dict, set, frozenset)
cdef tuple NO_NUMBERS = (str, bytes, bytearray, complex)
cdef tuple WITH_DTYPE = (np.ndarray, np.generic)
# Levels of lists within lists: NumPy has no more axes.
cdef enum:
    DEEPEST = 64


cdef object snapshot(object a, tuple within):
    """Lists as tuples, which no method of an element can change while NumPy reads them.

    Elements that are arrays of a kind become arrays here. Other sequences are refused, since
    NumPy would read what they hold by itself, and so is a list that holds itself.
    """
    if isinstance(a, SEQUENCES):
        if len(within) == DEEPEST or id(a) in within:
            raise ValueError("lists within lists are too deep")
        within += (id(a),)
        items = []
        for item in tuple(a):
            items.append(snapshot(item, within))
        return tuple(items)
    if isinstance(a, SCALARS):
        return a
    if hasattr(a, "__array__") or hasattr(a, "__array_interface__") or PyObject_CheckBuffer(a):
        return np.asarray(a)
    if hasattr(a, "__len__"):
        raise ValueError(f"it holds a sequence of type {type_name(a)}")
    return a


cdef object as_array(object a, str name):
    """The base-class array over a's memory, or what NumPy makes of a list or tuple;
    nothing is copied, unless a itself has to copy."""
    if type(a) is ndarray:
        return a
    if isinstance(a, ndarray):
        return base_array(a, name)
    if isinstance(a, SEQUENCES):
        try:
            return np.asarray(snapshot(a, ()))
        except (RuntimeError, ValueError) as error:
            raise TypeError(f"{name}: expected an array of numbers: {error}") from None
    what = type_name(a)
    if isinstance(a, NO_ARRAYS):
        raise TypeError(f"{name}: expected an array, got {what}")
    try:
        if lies_elsewhere(a):
            raise TypeError("it is not in CPU memory; copy it to the host first")
        if (hasattr(a, "__array__") or hasattr(a, "__array_interface__")
                or PyObject_CheckBuffer(a)):
            # Not asarray, which drops the class of what __array__ returns, and a mask with it.
            seen = np.asanyarray(a)
        elif hasattr(a, "__dlpack__"):
            seen = np.from_dlpack(a)
        else:
            seen = None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        hint = ""
        try:
            of_torch = str(getattr(a, "dtype", None)) == "torch.bfloat16"
        except Exception:
            of_torch = False
        if of_torch:
            hint = (f"; pass {name}.view(torch.int16).numpy().view(ml_dtypes.bfloat16), "
                    "which copies nothing")
        raise TypeError(
            f"{name}: this {what} cannot be viewed as a NumPy array: {error}{hint}"
        ) from error
    if seen is None:
        raise TypeError(f"{name}: expected an array, got {what}")
    return base_array(seen, name)


cdef bint as_flag(object value, str name) except -1:
    """True or False, NumPy's too, or the integers 0 and 1; not just anything with a truth value."""
    if value is True:
        return True
    if value is False:
        return False
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):
        value = int(value)
    if isinstance(value, int):
        number = int.__index__(value)  # of a subclass, what it is, not what it says
        if number == 0 or number == 1:
            return number
    raise TypeError(f"{name}: expected True or False, got {_shown(value)}")


cdef double as_epsilon(object epsilon) except? -1:
    cdef double value
    if type(epsilon) is float:
        value = epsilon
    else:
        kind = epsilon.dtype.kind if isinstance(epsilon, WITH_DTYPE) else ""
        try:
            if (isinstance(epsilon, NO_NUMBERS) or (kind and kind not in "fiubV")
                    or (isinstance(epsilon, ndarray) and epsilon.ndim)):
                raise TypeError
            value = epsilon
        except TypeError:
            raise TypeError(f"epsilon: expected a real number, got {_shown(epsilon)}") from None
        except (OverflowError, ValueError):
            raise ValueError(
                f"epsilon: expected a finite number >= 0, got {_shown(epsilon)}"
            ) from None
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"epsilon: expected a finite number >= 0, got {_shown(epsilon)}")
    return value


cdef int as_num_threads(object num_threads) except -1:
    """0 stands for None."""
    if num_threads is None:
        return 0
    try:
        value = operator.index(num_threads)
    except TypeError:
        raise TypeError(
            f"num_threads: expected an integer or None, got {_shown(num_threads)}"
        ) from None
    if value < 1:
        raise ValueError(f"num_threads: expected at least 1, got {_shown(value)}")
    return min(value, INT_MAX)


cdef object as_count(object count):
    try:
        return operator.index(count)
    except TypeError:
        raise TypeError(f"count: expected an integer, got {_shown(count)}") from None


# What others call our two layouts.
cdef dict OTHER_NAMES = {
    "NC": "NXC", "NWC": "NXC", "NHWC": "NXC", "NDHWC": "NXC", "CHANNELS_LAST": "NXC",
    "CHANNELS_LAST_3D": "NXC", "NCW": "NCX", "NCHW": "NCX", "NCDHW": "NCX", "CHANNELS_FIRST": "NCX",
    "NXC": "NXC", "NCX": "NCX",
}


cdef bint as_channels_last(object data_format) except -1:
    """Are channels on the last axis?"""
    if isinstance(data_format, str):
        name = str(data_format)
        if name == "NXC":
            return True
        if name == "NCX":
            return False
        ours = OTHER_NAMES.get(name.upper())
        if ours is not None:
            raise ValueError(
                f"data_format: expected 'NXC' or 'NCX', got {_shown(name)}, "
                f"which is called {ours!r} here, for any rank"
            )
    raise ValueError(f"data_format: expected 'NXC' or 'NCX', got {_shown(data_format)}")


# ---- axes -------------------------------------------------------------------

cdef struct Order:
    int n                   # axes longer than 1
    int axis[BN_MAX_AXES]   # slowest first
    int channel             # place of the channel in axis; -1 if it is not there


cdef inline Py_ssize_t distance(Py_ssize_t stride) noexcept nogil:
    return -stride if stride < 0 else stride


cdef void sort_axes(const Py_buffer *src, int channel, Order *order) noexcept nogil:
    """The axis order of src (the rule in this file's head)."""
    cdef int moving[BN_MAX_AXES]
    cdef int n = 0, i, j, axis
    cdef Py_ssize_t far
    for axis in range(src.ndim):
        if src.shape[axis] == 1 or src.strides[axis] == 0:
            continue
        far = distance(src.strides[axis])
        j = n
        while j > 0 and distance(src.strides[moving[j - 1]]) < far:
            moving[j] = moving[j - 1]
            j -= 1
        moving[j] = axis
        n += 1
    order.n = 0
    order.channel = -1
    i = 0
    for axis in range(src.ndim):
        if src.shape[axis] == 1:
            continue
        if src.strides[axis] == 0:
            order.axis[order.n] = axis
        else:
            order.axis[order.n] = moving[i]
            i += 1
        if order.axis[order.n] == channel:
            order.channel = order.n
        order.n += 1


cdef bint follows(const Py_buffer *view, const Order *order) noexcept nogil:
    """Can the kernels walk this operand in this order? Its axes must be in the same
    order (stride 0 fits anywhere but last) and its last one contiguous."""
    cdef Py_ssize_t before = 0, here
    cdef int i
    if order.n and view.strides[order.axis[order.n - 1]] != view.itemsize:
        return False
    for i in range(order.n):
        here = distance(view.strides[order.axis[i]])
        if here == 0:
            continue
        if before and here > before:
            return False
        before = here
    return True


cdef bint overlaps_itself(const Py_buffer *view) noexcept nogil:
    """May two elements share memory? No is certain; what is not certain counts as yes."""
    cdef Order order
    cdef Py_ssize_t reach = view.itemsize, stride
    cdef int i
    for i in range(view.ndim):
        if view.shape[i] > 1 and view.strides[i] == 0:
            return True
    sort_axes(view, -1, &order)
    for i in range(order.n - 1, -1, -1):
        stride = distance(view.strides[order.axis[i]])
        if stride < reach:
            return True
        reach += stride * (view.shape[order.axis[i]] - 1)
    return False


cdef object shape_of(const Py_buffer *view):
    cdef int i
    # By append: where a list in brackets cannot grow, Cython 3.3 lets go of an element twice.
    shape = []
    for i in range(view.ndim):
        shape.append(view.shape[i])
    return tuple(shape)


cdef object dense(const Py_buffer *src, object dtype, const Order *order):
    """A new array of src's shape, its memory in this order."""
    cdef int i
    cdef bint as_named = True
    for i in range(1, order.n):
        if order.axis[i] < order.axis[i - 1]:
            as_named = False
    shape = shape_of(src)
    if as_named:
        return empty(shape, dtype)
    axes = [order.axis[i] for i in range(order.n)]
    axes += [axis for axis, n in enumerate(shape) if n == 1]
    place = [0] * len(shape)
    for i, axis in enumerate(axes):
        place[axis] = i
    permuted = []
    for axis in axes:
        permuted.append(shape[axis])
    return empty(permuted, dtype).transpose(place)


cdef void add_axis(bn_axis *axes, int *n, const bn_axis *axis) noexcept nogil:
    """Append an axis, or merge it into the one before, if every operand steps
    from the end of its run straight to the next."""
    cdef int o
    cdef bint merge = n[0] > 0
    for o in range(BN_OPERANDS):
        if merge and axes[n[0] - 1].stride[o] != axis.stride[o] * axis.size:
            merge = False
    if merge:
        axes[n[0] - 1].size *= axis.size
        for o in range(BN_OPERANDS):
            axes[n[0] - 1].stride[o] = axis.stride[o]
    else:
        axes[n[0]] = axis[0]
        n[0] += 1


cdef void set_axes(bn_problem *p, Py_buffer *views, const Order *order,
                   int channel, Py_ssize_t channels) noexcept nogil:
    cdef int i, o
    cdef bn_axis axis
    p.n_outer = p.n_inner = 0
    p.channel.size = channels
    for o in range(BN_OPERANDS):
        p.data[o] = <char *>views[o].buf
        p.channel.stride[o] = views[o].strides[channel]
    for i in range(order.n):
        if i == order.channel:
            continue
        axis.size = views[BN_SRC].shape[order.axis[i]]
        for o in range(BN_OPERANDS):
            axis.stride[o] = views[o].strides[order.axis[i]]
        if i < order.channel:
            add_axis(p.outer, &p.n_outer, &axis)
        else:
            add_axis(p.inner, &p.n_inner, &axis)


# ---- what a call holds --------------------------------------------------------

cdef struct Call:
    bn_problem problem
    Py_buffer view[3]
    bint held[3]
    Order order
    int code            # of the data
    int vector_code     # of mean, variance, gamma and their gradients
    int channel         # axis
    Py_ssize_t channels
    Py_ssize_t count    # elements of a channel
    bint last           # channels on the last axis?
    bint is_empty


cdef int hold(Call *c, int operand, object a) except -1:
    """Take a's buffer, which keeps a itself alive too."""
    release(c, operand)
    PyObject_GetBuffer(a, &c.view[operand], PyBUF_STRIDES)
    c.held[operand] = True
    return 0


cdef int take_new(Call *c, object a, Py_buffer *view) except -1:
    """The buffer of an array that was just made: like src, or nothing is done with it."""
    PyObject_GetBuffer(a, view, PyBUF_STRIDES)
    if view.itemsize != size_of(c.code) or not same_shape(view, &c.view[BN_SRC]):
        PyBuffer_Release(view)
        raise MemoryError("bn_ext: a new array was changed before it was filled")
    return 0


cdef void release(Call *c, int operand) noexcept:
    if c.held[operand]:
        PyBuffer_Release(&c.view[operand])
        c.held[operand] = False


cdef bint same_shape(const Py_buffer *a, const Py_buffer *b) noexcept nogil:
    cdef int i
    if a.ndim != b.ndim:
        return False
    for i in range(a.ndim):
        if a.shape[i] != b.shape[i]:
            return False
    return True


# ---- checks: inputs -----------------------------------------------------------

cdef int take_data(Call *c, object src, object diff_dst) except -1:
    cdef int i, code
    hold(c, BN_SRC, src)
    c.code = code_of(src.dtype)
    if c.code < 0 or size_of(c.code) != c.view[BN_SRC].itemsize:
        raise wrong_dtype("src", src, _or(_TABLE))
    hold(c, BN_DIFF_DST, diff_dst)
    code = code_of(diff_dst.dtype)
    if code != c.code or size_of(code) != c.view[BN_DIFF_DST].itemsize:
        raise wrong_dtype("diff_dst", diff_dst, f"{_NAME_OF_CODE[c.code]}, like src")
    if c.view[BN_SRC].ndim < 2:
        raise ValueError(
            f"src: expected at least 2 dimensions, got shape {shape_of(&c.view[BN_SRC])}"
        )
    if not same_shape(&c.view[BN_DIFF_DST], &c.view[BN_SRC]):
        raise ValueError(
            f"diff_dst: expected shape {shape_of(&c.view[BN_SRC])}, like src, "
            f"got {shape_of(&c.view[BN_DIFF_DST])}"
        )
    c.channel = c.view[BN_SRC].ndim - 1 if c.last else 1
    c.channels = c.view[BN_SRC].shape[c.channel]
    c.count = 1
    for i in range(c.view[BN_SRC].ndim):
        if i != c.channel:
            c.count *= c.view[BN_SRC].shape[i]
    c.is_empty = c.count == 0 or c.channels == 0
    return 0


cdef int check_vector_dtype(Call *c, object a, str name) except -1:
    """A dtype that fits the data, and mean's."""
    cdef int code = code_of(a.dtype)
    if code < 0 or not ALLOWED[c.code][code]:
        data = _NAME_OF_CODE[c.code]
        error = wrong_dtype(name, a, f"{_or(_TABLE[data])} with {data} data")
        if a.dtype.isnative and a.dtype.kind in "fiu":
            error = TypeError(f"{error}; pass np.asarray({name}, np.{_TABLE[data][0]})")
        raise error
    if c.vector_code < 0:
        c.vector_code = code
    elif code != c.vector_code:
        raise TypeError(
            f"{name}: expected {_NAME_OF_CODE[c.vector_code]}, like mean, "
            f"got {_NAME_OF_CODE[code]}"
        )
    return 0


cdef void point(bn_vector *v, const void *data, Py_ssize_t stride, int code) noexcept nogil:
    v.data = <char *>data
    v.stride = stride
    v.dtype = <bn_dtype>code


cdef bint point_at(bn_vector *v, object a, int code, Py_ssize_t channels) except -1:
    """Point v at a vector of this code, if it has this length. The array owns the
    memory, and the caller holds the array for as long as v is used."""
    cdef const float[:] f32
    cdef const double[:] f64
    cdef const uint16_t[:] bits
    if a.ndim != 1:
        return False
    if code == BN_F32:
        f32 = a
        if f32.shape[0] == channels and channels:
            point(v, &f32[0], f32.strides[0], code)
        return f32.shape[0] == channels
    elif code == BN_F64:
        f64 = a
        if f64.shape[0] == channels and channels:
            point(v, &f64[0], f64.strides[0], code)
        return f64.shape[0] == channels
    else:
        bits = a.view(np.uint16)
        if bits.shape[0] == channels and channels:
            point(v, &bits[0], bits.strides[0], code)
        return bits.shape[0] == channels


cdef object wrong_vector(Call *c, object a, str name):
    """What is wrong with the shape of a vector, and what its caller may have meant."""
    cdef const Py_buffer *src = &c.view[BN_SRC]
    cdef Py_ssize_t size = a.size
    cdef Py_ssize_t others = src.shape[1 if c.last else src.ndim - 1]
    here, there = ("the last axis", "axis 1") if c.last else ("axis 1", "the last axis")
    cdef int axis
    hints = []
    # Where mean has fitted, the channels are where they were said to be.
    if c.problem.vector[BN_MEAN].data != NULL:
        others = c.channels
    elif size == others and size != c.channels:
        hints.append(f'if the channels are on {there}, pass data_format="{"NCX" if c.last else "NXC"}"')
    elif size != c.channels:
        for axis in range(src.ndim):
            if src.shape[axis] == size:
                hints.append(f"if the channels are on axis {axis}, pass np.moveaxis(src, {axis}, "
                             f"{-1 if c.last else 1}), and diff_dst likewise, which copies nothing")
                break
    if a.ndim != 1 and (size == c.channels or size == others):
        hints.append(f"pass {name}.reshape(-1)")
    return ValueError("; ".join([
        f"{name}: expected shape ({c.channels},), one value for each channel on {here} of src, "
        f"which has shape {shape_of(src)}, got {a.shape}", *hints
    ]))


cdef int take_vector(Call *c, bn_vector *v, object a, str name) except -1:
    """Check a (C,) argument and point v at it."""
    check_vector_dtype(c, a, name)
    if not point_at(v, a, c.vector_code, c.channels):
        raise wrong_vector(c, a, name)
    return 0


cdef object take_sums(Call *c, object sums):
    if code_of(sums.dtype) != BN_F64:
        raise wrong_dtype("sums", sums, "float64")
    if sums.shape != (2, c.channels):
        raise ValueError(f"sums: expected shape (2, {c.channels}), got {sums.shape}")
    return np.ascontiguousarray(sums)


cdef double take_count(Call *c, object count) except -1:
    """Elements per channel over all parts: no fewer than those of this one."""
    least = 0 if c.is_empty else c.count
    if count < least:
        raise ValueError(
            f"count: expected at least {least}, the elements per channel of this part alone, "
            f"got {_shown(count)}"
        )
    try:
        return float(count)
    except OverflowError:
        raise ValueError(
            f"count: expected a number that fits a float64, got {_shown(count)}"
        ) from None


# ---- checks: outputs ----------------------------------------------------------

cdef object as_out(object out, bint param_grads):
    """`out` as a tuple of its three entries."""
    if out is None:
        return none_given
    if not isinstance(out, SEQUENCES):
        raise TypeError(
            f"out: expected (diff_src, diff_gamma, diff_beta), each an array or None, "
            f"got {type(out).__name__}"
        )
    out = tuple(out)
    if len(out) != 3:
        raise ValueError(
            f"out: expected (diff_src, diff_gamma, diff_beta), each an array or None, "
            f"got {len(out)} entries"
        )
    if not param_grads and (out[1] is not None or out[2] is not None):
        raise ValueError("out: expected None for diff_gamma and diff_beta with param_grads=False")
    return out


cdef object as_output(object a, str name):
    """The base-class array to write through, None for None."""
    if a is None or type(a) is ndarray:
        return a
    if not isinstance(a, ndarray) or isinstance(a, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected a numpy.ndarray, got {type(a).__name__}")
    return base_array(a, name)


cdef int check_out(object a, str name, int code) except -1:
    if code_of(a.dtype) != code:
        raise ValueError(f"{name}: expected dtype {_NAME_OF_CODE[code]}, got {dtype_text(a.dtype)}")
    return 0


cdef object wrong_shape(str name, object shape, object a):
    return ValueError(f"{name}: expected shape {shape}, got {a.shape}")


cdef object read_only(str name):
    return ValueError(f"{name}: expected a writable array, got a read-only one")


cdef int take_diff_src(Call *c, object a) except -1:
    hold(c, BN_DIFF_SRC, a)
    check_out(a, NAMES[0], c.code)
    if size_of(c.code) != c.view[BN_DIFF_SRC].itemsize:
        raise wrong_dtype(NAMES[0], a, _NAME_OF_CODE[c.code])
    if not same_shape(&c.view[BN_DIFF_SRC], &c.view[BN_SRC]):
        raise wrong_shape(NAMES[0], shape_of(&c.view[BN_SRC]), a)
    if c.view[BN_DIFF_SRC].readonly:
        raise read_only(NAMES[0])
    return 0


cdef int take_param_grad(Call *c, bn_vector *v, object a, str name) except -1:
    cdef Py_buffer view
    check_out(a, name, c.vector_code)
    if not point_at(v, a, c.vector_code, c.channels):
        raise wrong_shape(name, (c.channels,), a)
    PyObject_GetBuffer(a, &view, PyBUF_STRIDES)
    writable = not view.readonly
    PyBuffer_Release(&view)
    if not writable:
        raise read_only(name)
    return 0


cdef object new_param_grad(Call *c, bn_vector *v):
    a = empty(c.channels, DTYPE_OF_CODE[c.vector_code])
    if not point_at(v, a, c.vector_code, c.channels):
        raise MemoryError("bn_ext: a new array was changed before it was filled")
    return a


cdef struct Extent:
    uintptr_t begin
    uintptr_t end       # 0: no array


cdef void stretch(Extent *e, Py_ssize_t n, Py_ssize_t stride) noexcept nogil:
    if n == 0:
        e.end = 0
    elif e.end == 0:
        pass
    elif stride < 0:
        e.begin += <uintptr_t>((n - 1) * stride)
    else:
        e.end += <uintptr_t>((n - 1) * stride)


cdef Extent extent_of_view(const Py_buffer *view) noexcept nogil:
    cdef Extent e
    cdef int i
    e.begin = <uintptr_t>view.buf
    e.end = e.begin + <uintptr_t>view.itemsize
    for i in range(view.ndim):
        stretch(&e, view.shape[i], view.strides[i])
    return e


cdef Extent extent_of_vector(const bn_vector *v, Py_ssize_t channels) noexcept nogil:
    cdef Extent e
    e.begin = <uintptr_t>v.data
    e.end = 0
    if v.data != NULL:
        e.end = e.begin + <uintptr_t>size_of(v.dtype)
        stretch(&e, channels, v.stride)
    return e


cdef bint share(const Extent *a, const Extent *b, object array_a, object array_b) except -1:
    """Do two arrays share memory? What bounded work cannot decide counts as yes."""
    if a.end <= b.begin or b.end <= a.begin:
        return False
    try:
        return np.shares_memory(array_a, array_b, max_work=10000)
    except RuntimeError:  # TooHardError
        return True


cdef bint same_place(const Py_buffer *a, const Py_buffer *b) noexcept nogil:
    cdef int i
    if a.buf != b.buf:
        return False
    for i in range(a.ndim):
        if a.shape[i] > 1 and a.strides[i] != b.strides[i]:
            return False
    return True


# The arrays of a call as check_shared has them: first the outputs.
cdef tuple NAMES = ("out: diff_src", "out: diff_gamma", "out: diff_beta",
                    "src", "diff_dst", "mean", "variance", "gamma", "sums")


cdef int check_shared(Call *c, tuple arrays) except -1:
    """Refuse outputs that share memory with anything but, exactly, src or diff_dst."""
    cdef Extent extents[9]
    cdef const bn_vector *vectors[5]
    cdef int i, j
    cdef bint in_place
    vectors[:] = [&c.problem.vector[BN_DIFF_GAMMA], &c.problem.vector[BN_DIFF_BETA], &c.problem.vector[BN_MEAN],
                  &c.problem.vector[BN_VARIANCE], &c.problem.vector[BN_GAMMA]]
    for i in range(9):
        extents[i].begin = extents[i].end = 0
    if arrays[0] is not None:
        extents[0] = extent_of_view(&c.view[BN_DIFF_SRC])
    for i in range(2):
        extents[1 + i] = extent_of_vector(vectors[i], c.channels)
    extents[3] = extent_of_view(&c.view[BN_SRC])
    extents[4] = extent_of_view(&c.view[BN_DIFF_DST])
    for i in range(3):
        extents[5 + i] = extent_of_vector(vectors[2 + i], c.channels)
    cdef const double[:, ::1] sums
    if arrays[8] is not None and c.channels:
        sums = arrays[8]
        extents[8].begin = <uintptr_t>&sums[0, 0]
        extents[8].end = extents[8].begin + 2 * c.channels * sizeof(double)

    if extents[0].end and overlaps_itself(&c.view[BN_DIFF_SRC]):
        raise ValueError(f"{NAMES[0]}: overlaps itself in memory")
    for i in range(2):
        if (extents[1 + i].end and c.channels > 1
                and distance(vectors[i].stride) < size_of(c.vector_code)):
            raise ValueError(f"{NAMES[1 + i]}: overlaps itself in memory")
    for i in range(3):
        if extents[i].end == 0:
            continue
        for j in range(i + 1, 9):
            if extents[j].end == 0:
                continue
            in_place = i == 0 and (j == 3 or j == 4) and same_place(
                &c.view[BN_DIFF_SRC], &c.view[BN_SRC if j == 3 else BN_DIFF_DST])
            if not in_place and share(&extents[i], &extents[j], arrays[i], arrays[j]):
                may = " (it may be exactly src or exactly diff_dst)" if i == 0 else ""
                raise ValueError(f"{NAMES[i]}: shares memory with {NAMES[j]}{may}")
    return 0


# ---- a call, from arguments to result -------------------------------------------

cdef enum What:
    WHOLE
    REDUCE
    APPLY


cdef object gradient(What what, object src, object diff_dst, object mean, object variance,
                     object gamma, object sums, object count, object epsilon,
                     object data_format, object is_training, object param_grads, object out,
                     object num_threads):
    cdef Call c
    cdef int o
    for o in range(BN_OPERANDS):
        c.held[o] = False
    try:
        return checked(&c, what, src, diff_dst, mean, variance, gamma, sums, count, epsilon,
                       data_format, is_training, param_grads, out, num_threads)
    finally:
        for o in range(BN_OPERANDS):
            release(&c, o)


cdef object checked(Call *c, What what, object src, object diff_dst, object mean,
                    object variance, object gamma, object sums, object count, object epsilon,
                    object data_format, object is_training, object param_grads, object out,
                    object num_threads):
    cdef bn_problem *p = &c.problem
    cdef double elements = 0
    cdef bint grads_wanted
    c.vector_code = -1
    p.vector[BN_MEAN].data = p.vector[BN_VARIANCE].data = p.vector[BN_GAMMA].data = p.vector[BN_DIFF_GAMMA].data = p.vector[BN_DIFF_BETA].data = NULL
    p.epsilon = 0

    # Whatever can run code of the caller's.
    c.last = as_channels_last(data_format)
    p.num_threads = as_num_threads(num_threads)
    p.training = as_flag(is_training, "is_training")
    grads_wanted = as_flag(param_grads, "param_grads")
    src = as_array(src, "src")
    diff_dst = as_array(diff_dst, "diff_dst")
    mean = as_array(mean, "mean")
    if what != REDUCE:
        p.epsilon = as_epsilon(epsilon)
        variance = as_array(variance, "variance")
        if gamma is not None:
            gamma = as_array(gamma, "gamma")
    if what == APPLY:
        sums = as_array(sums, "sums")
        count = as_count(count)
    given = as_out(out, grads_wanted)
    diff_src = as_output(given[0], NAMES[0])
    diff_gamma = as_output(given[1], NAMES[1])
    diff_beta = as_output(given[2], NAMES[2])

    # From here on, none but finalizers, which may run at any allocation: what was read of an
    # array is not read again.
    take_data(c, src, diff_dst)
    p.dtype = <bn_dtype>c.code
    take_vector(c, &p.vector[BN_MEAN], mean, "mean")
    if what == REDUCE:
        try:
            sums = np.zeros((2, c.channels))
        except ValueError:
            raise MemoryError("bn_ext: no memory for the sums") from None
        sort_axes(&c.view[BN_SRC], c.channel, &c.order)
        if not c.is_empty:
            run(c, what, src, diff_dst, None, sums, 0)
        return sums
    take_vector(c, &p.vector[BN_VARIANCE], variance, "variance")
    if gamma is not None:
        take_vector(c, &p.vector[BN_GAMMA], gamma, "gamma")
    if what == APPLY:
        elements = take_count(c, count)
        sums = take_sums(c, sums)
    if diff_src is not None:
        take_diff_src(c, diff_src)
    if diff_gamma is not None:
        take_param_grad(c, &p.vector[BN_DIFF_GAMMA], diff_gamma, NAMES[1])
    if diff_beta is not None:
        take_param_grad(c, &p.vector[BN_DIFF_BETA], diff_beta, NAMES[2])
    if out is not None:
        check_shared(c, (diff_src, diff_gamma, diff_beta, src, diff_dst, mean, variance, gamma,
                         sums))

    sort_axes(&c.view[BN_SRC], c.channel, &c.order)
    if diff_src is None:
        diff_src = dense(&c.view[BN_SRC], DTYPE_OF_CODE[c.code], &c.order)
        take_new(c, diff_src, &c.view[BN_DIFF_SRC])
        c.held[BN_DIFF_SRC] = True
    if grads_wanted and diff_gamma is None:
        diff_gamma = new_param_grad(c, &p.vector[BN_DIFF_GAMMA])
    if grads_wanted and diff_beta is None:
        diff_beta = new_param_grad(c, &p.vector[BN_DIFF_BETA])
    # Before anything is written: what follows must not fail for lack of memory.
    grads = new_tuple(BatchNormGradients, (
        diff_src if given[0] is None else given[0],
        diff_gamma if given[1] is None else given[1],
        diff_beta if given[2] is None else given[2],
    ))
    if c.channels:
        run(c, what, src, diff_dst, diff_src, sums, elements)
    return grads


cdef void copy_run(char *to, Py_ssize_t to_step, const char *source, Py_ssize_t step,
                   Py_ssize_t n, Py_ssize_t itemsize) noexcept nogil:
    cdef Py_ssize_t i
    if itemsize == 8:
        for i in range(n):
            memcpy(to + i * to_step, source + i * step, 8)
    elif itemsize == 4:
        for i in range(n):
            memcpy(to + i * to_step, source + i * step, 4)
    else:
        for i in range(n):
            memcpy(to + i * to_step, source + i * step, 2)


cdef void copy_elements(const Py_buffer *source, const Py_buffer *to,
                        const Order *order) noexcept nogil:
    """Copy between arrays of one shape, not empty, in this order of axes.

    By hand, since nothing may fail here: NumPy's own copy needs memory, and crashes
    (2.4) where it gets none.
    """
    cdef Py_ssize_t at[BN_MAX_AXES]
    cdef Py_ssize_t n = 1, to_step = 0, step = 0    # of the last axis
    cdef Py_ssize_t m = 1, to_jump = 0, jump = 0    # of the one before
    cdef Py_ssize_t block, done, i
    cdef char *read = <char *>source.buf
    cdef char *write = <char *>to.buf
    cdef int last = order.n - 1, k, axis
    if last >= 0:
        axis = order.axis[last]
        n, to_step, step = to.shape[axis], to.strides[axis], source.strides[axis]
    if last >= 1:
        axis = order.axis[last - 1]
        m, to_jump, jump = to.shape[axis], to.strides[axis], source.strides[axis]
    # Where the last axis takes the longer steps, a line that was read serves the next ones too.
    block = 16 if distance(jump) < distance(step) else n
    memset(at, 0, sizeof(at))
    while True:
        done = 0
        while done < n:
            for i in range(m):
                copy_run(write + i * to_jump + done * to_step, to_step,
                         read + i * jump + done * step, step, min(block, n - done), to.itemsize)
            done += block
        k = last - 2
        while k >= 0:
            axis = order.axis[k]
            at[k] += 1
            read += source.strides[axis]
            write += to.strides[axis]
            if at[k] < to.shape[axis]:
                break
            read -= at[k] * source.strides[axis]
            write -= at[k] * to.strides[axis]
            at[k] = 0
            k -= 1
        if k < 0:
            return


cdef object walkable(Call *c, int operand, object a, Py_buffer *left):
    """`a`, or a dense copy of it if the kernels cannot walk it in src's order. The buffer
    of what was copied is released, or left to the caller."""
    if c.is_empty or follows(&c.view[operand], &c.order):
        return a
    cdef Py_buffer view
    copied = dense(&c.view[operand], DTYPE_OF_CODE[c.code], &c.order)
    take_new(c, copied, &view)
    if operand != BN_DIFF_SRC:
        with nogil:
            copy_elements(&c.view[operand], &view, &c.order)
    if left == NULL:
        release(c, operand)
    else:
        left[0] = c.view[operand]
    c.view[operand] = view
    c.held[operand] = True
    return copied


cdef int run(Call *c, What what, object src, object diff_dst, object diff_src, object sums,
             double count) except -1:
    """The C call, between the copies it may need. diff_src is None for REDUCE."""
    cdef bn_status status
    cdef bint back
    cdef Py_buffer given_back
    cdef double[:, ::1] reduced
    cdef const double[:, ::1] given
    if what == APPLY:
        given = sums
        if given.shape[0] != 2 or given.shape[1] != c.channels:
            raise ValueError("sums: their shape changed during the call")
    walkable(c, BN_SRC, src, NULL)
    walkable(c, BN_DIFF_DST, diff_dst, NULL)
    if what == REDUCE:
        c.view[BN_DIFF_SRC] = c.view[BN_SRC]
        written = None
    else:
        written = walkable(c, BN_DIFF_SRC, diff_src, &given_back)
    back = written is not diff_src
    set_axes(&c.problem, c.view, &c.order, c.channel, c.channels)

    if what == WHOLE:
        with nogil:
            status = bn_backward(&c.problem)
    elif what == REDUCE:
        reduced = sums
        with nogil:
            status = bn_backward_reduce(&c.problem, &reduced[0, 0])
    else:
        with nogil:
            status = bn_backward_apply(&c.problem, &given[0, 0], count)
    if back:
        if status == BN_OK:
            with nogil:
                copy_elements(&c.view[BN_DIFF_SRC], &given_back, &c.order)
        PyBuffer_Release(&given_back)
    if status != BN_OK:
        raise MemoryError("bn_ext: not enough memory for partial sums")
    return 0


# ---- the public functions -------------------------------------------------------

def batch_norm_backward(src, diff_dst, mean, variance, gamma=None, *, epsilon,
                        data_format="NXC", is_training=True, param_grads=True,
                        out=None, num_threads=None):
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
        ``variance`` is the biased one (divided by M). float64 with float64 data,
        float32 with float32 data, float32 or the data's own dtype with 16-bit data.
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
    out : tuple (diff_src, diff_gamma, diff_beta), optional
        Arrays to write to; any of them may be None. ``diff_src`` may be exactly src or
        exactly diff_dst; no other shared memory is accepted.
    num_threads : int, optional
        Number of threads: at most one per task is used, and no more than the system
        can start. None means as many as OpenMP and the affinity of the calling thread
        allow at the time of the call and the container allowed when bn_ext was
        imported; fewer while several calls run at once; one for a small problem. A
        forked child uses one.

    Returns
    -------
    BatchNormGradients
        Named tuple of diff_src (src's shape, dtype and memory order), diff_gamma
        and diff_beta (shape (C,), mean's dtype). Arrays passed in `out` are
        themselves returned.

    Raises
    ------
    TypeError
        If an argument is not an array, is masked, is on an accelerator, has a dtype
        other than those above or is not in native byte order; if src and diff_dst, or
        mean, variance and gamma, differ in dtype; if a number or a flag has the wrong
        type.
    ValueError
        If shapes do not fit, src has fewer than two dimensions, an option is out of
        range, or an array in `out` has the wrong shape or dtype, is read-only, or
        shares memory.
    MemoryError
        If there is not enough memory for outputs or partial sums.

    Notes
    -----
    If an error is raised, nothing has been written.

    The memory layout is read from src's strides: memory that is channels-last is
    handled as such, however its axes are named, and nothing is copied. Only these are
    copied: src, if its innermost run in memory is not contiguous; diff_dst or
    ``out[0]``, if theirs is not, or if their axes are in a different memory order from
    src's.

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
    return gradient(WHOLE, src, diff_dst, mean, variance, gamma, None, None, epsilon,
                    data_format, is_training, param_grads, out, num_threads)


def batch_norm_backward_reduce(src, diff_dst, mean, *, data_format="NXC", num_threads=None):
    """First half of `batch_norm_backward`: the sums over one part of the data.

    Add the sums of all parts (chunks of an array larger than memory, or shards on
    several machines) and pass the total to `batch_norm_backward_apply` for each part.

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
        As for `batch_norm_backward`.

    Notes
    -----
    Over the same arrays, reduce and apply give the same bits as the single call. Sums
    added over several parts are the same every time for the same parts, but not bit for
    bit those of the whole. For float64 data the bound on their error grows by
    ``2**-53 * sum(abs(terms))`` for each part after the first; for the other dtypes that
    is negligible next to the bound itself. Arrays are copied in the same cases as by
    `batch_norm_backward`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(6.0).reshape(3, 2)
    >>> bn_ext.batch_norm_backward_reduce(src, np.ones((3, 2)), np.array([2.0, 0.0]))
    array([[3., 3.],
           [0., 9.]])
    """
    return gradient(REDUCE, src, diff_dst, mean, None, None, None, None, None,
                    data_format, True, False, None, num_threads)


def batch_norm_backward_apply(src, diff_dst, mean, variance, gamma, sums, count, *, epsilon,
                              data_format="NXC", is_training=True, param_grads=True,
                              out=None, num_threads=None):
    """Second half of `batch_norm_backward`: the gradient of a part, from the sums of all.

    Parameters
    ----------
    src, diff_dst, mean, variance, gamma
        As for `batch_norm_backward`; src and diff_dst are one part; gamma may be None.
    sums : array of float64, shape (2, C)
        What `batch_norm_backward_reduce` returned, added over all parts.
    count : int
        Number of elements per channel over all parts; at least as many as this part
        has.
    epsilon, data_format, is_training, param_grads, out, num_threads
        As for `batch_norm_backward`.

    Returns
    -------
    BatchNormGradients
        diff_src of this part; diff_gamma and diff_beta of the whole, the same for every
        part, even one without elements.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As for `batch_norm_backward`.

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
    ...     bn_ext.batch_norm_backward_apply(*part, mean, variance, None, sums, 8,
    ...                                      epsilon=1e-5).diff_src
    ...     for part in parts])
    >>> whole = bn_ext.batch_norm_backward(src, diff_dst, mean, variance, epsilon=1e-5)
    >>> np.allclose(diff_src, whole.diff_src, rtol=1e-12)
    True
    """
    return gradient(APPLY, src, diff_dst, mean, variance, gamma, sums, count, epsilon,
                    data_format, is_training, param_grads, out, num_threads)


# ---- what _runtime and the tests ask ----------------------------------------

def _available_isas():
    return tuple([bn_isa_name(level).decode() for level in range(bn_isa_count())])


def _get_isa():
    return bn_isa_name(bn_isa_current()).decode()


def _use_isa(name):
    """Switch levels, in this process."""
    bn_isa_use(_available_isas().index(name))


def _set_cpu_quota(int threads):
    bn_set_cpu_quota(threads)


def _cache_sizes():
    """(bytes of a core's second-level cache, of the last-level cache)."""
    return bn_l2_bytes(), bn_last_level_bytes()


def _set_cache_sizes(l2, last_level):
    """Pretend, for tests; zeros ask the system again."""
    bn_set_cache_sizes(l2, last_level)


def _default_threads():
    return bn_default_threads()


def _has_openmp():
    return bool(bn_has_openmp())


def _openmp_address():
    """Where the OpenMP runtime that serves us lies in memory; 0 without one."""
    return bn_openmp_address()


def _forked():
    return bool(bn_forked())


def _last_call():
    """(threads that took tasks, tasks per pass) of this thread's last call."""
    cdef int threads
    cdef int64_t tasks
    bn_last_call(&threads, &tasks)
    return threads, tasks


# ---- one kernel by itself, to check or tune it ------------------------------

cdef const bn_dtype_kernels *kernels_of(isa, dtype) except NULL:
    cdef int level = _available_isas().index(isa)
    cdef int code = _CODE_OF_NAME[dtype]
    return &bn_kernels_of(level).dtype[code]


def _formulas():
    """Their names, as the C table has them."""
    return tuple([formula_table[f].name.decode() for f in range(FORMULAS)])


cdef bn_sums sums_of(double[:, ::1] planes, float[:, ::1] float_sums) except *:
    cdef bn_sums sums
    sums.plane = &planes[0, 0]
    sums.stride = planes.shape[1]
    sums.float_sums = &float_sums[0, 0] if float_sums is not None else NULL
    return sums


def _run_kernel(isa, dtype, pass_, formula, block, const unsigned char[:, ::1] coefs,
                double[:, ::1] planes, float[:, ::1] float_sums, int64_t stride, int calls=1):
    """Run the kernel of a pass ("sum" or "write") of a formula `calls` times. Nothing is checked.

    block: (addresses, pitches, steps, repeats, rows, cols, nontemporal, uniform), the
    first three for src, diff_dst and diff_src. coefs: (BN_COEFS, bytes), planes of
    `stride` numbers. planes, float_sums: the sums, as kernels.h has them.
    """
    cdef const bn_dtype_kernels *kernels = kernels_of(isa, dtype)
    cdef int f = _formulas().index(formula)
    cdef bint summing = pass_ == "sum"
    cdef bn_sums sums = sums_of(planes, float_sums)
    cdef bn_coefs c
    cdef bn_block b
    cdef uint64_t mode
    cdef int i, _i
    c.column = &coefs[0, 0]
    c.stride = stride
    addresses, pitches, steps, b.repeats, b.rows, b.cols, b.nontemporal, b.uniform = block
    for i in range(BN_OPERANDS):
        b.data[i] = <char *><uintptr_t>addresses[i]
        b.pitch[i] = pitches[i]
        b.step[i] = steps[i]
    with nogil:
        mode = fp_mode_enter()
        for _i in range(calls):
            if summing:
                kernels.sum[f](&b, &c, &sums)
            else:
                kernels.write[f](&b, &c)
        fp_mode_leave(mode)


def _run_sums_kernel(isa, dtype, name, double[:, ::1] planes, float[:, ::1] float_sums, int64_t n,
                     double[:, ::1] other):
    """Run a kernel that works on sums: flush; add (other to them); sum_columns (into other)."""
    cdef const bn_dtype_kernels *kernels = kernels_of(isa, dtype)
    cdef bn_sums sums = sums_of(planes, float_sums), others
    cdef uint64_t mode = fp_mode_enter()
    if name == "flush":
        kernels.flush(&sums, n)
    else:
        others = sums_of(other, None)
        if name == "add":
            kernels.add(&sums, &others, n)
        else:
            kernels.sum_columns(&sums, n, &others)
    fp_mode_leave(mode)


def _run_expand(isa, dtype, const unsigned char[::1] channel, int64_t all_, int64_t channels,
                int64_t each, unsigned char[::1] column):
    """Lay per-channel values, in bytes of the arithmetic type, out by columns."""
    kernels_of(isa, dtype).expand(&channel[0], all_, channels, each, &column[0])


# ---- what the wrappers in specs share with the functions above ---------------------

def _as_array(a, name):
    return as_array(a, name)


def _as_epsilon(epsilon):
    return as_epsilon(epsilon)


def _as_flag(value, name):
    return as_flag(value, name)
