"""Values, types and dtypes as error messages show them: shortened, and without failing, whatever
they are. Included by _core.pyx."""

# In a variable, for the same reason as SEQUENCES.
cdef tuple CONTAINERS = (list, tuple, dict, set, frozenset)


cdef str shortened(str text):
    """No longer than fits a line of a message."""
    return text if len(text) <= 80 else f"{text[:50]}...{text[-20:]}"


def _shown(value):
    """Its repr for a message, shortened; its type where that fails."""
    try:
        # Of nested containers reprlib reads no more than it shows.
        text = reprlib.repr(value) if isinstance(value, CONTAINERS) else repr(value)
        text = str.__getitem__(text, slice(None))  # of a subclass of str, a str
    except Exception:
        return "an object of type " + type_name(value)
    return shortened(text)


cdef str type_name(object a):
    """Its type's name, which a metaclass may refuse to give."""
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


cdef object wrong_dtype(str name, object a, str expected, str to=""):
    """The error for an array of a dtype that is not expected; another dtype of numbers can be
    converted `to` one that is."""
    dtype = a.dtype
    if not dtype.isnative and code_of(dtype.newbyteorder("=")) >= 0:
        return TypeError(
            f"{name}: expected native byte order, got {dtype.str}; "
            f"pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    converts = dtype.isnative and dtype.kind in "fiub" and hasattr(np, to)
    hint = f"; pass np.asarray({name}, np.{to})" if converts else ""
    return TypeError(f"{name}: expected {expected}, got {dtype_text(dtype)}{hint}")
