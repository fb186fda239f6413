"""Conversion of the caller's objects to base-class arrays, numbers and flags.

Everything that can run the caller's code (`__array__`, `__float__`, properties of a subclass)
runs here, before any buffer is requested. Included by core.pyx.
"""

# DLPack device types whose memory the CPU can read: CPU, CUDA host, ROCm host, CUDA managed.
cdef frozenset HOST_DEVICES = frozenset((1, 3, 11, 13))


cdef bint is_callers(object error) except -1:
    """Did the caller's Python code raise the error? Then it is passed on. An error that Python or
    NumPy raises about a value gets our own message."""
    make_frames()
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_name.startswith("bn_ext._core."):
            return True
        trace = trace.tb_next
    return False


cdef bint lies_elsewhere(object a) except -1:
    """Is the array in the memory of an accelerator?"""
    if not hasattr(a, "__dlpack_device__"):
        return hasattr(a, "__cuda_array_interface__")
    kind, _ = a.__dlpack_device__()
    return kind not in HOST_DEVICES


cdef object base_array(object a, str name, bint whole=False):
    """A base-class array that shares the memory of an array of any class.

    Properties and methods that a subclass overrides are ignored. `whole`: `a` is the argument.
    """
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: masked arrays are not accepted, because the mask would be lost"
            + (f"; pass {name}.filled(value)" if whole else "")
        )
    return np.asarray(a)


# Kept in variables for isinstance. From a literal tuple, Cython makes one check for each member,
# and these checks drop an error that an object's __class__ raises.
cdef tuple SEQUENCES = (list, tuple)
cdef tuple PER_CHANNEL = ("mean", "variance", "gamma", "beta")
cdef tuple SCALARS = (int, float, complex, str, bytes, np.generic)
cdef tuple NO_NUMBERS = (str, bytes, bytearray, complex, np.void)
cdef tuple WITH_DTYPE = (np.ndarray, np.generic)
# The deepest nesting of lists: a NumPy array has at most this many axes.
cdef enum:
    DEEPEST = 64


cdef object as_tuples(object a, str name, int depth=0):
    """Nested lists as tuples: while NumPy reads a list, an element's method could free the rest."""
    if not isinstance(a, SEQUENCES):
        return base_array(a, name) if isinstance(a, np.ma.MaskedArray) else a
    if depth == DEEPEST:
        raise TypeError(
            f"{name}: expected an array of numbers, got lists nested more than {DEEPEST} deep"
        )
    items = []
    for item in tuple(a):
        items.append(as_tuples(item, name, depth + 1))
    return tuple(items)


cdef bint is_tensor(object a) except -1:
    """Is it torch's, or of a subclass?"""
    for kind in type(a).__mro__:
        if str(kind.__module__).partition(".")[0] == "torch":
            return True
    return False


cdef str from_torch(object a, str name, bint written=False):
    """What to pass instead of torch's tensor, if NumPy has no view of it."""
    try:
        if str(getattr(a, "dtype", None)) == "torch.bfloat16":
            return (f"; pass {name}.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16), "
                    "which copies nothing")
        if getattr(a, "requires_grad", False) is True and not written:
            return f"; pass {name}.detach(), or use bn_ext.torch, which has gradients"
    except Exception:
        pass
    return ""


cpdef object no_ndarray(object a, str name):
    """The error for what is not an array of NumPy, but must be, because it is written."""
    hint = from_torch(a, "it", True)
    if not hint and hasattr(type(a), "numpy"):
        detached = "detach()." if hasattr(type(a), "detach") else ""  # as torch wants it
        hint = f"; pass its {detached}numpy(), which shares its memory"
    return TypeError(f"{name}: expected a numpy.ndarray, got {type(a).__name__}{hint}")


cdef object array_of_items(object items):
    """In the default mode, because items of several dtypes are converted."""
    cdef DefaultMode mode = DefaultMode()
    mode.enter()
    try:
        return converted(np.asarray, items, None)
    finally:
        mode.leave()


cdef object viewed(object a):
    """NumPy's view of an object of another library; None if there is none."""
    if lies_elsewhere(a):
        raise TypeError("it is not in CPU memory; copy it to the host first")
    if hasattr(a, "__array__") or hasattr(a, "__array_interface__") or PyObject_CheckBuffer(a):
        # Not asarray, which would drop a subclass that __array__ returns, and with it a mask.
        return converted(np.asanyarray, a, None)
    return np.from_dlpack(a) if hasattr(a, "__dlpack__") else None


cdef tuple UNREAD = (RuntimeError, TypeError, ValueError)
cdef tuple UNVIEWED = (*UNREAD, BufferError)


