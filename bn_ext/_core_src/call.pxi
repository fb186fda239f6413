"""A call: its arrays by role, from arguments to result. Included by core.pyx.

    new_call  make a call that has no arrays
    convert   keep the arguments' arrays (arguments.pxi)
    run_call  set the floating-point mode in which it computes
              check: pin them; raise all errors (inputs.pxi, outputs.pxi); a dry run ends here
              new_results, new_sums: allocate what is returned (outputs.pxi)
              compute: copy operands that cannot be walked, and run the C code

Nothing may fail once something is written. When its function ends, however it ends, a Call lets go
of its arrays and restores the mode.
"""

cdef class Words  # arguments.pxi


@cython.final
@cython.auto_pickle(False)
@cython.freelist(8)
@cython.no_gc  # only its function knows a call, so it is in no cycle
cdef class Call:
    """What a function knows of one call. From check on, each array that it has is pinned: its memory
    stays where it is, and its view is valid.

    Cython manages no C arrays of objects, and a list of them would cost 0.1 us per call. So keep and
    __dealloc__ count the references."""

    # Set by call.pxi. Others ask it to keep and pin an array.
    cdef int entry
    cdef const Facts *facts
    cdef uint64_t mode              # the caller's floating-point mode, if
    cdef bint computes              # this call has set its own
    cdef PyObject *array[ROLES]     # owned; NULL: not given or not wanted
    cdef Py_buffer buffer[ROLES]    # of each pinned array
    cdef bn_view view[ROLES]        # each pinned array, as C sees it

    # Set by core.pyx and arguments.pxi, from arguments. What follows them only reads these.
    cdef Words words                # or None
    cdef tuple total                # what is known of the sums of all parts, or None
    cdef int format                 # see as_format
    cdef int n_outputs              # includes diff_src_1 if it is wanted
    cdef bint vectors_wanted        # are diff_gamma and diff_beta written?
    cdef bint exact                 # are sums exact?
    cdef bint dry

    # Set by inputs.pxi, from the data.
    cdef int dtype                  # code of the data's dtype
    cdef bint channels_last
    cdef int channel_axis
    cdef Py_ssize_t channels
    cdef Py_ssize_t elements        # of a channel, in this part
    cdef bint is_empty
    cdef bn_axes axes_of_src
    cdef bn_axes axes               # as kernels walk them: src's, or those of the workspace read

    # Set by inputs.pxi and outputs.pxi, each for its own vectors.
    cdef int vector_dtype[BN_VECTORS]   # of each pinned vector

    # Options, and a count that is given, are set with the arguments; a count that is found, by
    # inputs.pxi; all else by fill_problem.
    cdef bn_problem problem

    def __dealloc__(self):
        cdef int role
        for role in range(ROLES):
            if has(self, role):
                PyBuffer_Release(&self.buffer[role])  # does nothing if none was requested
                Py_CLEAR(self.array[role])
        if self.computes:
            fp_mode_leave(self.mode)


cdef Call new_call(int entry):
    """A new call. What is not set here is 0."""
    cdef Call c = Call.__new__(Call)
    c.entry, c.facts, c.n_outputs = entry, &FACTS[entry], FACTS[entry].n_outputs
    c.vectors_wanted = c.problem.training = True
    return c


# ---- arrays by role -----------------------------------------------------------

cdef inline bint has(Call c, int role) noexcept nogil:
    return c.array[role] != NULL


cdef inline object array_of(Call c, int role):
    return <object>c.array[role]


cdef int keep(Call c, int role, object a) except -1:
    """Give a role its array. It has none so far."""
    Py_INCREF(a)
    c.array[role] = <PyObject *>a
    return 0


cdef int pin(Call c, int role, object a) except -1:
    """Request the array's buffer, and set the view to its shape, strides and address. The request
    fails if sums or a state, which C reads as dense arrays, are no longer C-contiguous."""
    cdef Py_buffer *buffer = &c.buffer[role]
    cdef bn_view *view = &c.view[role]
    cdef bint dense = role == SUMS or role == STATE
    PyObject_GetBuffer(a, buffer, PyBUF_C_CONTIGUOUS if dense else PyBUF_STRIDES)
    view.data = <char *>buffer.buf
    view.itemsize = buffer.itemsize
    view.ndim = buffer.ndim
    view.shape = <const ptrdiff_t *>buffer.shape
    view.strides = <const ptrdiff_t *>buffer.strides
    return 0


cdef int pin_new(Call c, int role, object a) except -1:
    """Pin and keep a new array, which nobody else has seen. A role has it only if it is pinned."""
    pin(c, role, a)
    return keep(c, role, a)


cdef int code_of_pinned(Call c, int role, object dtype) except -2:
    """The code of a pinned array's dtype, which has been read once, because it may change; -1 if the
    dtype is not in the table, or does not fit the buffer."""
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
        if c.facts.outputs[i] == role:
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


cdef inline const bn_format *format_of(int dtype, bint of_moments) noexcept:
    return &bn_formats[dtype][<int>(BN_OF_MOMENTS if of_moments else BN_OF_GRADIENTS)]


cdef inline int rows_of_state(const bn_format *format) noexcept:
    return format.limbs + BN_MORE_ROWS


cdef tuple expected_shape(Call c, int role):
    if is_vector(role):
        return (c.channels,)
    if role == SUMS:
        of_moments = c.entry == TRAINING_SUMS
        return (bn_rows_of_statistics(<bn_dtype>c.dtype) if of_moments else BN_SUMS, c.channels)
    if role == STATE:
        return (rows_of_state(format_of(c.dtype, c.facts.is_forward)), BN_SUMS, c.channels)
    return shape_of(&c.view[SRC])


