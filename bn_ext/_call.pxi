"""A call: its arrays by role, from arguments to result. Included by _core.pyx.

    begin     an empty one
    convert   the arguments (_arguments.pxi)
    call      check: all that can be refused (_inputs.pxi, _outputs.pxi); a dry run ends here
              prepare: allocates what is returned
              execute: allocates copies, then calls C
    end       releases all, whatever has happened

Nothing may fail once something is written.

A Call is a C struct that owns Python objects: its 15 KB of axes and buffers would be cleared for
every call if it were an extension type, and are more than the stack of a thread may have.
"""

cdef struct Call:
    int entry
    int outputs                 # its list of them
    PyObject *words             # borrowed: the data format, if it has names of its own; or NULL
    PyObject *array[ROLES]      # owned; NULL: not given, not wanted
    bint pinned[ROLES]
    Py_buffer buffer[ROLES]     # of those that are pinned ...
    bn_view view[ROLES]         # ... and how C sees them
    bint channels_last          # are channels on the last axis?
    bint vectors_wanted         # those that are written
    bint out_given
    bint exact                  # are sums exact? Then a first half makes a state
    bint dry                    # is all checked, and nothing else done?
    int channel_axis
    Py_ssize_t channels
    Py_ssize_t elements         # of a channel, in this part
    bint is_empty
    int dtype                   # code, of the data
    int vector_dtype            # of all vectors but the running ones; -1: not known yet
    int running_dtype[2]
    double count                # elements of a channel, over all parts
    bn_order order
    bn_problem problem


cdef Call *begin(int entry) except NULL:
    cdef int role
    cdef Call *c = <Call *>malloc(sizeof(Call))
    if c == NULL:
        raise MemoryError("bn_ext: not enough memory for a call")
    c.entry = c.outputs = entry
    c.words = NULL
    for role in range(ROLES):
        c.array[role] = NULL
        c.pinned[role] = False
    c.view[SUMS].data = NULL
    c.out_given = c.exact = c.dry = False
    c.vectors_wanted = True
    c.vector_dtype = -1
    c.count = c.problem.epsilon = 0
    c.problem.training = True
    c.problem.relu = False
    c.problem.exponential_avg_factor = c.problem.correction = 0
    return c


cdef void end(Call *c) noexcept:
    cdef int role
    for role in range(ROLES):
        let_go(c, role)
    free(c)


# ---- arrays by role -----------------------------------------------------------

cdef inline PyObject *owned(object a) noexcept:
    Py_INCREF(a)
    return <PyObject *>a


cdef inline bint has(const Call *c, int role) noexcept nogil:
    return c.array[role] != NULL


cdef inline object array_of(const Call *c, int role):
    return <object>c.array[role]


cdef int keep(Call *c, int role, object a) except -1:
    """Make it the array of this role."""
    let_go(c, role)
    c.array[role] = owned(a)
    return 0


cdef void let_go(Call *c, int role) noexcept:
    cdef PyObject *a = c.array[role]
    if c.pinned[role]:
        c.pinned[role] = False
        PyBuffer_Release(&c.buffer[role])
    c.array[role] = NULL
    Py_XDECREF(a)


cdef void move(Call *c, int role, int to) noexcept:
    """Its array becomes that of another role, which has none."""
    c.array[to], c.pinned[to] = c.array[role], c.pinned[role]
    c.buffer[to], c.view[to] = c.buffer[role], c.view[role]
    c.array[role], c.pinned[role] = NULL, False


cdef int pin(Call *c, int role) except -1:
    """Take its buffer. From now on its view has its shape, strides and address."""
    cdef Py_buffer *buffer = &c.buffer[role]
    cdef bn_view *view = &c.view[role]
    PyObject_GetBuffer(array_of(c, role), buffer, PyBUF_STRIDES)
    c.pinned[role] = True
    view.data = <char *>buffer.buf
    view.itemsize = buffer.itemsize
    view.ndim = buffer.ndim
    view.shape = <const ptrdiff_t *>buffer.shape
    view.strides = <const ptrdiff_t *>buffer.strides
    return 0


cdef int dtype_of(const Call *c, int role) except -2:
    """The code of a pinned array's dtype, which is not read again; -1 if it is not in the table,
    or does not fit the buffer."""
    cdef int code = code_of(dtype_of_array(array_of(c, role)))
    return code if code >= 0 and size_of(code) == c.view[role].itemsize else -1


cdef tuple shape_of(const bn_view *view):
    cdef int i
    shape = PyTuple_New(view.ndim)
    for i in range(view.ndim):
        put(shape, i, view.shape[i])
    return shape


