"""Checks of what a call reads: src, diff_dst, the vectors, sums and count.

All are base arrays by now. Each is pinned first; then its dtype is read, once; all else is
asked of its view. Included by _core.pyx.
"""

cdef object wrong_input(const Call *c, int role, str expected):
    """The error for an array of another dtype."""
    return wrong_dtype(NAME_OF_ROLE[role], array_of(c, role), expected)


cdef int check_data(Call *c) except -1:
    """src and diff_dst; sets what they say of the problem."""
    cdef const bn_view *src = &c.view[SRC]
    cdef int axis
    pin(c, SRC)
    c.dtype = dtype_of(c, SRC)
    if c.dtype < 0:
        raise wrong_input(c, SRC, _or(_TABLE))
    pin(c, DIFF_DST)
    if dtype_of(c, DIFF_DST) != c.dtype:
        raise wrong_input(c, DIFF_DST, f"{DTYPE_NAMES[c.dtype]}, like src")
    if src.ndim < 2:
        raise ValueError(f"src: expected at least 2 dimensions, got shape {shape_of(src)}")
    if not bn_same_shape(&c.view[DIFF_DST], src):
        raise ValueError(
            f"diff_dst: expected shape {shape_of(src)}, like src, "
            f"got {shape_of(&c.view[DIFF_DST])}"
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
    """mean, then variance and gamma where they are given."""
    cdef int role
    check_vector(c, MEAN)
    for role in range(MEAN + 1, GAMMA + 1):
        if has(c, role):
            check_vector(c, role)
    return 0


cdef int check_vector(Call *c, int role) except -1:
    """It must have a dtype that goes with the data's, mean's dtype, and the right length."""
    cdef int dtype
    pin(c, role)
    dtype = dtype_of(c, role)
    if dtype < 0 or not go_together(c.dtype, dtype):
        raise wrong_vector_dtype(c, role)
    if role == MEAN:
        c.vector_dtype = dtype
    elif dtype != c.vector_dtype:
        raise TypeError(
            f"{NAME_OF_ROLE[role]}: expected {DTYPE_NAMES[c.vector_dtype]}, like mean, "
            f"got {DTYPE_NAMES[dtype]}"
        )
    if not fits(c, role):
        raise wrong_vector(c, role)
    return 0


cdef object wrong_vector_dtype(const Call *c, int role):
    """The error for a vector whose dtype does not go with the data's."""
    data, name, a = DTYPE_NAMES[c.dtype], NAME_OF_ROLE[role], array_of(c, role)
    error = wrong_dtype(name, a, f"{_or(_TABLE[data])} with {data} data")
    if a.dtype.isnative and a.dtype.kind in "fiu":
        return TypeError(f"{error}; pass np.asarray({name}, np.{_TABLE[data][0]})")
    return error


cdef object wrong_vector(const Call *c, int role):
    """The error for a vector of another shape, with what the caller may have meant."""
    cdef const bn_view *src = &c.view[SRC]
    cdef bint last = c.channels_last
    cdef int axis
    a, name = array_of(c, role), NAME_OF_ROLE[role]
    here, there = ("the last axis", "axis 1") if last else ("axis 1", "the last axis")
    cdef Py_ssize_t size = a.size
    cdef Py_ssize_t others = src.shape[1 if last else src.ndim - 1]
    hints = []
    # If mean fits, the channels are on the axis they were said to be on.
    if role != MEAN and c.channels:
        others = c.channels
    elif size == others and size != c.channels:
        hints.append(f'if the channels are on {there}, pass data_format="{"NCX" if last else "NXC"}"')
    elif size != c.channels:
        for axis in range(src.ndim):
            if src.shape[axis] == size:
                hints.append(f"if the channels are on axis {axis}, pass np.moveaxis(src, {axis}, "
                             f"{-1 if last else 1}), and diff_dst likewise, which copies nothing")
                break
    if a.ndim != 1 and (size == c.channels or size == others):
        hints.append(f"pass {name}.reshape(-1)")
    return ValueError("; ".join([
        f"{name}: expected shape ({c.channels},), one value for each channel on {here} of src, "
        f"which has shape {shape_of(src)}, got {a.shape}", *hints
    ]))


# ---- sums ---------------------------------------------------------------------

cdef int check_sums(Call *c) except -1:
    """sums and count, which stand for all parts."""
    check_count(c)
    pin(c, SUMS)
    if dtype_of(c, SUMS) != BN_F64:
        raise wrong_input(c, SUMS, "float64")
    if not fits(c, SUMS):
        raise wrong_shape(c, SUMS)
    return 0 if is_dense(&c.view[SUMS]) else copy_sums(c)


cdef int copy_sums(Call *c) except -1:
    """A dense copy takes their place."""
    cdef bn_order order
    move(c, SUMS, COPIES)
    bn_order_of(&c.view[COPIES], -1, &order)
    pin_new(c, SUMS, empty(expected_shape(c, SUMS)))
    bn_copy_elements(&c.view[COPIES], &c.view[SUMS], &order)
    let_go(c, COPIES)
    return 0


cdef int check_count(Call *c) except -1:
    """Elements per channel over all parts: no fewer than those of this one."""
    count = <object>c.parts_count
    least = 0 if c.is_empty else c.elements
    if count < least:
        raise ValueError(
            f"count: expected at least {least}, the elements per channel of this part alone, "
            f"got {_shown(count)}"
        )
    try:
        c.count = float(count)
    except OverflowError:
        raise ValueError(
            f"count: expected a number that fits a float64, got {_shown(count)}"
        ) from None
    return 0
