"""New arrays; and large memory that outlives a call, for the next one. Included by core.pyx.

Writing to 160 MB takes 8 ms longer if it has just been mapped, because the system clears each page.
So the memory of a large result is kept when its array is gone: it stays mapped, and a later result
of about its size may get it. The system may take the pages of kept mappings whenever it needs
memory (MADV_FREE; on Windows, MEM_RESET). Pages that it has not taken are written as fast as others.
"""

cdef extern from "base/system.h" nogil:
    void *bn_map_pages(size_t bytes)
    void bn_unmap_pages(void *pages, size_t bytes)
    void bn_offer_pages(void *pages, size_t bytes)
    void bn_prefer_huge_pages(void *pages, size_t bytes)
    void bn_lock()
    void bn_unlock()
    void bn_at_fork(void (*before)(), void (*in_parent)(), void (*in_child)())

cdef extern from "Python.h":
    int PyTraceMalloc_Track(unsigned int domain, uintptr_t address, size_t size)
    int PyTraceMalloc_Untrack(unsigned int domain, uintptr_t address)

cdef enum:
    # glibc keeps freed memory itself: new memory of fewer bytes costs no more than kept memory (measured).
    WORTH_KEEPING = 16 << 20
    MOST_KEPT = 64
    WASTE = 4  # a mapping has at most 1 + 1/WASTE times the bytes asked for
    HUGE_PAGE = 2 << 20
    # Data starts in mid-page, because NumPy's arrays start near a page's start. A load waits for recent
    # stores near its offset in a page: with 48 bytes between offsets, it takes six times as long (Zen 3).
    START = 2 << 10
    TRACE_DOMAIN = 389047  # NumPy's domain in tracemalloc, for the memory of arrays

cdef struct Mapping:
    char *all    # with room for the next boundary of a huge page, from which data lies START bytes
    char *data   # NULL: none
    size_t bytes

# Who changes what follows has bn_lock, and runs no Python code meanwhile.
cdef Mapping kept[MOST_KEPT]  # oldest first
cdef int n_kept
cdef size_t bytes_kept, limit_of_kept


cdef void unmap(Mapping m) noexcept nogil:
    bn_unmap_pages(m.all, HUGE_PAGE + START + m.bytes)


cdef Mapping removed(int i) noexcept nogil:
    global n_kept, bytes_kept
    cdef Mapping m = kept[i]
    n_kept -= 1
    bytes_kept -= m.bytes
    memmove(&kept[i], &kept[i + 1], (n_kept - i) * sizeof(Mapping))
    return m


cdef void shed(size_t most) noexcept nogil:
    """Unmap the oldest mappings until at most so many bytes are kept."""
    while bytes_kept > most:
        unmap(removed(0))


cdef Mapping take_mapping(size_t bytes) noexcept nogil:
    """The youngest mapping that fits, which may still be in a cache; or a new one, if there is memory."""
    cdef Mapping m = Mapping(NULL, NULL, bytes)
    cdef int i
    bn_lock()
    for i in range(n_kept - 1, -1, -1):
        if bytes <= kept[i].bytes <= bytes + bytes // WASTE:
            m = removed(i)
            break
    bn_unlock()
    if m.data == NULL:
        m.all = <char *>bn_map_pages(HUGE_PAGE + START + bytes)
        if m.all != NULL:
            m.data = m.all + (-<uintptr_t>m.all & (HUGE_PAGE - 1)) + START
            bn_prefer_huge_pages(m.data - START, START + bytes)
    return m


cdef void keep_mapping(Mapping m) noexcept nogil:
    global n_kept, bytes_kept
    bn_lock()
    if m.bytes > limit_of_kept:
        unmap(m)
    else:
        shed(limit_of_kept - m.bytes)
        if n_kept == MOST_KEPT:
            unmap(removed(0))
        bn_offer_pages(m.data - START, START + m.bytes)
        kept[n_kept] = m
        n_kept += 1
        bytes_kept += m.bytes
    bn_unlock()


cdef bint release_kept() noexcept nogil:
    """Unmap all that is kept, for an allocation that has failed. Was there any?"""
    bn_lock()
    cdef bint any_kept = n_kept > 0
    shed(0)
    bn_unlock()
    return any_kept


def keep_limit():
    return limit_of_kept


def set_keep_limit(size_t bytes):
    """Set the most bytes that may be kept; unmap what exceeds them."""
    global limit_of_kept
    bn_lock()
    limit_of_kept = bytes
    shed(bytes)
    bn_unlock()


def kept_bytes():
    return bytes_kept


# A child inherits what its parent keeps, but a write to an inherited page copies it, which costs more
# than a new page. So the child unmaps the mappings.
cdef void in_child() noexcept nogil:
    shed(0)
    bn_unlock()

bn_at_fork(bn_lock, bn_unlock, in_child)


# ---- arrays ----------------------------------------------------------------------

@cython.final
@cython.auto_pickle(False)  # a copy would release the same memory again
cdef class Block:
    """The memory of a large result, and the `base` of its array. NumPy asks it for its buffer when
    the array is to be writable again."""

    cdef Mapping mapping

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        Py_DECREF(None)  # Cython has put it into buffer.obj, which is overwritten
        PyBuffer_FillInfo(buffer, self, self.mapping.data, self.mapping.bytes, False, flags)

    def __dealloc__(self):
        if self.mapping.data != NULL:
            PyTraceMalloc_Untrack(TRACE_DOMAIN, <uintptr_t>self.mapping.data)
            keep_mapping(self.mapping)


cdef object empty(object dtype, int ndim, const npy_intp *shape, const npy_intp *strides, void *data):
    """A new array, in `data` unless it is NULL; dense unless strides are given."""
    Py_INCREF(dtype)
    return PyArray_NewFromDescr(array_type, <PyArray_Descr *>dtype, ndim, shape, strides, data,
                                NPY_ARRAY_WRITEABLE if data else 0, NULL)


cdef object allocated(object dtype, int ndim, const npy_intp *shape, const npy_intp *strides=NULL):
    """A new array in NumPy's memory. If memory is short, what is kept gives way."""
    try:
        return empty(dtype, ndim, shape, strides, NULL)
    except MemoryError:
        if not release_kept():
            raise
    except ValueError as error:  # larger than all memory
        raise MemoryError(f"bn_ext: {error}") from None
    return empty(dtype, ndim, shape, strides, NULL)


cdef object zeros(object dtype, tuple shape):
    """A new array of at most three axes."""
    cdef npy_intp sizes[3]
    cdef int i
    for i in range(len(shape)):
        sizes[i] = shape[i]
    array = allocated(dtype, len(shape), sizes)
    memset(PyArray_BYTES(<PyArrayObject *>array), 0, array.nbytes)
    return array


cdef object new_array(object dtype, int ndim, const npy_intp *shape, const npy_intp *strides,
                      Py_ssize_t bytes):
    """An uninitialized array of so many bytes; if it is large, in memory that is kept."""
    if bytes < WORTH_KEEPING or limit_of_kept == 0:
        return allocated(dtype, ndim, shape, strides)
    cdef Block block = Block.__new__(Block)
    block.mapping = take_mapping(bytes)
    if block.mapping.data == NULL:
        # It may succeed once what is kept is released; its MemoryError names shape and dtype.
        return allocated(dtype, ndim, shape, strides)
    PyTraceMalloc_Track(TRACE_DOMAIN, <uintptr_t>block.mapping.data, bytes)
    array = empty(dtype, ndim, shape, strides, block.mapping.data)
    Py_INCREF(block)
    PyArray_SetBaseObject(<PyArrayObject *>array, <PyObject *>block)
    return array
