"""How error messages show values, types and dtypes: shortened, and without failing if repr fails.
Included by core.pyx."""

cdef extern from *:
    """
    /* Before an error leaves Python functions: make an object of each one's frame. Else CPython makes it
       when the error has left the function that the frame has called; and if memory is too short for
       that, it loses the error, and raises a SystemError (3.11 to 3.13). */
    static void bn_make_frames(void) {
        PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
        while (frame) {
            PyFrameObject *back = PyFrame_GetBack(frame);
            Py_DECREF(frame);
            frame = back;
        }
        PyErr_Clear();
    }
    """
    void make_frames "bn_make_frames"()


# Kept in a variable: see SEQUENCES in objects.pxi.
cdef tuple CONTAINERS = (list, tuple, dict, set, frozenset)


cpdef str escaped(str text):
    """Foreign text as repr shows it: a control character would move a terminal's cursor, or make grep
    take a log for binary data."""
    if text.isprintable():
        return text
    parts = []
    for character in text:
        parts.append(character if character.isprintable() else repr(character)[1:-1])
    return "".join(parts)


cdef str shortened(str text):
    """Shorten a text to at most 80 characters, on one line, and escape it."""
    short = text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}"
    return escaped(" ".join(short.splitlines()))


def shown(value):
    """A value's repr for an error, shortened; if repr fails, the value's type."""
    make_frames()
    # reprlib reads no more of nested containers than it shows.
    show = reprlib.repr if isinstance(value, CONTAINERS) else repr
    try:
        return shortened(str.__getitem__(show(value), slice(None)))  # a plain str, not of a subclass
    except Exception:
        pass
    return "an object of type " + type_name(value)


cdef str type_name(object a):
    """The name of an object's type."""
    name = f"{type(a).__module__}.{type(a).__qualname__}".removeprefix("builtins.")
    return escaped(name if len(name) <= 80 else name[:77] + "...")


cdef str dtype_text(object dtype):
    """A dtype as NumPy prints it, shortened: it may have many fields, or fields with long names."""
    return shortened(str(dtype))


def any_of(names):
    names = list(names)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]


cdef object converted(object make, object a, object dtype):
    """make(a, dtype). Where memory is short, NumPy's casts from objects return NULL without an error.
    CPython's call, unlike Cython's, notices that."""
    try:
        return PyObject_CallFunctionObjArgs(make, <PyObject *>a, <PyObject *>dtype, NULL)
    except SystemError as error:
        raise MemoryError(f"bn_ext: {error}") from None


cdef bint holds_numbers(object a) except -1:
    """Can the array be converted to floating-point numbers?"""
    if a.dtype.kind != "O":
        return a.dtype.kind in "fiub"
    try:
        converted(np.asarray, a, FLOAT64)
        return True
    except Exception:
        pass
    return False


cdef object wrong_dtype(str name, object a, object dtype, str expected, str convert_to=""):
    """The error for an array with an unexpected dtype. It is passed as it was read, since it may
    change. If `convert_to` is a NumPy dtype and the array holds numbers, the message suggests to
    convert it; not to float32, which may lose something, where float64 is allowed. If it is None,
    because the array is written, no copy is suggested.

    Here and elsewhere, what is suggested begins with np.asarray: the argument may have been a list
    or any other object that can be viewed as an array."""
    copies = convert_to is not None
    native = dtype if dtype.isnative else dtype.newbyteorder("=")  # strings have no order
    if native is not dtype and (native == INT64 or code_of(native) >= 0):
        where = "ml_dtypes" if code_of(native) == BN_BF16 else "np"
        hint = f"; pass np.asarray({name}, {where}.{native.name})" if copies else ""
        return TypeError(f"{name}: expected native byte order, got {dtype.str}{hint}")
    if convert_to == "float32" and "float64" in expected and not np.can_cast(dtype, np.float32):
        convert_to = "float64"
    hints = []
    if "bfloat16" in expected and (dtype == np.uint16 or dtype == np.int16 or dtype == "V2"):
        # Integers often hold bits of bfloat16; np.load gives saved arrays of bfloat16 as V2.
        hints = [f"if these are bits of bfloat16, pass np.asarray({name}).view(ml_dtypes.bfloat16)"]
    if copies and convert_to not in ("", "bfloat16") and holds_numbers(a):
        hints.append(f"{'if not,' if hints else 'pass'} np.asarray({name}, np.{convert_to})")
    return TypeError("; ".join([f"{name}: expected {expected}, got {dtype_text(dtype)}", *hints]))


def require_dtype(str name, a, allowed, str like=""):
    """Refuse an array whose dtype is not allowed; advise the widest one, whose name is the last in
    the alphabet."""
    dtype = a.dtype
    if dtype.name not in allowed or not dtype.isnative:
        raise wrong_dtype(name, a, dtype, any_of(allowed) + like, max(allowed))