cpdef object as_array(object a, str name, bint whole=True):
    """A base-class array on the memory of `a`; for a list or tuple, a new array. Nothing else is
    copied, unless the object's own method (such as `__array__`) copies. `whole`: `a` is the
    argument, not an item of it."""
    error = array = None
    if type(a) is ndarray:
        return a
    if isinstance(a, ndarray):
        return base_array(a, name, whole)
    if isinstance(a, SEQUENCES):
        items = as_tuples(a, name)
        try:
            return array_of_items(items)
        except UNREAD as raised:
            error = raised
        if is_callers(error):
            raise error
        raise TypeError(f"{name}: expected an array of numbers: {error}")
    kind = type_name(a)
    if isinstance(a, SCALARS):
        is_number = isinstance(a, (int, float, np.number)) and not isinstance(a, bool)
        hint = "; np.full makes an array of it" if is_number and name in PER_CHANNEL else ""
        raise TypeError(f"{name}: expected an array, got {kind}{hint}")
    try:
        array = viewed(a)
    except UNVIEWED as raised:
        error = raised
    if error is not None:
        hint = from_torch(a, name if whole else "it")
        problem = f"{name}: this {kind} cannot be viewed as a NumPy array"
        if is_callers(error) and not is_tensor(a):
            error.add_note(problem + hint)
            raise error
        raise TypeError(f"{problem}: {str(error).rstrip('.')}{hint}") from error
    if array is None:
        hint = f"; pass {name}.toarray()" if hasattr(type(a), "toarray") else ""
        if kind.startswith("autograd."):
            hint = "; autograd differentiates the functions of bn_ext.autograd"
        raise TypeError(f"{name}: expected an array, got {kind}{hint}")
    return base_array(array, name)


cdef object as_dense(object a):
    """The array if it is aligned and C-contiguous, else a copy that is both. An array received
    over a network may be neither."""
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else np.require(a, None, ("C", "A"))


cpdef bint as_flag(object value, str name) except -1:
    """Convert a bool, a NumPy bool, or the integer 0 or 1. Other objects are refused, even if they
    have a truth value."""
    if value is True:
        return True
    if value is False:
        return False
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):
        value = int(value)
    if isinstance(value, int):
        number = int.__index__(value)  # the value itself: a subclass may override methods
        if number == 0 or number == 1:
            return number
    raise TypeError(f"{name}: expected True or False, got {shown(value)}")


cdef double number_of(object value) except? -1:
    """Any real number as a double."""
    kind = value.dtype.kind if isinstance(value, WITH_DTYPE) else ""
    if (isinstance(value, NO_NUMBERS) or (kind and kind not in "fiubV")
            or (isinstance(value, ndarray) and value.ndim)):
        raise TypeError
    return value


cdef tuple NOT_CONVERTED = (OverflowError, TypeError, ValueError)


cpdef double as_real(object value, str name, str expected, double least=-INFINITY,
                     double most=INFINITY) except? -1:
    """Convert any finite real number, within bounds if there are any."""
    cdef double real = NAN
    error = None
    try:
        real = value if type(value) is float else number_of(value)
    except NOT_CONVERTED as raised:
        error = raised
    if error is not None:
        if is_callers(error):
            raise error
        if isinstance(error, TypeError):
            raise TypeError(f"{name}: expected a real number, got {shown(value)}")
    if not (isfinite(real) and least <= real <= most):
        raise ValueError(f"{name}: expected {expected}, got {shown(value)}")
    return real


cpdef double as_epsilon(object epsilon, str name="epsilon") except? -1:
    return as_real(epsilon, name, "a finite number >= 0", 0)


cpdef object as_index(object value, str name, str expected, object least=None, object most=None):
    """Convert any object that is an integer, within bounds if there are any."""
    number = error = None
    try:
        number = PyNumber_Index(value)
    except TypeError as raised:
        error = raised
    if error is not None:
        if is_callers(error):
            raise error
        raise TypeError(f"{name}: expected {expected}, got {shown(value)}")
    if least is not None and number < least:
        raise ValueError(f"{name}: expected at least {least}, got {shown(number)}")
    if most is not None and number > most:
        raise ValueError(f"{name}: expected at most {most}, got {shown(number)}")
    return number


cdef enum:
    # The code of a data format: where the channels are, plus four times the number of axes that it
    # is for, if it is not for any number. Only this file and check_format know it.
    CHANNELS_LAST = 1
    CHANNELS_FIRST = 2

cdef dict FORMATS = {
    "NXC": CHANNELS_LAST, "NCX": CHANNELS_FIRST,
    "channels_last": CHANNELS_LAST, "channels_first": CHANNELS_FIRST,
    **{name: CHANNELS_LAST + 4 * len(name) for name in ("NC", "NLC", "NWC", "NHWC", "NDHWC")},
    **{name: CHANNELS_FIRST + 4 * len(name) for name in ("NCL", "NCW", "NCHW", "NCDHW")},
}


cdef int as_format(object data_format) except -1:
    """The code of a data format; 0 for None."""
    if data_format is None:
        return 0
    code = FORMATS.get(str(data_format)) if isinstance(data_format, str) else None
    if code is None:
        raise ValueError(
            "data_format: expected 'NXC' or 'NCX', or a name for one number of axes such as "
            f"'NHWC' or 'NCHW', got {shown(data_format)}"
        )
    return code


cpdef int channel_axis_of(object data_format) except 0:
    """The axis of the channels, -1 or 1. (None is for two axes, where both are the same.)"""
    return -1 if as_format(data_format) & CHANNELS_LAST else 1


cpdef int rank_of(object data_format) except -1:
    """The number of axes that a data format is for; 0: any number. None is for two."""
    return 2 if data_format is None else as_format(data_format) >> 2


cdef class Words:
    """A specification's own names of arguments, for error messages. The caller must keep it alive
    during the call. `words` maps our names to those of the specification."""
    cdef tuple names

    def __init__(self, words):
        names = []
        for name in NAMES:
            names.append(words.get(name, name))
        self.names = tuple(names)
