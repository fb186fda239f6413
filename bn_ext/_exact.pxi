"""Exact sums: states, and what is done in one call with them. Included by _core.pyx.

A state is int64, (k, 2, C); src_c/state.h says what its rows are.
"""

cdef object INT64 = np.dtype(np.int64)
cdef object FLOAT64 = np.dtype(np.float64)


cdef int check_terms(const Call *c) except -1:
    """Refuse more elements than a sum has room for."""
    cdef int most = BN_LOG2_TERMS_OF_PART if c.exact else LOG2_COUNTED
    if c.elements >> most and (c.exact or c.facts.reduces):
        raise ValueError(
            f"src: expected less than 2**{most} elements per channel in a part"
            f"{' with exact=True' if c.exact else ''}, got {c.elements}"
        )
    return 0


cdef int round_state(Call *c) except -1:
    """Round a state's sums into SUMS, and take its count."""
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
            f"dtype, by batch_norm_backward_reduce; of channel {stranger} some were not"
        )
    return check_limbs(wrong, "sums")


cdef int64_t count_of_state(const int64_t *state, int rows, Py_ssize_t channels, str name) except -1:
    """The number of elements per channel. Refuses channels that differ in it, and a sum of too many
    states."""
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


cdef int check_limbs(int64_t channel, str name) except -1:
    """Refuse a state of which C found that the limbs of `channel` are no sum; -1: none is."""
    if channel >= 0:
        raise ValueError(
            f"{name}: expected limbs that the parts and elements it counts can add up to; "
            f"those of channel {channel} cannot be"
        )
    return 0


# ---- states ------------------------------------------------------------------------

cdef object as_dense(object a):
    """Aligned and C-contiguous: itself, or a copy. What comes from a network may be neither."""
    return np.require(a, None, ("C", "A"))


cdef object as_state(object state, int64_t *count):
    """A dense array that has a state's shape; and the elements of each channel."""
    a = _as_array(state, "state")
    if a.dtype != INT64:
        raise wrong_dtype("state", a, "int64")
    cdef int few = f32_LIMBS + BN_MORE_ROWS, many = f64_LIMBS + BN_MORE_ROWS
    if a.ndim != 3 or a.shape[0] not in (few, many) or a.shape[1] != BN_SUMS:
        raise ValueError(
            f"state: expected shape (k, 2, C), where k is {few} or {many}, got {a.shape}"
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
        To nearest, ties to even; NaN where a term was NaN, or terms were both Inf and -Inf. Whether
        all parts were summed about one mean is not checked here.

    Raises
    ------
    TypeError, ValueError
        If it is no state, or a sum of 2**20 states or more; or its limbs cannot be the sum of the
        parts and elements that it counts.

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
    """Number of elements per channel that a state is of.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    int
        The number of elements of each channel, over all parts; 0 if there are no channels. Errors
        are those of `batch_norm_sums`, but that limbs are not looked at.

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
    """The same state with canonical limbs, as one that was never added to others.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        As for `batch_norm_sums`.

    Returns
    -------
    ndarray of int64, shape (k, 2, C)
        A new array. States of the same elements, which may differ before, are equal then. It counts
        as one where states are added. Errors are those of `batch_norm_sums`.

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


def batch_norm_training_stats(state, mean=None):
    """Statistics from the exact sums of all parts.

    Parameters
    ----------
    state : array of int64, shape (k, 2, C)
        What `batch_norm_training_reduce` returned with ``exact=True``, added over all parts.
    mean : array, shape (C,), optional
        The mean that was given to it, from a first pass. None: the sums are about zeros.

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
    cdef int64_t count, wrong = -1
    cdef const int64_t[:, :, ::1] limbs = as_state(state, &count)
    cdef Py_ssize_t channels = limbs.shape[2]
    cdef double[::1] pivot = np.zeros(channels) if mean is None else as_mean(mean, channels)
    stats = np.ones((STATS_ROWS, channels))
    cdef double[:, ::1] found = stats
    stats[COUNT] = count
    if not channels:
        return stats
    with _DefaultMode():
        check_pivot(limbs, &pivot[0])
        wrong = bn_state_stats(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, channels,
                               &pivot[0] if mean is not None else NULL, &found[0, 0])
    check_limbs(wrong, "state")
    return stats


cdef object as_mean(object mean, Py_ssize_t channels):
    """In float64."""
    a = _as_array(mean, "mean")
    if a.shape != (channels,):
        raise ValueError(f"mean: expected shape ({channels},), got {a.shape}")
    if code_of(a.dtype) < 0:
        raise wrong_dtype("mean", a, _or(_TABLE))
    with _DefaultMode():
        return a.astype(np.float64)


cdef int check_pivot(const int64_t[:, :, ::1] limbs, double *mean) except -1:
    """Refuse a state about another mean. It does not say its dtype: any with its limbs may fit."""
    cdef bn_problem p
    cdef int64_t stranger = -1
    memset(&p, 0, sizeof(bn_problem))
    p.channel.size = limbs.shape[2]
    p.vector[BN_MEAN] = bn_vector(<char *>mean, sizeof(double), BN_F64)
    for code in range(BN_DTYPES):
        p.dtype = <bn_dtype><int>code
        if bn_limbs(p.dtype) == limbs.shape[0] - BN_MORE_ROWS:
            stranger = bn_state_mismatch(&limbs[0, 0, 0], &p, BN_OF_MOMENTS)
            if stranger < 0:
                return 0
    raise ValueError(
        "state: expected a sum of parts that were all summed about this mean, with one dtype, by "
        f"batch_norm_training_reduce; of channel {stranger} some were not"
    )
