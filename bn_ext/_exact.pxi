"""Exact sums: functions on states, and checks of the state in a call. Included by _core.pyx.

A state is an int64 array of shape (k, 2, C); src_c/state.h describes its rows.
"""

cdef object INT64 = np.dtype(np.int64)
# Number of rows of a state, for data that is computed in float32 and for float64 data.
cdef tuple GRADIENT_STATES = (f32_LIMBS + BN_MORE_ROWS, f64_LIMBS + BN_MORE_ROWS)
cdef tuple MOMENT_STATES = (f32_SQUARE_LIMBS + BN_MORE_ROWS, f64_SQUARE_LIMBS + BN_MORE_ROWS)
cdef object FLOAT64 = np.dtype(np.float64)


cdef int check_terms(const Call *c) except -1:
    """Refuse more elements than a state or a count can hold."""
    cdef int most = BN_LOG2_TERMS_OF_PART if c.exact else LOG2_COUNTED
    if c.elements >> most and (c.exact or c.facts.reduces):
        raise ValueError(
            f"src: expected fewer than 2**{most} elements per channel in a part"
            f"{' with exact=True' if c.exact else ''}, got {c.elements}"
        )
    return 0


cdef int round_state(Call *c) except -1:
    """Round a state's sums into SUMS, and take its number of elements per channel."""
    cdef const bn_view *view = &c.view[STATE]
    cdef bn_problem *p = &c.problem
    cdef int64_t stranger, wrong
    cdef uint64_t mode
    pin(c, STATE)
    if not fits(c, STATE) or view.itemsize != sizeof(int64_t):
        raise ValueError(
            f"sums: expected shape {expected_shape(c, STATE)}, a state of "
            f"{DTYPE_NAMES[c.dtype]} data, got {shape_of(view)}"
        )
    pin_new(c, SUMS, empty(expected_shape(c, SUMS)))
    p.state, p.sums = <int64_t *>view.data, <double *>c.view[SUMS].data
    p.dtype = <bn_dtype>c.dtype
    p.channel.size = c.channels
    point(c, MEAN)
    if c.channels:
        p.count = count_of_state(p.state, view.shape[0], c.channels, "sums")
    mode = fp_mode_enter()
    stranger = bn_state_mismatch(p.state, p, BN_OF_GRADIENTS)
    wrong = bn_backward_sums(p)
    fp_mode_leave(mode)
    if stranger >= 0:
        raise ValueError(
            "sums: expected a state of parts that were all summed about this mean, with this "
            f"dtype, by batch_norm_backward_reduce; in channel {stranger}, some were not"
        )
    return check_limbs(wrong, "sums")


cdef int64_t count_of_state(const int64_t *state, int rows, Py_ssize_t channels, str name) except -1:
    """The number of elements per channel. Raises a ValueError if it differs between channels, or if
    too many states were added."""
    cdef Py_ssize_t i, row = BN_SUMS * channels
    cdef const int64_t *count = state + (rows - BN_MORE_ROWS + BN_COUNT_AND_STAMP) * row
    cdef const int64_t *parts = state + (rows - BN_MORE_ROWS + BN_PARTS_ADDED) * row
    for i in range(channels):
        if <uint64_t>parts[i] > BN_MOST_PARTS:
            raise ValueError(
                f"{name}: expected a sum of at most 2**20 - 1 states, got a sum of {parts[i]}; "
                "batch_norm_canonical turns a partial sum into one state"
            )
        if count[i] >> BN_LOG2_TERMS or count[i] != count[0]:
            raise ValueError(
                f"{name}: expected a state of fewer than 2**{BN_LOG2_TERMS} elements per channel, "
                f"the same number in all channels, got {count[i]} in channel {i}"
            )
    return count[0] if channels else 0


cdef int check_limbs(int64_t channel, str name) except -1:
    """If `channel` is not -1, raise a ValueError: the limbs of this channel cannot be a sum."""
    if channel >= 0:
        raise ValueError(
            f"{name}: the integers of channel {channel} are impossible for its counts of parts and "
            "elements: was the array changed?"
        )
    return 0


# ---- states ------------------------------------------------------------------------

cdef object as_dense(object a):
    """The array if it is aligned and C-contiguous, else a copy that is both. An array received
    over a network may be neither."""
    return np.require(a, None, ("C", "A"))


cdef object as_state(object state, int64_t *count):
    """Convert a state to a dense array, and set `count` to its number of elements per channel."""
    a = _as_array(state, "state")
    if a.dtype != INT64:
        raise _wrong_dtype("state", a, "int64")
    if a.ndim != 3 or a.shape[0] not in GRADIENT_STATES + MOMENT_STATES or a.shape[1] != BN_SUMS:
        raise ValueError(
            "state: expected shape (k, 2, C), where k is "
            f"{_or([str(k) for k in GRADIENT_STATES + MOMENT_STATES])}, got {a.shape}"
        )
    a = as_dense(a)
    cdef const int64_t[:, :, ::1] limbs = a
    count[0] = 0
    if limbs.shape[2]:
        count[0] = count_of_state(
            &limbs[0, 0, 0], <int>limbs.shape[0], limbs.shape[2], "state")
    return a


