"""What a call writes: checks of the arrays in `out`, and new arrays.

Inputs have been checked by now, so src's view has the shape that operands must have. Nothing is
written here. Included by core.pyx.
"""

cdef int check_outputs(Call c) except -1:
    cdef int i, role, code
    for i in range(c.n_outputs):
        role = c.entry.outputs[i]
        if not has(c, role):
            continue
        dtype = dtype_of_array(array_of(c, role))
        code = code_of_pinned(c, role, dtype)
        if code < 0 or (code != c.dtype and not is_vector(role)):
            expected = any_of(DTYPES) if is_vector(role) else DTYPES[c.dtype]
            raise ValueError(
                f"{name_of(c, role)}: expected dtype {expected}, got {dtype_text(dtype)}"
            )
        if is_vector(role):
            c.vector_dtype[role - VECTORS] = code
        if not fits(c, role):
            raise ValueError(
                f"{name_of(c, role)}: expected shape {expected_shape(c, role)}, "
                f"got {shape_of(&c.view[role])}"
            )
        check_writable(c, role)
    return 0


# ---- shared memory --------------------------------------------------------------

cdef int check_sharing(Call c) except -1:
    cdef int i
    for i in range(c.n_outputs):
        check_alone(c, c.entry.outputs[i])
    check_alone(c, RUNNING_MEAN)
    check_alone(c, RUNNING_VARIANCE)
    return check_alone(c, WORKSPACE) if c.entry.is_forward else 0


cdef int check_alone(Call c, int role) except -1:
    """Raise a ValueError if an output overlaps itself or any other array. One overlap is allowed:
    an operand that is written may occupy exactly the memory of an operand that is read."""
    cdef int other
    cdef uint64_t left = c.roles & ~(<uint64_t>1 << role)
    if not has(c, role):
        return 0
    if bn_overlaps_itself(&c.view[role]):
        raise ValueError(
            f"{name_of(c, role)}: expected an array whose elements do not share memory"
        )
    while left:
        other = take_role(&left)
        if not bn_extents_meet(&c.view[role], &c.view[other]):
            continue
        if (role < VECTORS and other < VECTORS and is_read(c, other)
                and bn_same_place(&c.view[role], &c.view[other])):
            continue
        if share_memory(array_of(c, role), array_of(c, other)):
            raise ValueError(
                f"{name_of(c, role)}: shares memory with {name_of(c, other)}{in_place_text(c, role)}"
            )
    return 0


cdef str in_place_text(Call c, int role):
    """Which inputs' memory an output may occupy, for a message."""
    cdef int other
    if role >= VECTORS:
        return ""
    names = []
    for other in range(VECTORS):
        if is_read(c, other):
            names.append(input_name(c, other))
    return f" (allowed: exactly the memory of {any_of(names)})"


cdef bint share_memory(object a, object b) except -1:
    """Do two arrays share memory? True if bounded work cannot tell: for some strides, an exact
    answer takes forever."""
    try:
        return np.shares_memory(a, b, 10000)
    except RuntimeError:  # TooHardError
        pass
    return True


# ---- new arrays -----------------------------------------------------------------

cdef object new_like_src(Call c, const bn_axes *order):
    """An array of src's shape and dtype, whose axes lie in this order."""
    cdef bn_view *src = &c.view[SRC]
    cdef npy_intp strides[BN_MAX_AXES]
    cdef npy_intp bytes = size_of(c.dtype)
    cdef bint as_named = True
    cdef int i
    for i in range(1, order.n):
        if order.axis[i] < order.axis[i - 1]:
            as_named = False
    if not as_named:
        for i in range(src.ndim):
            strides[i] = bytes  # of axes of one element, which `order` lacks
        for i in range(order.n - 1, -1, -1):
            strides[order.axis[i]] = bytes
            bytes *= max(src.shape[order.axis[i]], 1)
    bytes = c.elements * c.channels * size_of(c.dtype)
    return new_array(DTYPE_OF_CODE[c.dtype], src.ndim, src.shape, NULL if as_named else strides,
                     bytes)


cdef int new_vector_dtype(Call c) noexcept:
    """Statistics are float64; gradients have gamma's dtype or, without gamma, mean's."""
    if c.entry.is_forward:
        return BN_F64
    return dtype_in_use(c, GAMMA if has(c, GAMMA) else MEAN)


cdef object new_results(Call c, tuple arrays):
    """The result of a call: the arrays in `out`, and new arrays for the rest.

    New arrays are made before anything is written, so that a MemoryError leaves `out` unchanged.
    """
    cdef int role, i, n = c.n_outputs
    cdef bint new
    cdef const int *outputs = c.entry.outputs
    for i in range(n):
        role = outputs[i]
        if has(c, role):
            continue
        if role < VECTORS:
            pin_new(c, role, new_like_src(c, &c.axes_of_src))
        elif c.vectors_wanted:
            c.vector_dtype[role - VECTORS] = new_vector_dtype(c)
            dtype = DTYPE_OF_CODE[dtype_in_use(c, role)]
            pin_new(c, role, allocated(dtype, 1, &c.channels))
    result = PyTuple_New(n)
    for i in range(n):
        new = arrays[i] is None and has(c, outputs[i])
        set_new_item(result, i, array_of(c, outputs[i]) if new else arrays[i])
    if RESULTS[c.function] is None:
        return result[0]
    return new_tuple(RESULTS[c.function] if n < MOST_OUTPUTS else BatchNormAddGradients, result)


cdef object new_sums(Call c):
    """The sums before C fills them in: zeros."""
    cdef int role = STATE if c.exact else SUMS
    sums = zeros(INT64 if c.exact else FLOAT64, expected_shape(c, role))
    pin_new(c, role, sums)
    return sums
