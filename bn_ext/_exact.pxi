"""Exact sums: states, and what is done in one call with them. Included by _core.pyx.

A state is int64, (k, 2, C); src_c/state.h says what its rows are.
"""

cdef object INT64 = np.dtype(np.int64)


cdef object new_state(Call *c):
    """Zeros, to be summed into."""
    cdef int rows = bn_digits(<bn_dtype>c.dtype) + BN_MORE_ROWS
    cdef const bn_view *view = &c.view[SUMS]
    try:
        state = np.zeros((rows, BN_SUMS, c.channels), INT64)
    except ValueError:
        raise MemoryError("bn_ext: no memory for the sums") from None
    keep(c, SUMS, state)
    pin(c, SUMS)
    if not is_state(view, rows, c.channels):
        raise MemoryError("bn_ext: a new array was changed before it was filled")
    return state


cdef int check_terms(const Call *c) except -1:
    """As many as a sum has room for."""
    cdef int most = BN_LOG2_TERMS_OF_PART if c.exact else LOG2_COUNTED
    if c.elements >> most and (c.exact or reduces(c)):
        raise ValueError(
            f"src: expected less than 2**{most} elements per channel in a part"
            f"{' with exact=True' if c.exact else ''}, got {c.elements}"
        )
    return 0


cdef bint is_state(const bn_view *view, Py_ssize_t rows, Py_ssize_t channels) noexcept:
    """Can C read it as a dense array of int64?"""
    cdef Py_ssize_t size = sizeof(int64_t)
    return (
        view.itemsize == size
        and view.ndim == 3
        and view.shape[0] == rows
        and view.shape[1] == BN_SUMS
        and view.shape[2] == channels
        and (
            channels == 0
            or (
                view.strides[0] == BN_SUMS * channels * size
                and view.strides[1] == channels * size
                and (channels == 1 or view.strides[2] == size)
                and <uintptr_t>view.data % size == 0
            )
        )
    )


cdef int round_sums(Call *c) except -1:
    """A state, pinned as the sums, gives them and the count."""
    cdef int rows = bn_digits(<bn_dtype>c.dtype) + BN_MORE_ROWS
    cdef const bn_view *given = &c.view[SUMS]
    cdef const bn_view *state = &c.view[STATE]
    cdef uint64_t mode
    cdef const int64_t *data
    if (given.ndim != 3 or given.shape[0] != rows or given.shape[1] != BN_SUMS
            or given.shape[2] != c.channels):
        raise ValueError(
            f"sums: expected shape {(rows, BN_SUMS, c.channels)}, a state of "
            f"{DTYPE_NAMES[c.dtype]} data, got {shape_of(given)}"
        )
    if not is_state(given, rows, c.channels):
        raise ValueError("sums: expected a C-contiguous state")
    move(c, SUMS, STATE)
    pin_new(c, SUMS, empty(expected_shape(c, SUMS)))
    data = <const int64_t *>state.data
    c.problem.dtype = <bn_dtype>c.dtype
    c.problem.channel.size = c.channels
    point(c, BN_MEAN)
    c.count = count_of_state(data, rows, c.channels, "sums") if c.channels else 0
    mode = fp_mode_enter()
    cdef int64_t stranger = bn_stranger(data, &c.problem, BN_OF_GRADIENTS)
    cdef int64_t wrong = bn_backward_sums(&c.problem, data, <double *>c.view[SUMS].data)
    fp_mode_leave(mode)
    if stranger >= 0:
        raise ValueError(
            "sums: expected a state of parts that were all summed about this mean, with this "
            f"dtype, by batch_norm_backward_reduce; of channel {stranger} some were not"
        )
    check_digits(wrong, "sums")
    return 0


cdef int64_t count_of_state(const int64_t *state, int rows, Py_ssize_t channels, str name) except -1:
    """Elements per channel, the same of all; a sum of too many states is refused."""
    cdef Py_ssize_t i, row = BN_SUMS * channels
    cdef const int64_t *count = state + (rows - BN_MORE_ROWS + BN_COUNT_AND_STAMP) * row
    cdef const int64_t *parts = state + (rows - BN_MORE_ROWS + BN_PARTS_ADDED) * row
    for i in range(channels):
        if <uint64_t>parts[i] > BN_MOST_PARTS:
            raise ValueError(
                f"{name}: expected a sum of at most 2**20 - 1 states, got one of {parts[i]}; "
                "batch_norm_canonical makes one of those added so far"
            )
        if count[i] >> BN_LOG2_TERMS or count[i] != count[0]:
            raise ValueError(
                f"{name}: expected a state of less than 2**{BN_LOG2_TERMS} elements of each "
                f"channel, the same number of all, got {count[i]} of channel {i}"
            )
    return count[0] if channels else 0


cdef int check_digits(int64_t channel, str name) except -1:
    """Of the first channel that C found with digits that are no sum's, or -1."""
    if channel >= 0:
        raise ValueError(
            f"{name}: expected digits that as many parts and elements as it counts can add up to; "
            f"those of channel {channel} cannot be"
        )
    return 0


