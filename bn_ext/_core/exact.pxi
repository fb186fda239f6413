"""Exact sums: functions on states, and checks of the state in a call. Included by core.pyx.

A state is an int64 array of shape (k, 2, C); src_c/exact/state.h describes its rows.
"""

cdef object INT64 = np.dtype(np.int64)
# Number of rows of a state, for data that is computed in float32 and for float64 data.
cdef tuple GRADIENT_STATES = (f32_LIMBS + BN_MORE_ROWS, f64_LIMBS + BN_MORE_ROWS)
cdef tuple MOMENT_STATES = (f32_SQUARE_LIMBS + BN_MORE_ROWS, f64_SQUARE_LIMBS + BN_MORE_ROWS)
cdef object FLOAT64 = np.dtype(np.float64)


cdef int check_terms(Call c) except -1:
    """Refuse more elements than a state or a count can hold."""
    cdef int most = BN_LOG2_TERMS_OF_PART if c.exact else LOG2_COUNTED
    if c.elements >> most and (c.exact or c.facts.reduces):
        raise ValueError(
            f"src: expected fewer than 2**{most} elements per channel in a part"
            f"{' with exact=True' if c.exact else ''}, got {c.elements}"
        )
    return 0


cdef int round_state(Call c) except -1:
    """Round a state's sums into SUMS, and take its number of elements per channel."""
    cdef const bn_view *view = &c.view[STATE]
    cdef bn_problem *p = &c.problem
    cdef int64_t stranger, wrong
    pin_new(c, SUMS, empty(expected_shape(c, SUMS)))
    p.state, p.sums = <int64_t *>view.data, <double *>c.view[SUMS].data
    p.dtype = <bn_dtype>c.dtype
    p.channels = c.channels
    point(c, MEAN)
    if c.channels:
        p.count = count_of_state(p.state, view.shape[0], c.channels, "sums")
    stranger = bn_state_mismatch(p.state, p, BN_OF_GRADIENTS)
    wrong = bn_backward_sums(p)
    if stranger >= 0:
        raise ValueError(
            "sums: expected parts that were all summed about this mean, with this dtype; in channel "
            f"{stranger}, some were not"
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
                f"{name}: expected integers of at most 2**20 - 1 parts, got a sum of {parts[i]}; add "
                "the objects with +, which has no limit"
            )
        if count[i] >> BN_LOG2_TERMS or count[i] != count[0]:
            raise ValueError(
                f"{name}: expected fewer than 2**{BN_LOG2_TERMS} elements per channel, "
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


cdef object as_state(object state, tuple rows, int64_t *count):
    """A state as a dense array; `count` is set to its number of elements per channel. It may have
    been changed since it was made."""
    if state.dtype != INT64 or state.ndim != 3 or state.shape[0] not in rows or state.shape[1] != BN_SUMS:
        raise ValueError(
            f"array: expected int64 of shape (k, 2, C), where k is {any_of([str(k) for k in rows])}, got "
            f"{state.dtype} of shape {state.shape}"
        )
    a = as_dense(state)
    cdef const int64_t[:, :, ::1] limbs = a
    count[0] = 0
    if limbs.shape[2]:
        count[0] = count_of_state(&limbs[0, 0, 0], <int>limbs.shape[0], limbs.shape[2], "array")
    return a


def rows_of_sums(str dtype, bint exact, bint of_moments):
    """The number of rows of a part's sums."""
    cdef int code = DTYPES.index(dtype)
    return rows_of_state(code, of_moments) if exact else rows_of_plain(code, of_moments)


def state_count(state):
    """The number of elements per channel in a state."""
    cdef int64_t count
    as_state(state, GRADIENT_STATES + MOMENT_STATES, &count)
    return count


def state_sums(state):
    """The two sums of each channel of a state, each rounded once."""
    cdef int64_t count, wrong = -1
    cdef const int64_t[:, :, ::1] limbs = as_state(state, GRADIENT_STATES + MOMENT_STATES, &count)
    result = np.zeros((BN_SUMS, limbs.shape[2]))
    cdef double[:, ::1] sums = result
    if limbs.shape[2]:
        with DefaultMode():
            wrong = bn_round_state(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS,
                                   limbs.shape[2], &sums[0, 0])
        check_limbs(wrong, "array")
    return result


def canonical_state(state):
    """A new state in the unique form, as if it had been computed in one part."""
    cdef int64_t count, wrong = -1
    cdef int64_t[:, :, ::1] limbs = as_state(state, GRADIENT_STATES + MOMENT_STATES, &count).copy()
    if limbs.shape[2]:
        wrong = bn_make_canonical(
            &limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, limbs.shape[2])
        check_limbs(wrong, "array")
    return np.asarray(limbs)


def added_states(state, other):
    """The sum of two states."""
    return of_few_parts(state) + of_few_parts(other)


cdef object of_few_parts(object state):
    """The state itself; after half as many parts as it may have, its canonical form, of one."""
    last = state.shape[0] - BN_MORE_ROWS + BN_PARTS_ADDED
    many = state.size and state[last, 0, 0] > BN_MOST_PARTS // 2
    return canonical_state(state) if many else state


def state_without(state, part, str name):
    """The canonical state of a total from which a part is taken out. If it was no part, other
    functions find the result impossible."""
    cdef int64_t[:, :, ::1] limbs = canonical_state(state), taken = canonical_state(part)
    cdef int n = <int>limbs.shape[0] - BN_MORE_ROWS
    if limbs.shape[2] and bn_take_out(&limbs[0, 0, 0], &taken[0, 0, 0], n, limbs.shape[2]) >= 0:
        raise ValueError(
            f"{name}: expected a part without NaN or Inf for -: other parts may have them, too")
    return np.asarray(limbs)


def pack_state(state):
    """The state in its canonical form, without limbs that are 0 in all channels; and which rows
    are left."""
    packed = canonical_state(state)
    cdef int64_t[:, :, ::1] limbs = packed
    cdef int n = <int>limbs.shape[0] - BN_MORE_ROWS
    if limbs.shape[2]:
        bn_fold_signs(&limbs[0, 0, 0], n, limbs.shape[2])
    rows = packed.any(axis=(1, 2))
    rows[n:] = True
    return packed[rows], rows


def unpack_state(packed, rows):
    """The state that `pack_state` has packed."""
    cdef int64_t count
    state = np.zeros((len(rows), BN_SUMS, packed.shape[2]), INT64)
    state[rows] = packed
    cdef int64_t[:, :, ::1] limbs = state
    if limbs.shape[2]:
        bn_unfold_signs(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, limbs.shape[2])
    return as_state(state, GRADIENT_STATES + MOMENT_STATES, &count)


def state_statistics(state, str dtype):
    """Mean and sum of squares about it, from the state of a part or of several; and the number of
    elements per channel.

    With s, the sum of src, and q, the sum of its squares, over M elements, they are s / M and
    (M*q - s**2) / M. M*q - s**2 is computed as an integer, so cancellation loses nothing.
    """
    cdef int64_t count, wrong = -1
    cdef int code = DTYPES.index(dtype)
    cdef const int64_t[:, :, ::1] limbs = as_state(state, (rows_of_state(code, True),), &count)
    cdef Py_ssize_t channels = limbs.shape[2]
    result = np.zeros((BN_SUMS, channels))
    cdef double[:, ::1] found = result
    cdef bn_problem p
    if not channels:
        return result, count
    memset(&p, 0, sizeof(bn_problem))
    p.channels = channels
    p.dtype = <bn_dtype>code
    cdef int64_t stranger = bn_state_mismatch(&limbs[0, 0, 0], &p, BN_OF_MOMENTS)
    if stranger >= 0:
        raise ValueError(f"array: expected a sum of parts of {dtype} data; channel {stranger} is not such a sum")
    with DefaultMode():
        wrong = bn_state_stats(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, channels,
                               &found[0, 0])
    check_limbs(wrong, "array")
    return result, count