def batch_norm_sums(state):
    """The sums of a state, each rounded once.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_backward_reduce` or `batch_norm_training_reduce` returned with
        ``exact=True``, or a sum of such states.

    Returns
    -------
    ndarray of float64, shape (2, C)
        The two sums of each channel, rounded to nearest, ties to even. A sum is NaN if a term was
        NaN, or if both Inf and -Inf were among its terms. Whether all parts were summed about the
        same mean is not checked here.

    Raises
    ------
    TypeError
        If `state` is not an int64 array.
    ValueError
        If it does not have the shape of a state, if it is the sum of 2**20 states or more, if its
        channels have different numbers of elements, or if its sums are impossible for its counts
        of parts and elements.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> src = np.array([[1.0], [2.0**-60], [-1.0]])
    >>> bn_ext.batch_norm_sums(bn_ext.batch_norm_training_reduce(src, exact=True))[0] == 2.0**-60
    array([ True])
    """
    cdef int64_t count, wrong
    cdef const int64_t[:, :, ::1] limbs = as_state(state, &count)
    result = np.zeros((BN_SUMS, limbs.shape[2]))
    cdef double[:, ::1] sums = result
    cdef uint64_t mode
    if limbs.shape[2]:
        mode = fp_mode_enter()
        wrong = bn_round_state(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS,
                               limbs.shape[2], &sums[0, 0])
        fp_mode_leave(mode)
        check_limbs(wrong, "state")
    return result


def batch_norm_count(state):
    """Number of elements per channel in a state.

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
        As for `batch_norm_sums`, except that sums are not checked against the counts.

    Examples
    --------
    >>> import numpy as np, bn_ext
    >>> states = [bn_ext.batch_norm_training_reduce(np.ones((n, 2)), exact=True) for n in (3, 4)]
    >>> bn_ext.batch_norm_count(states[0] + states[1])
    7
    """
    cdef int64_t count
    as_state(state, &count)
    return count


def batch_norm_canonical(state):
    """The same state in its unique form, as if it had been computed in one part.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    ndarray of int64, shape (k, 2, C)
        A new array. Two states of the same elements may differ, but their canonical states are
        equal. The result counts as one state when states are added.

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
    cdef int64_t count, wrong
    cdef int64_t[:, :, ::1] limbs = as_state(state, &count).copy()
    if limbs.shape[2]:
        wrong = bn_make_canonical(
            &limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, limbs.shape[2])
        check_limbs(wrong, "state")
    return np.asarray(limbs)


def batch_norm_training_stats(state):
    """Statistics from the exact sums of all parts.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_training_reduce` returned with ``exact=True``, added over all parts.

    Returns
    -------
    ndarray of float64, shape (4, C)
        Statistics for `batch_norm_training_apply`, as `batch_norm_training_reduce` returns them:
        per channel the mean, ``sum((src - mean)**2)``, the number of elements, and a 1. The first
        two are within 0.5001 ulp of the exact values, subnormal ones within one ulp. Without
        elements, both are 0. If an element is NaN or infinite, so is the mean, and the sum of
        squares is NaN.

    Raises
    ------
    TypeError, ValueError
        As for `batch_norm_sums`; ValueError also for a state of gradients, or if parts had
        different dtypes.

    Notes
    -----
    The state holds s, the sum of src, and q, the sum of its squares, over the M elements::

        stats[0] = s / M        stats[1] = (M*q - s**2) / M

    ``M*q - s**2`` is computed as an integer, so cancellation loses nothing.

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
    cdef int64_t count, wrong = -1
    cdef const int64_t[:, :, ::1] limbs = as_state(state, &count)
    cdef Py_ssize_t channels = limbs.shape[2]
    if limbs.shape[0] not in MOMENT_STATES:
        raise ValueError(
            "state: expected a state that batch_norm_training_reduce returned, or a sum of such "
            "states, got a state of gradients"
        )
    stats = np.ones((STATS_ROWS, channels))
    cdef double[:, ::1] found = stats
    stats[COUNT] = count
    if not channels:
        return stats
    check_dtypes(limbs)
    with _DefaultMode():
        wrong = bn_state_stats(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, channels,
                               &found[0, 0])
    check_limbs(wrong, "state")
    return stats


cdef int check_dtypes(const int64_t[:, :, ::1] limbs) except -1:
    """Raise a ValueError if parts had different dtypes. A state records its dtype only in a hash,
    so every dtype with this number of limbs is tried."""
    cdef bn_problem p
    cdef int64_t stranger = -1
    memset(&p, 0, sizeof(bn_problem))
    p.channel.size = limbs.shape[2]
    for code in range(BN_DTYPES):
        p.dtype = <bn_dtype><int>code
        if rows_of_state(code, True) == limbs.shape[0]:
            stranger = bn_state_mismatch(&limbs[0, 0, 0], &p, BN_OF_MOMENTS)
            if stranger < 0:
                return 0
    raise ValueError(
        "state: expected a sum of parts of one dtype, from batch_norm_training_reduce; channel "
        f"{stranger} is not such a sum"
    )
