"""What a function knows of one call: its arrays by role, and what a role requires. run.pxi tells how
a call goes. Included by core.pyx.

When its function ends, however it ends, a Call lets go of its arrays and restores the mode.
"""

cdef enum:
    EXTENTS = 64  # a gradient of four axes has 3 * 8 of operands and 5 * 2 of vectors
    # NumPy's NPY_ARRAY_WARN_ON_WRITE, which its headers lack: a result of np.broadcast_arrays, which
    # will be read-only one day, and is for np.asarray(memoryview(a)) today.
    WARN_ON_WRITE = 1 << 31


@cython.final
@cython.auto_pickle(False)
@cython.freelist(8)
@cython.no_gc  # only its function knows a call, so it is in no cycle
cdef class Call:
    """What a function knows of one call. From check on, each array that it has is pinned: its memory
    stays where it is, and its view is valid.

    Cython manages no C arrays of objects, and a list of them would cost 0.1 us per call. So keep and
    __dealloc__ count the references."""

    # Set here and by run.pxi. Others ask to keep and pin an array.
    cdef int function               # one of roles.pxi
    cdef const Entry *entry
    cdef uint64_t mode              # the caller's floating-point mode, if
    cdef bint computes              # this call has set its own
    cdef bint succeeded             # else an error is on its way
    cdef PyObject *array[ROLES]     # owned; NULL: not given or not wanted
    cdef uint64_t roles             # those that have an array, as bits
    cdef bn_view view[ROLES]        # each pinned array, as C sees it
    cdef uint64_t read_only         # pinned arrays that are, as bits
    cdef npy_intp extents[EXTENTS]  # shapes and strides of pinned arrays; many are in
    cdef npy_intp *more_extents     # memory of their own, which has room for those of all roles
    cdef int n_extents

    # Set by core.pyx and arguments.pxi, from arguments. What follows them only reads these.
    cdef Words words                # or None
    cdef tuple sums                 # those of all parts, and what is known of them; or None
    cdef int format                 # see as_format
    cdef int n_outputs              # includes diff_src_1 if it is wanted
    cdef bint vectors_wanted        # are diff_gamma and diff_beta written?
    cdef bint exact                 # are sums exact?
    cdef bint dry

    # Set by inputs.pxi, from the data.
    cdef int dtype                  # code of the data's dtype
    cdef bint channels_last
    cdef int channel_axis
    cdef npy_intp channels
    cdef Py_ssize_t elements        # of a channel, in this part
    cdef bint is_empty
    cdef bn_axes axes_of_src
    cdef bn_axes axes               # as kernels walk them: src's, or those of the workspace read

    # Set by inputs.pxi and outputs.pxi, each for its own vectors.
    cdef int vector_dtype[BN_VECTORS]   # of each pinned vector

    # Options, and a count that is given, are set with the arguments; the count of a state, by
    # inputs.pxi; all else by fill_problem.
    cdef bn_problem problem
    cdef bn_parts parts             # the sums that the call gives or takes, if any

    def __dealloc__(self):
        cdef int role
        cdef uint64_t left = self.roles
        while left:
            role = take_role(&left)
            Py_CLEAR(self.array[role])
        PyMem_Free(self.more_extents)
        if self.computes:
            fp_mode_leave(self.mode)
        if not self.succeeded:
            make_frames()


cdef Call new_call(int function):
    """A new call. What is not set here is 0."""
    cdef Call c = Call.__new__(Call)
    c.function, c.entry, c.n_outputs = function, &ENTRY[function], ENTRY[function].n_outputs
    c.vectors_wanted = c.problem.training = True
    return c


# ---- arrays by role -----------------------------------------------------------

cdef inline bint has(Call c, int role) noexcept nogil:
    return c.array[role] != NULL


cdef inline int take_role(uint64_t *roles) noexcept nogil:
    """Take the first of these roles, given as bits: a small call has few of many."""
    cdef int role = lowest_bit(roles[0])
    roles[0] &= roles[0] - 1
    return role


cdef inline object array_of(Call c, int role):
    return <object>c.array[role]


cdef int keep(Call c, int role, object a) except -1:
    """Give a role its array. It has none so far."""
    Py_INCREF(a)
    c.array[role] = <PyObject *>a
    c.roles |= <uint64_t>1 << role
    return 0


cdef npy_intp *take_extents(Call c, int n) except NULL:
    """Room for n of a call's extents, as long as the call lives."""
    cdef int first = c.n_extents
    if c.more_extents == NULL and first + n > EXTENTS:
        c.more_extents = <npy_intp *>PyMem_Malloc(ROLES * 2 * BN_MAX_AXES * sizeof(npy_intp))
        first = 0
        if c.more_extents == NULL:
            raise MemoryError
    c.n_extents = first + n
    return &c.extents[first] if c.more_extents == NULL else c.more_extents + first