cdef inline void put(object new, Py_ssize_t i, object value):
    """Set an item of a tuple that nobody has seen yet."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(new, i, value)


# ---- what a role asks for -------------------------------------------------------

cdef inline bint is_vector(int role) noexcept:
    return VECTORS <= role < SUMS


cdef inline bint has_stats(const Call *c) noexcept:
    """Are its sums statistics, which are merged?"""
    return TRAINING_REDUCE <= c.entry <= TRAINING_APPLY


cdef inline int rows_of_sums(const Call *c) noexcept:
    return (MARK if has_stats(c) else COUNT) + 1


cdef inline bint is_running(int role) noexcept:
    return role == RUNNING_MEAN or role == RUNNING_VARIANCE


cdef bint is_output(const Call *c, int role) noexcept nogil:
    cdef int i
    for i in range(N_OUTPUTS[c.outputs]):
        if OUTPUTS[c.outputs][i] == role:
            return True
    return False


cdef inline bint is_read(const Call *c, int operand) noexcept nogil:
    return has(c, operand) and not is_output(c, operand)


cdef str name_of(const Call *c, int role):
    """As messages call it."""
    if role == SUMS and has_stats(c):
        return "stats"
    if not is_output(c, role):
        return input_name(c, role)
    return OUTPUT_NAMES[role] if c.words == NULL else (<_Words>c.words).outputs[role]


cdef str input_name(const Call *c, int role):
    """The same, where it is read."""
    return NAMES[role] if c.words == NULL else (<_Words>c.words).names[role]


cdef inline int expected_dtype(const Call *c, int role) noexcept:
    if is_running(role):
        return c.running_dtype[role - RUNNING_MEAN]
    return c.vector_dtype if is_vector(role) else BN_F64 if role == SUMS else c.dtype


cdef object expected_shape(const Call *c, int role):
    if is_vector(role):
        return (c.channels,)
    return (rows_of_sums(c), c.channels) if role == SUMS else shape_of(&c.view[SRC])


cdef bint fits(const Call *c, int role) noexcept:
    """Does the pinned array of this role have the expected shape?"""
    cdef const bn_view *view = &c.view[role]
    if is_vector(role):
        return view.ndim == 1 and view.shape[0] == c.channels
    if role == SUMS:
        return view.ndim == 2 and view.shape[0] == rows_of_sums(c) and view.shape[1] == c.channels
    return bn_same_shape(view, &c.view[SRC])


cdef bint is_dense(const bn_view *sums) noexcept:
    """Can C read it as an array of doubles?"""
    cdef Py_ssize_t size = sizeof(double), channels = sums.shape[1]
    return channels == 0 or (
        sums.strides[0] == channels * size
        and (channels == 1 or sums.strides[1] == size)
        and <uintptr_t>sums.data % size == 0
    )


cdef int pin_new(Call *c, int role, object a) except -1:
    """Keep and pin an array that was just made, if it still is what was asked for."""
    keep(c, role, a)
    pin(c, role)
    if (
        c.view[role].itemsize != size_of(expected_dtype(c, role))
        or not fits(c, role)
        or (role == SUMS and not is_dense(&c.view[role]))
        or (role >= COPIES and not bn_follows(&c.view[role], &c.order))
    ):
        raise MemoryError("bn_ext: a new array was changed before it was filled")
    return 0


cdef object wrong_shape(const Call *c, int role):
    return ValueError(
        f"{name_of(c, role)}: expected shape {expected_shape(c, role)}, "
        f"got {shape_of(&c.view[role])}"
    )


# ---- the call -------------------------------------------------------------------

cdef inline bint reduces(const Call *c) noexcept nogil:
    return c.entry == BACKWARD_REDUCE or c.entry == TRAINING_REDUCE


cdef object call(Call *c, tuple given):
    """The result: `given`, with new arrays where it has None; of a first half, the sums."""
    check(c)
    if c.dry:
        return None
    result = prepare(c, given)
    if c.channels and not (c.is_empty and reduces(c)):
        execute(c)
    return result


cdef int check(Call *c) except -1:
    """All that can be refused.

    From here on only finalizers can run code of the caller's, at any allocation: so what was
    read of an array is not read again.
    """
    check_data(c)
    check_vectors(c)
    if has(c, SUMS):
        check_sums(c)
    check_running(c)
    if has(c, WORKSPACE):
        check_workspace(c)
    if c.out_given:
        check_outputs(c)
    check_sharing(c)
    return check_terms(c)


cdef object prepare(Call *c, tuple given):
    """Make what is returned."""
    cdef int v
    bn_order_of(&c.view[SRC], c.channel_axis, &c.order)
    if reduces(c):
        result = new_state(c) if c.exact else new_sums(c)
    else:
        result = new_results(c, given)
    for v in range(BN_VECTORS):
        point(c, v)
    c.problem.dtype = <bn_dtype>c.dtype
    return result


cdef enum:
    # Up to so many elements, 10 us at most, a call on one thread keeps the GIL: to let it go and
    # take it again costs 0.1 us, and far more where other threads want it.
    BRIEF = 1024


cdef bint is_brief(const Call *c) noexcept:
    return (
        c.problem.num_threads <= 1
        and c.channels <= BRIEF
        and c.elements <= BRIEF
        and c.channels * c.elements <= BRIEF
    )


cdef int execute(Call *c) except -1:
    """The C call, between the copies it may need."""
    cdef bn_view walked[BN_OPERANDS]
    cdef bn_status status
    cdef int o
    for o in range(BN_OPERANDS):
        walked[o] = c.view[walkable(c, o)]
    bn_set_axes(&c.problem, walked, &c.order, c.channel_axis)
    for o in range(BN_OPERANDS):
        if not has(c, o):
            c.problem.data[o] = NULL
    if is_brief(c):
        status = compute(c, walked)
    else:
        with nogil:
            status = compute(c, walked)
    if status != BN_OK:
        raise MemoryError("bn_ext: not enough memory for partial sums")
    return 0


cdef bn_status compute(Call *c, const bn_view *walked) noexcept nogil:
    cdef bn_status status
    cdef int o
    cdef bint gated = c.entry <= BACKWARD_APPLY and (has(c, DST) or has(c, WORKSPACE))
    if gated:
        status = bn_open_gate(&c.problem, c.view[WORKSPACE].data if has(c, WORKSPACE) else NULL)
        if status != BN_OK:
            return status
    status = enter(c)
    if gated:
        bn_close_gate(&c.problem)
    elif status == BN_OK and has(c, WORKSPACE):
        bn_write_bits(&c.problem, c.view[WORKSPACE].data)
    for o in range(DST, BN_OPERANDS):
        if status == BN_OK and has(c, COPIES + o) and is_output(c, o):
            bn_copy_elements(&walked[o], &c.view[o], &c.order, c.problem.num_threads)
    return status


cdef bn_status enter(const Call *c) noexcept nogil:
    cdef double *sums = <double *>c.view[SUMS].data
    cdef int64_t *state = <int64_t *>c.view[SUMS].data
    cdef const bn_problem *p = &c.problem
    cdef bn_status status
    if c.entry == BACKWARD_WHOLE:
        status = bn_backward(p)
    elif c.exact and c.entry == BACKWARD_REDUCE:
        status = bn_backward_reduce_exactly(p, state)
    elif c.exact and c.entry == TRAINING_REDUCE:
        status = bn_training_reduce_exactly(p, state)
    elif c.entry == BACKWARD_REDUCE:
        status = bn_backward_reduce(p, sums)
    elif c.entry == BACKWARD_APPLY:
        status = bn_backward_apply(p, sums, c.count)
    elif c.entry == TRAINING_WHOLE:
        status = bn_training(p)
    elif c.entry == TRAINING_REDUCE:
        status = bn_training_reduce(p, sums)
    elif c.entry == TRAINING_APPLY:
        status = bn_training_apply(p, sums, c.count)
    elif c.entry == INFERENCE:
        status = bn_inference(p)
    else:
        status = bn_double_backward(p)
    return status


cdef int walkable(Call *c, int operand) except -1:
    """The role of the array to walk for an operand: itself, or a dense copy if it cannot be walked
    in src's order; where there is none, src."""
    cdef int copy = COPIES + operand
    if not has(c, operand):
        return SRC
    if c.is_empty or bn_follows(&c.view[operand], &c.order):
        return operand
    pin_new(c, copy, new_like_src(c))
    if not is_output(c, operand):
        with nogil:
            bn_copy_elements(&c.view[operand], &c.view[copy], &c.order, c.problem.num_threads)
    return copy


cdef void point(Call *c, int v) noexcept:
    """Point a vector of the problem at its array."""
    cdef bn_vector *vector = &c.problem.vector[v]
    cdef int role = VECTORS + v
    vector.data = NULL
    if has(c, role):
        vector.data = c.view[role].data
        vector.stride = c.view[role].strides[0]
        vector.dtype = <bn_dtype>expected_dtype(c, role)
