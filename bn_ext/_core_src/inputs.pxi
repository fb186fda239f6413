"""Checks of what a call reads: src, diff_dst, the vectors, sums.

By now, all are base-class arrays, and pinned. An array's dtype is read once; everything else comes
from its view. Included by core.pyx.
"""

cdef enum:
    LOG2_COUNTED = 53  # doubles hold every whole number below 2**53
    VARIANCES = 64  # are looked at together


cdef object wrong_input(Call c, int role, object dtype, str expected, str convert_to=""):
    """The error for an array of an unexpected dtype."""
    return wrong_dtype(name_of(c, role), array_of(c, role), dtype, expected, convert_to)


cdef int check_data(Call c) except -1:
    """Check src and the other operands that are read; set the call's dtype and sizes."""
    cdef const bn_view *src = &c.view[SRC]
    cdef int axis, role
    dtype = dtype_of_array(array_of(c, SRC))
    c.dtype = code_of_pinned(c, SRC, dtype)
    if c.dtype < 0:
        raise wrong_input(c, SRC, dtype, any_of(DTYPES), "float32")
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
        dtype = dtype_of_array(array_of(c, role))
        if code_of_pinned(c, role, dtype) != c.dtype:
            wanted = DTYPES[c.dtype]
            raise wrong_input(c, role, dtype, f"{wanted}, like {input_name(c, SRC)}", wanted)
        if not bn_same_shape(&c.view[role], src):
            raise ValueError(
                f"{input_name(c, role)}: expected shape {shape_of(src)}, like "
                f"{input_name(c, SRC)}, got {shape_of(&c.view[role])}"
            )
    check_format(c)
    c.channel_axis = src.ndim - 1 if c.channels_last else 1
    c.channels = src.shape[c.channel_axis]
    c.elements = 1
    for axis in range(src.ndim):
        if axis != c.channel_axis:
            c.elements *= src.shape[axis]
    c.is_empty = c.elements == 0 or c.channels == 0
    bn_axes_of(src, c.channel_axis, &c.axes_of_src)
    memcpy(&c.axes, &c.axes_of_src, sizeof(bn_axes))  # an assignment would copy twice
    return 0


cdef int check_terms(Call c) except -1:
    """Refuse more elements than a state or a count can hold."""
    cdef int most = BN_LOG2_TERMS_OF_PART if c.exact else LOG2_COUNTED
    if c.elements >> most and (c.exact or c.entry.reduces):
        raise ValueError(
            f"src: expected fewer than 2**{most} elements per channel in a part"
            f"{' with exact=True' if c.exact else ''}, got {c.elements}"
        )
    return 0


cdef int check_format(Call c) except -1:
    """Find out where the channels are. With two axes, both layouts are the same."""
    cdef int ndim = c.view[SRC].ndim, axes = c.format >> 2
    if axes and axes != ndim:
        raise ValueError(
            f"data_format: expected a format for {ndim} axes, since {input_name(c, SRC)} has shape "
            f"{shape_of(&c.view[SRC])}, got one for {axes}; 'NXC' and 'NCX' are for any number"
        )
    if not c.format and ndim > 2:
        raise ValueError(
            "data_format: expected 'NXC' (channels last) or 'NCX' (channels on axis 1), because "
            f"{input_name(c, SRC)} has shape {shape_of(&c.view[SRC])}; it is missing and has no default"
        )
    c.channels_last = not c.format & CHANNELS_FIRST or ndim == 2
    return 0


cdef int check_vector(Call c, int role, str convert_to) except -1:
    """Check a vector's length and dtype; `convert_to` as for wrong_dtype."""
    dtype = dtype_of_array(array_of(c, role))
    c.vector_dtype[role - VECTORS] = code_of_pinned(c, role, dtype)
    if c.vector_dtype[role - VECTORS] < 0:
        raise wrong_input(c, role, dtype, any_of(DTYPES), convert_to)
    if not fits(c, role):
        raise wrong_vector(c, role)
    return 0


# Packages that call bn_ext for the caller; what torch.compile makes has no name.
cdef frozenset BETWEEN = frozenset(("bn_ext", "autograd", "dask", "torch", ""))


cpdef int warn_of_root() except -1:
    """Warn of the root of a negative number as NumPy does, under the caller's np.errstate. A warning
    names the caller's line."""
    mode = np.geterr()["invalid"]
    if mode != "warn":
        if mode != "ignore":  # NumPy then leaves the CPU's flag set
            np.sqrt(-1.0)
        return 0
    frame, level = sys._getframe(), 1
    while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn("invalid value encountered in sqrt", RuntimeWarning, stacklevel=level)
    return 0


cdef int warn_of_negative(Call c) except -1:
    """Warn of a negative variance plus epsilon: results are NaN."""
    cdef double value[VARIANCES]
    cdef double least = -c.problem.epsilon
    cdef bn_vector variance
    cdef Py_ssize_t first, i, n, negative = 0
    if c.dry or c.is_empty or not has(c, VARIANCE) or not is_read(c, VARIANCE):
        return 0
    variance = vector_of(c, VARIANCE)
    cdef bint plain = variance.dtype == BN_F32 and variance.stride == sizeof(float)
    if plain and <size_t>variance.data % sizeof(float) == 0:  # a tenth of a small call
        for i in range(c.channels):
            negative += (<const float *>variance.data)[i] < least
    else:
        for first in range(0, c.channels, VARIANCES):
            n = min(VARIANCES, c.channels - first)
            vector_read(&variance, first, n, value)
            for i in range(n):
                negative += value[i] < least
    return warn_of_root() if negative else 0