# ---- states ------------------------------------------------------------------------

cdef object as_dense(object state):
    """Aligned and C-contiguous: itself, or a copy. What comes from a network may be neither."""
    return np.require(state, INT64, ("C", "A"))


cdef object as_state(object state):
    """A dense array that has a state's shape."""
    a = as_array(state, "state")
    if a.dtype != INT64:
        raise wrong_dtype("state", a, "int64")
    cdef int few = f32_DIGITS + BN_MORE_ROWS, many = f64_DIGITS + BN_MORE_ROWS
    if a.ndim != 3 or a.shape[0] not in (few, many) or a.shape[1] != BN_SUMS:
        raise ValueError(
            f"state: expected shape (k, 2, C), where k is {few} or {many}, got {a.shape}"
        )
    return as_dense(a)


def batch_norm_sums(state):
    """The sums of a state, each rounded once.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_backward_reduce` or `batch_norm_training_reduce` returned with
        ``exact=True``, or a sum of such.

    Returns
    -------
    ndarray of float64, shape (2, C)
        To nearest, ties to even; NaN where a term was NaN, or terms were both Inf and -Inf. Whether
        all parts were summed about one mean is not checked here.

    Raises
    ------
    TypeError, ValueError
        If it is no state, or a sum of 2**20 of them or more; or its digits are no sum of as many
        parts and elements as it counts.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0], [2.0**-60], [-1.0]])
    >>> bn_ext.batch_norm_sums(bn_ext.batch_norm_training_reduce(src, exact=True))[0] == 2.0**-60
    array([ True])
    """
    cdef const int64_t[:, :, ::1] digits = as_state(state)
    cdef double[:, ::1] sums
    cdef uint64_t mode
    cdef int64_t wrong
    cdef int rows = <int>digits.shape[0]
    result = np.zeros((BN_SUMS, digits.shape[2]))
    if digits.shape[2]:
        count_of_state(&digits[0, 0, 0], rows, digits.shape[2], "state")
        sums = result
        mode = fp_mode_enter()
        wrong = bn_round_state(&digits[0, 0, 0], rows - BN_MORE_ROWS, digits.shape[2], &sums[0, 0])
        fp_mode_leave(mode)
        check_digits(wrong, "state")
    return result


def batch_norm_count(state):
    """Number of elements per channel that a state is of.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    int
        The number of elements of each channel, over all parts; 0 if there are no channels.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`, but that digits are not looked at.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> states = [bn_ext.batch_norm_training_reduce(np.ones((n, 2)), exact=True) for n in (3, 4)]
    >>> bn_ext.batch_norm_count(states[0] + states[1])
    7
    """
    cdef const int64_t[:, :, ::1] digits = as_state(state)
    if digits.shape[2] == 0:
        return 0
    return count_of_state(&digits[0, 0, 0], <int>digits.shape[0], digits.shape[2], "state")


def batch_norm_canonical(state):
    """The same state with canonical digits, as one that was never added to others.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    ndarray of int64, shape (k, 2, C)
        A new array. States of the same elements, which may differ before, are equal then. It counts
        as one where states are added.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.arange(12.0).reshape(6, 2)
    >>> def state(*parts):
    ...     return sum(bn_ext.batch_norm_training_reduce(part, exact=True) for part in parts)
    >>> several = bn_ext.batch_norm_canonical(state(src[3:], src[:2], src[2:3]))
    >>> np.array_equal(several, state(src))
    True
    """
    given = as_state(state)
    cdef int64_t[:, :, ::1] digits = given.copy()
    if digits.shape[2]:
        count_of_state(&digits[0, 0, 0], <int>digits.shape[0], digits.shape[2], "state")
        check_digits(
            bn_make_canonical(
                &digits[0, 0, 0], <int>digits.shape[0] - BN_MORE_ROWS, digits.shape[2]
            ),
            "state",
        )
    return np.asarray(digits)


def batch_norm_training_stats(state, mean=None):
    """Statistics from the exact sums of all parts.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_training_reduce` returned with ``exact=True``, added over all parts.
    mean : array, shape (C,), optional
        What that was given as its mean: what a first pass gave. None means that the sums are about
        zeros.

    Returns
    -------
    ndarray of float64, shape (4, C)
        What `batch_norm_training_apply` takes, as `batch_norm_training_reduce` describes it: the
        mean of each channel, ``sum((src - mean)**2)``, and the count. Without mean, the mean is
        right to half an ulp, but squares lose what they have in common: take them from a second
        pass, about the mean of the first.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`; ValueError if the state is not of sums about this mean.

    Notes
    -----
    With M elements, s and q the sums of ``src - p`` and of its square, where p is the mean, rounded
    to float32 unless the data is float64::

        stats[0] = p + s/M        stats[1] = q - s**2/M, at least 0

    in pairs of doubles. Differences are rounded before they are summed: where
    that is why p + s/M is not the mean that was given, this is returned as it is. What stands
    between, sums that no double holds too, does not overflow.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0], [2.0], [6.0]])
    >>> bn_ext.batch_norm_training_stats(bn_ext.batch_norm_training_reduce(src, exact=True))
    array([[ 3.],
           [14.],
           [ 3.],
           [ 1.]])
    """
    a = as_state(state)
    cdef const int64_t[:, :, ::1] digits = a
    cdef double[:, ::1] found
    cdef const double[::1] given
    cdef int64_t wrong = -1
    if mean is not None:
        mean = as_array(mean, "mean")
    stats = np.ones((BN_SUMS + 2, a.shape[2]))
    stats[BN_SUMS] = batch_norm_count(a)
    with _DefaultMode():
        own = as_mean(mean, a.shape[2])
        check_pivot(a, own)
        if digits.shape[2]:
            found, given = stats, own
            wrong = bn_state_stats(&digits[0, 0, 0], <int>digits.shape[0] - BN_MORE_ROWS,
                                   digits.shape[2], &given[0] if mean is not None else NULL,
                                   &found[0, 0])
    check_digits(wrong, "state")
    return stats