cdef bint fits(Call c, int role) except -1:
    """Does the pinned array of this role have the expected shape?"""
    cdef const bn_view *view = &c.view[role]
    if is_vector(role):
        return view.ndim == 1 and view.shape[0] == c.channels
    if role == SUMS or role == STATE:
        return shape_of(view) == expected_shape(c, role)
    return bn_same_shape(view, &c.view[SRC])


# ---- the call -------------------------------------------------------------------

cdef object run_call(Call c, object out):
    """Run the call. Return the arrays in `out`, with new ones in place of None; or sums. After a
    MemoryError, nothing has been written."""
    cdef bn_status status
    arrays = convert_out(c, out)  # the last that may run the caller's methods, in the caller's mode
    c.mode, c.computes = fp_mode_enter(), True
    check(c)
    if c.dry:
        return None
    result = new_sums(c) if c.facts.reduces else new_results(c, arrays)
    if c.channels and not (c.is_empty and c.facts.reduces):
        fill_problem(c)
        if is_brief(c):
            status = compute(c)
        else:
            with nogil:
                status = compute(c)
        if status != BN_OK and release_kept():
            status = compute(c)
        if status != BN_OK:
            raise MemoryError("bn_ext: not enough memory for sums and coefficients")
    if c.facts.is_forward and has(c, WORKSPACE):
        bn_write_axes(&c.view[SRC], c.channel_axis, &c.axes, axes_in_workspace(c))
    return result


cdef int check(Call c) except -1:
    """Raise every error that the arguments can cause.

    From here on, the caller's code can run only in finalizers, but these may change an array at any
    allocation. So whatever C is given is read from an array only once.
    """
    cdef int role
    for role in range(COPIES):
        if has(c, role):
            pin(c, role, array_of(c, role))
    check_data(c)
    check_terms(c)
    for role in range(MEAN, DIFF_DIFF_BETA + 1):
        if is_read(c, role):
            check_vector(c, role, "float64")
    check_sums(c)
    check_running(c)
    if has(c, WORKSPACE):
        check_workspace(c)
    check_outputs(c)
    check_sharing(c)
    return warn_of_negative(c)


cdef int fill_problem(Call c) except -1:
    """Fill in the problem that C reads. An operand that cannot be walked in the order of `axes` is
    copied by tasks or, before the first of them, as a whole. An absent operand gets src's strides."""
    cdef bn_view walked[BN_OPERANDS]
    cdef bn_problem *p = &c.problem
    cdef int role
    for role in range(BN_OPERANDS):
        walked[role] = c.view[role] if has(c, role) else walked[SRC]
        p.strided[role] = NULL
        if not has(c, role) or c.is_empty or bn_follows(&c.view[role], &c.axes, makes_bits(c, role)):
            continue
        if not makes_bits(c, role) and bn_suits_tasks(&c.view[role], &c.axes, is_output(c, role)):
            p.strided[role] = &c.view[role]
        else:
            pin_new(c, COPIES + role, new_like_src(c, &c.axes))
            walked[role] = c.view[COPIES + role]
    bn_set_axes(p, walked, &c.axes, c.channel_axis)
    p.axes = &c.axes
    for role in range(BN_OPERANDS):
        if not has(c, role):
            p.data[role] = NULL
    if has(c, WORKSPACE) and not c.facts.is_forward:
        p.data[BN_GATE] = c.view[WORKSPACE].data
    for role in range(VECTORS, VECTORS + BN_VECTORS):
        if has(c, role):
            p.vector[role - VECTORS] = vector_of(c, role)
    p.dtype = <bn_dtype>c.dtype
    p.sums, p.state = <double *>c.view[SUMS].data, <int64_t *>c.view[STATE].data
    return 0


cdef bint makes_bits(Call c, int role) noexcept:
    """Are a gate's bits made from this operand, all at once?"""
    return role == DST and (has(c, WORKSPACE) or not c.facts.is_forward)


cdef bn_vector vector_of(Call c, int role) noexcept:
    """A pinned vector as C sees it."""
    cdef const bn_view *view = &c.view[role]
    return bn_vector(view.data, view.strides[0], <bn_dtype>dtype_in_use(c, role))


cdef enum:
    # A call of at most this many elements (10 us of work) on one thread keeps the GIL: releasing it
    # and taking it again costs 0.1 us, and far more if other threads want it.
    BRIEF = 1024


cdef bint is_brief(Call c) noexcept:
    return (
        c.problem.num_threads <= 1
        and c.channels <= BRIEF
        and c.elements <= BRIEF
        and c.channels * c.elements <= BRIEF
    )


cdef bn_status compute(Call c) noexcept nogil:
    """Run the C code. Before it, fill copies of inputs; after it, copy those of outputs back."""
    cdef bn_problem *p = &c.problem
    cdef bint opens = not c.facts.is_forward and has(c, DST)
    cdef bn_status status = BN_OK
    cdef int role
    for role in range(BN_OPERANDS):
        if has(c, COPIES + role) and not is_output(c, role):
            bn_copy_elements(&c.view[role], p.data[role], &c.axes, False, p.num_threads)
    if opens:
        status = bn_open_gate(p)
    if status == BN_OK:
        status = c.facts.run_exactly(p) if c.exact else c.facts.run(p)
        if opens:
            bn_close_gate(p)
    if status != BN_OK:
        return status
    if c.facts.is_forward and has(c, WORKSPACE):
        bn_make_bits(p, c.view[WORKSPACE].data)
    for role in range(BN_OPERANDS):
        if has(c, COPIES + role) and is_output(c, role):
            bn_copy_elements(&c.view[role], p.data[role], &c.axes, True, p.num_threads)
    return status
