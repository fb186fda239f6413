"""The dtypes of src_c/base/dtypes.h: names and codes. Included by core.pyx."""

cdef object INT64 = np.dtype(np.int64)
cdef object FLOAT64 = np.dtype(np.float64)
cdef object UINT8 = np.dtype(np.uint8)


cdef tuple names_of_dtypes():
    names = []
    for code in range(BN_DTYPES):
        names.append(bn_dtype_table[code].name.decode())
    return tuple(names)


DTYPES = names_of_dtypes()


cdef inline Py_ssize_t size_of(int code) noexcept nogil:
    return bn_dtype_table[code].element_bytes


# dtype -> code. bfloat16 is added when it is first seen: this module recognizes ml_dtypes, but
# never imports it.
cdef dict CODE_OF_DTYPE = {
    np.dtype(DTYPES[code]): code for code in range(BN_DTYPES) if code != BN_BF16
}
# code -> the dtype of new arrays. Any allocation may run a finalizer that changes an argument's
# dtype. Hence an argument's dtype is read once, after the array was pinned; new arrays get theirs
# from here.
cdef list DTYPE_OF_CODE = [None] * BN_DTYPES
for _dtype, _code in CODE_OF_DTYPE.items():
    DTYPE_OF_CODE[_code] = _dtype
del _dtype, _code


cdef inline object dtype_of_array(object a):
    return <object>PyArray_DESCR(<PyArrayObject *>a)


cdef int code_of(object dtype) except -2:
    """The code of a dtype; -1 if bn_dtype_table lacks it. None of the caller's code runs here."""
    cdef int i
    for i in range(BN_DTYPES):  # most are found by identity
        if dtype is DTYPE_OF_CODE[i]:
            return i
    code = CODE_OF_DTYPE.get(dtype)
    if code is not None:
        return code
    module = sys.modules.get("ml_dtypes")
    if type(module) is ModuleType and dtype.type is module.__dict__.get("bfloat16"):
        if dtype.isnative and dtype.itemsize == size_of(BN_BF16):
            CODE_OF_DTYPE[dtype] = BN_BF16
            DTYPE_OF_CODE[BN_BF16] = np.dtype(dtype.type)
            return BN_BF16
    return -1