cdef object as_mean(object mean, Py_ssize_t channels):
    """In float64."""
    if mean is None:
        return np.zeros(channels)
    a = mean
    if a.shape != (channels,):
        raise ValueError(f"mean: expected shape ({channels},), got {a.shape}")
    if code_of(a.dtype) < 0:
        raise wrong_dtype("mean", a, _or(_TABLE))
    return a.astype(np.float64)


cdef int check_pivot(object state, object pivot) except -1:
    """Of which dtype it is, a state does not say: of any that is computed alike."""
    cdef const int64_t[:, :, ::1] digits = state
    cdef double[::1] mean = pivot
    cdef bn_problem p
    cdef int64_t stranger = -1
    if digits.shape[2] == 0:
        return 0
    memset(&p, 0, sizeof(bn_problem))
    p.channel.size = digits.shape[2]
    p.vector[BN_MEAN] = bn_vector(<char *>&mean[0], sizeof(double), BN_F64)
    for code in range(BN_DTYPES):
        p.dtype = <bn_dtype><int>code
        if bn_digits(p.dtype) == digits.shape[0] - BN_MORE_ROWS:
            stranger = bn_stranger(&digits[0, 0, 0], &p, BN_OF_MOMENTS)
            if stranger < 0:
                return 0
    raise ValueError(
        "state: expected a sum of parts that were all summed about this mean, with one dtype, by "
        f"batch_norm_training_reduce; of channel {stranger} some were not"
    )


# ---- in one call --------------------------------------------------------------------

cdef object array_or_none(object a, str name):
    """Converted once, for several calls."""
    return None if a is None else as_array(a, name)


cdef object backward_exactly(object src, object diff_dst, object mean, object variance, object gamma,
                             object epsilon, object data_format, object is_training,
                             object param_grads, object out, object num_threads, object relu,
                             object beta, object dst, object workspace, object diff_src_1):
    """Both halves, with exact sums in between."""
    src, diff_dst, mean = as_array(src, "src"), as_array(diff_dst, "diff_dst"), as_array(mean, "mean")
    variance, gamma = as_array(variance, "variance"), array_or_none(gamma, "gamma")
    shared = {
        "epsilon": as_epsilon(epsilon),
        "data_format": data_format,
        "num_threads": num_threads,
        "relu": relu,
        "beta": array_or_none(beta, "beta"),
        "dst": array_or_none(dst, "dst"),
        "workspace": array_or_none(workspace, "workspace"),
    }
    flags = {
        "is_training": as_flag(is_training, "is_training"),
        "param_grads": as_flag(param_grads, "param_grads"),
        "diff_src_1": diff_src_1,
    }
    state = batch_norm_backward_reduce(src, diff_dst, mean, variance=variance, gamma=gamma,
                                       exact=True, **shared)
    return batch_norm_backward_apply(src, diff_dst, mean, variance, gamma, state, out=out, **flags,
                                     **shared)


cdef object training_exactly(object src, object gamma, object beta, object epsilon,
                             object data_format, object running_mean, object running_variance,
                             object exponential_avg_factor, object correction, object src_1,
                             object relu, object workspace, object out, object num_threads,
                             dict refused):
    """Two passes for the statistics, then the second half."""
    src = as_array(src, "src")
    options = {
        "epsilon": epsilon,
        "running_mean": running_mean,
        "running_variance": running_variance,
        "exponential_avg_factor": exponential_avg_factor,
        "correction": correction,
        "src_1": src_1,
        "relu": relu,
        "workspace": workspace,
        "out": out,
        **refused,
    }
    shared = {"data_format": data_format, "num_threads": num_threads}
    state = batch_norm_training_reduce(src, exact=True, **shared)
    mean = batch_norm_training_stats(state)[0]
    state = batch_norm_training_reduce(src, exact=True, mean=mean, **shared)
    stats = batch_norm_training_stats(state, mean)
    return batch_norm_training_apply(src, stats, gamma, beta, **options, **shared)