cdef int pin(Call c, int role, object a) except -1:
    """Set the view to the array's address, and to copies of its shape and strides, which finalizers
    may change. Its memory stays as long as the call refers to it, unless it is resized without
    NumPy's check: see check_memory."""
    cdef PyArrayObject *array = <PyArrayObject *>a
    cdef bn_view *view = &c.view[role]
    cdef int i, n = PyArray_NDIM(array), flags = PyArray_FLAGS(array)
    cdef npy_intp *extents = take_extents(c, 2 * n)
    cdef const npy_intp *shape = PyArray_DIMS(array)
    cdef const npy_intp *strides = PyArray_STRIDES(array)
    cdef bint dense = flags & NPY_ARRAY_C_CONTIGUOUS != 0
    cdef npy_intp stride = PyArray_ITEMSIZE(array)
    if (role == SUMS or role == STATE) and not dense:
        raise ValueError(f"{NAMES[role]}: expected a C-contiguous array, as it was before the call")
    if not flags & NPY_ARRAY_WRITEABLE or flags & WARN_ON_WRITE:
        c.read_only |= <uint64_t>1 << role
    view.data = PyArray_BYTES(array)
    view.itemsize = stride
    view.ndim = n
    for i in range(n - 1, -1, -1):
        # Strides of a dense array may be any along axes of one element, or without elements.
        extents[i], extents[n + i] = shape[i], stride if dense else strides[i]
        stride *= shape[i]
    view.shape, view.strides = extents, extents + n
    return 0


cdef int check_memory(Call c) except -1:
    """Refuse to compute if a finalizer or a hook for warnings has moved or resized an array."""
    cdef uint64_t left = c.roles & ((<uint64_t>1 << COPIES) - 1)
    cdef PyArrayObject *array
    cdef const bn_view *view
    cdef int role
    while left:
        role = take_role(&left)
        array, view = <PyArrayObject *>c.array[role], &c.view[role]
        if PyArray_BYTES(array) != view.data or PyArray_NBYTES(array) < bytes_of(view):
            raise RuntimeError(f"{name_of(c, role)}: the array was moved or resized during the call")
    return 0


cdef npy_intp bytes_of(const bn_view *view) noexcept:
    cdef npy_intp bytes = view.itemsize
    cdef int i
    for i in range(view.ndim):
        bytes *= view.shape[i]
    return bytes


cdef int pin_new(Call c, int role, object a) except -1:
    """Pin and keep a new array, which nobody else has seen. A role has it only if it is pinned."""
    pin(c, role, a)
    return keep(c, role, a)


cdef int code_of_pinned(Call c, int role, object dtype) except -2:
    """The code of a pinned array's dtype, which has been read once, because it may change; -1 if the
    dtype is not in the table, or does not fit the view."""
    cdef int code = code_of(dtype)
    return code if code >= 0 and size_of(code) == c.view[role].itemsize else -1


cdef tuple shape_of(const bn_view *view):
    cdef int i
    shape = PyTuple_New(view.ndim)
    for i in range(view.ndim):
        set_new_item(shape, i, view.shape[i])
    return shape


cdef inline void set_new_item(object new, Py_ssize_t i, object value):
    """Set an item of a tuple that nobody has seen yet."""
    Py_INCREF(value)
    PyTuple_SetItem(new, i, value)


# ---- what a role requires -------------------------------------------------------

cdef inline bint is_vector(int role) noexcept:
    return VECTORS <= role < SUMS


cdef bint is_output(Call c, int role) noexcept nogil:
    cdef int i
    for i in range(c.n_outputs):
        if c.entry.outputs[i] == role:
            return True
    return False


cdef inline bint is_read(Call c, int role) noexcept nogil:
    return has(c, role) and not is_output(c, role)


cdef str name_of(Call c, int role):
    """The name of a role in error messages."""
    if not is_output(c, role):
        return input_name(c, role)
    return "out" if c.n_outputs == 1 else f"{NAMES[role]} in out"


cdef str input_name(Call c, int role):
    """The name of a role as an input."""
    return NAMES[role] if c.words is None else c.words.names[role]


cdef inline int dtype_in_use(Call c, int role) noexcept:
    """The dtype of a pinned vector, or of the data."""
    return c.vector_dtype[role - VECTORS] if is_vector(role) else c.dtype


cdef bn_vector vector_of(Call c, int role) noexcept:
    """A pinned vector as C sees it."""
    cdef const bn_view *view = &c.view[role]
    return bn_vector(view.data, view.strides[0], <bn_dtype>dtype_in_use(c, role))


cdef inline const bn_format *format_of(int dtype, bint of_moments) noexcept:
    return &bn_formats[dtype][<int>(BN_OF_MOMENTS if of_moments else BN_OF_GRADIENTS)]


cdef inline int rows_of_state(const bn_format *format) noexcept:
    return format.limbs + BN_MORE_ROWS


cdef tuple expected_shape(Call c, int role):
    if is_vector(role):
        return (c.channels,)
    if role == SUMS:
        of_moments = c.function == TRAINING_SUMS
        return (bn_rows_of_statistics(<bn_dtype>c.dtype) if of_moments else BN_SUMS, c.channels)
    if role == STATE:
        return (rows_of_state(format_of(c.dtype, c.entry.is_forward)), BN_SUMS, c.channels)
    return shape_of(&c.view[SRC])


cdef bint fits(Call c, int role) except -1:
    """Does the pinned array of this role have the expected shape?"""
    cdef const bn_view *view = &c.view[role]
    if is_vector(role):
        return view.ndim == 1 and view.shape[0] == c.channels
    if role == SUMS or role == STATE:
        return shape_of(view) == expected_shape(c, role)
    return bn_same_shape(view, &c.view[SRC])


cdef int check_writable(Call c, int role) except -1:
    if c.read_only >> role & 1:
        raise ValueError(f"{name_of(c, role)}: expected a writable array, got a read-only one")
    return 0