cdef int check_running(Call c) except -1:
    """Check the running statistics; both must be writable."""
    cdef int role
    for role in range(RUNNING_MEAN, RUNNING_VARIANCE + 1):
        if has(c, role):
            check_vector(c, role, None)
            check_writable(c, role)
    if has(c, RUNNING_MEAN) and c.problem.correction == 1 and c.channels:
        if (c.parts.count if has(c, SUMS) else c.elements) == 1:
            raise ValueError(
                f"{input_name(c, SRC)}: expected more than one element in each channel with "
                "correction=1, got one; leave such a batch out, or normalize it with the running "
                "statistics, as a layer does after eval()"
            )
    return 0


cdef object wrong_vector(Call c, int role):
    """The error for a vector of the wrong shape."""
    name, data = name_of(c, role), input_name(c, SRC)
    expected = f"{name}: expected shape ({c.channels},)"
    if c.function == RUNNING:  # there is no data to speak of
        return ValueError(f"{expected}, got {shape_of(&c.view[role])}")
    where = "the last axis" if c.channels_last else "axis 1"
    return ValueError(
        f"{expected}, one value for each channel on {where} of {data}, got "
        f"{shape_of(&c.view[role])}; {data} has shape {shape_of(&c.view[SRC])}"
    )


# ---- bits and sums --------------------------------------------------------------

cdef inline unsigned char *axes_in_workspace(Call c) noexcept:
    """The order of the bits, behind them."""
    cdef Py_ssize_t bits = bn_bytes_of_bits(c.elements * c.channels)
    return <unsigned char *>c.view[WORKSPACE].data + bits


cdef int check_workspace(Call c) except -1:
    """Check the workspace: one bit for each element, and their order. The forward pass writes it. The
    backward pass reads it, and walks all operands in that order."""
    cdef const bn_view *view = &c.view[WORKSPACE]
    cdef Py_ssize_t order = bn_bytes_of_axes(c.view[SRC].ndim)
    cdef Py_ssize_t size = bn_bytes_of_bits(c.elements * c.channels) + order
    dtype = dtype_of_array(array_of(c, WORKSPACE))
    if dtype != UINT8 or view.itemsize != 1:
        raise wrong_input(c, WORKSPACE, dtype, "uint8")
    if view.ndim != 1 or view.shape[0] != size:
        raise ValueError(
            f"workspace: expected shape ({size},), a bit for each element of "
            f"{input_name(c, SRC)}, a byte for each axis and eight more, got {shape_of(view)}"
        )
    if view.strides[0] != 1:
        raise ValueError(
            f"workspace: expected a contiguous array, got one with strides ({view.strides[0]},)"
        )
    if c.entry.is_forward:
        return check_writable(c, WORKSPACE)
    if not bn_read_axes(axes_in_workspace(c), &c.view[SRC], c.channel_axis, &c.axes):
        raise ValueError(
            f"workspace: expected what a forward pass wrote for {input_name(c, SRC)} of shape "
            f"{shape_of(&c.view[SRC])} with the channels on axis {c.channel_axis}, got one that "
            f"ends in {shown(bytes(array_of(c, WORKSPACE)[-order:]))}"
        )
    return 0


cdef int check_sums(Call c) except -1:
    """Check the sums of all parts: they must be of this dtype and about this mean, and include this
    part."""
    cdef int role = STATE if has(c, STATE) else SUMS
    if c.sums is None:
        return 0
    array, count, dtype, mean = c.sums
    if dtype != DTYPES[c.dtype]:
        raise ValueError(
            f"sums: expected sums of {DTYPES[c.dtype]} data, like {input_name(c, SRC)}, got "
            f"sums of {dtype} data"
        )
    if array.shape[-1] != c.channels:
        raise ValueError(f"sums: expected {c.channels} channels, got {array.shape[-1]}")
    sums_dtype = INT64 if role == STATE else FLOAT64
    if not fits(c, role) or c.view[role].itemsize != sizeof(double) or array.dtype != sums_dtype:
        raise ValueError(
            f"sums: expected an array of {sums_dtype} of shape {expected_shape(c, role)}, got "
            f"{array.dtype} of shape {shape_of(&c.view[role])}"
        )
    own_mean = doubles_of(c, MEAN)
    channel = first_different(own_mean, mean)
    if channel >= 0:
        raise ValueError(
            f"sums: expected sums about this mean, {float(own_mean[channel])!r} in channel {channel}, "
            f"got sums about {float(mean[channel])!r}"
        )
    c.parts.count = count
    if has(c, STATE):
        pin_new(c, SUMS, rounded_state(c, &c.parts.count))
    if not c.is_empty and c.parts.count < c.elements:
        raise ValueError(
            f"sums: expected at least {c.elements} elements per channel, as many as this part has, "
            f"got {int(c.parts.count)}"
        )
    return 0


cdef object doubles_of(Call c, int role):
    """A float64 copy of a pinned vector, with one kind of 0."""
    copy = allocated(FLOAT64, 1, &c.channels)
    cdef double[::1] values = copy
    cdef bn_vector vector = vector_of(c, role)
    cdef Py_ssize_t i
    if c.channels:
        vector_read(&vector, 0, c.channels, &values[0])
        for i in range(c.channels):
            values[i] += 0.0
    return copy


cpdef Py_ssize_t first_different(const double[::1] a, const double[::1] b) except -2:
    """The first channel in which two means differ, or -1. All NaNs are equal."""
    cdef Py_ssize_t i
    for i in range(a.shape[0]):
        if a[i] != b[i] and (a[i] == a[i] or b[i] == b[i]):
            return i
    return -1
