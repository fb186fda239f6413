"""Checks of what a call reads: src, diff_dst, the vectors, sums.

By now, all are base-class arrays. Each is pinned first; then its dtype is read, once. Everything
else comes from its view. Included by _core.pyx.
"""

cdef object wrong_input(const Call *c, int role, str expected, str to=""):
    """The error for an array of an unexpected dtype."""
    return _wrong_dtype(name_of(c, role), array_of(c, role), expected, to)


cdef int check_data(Call *c) except -1:
    """Check src and the other operands that are read; set the call's dtype and sizes."""
    cdef const bn_view *src = &c.view[SRC]
    cdef int axis, role
    pin(c, SRC)
    c.dtype = dtype_of(c, SRC)
    if c.dtype < 0:
        raise wrong_input(c, SRC, _or(_TABLE), "float32")
    if src.ndim < 2:
        name = input_name(c, SRC)
        hint = (f"; pass np.asarray({name}).reshape(-1, 1) for one channel, or "
                f"np.asarray({name}).reshape(1, -1) for one sample")
        raise ValueError(
            f"{name}: expected at least 2 dimensions, got shape {shape_of(src)}"
            + (hint if src.ndim == 1 else "")
        )
    for role in range(SRC + 1, DST + 1):
        if not is_read(c, role):
            continue
        pin(c, role)
        if dtype_of(c, role) != c.dtype:
            wanted = DTYPE_NAMES[c.dtype]
            raise wrong_input(c, role, f"{wanted}, like {input_name(c, SRC)}", wanted)
        if not bn_same_shape(&c.view[role], src):
            raise ValueError(
                f"{input_name(c, role)}: expected shape {shape_of(src)}, like "
                f"{input_name(c, SRC)}, got {shape_of(&c.view[role])}"
            )
    c.channel_axis = src.ndim - 1 if c.channels_last else 1
    c.channels = src.shape[c.channel_axis]
    c.elements = 1
    for axis in range(src.ndim):
        if axis != c.channel_axis:
            c.elements *= src.shape[axis]
    c.is_empty = c.elements == 0 or c.channels == 0
    return 0


cdef int check_vectors(Call *c) except -1:
    """Check the vectors that are read, mean first. Then find the dtype of the vectors that are
    written."""
    cdef int role, code
    for role in range(MEAN, DIFF_DIFF_BETA + 1):
        if is_read(c, role):
            check_vector(c, role)
    for role in range(MEAN, VARIANCE + 1):  # if none is read, `out` decides
        if c.vector_dtype < 0 and has(c, role):
            pin(c, role)
            code = dtype_of(c, role)
            if code >= 0 and go_together(c.dtype, code):
                c.vector_dtype = code
    for code in range(BN_DTYPES):
        if c.vector_dtype < 0 and computed_in(c.dtype, code):
            c.vector_dtype = code
    return 0


cdef int check_vector(Call *c, int role) except -1:
    """Check a vector's length and dtype. The dtype must go with the data's, and equal that of the
    other vectors."""
    cdef int dtype
    pin(c, role)
    dtype = dtype_of(c, role)
    if dtype < 0 or not go_together(c.dtype, dtype) or 0 <= c.vector_dtype != dtype:
        raise wrong_vector_dtype(c, role)
    c.vector_dtype = dtype
    if not fits(c, role):
        raise wrong_vector(c, role)
    return 0


cdef object wrong_vector_dtype(const Call *c, int role):
    """The error for a vector of the wrong dtype: if the dtype of another is possible, it is asked
    for."""
    cdef int other, code
    for other in range(MEAN, DIFF_DIFF_BETA + 1):
        if other != role and is_read(c, other):
            code = code_of(dtype_of_array(array_of(c, other)))
            if code >= 0 and go_together(c.dtype, code):
                wanted = DTYPE_NAMES[code]
                return wrong_input(c, role, f"{wanted}, like {input_name(c, other)}", wanted)
    data = DTYPE_NAMES[c.dtype]
    return wrong_input(c, role, f"{_or(_TABLE[data])} with {data} data", _TABLE[data][0])


cdef int check_running(Call *c) except -1:
    """Check the running statistics. Their dtypes may differ; both must be writable."""
    cdef int role, dtype
    for role in range(RUNNING_MEAN, RUNNING_VARIANCE + 1):
        if not has(c, role):
            continue
        pin(c, role)
        dtype = dtype_of(c, role)
        if dtype < 0:
            raise wrong_input(c, role, _or(_TABLE), None)
        c.running_dtype[role - RUNNING_MEAN] = dtype
        if not fits(c, role):
            raise wrong_vector(c, role)
        check_writable(c, role)
    if has(c, RUNNING_MEAN) and c.problem.correction == 1 and c.channels:
        if (c.problem.count if c.facts.rows else c.elements) == 1:
            raise ValueError(
                f"{input_name(c, SRC)}: expected more than one element in each channel with "
                "correction=1, got one; leave such a batch out, or normalize it with the running "
                "statistics, as a layer does after eval()"
            )
    return 0


cdef object other_format(const Call *c):
    """What to pass if the data has the other format."""
    if c.words != NULL:
        return (<_Words>c.words).hint
    return f'pass data_format="{"NCX" if c.channels_last else "NXC"}"'


cdef object wrong_vector(const Call *c, int role):
    """The error for a vector of the wrong shape, with what the caller may have meant."""
    cdef const bn_view *src = &c.view[SRC]
    cdef bint last = c.channels_last
    cdef int axis
    a, name, data = array_of(c, role), name_of(c, role), input_name(c, SRC)
    here, there = ("the last axis", "axis 1") if last else ("axis 1", "the last axis")
    cdef Py_ssize_t size = a.size
    cdef Py_ssize_t others = src.shape[1 if last else src.ndim - 1]
    hints = []
    # If another vector fits, the data format is right.
    cdef bint fitted = False
    for axis in range(MEAN, SUMS):
        if axis != role and is_read(c, axis):
            fitted |= array_of(c, axis).size == c.channels
    if size == c.channels:
        # If two axes have this length, the one along which it would be broadcast is meant.
        along = [axis - a.ndim for axis in range(a.ndim) if a.shape[axis] != 1]
        if size == others and src.ndim > 2 and along == [1 - src.ndim if last else -1]:
            hints.append(f"if the channels are on {there}, {other_format(c)}")
    elif fitted and c.channels:
        others = c.channels
    elif size == others:
        hints.append(f"if the channels are on {there}, {other_format(c)}")
    else:
        for axis in range(src.ndim):
            if src.shape[axis] == size:
                operands = [input_name(c, i) for i in range(SRC + 1, DST + 1) if is_read(c, i)]
                likewise = f", and {' and '.join(operands)} likewise" if operands else ""
                moved = f"np.moveaxis(np.asarray({data}), {axis}, {-1 if last else 1})"
                hints.append(f"if the channels are on axis {axis}, pass {moved}{likewise}, which "
                             "copies nothing")
                break
    if a.ndim != 1 and (size == c.channels or size == others):
        hints.append(f"pass np.asarray({name}).reshape(-1)")
    return ValueError("; ".join([
        f"{name}: expected shape ({c.channels},), one value for each channel on {here} of {data}, "
        f"got {a.shape}; {data} has shape {shape_of(src)}", *hints
    ]))


# ---- bits and sums --------------------------------------------------------------

cdef object UINT8 = np.dtype(np.uint8)


cdef int check_workspace(Call *c) except -1:
    """Check the workspace: one bit for each element. The backward pass reads it, the forward pass
    writes it."""
    cdef const bn_view *view = &c.view[WORKSPACE]
    cdef Py_ssize_t size = bn_bytes_of_bits(c.elements * c.channels)
    pin(c, WORKSPACE)
    if dtype_of_array(array_of(c, WORKSPACE)) != UINT8 or view.itemsize != 1:
        raise wrong_input(c, WORKSPACE, "uint8")
    if view.ndim != 1 or view.shape[0] != size:
        raise ValueError(
            f"workspace: expected shape ({size},), a bit for each element of src, "
            f"got {shape_of(view)}"
        )
    if size > 1 and view.strides[0] != 1:
        raise ValueError(
            f"workspace: expected a contiguous array, got one with strides ({view.strides[0]},)"
        )
    return check_writable(c, WORKSPACE) if c.facts.is_forward else 0


cdef int check_sums(Call *c) except -1:
    """Check the sums, statistics or state of all parts, which must include this part."""
    if has(c, STATE):
        round_state(c)
    elif has(c, SUMS):
        check_plain_sums(c)
    else:
        return 0
    if not c.is_empty and c.problem.count < c.elements:
        raise ValueError(
            f"{name_of(c, SUMS)}: expected at least {c.elements} elements per channel, as many "
            f"as this part has, got {int(c.problem.count)}"
        )
    return 0


cdef int check_plain_sums(Call *c) except -1:
    name = name_of(c, SUMS)
    pin(c, SUMS)
    if dtype_of(c, SUMS) != BN_F64:
        raise wrong_input(
            c, SUMS, "float64 (batch_norm_training_stats makes it from a state)" if has_stats(c)
            else "float64, or a state"
        )
    if not fits(c, SUMS):
        raise ValueError(
            f"{name}: expected shape {expected_shape(c, SUMS)}, as batch_norm_"
            f"{'training' if has_stats(c) else 'backward'}_reduce returns it, got "
            f"{shape_of(&c.view[SUMS])}"
        )
    c.problem.count = count_of_sums(
        <const double *>c.view[SUMS].data, c.channels, has_stats(c), name)
    return 0


cdef enum:
    LOG2_COUNTED = 53  # doubles hold every whole number below 2**53


cdef double count_of_sums(const double *sums, Py_ssize_t channels, bint merged,
                          str name) except -1:
    """The number of elements per channel. Raises a ValueError if it differs between channels, or if
    statistics were added instead of merged."""
    cdef Py_ssize_t i
    cdef const double *count = sums + COUNT * channels
    cdef const double *mark = sums + MARK * channels
    cdef double first = count[0] if channels else 0
    for i in range(channels if merged else 0):
        if mark[i] != 1:
            raise ValueError(
                f"{name}: expected ones in the last row, got {mark[i]:g}: were statistics added? "
                "batch_norm_training_merge merges them"
            )
    for i in range(channels):
        if count[i] != first or not 0 <= first < <double>(<int64_t>1 << LOG2_COUNTED) \
                or first != floor(first):
            raise ValueError(
                f"{name}: expected row {COUNT} to count the elements per channel, a whole number "
                f"below 2**{LOG2_COUNTED} and the same in all channels, got {count[i]:.17g} in "
                f"channel {i}"
            )
    return first
