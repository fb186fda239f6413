"""Exact sums: functions on states, and checks of the state in a call. Included by core.pyx.

A state is an int64 array of shape (k, 2, C); src_c/exact/state.h describes its rows.
"""

cdef object rounded_state(Call c, double *count):
    """The sums of a call's state, each rounded once; `count` is set to its number of elements per
    channel."""
    cdef const bn_view *view = &c.view[STATE]
    cdef bn_problem p
    cdef int64_t stranger, wrong
    result = allocated(np_zeros, (BN_SUMS, c.channels), FLOAT64)
    cdef double[:, ::1] sums = result
    count[0] = 0
    if not c.channels:
        return result
    memset(&p, 0, sizeof(bn_problem))
    p.dtype, p.channels = <bn_dtype>c.dtype, c.channels
    p.state, p.sums = <int64_t *>view.data, &sums[0, 0]
    p.vector[BN_MEAN] = vector_of(c, MEAN)
    count[0] = count_of_state(p.state, <int>view.shape[0], c.channels, "sums")
    stranger = bn_state_mismatch(p.state, &p, BN_OF_GRADIENTS)
    wrong = bn_backward_sums(&p)
    if stranger >= 0:
        raise ValueError(
            "sums: expected parts that were all summed about this mean, with this dtype; in channel "
            f"{stranger}, some were not"
        )
    check_limbs(wrong, "sums")
    return result


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
    flags = a.flags
    return a if flags.c_contiguous and flags.aligned else np.require(a, None, ("C", "A"))


cdef object as_state(object state, int rows, int64_t *count):
    """A dense array of a state, which must have this number of rows; `count` is set to its number
    of elements per channel. The state may have been changed since it was made, but nobody else can
    change this array's shape: it is new."""
    a = as_dense(state.view())
    if a.dtype != INT64 or a.ndim != 3 or a.shape[0] != rows or a.shape[1] != BN_SUMS:
        raise ValueError(
            f"array: expected int64 of shape ({rows}, 2, C), got {a.dtype} of shape {a.shape}"
        )
    cdef const int64_t[:, :, ::1] limbs = a
    count[0] = 0
    if limbs.shape[2]:
        count[0] = count_of_state(&limbs[0, 0, 0], rows, limbs.shape[2], "array")
    return a


def rows_of_sums(str dtype, bint exact, bint of_moments):
    """The number of rows of a part's sums."""
    cdef int code = DTYPES.index(dtype)
    return rows_of_state(code, of_moments) if exact else rows_of_plain(code, of_moments)


# In these functions, `rows` is the number that belongs to the dtype and the kind of the sums.

def state_count(state, int rows):
    """The number of elements per channel in a state."""
    cdef int64_t count
    as_state(state, rows, &count)
    return count


def state_sums(state, int rows):
    """The two sums of each channel of a state, each rounded once."""
    cdef int64_t count, wrong = -1
    cdef uint64_t mode
    cdef const int64_t[:, :, ::1] limbs = as_state(state, rows, &count)
    result = np.zeros((BN_SUMS, limbs.shape[2]))
    cdef double[:, ::1] sums = result
    if limbs.shape[2]:
        mode = fp_mode_enter()
        wrong = bn_round_state(&limbs[0, 0, 0], rows - BN_MORE_ROWS, limbs.shape[2], &sums[0, 0])
        fp_mode_leave(mode)
        check_limbs(wrong, "array")
    return result


def canonical_state(state, int rows):
    """A new state in the unique form, as if it had been computed in one part."""
    cdef int64_t count, wrong = -1
    copy = as_state(state, rows, &count).copy()
    cdef int64_t[:, :, ::1] limbs = copy
    if limbs.shape[2]:
        wrong = bn_make_canonical(&limbs[0, 0, 0], rows - BN_MORE_ROWS, limbs.shape[2])
        check_limbs(wrong, "array")
    return copy


def added_states(state, other, int rows):
    """The sum of two states."""
    return of_few_parts(state, rows) + of_few_parts(other, rows)


cdef object of_few_parts(object state, int rows):
    """The state itself; after half as many parts as it may have, its canonical form, of one."""
    cdef int64_t count
    a = as_state(state, rows, &count)
    many = a.size and a[rows - BN_MORE_ROWS + BN_PARTS_ADDED, 0, 0] > BN_MOST_PARTS // 2
    return canonical_state(a, rows) if many else a


def state_without(state, part, int rows, str name):
    """The canonical state of a total from which a part is taken out. If it was no part, other
    functions find the result impossible."""
    rest = canonical_state(state, rows)
    cdef int64_t[:, :, ::1] limbs = rest, taken = canonical_state(part, rows)
    cdef Py_ssize_t channels = limbs.shape[2]
    if taken.shape[2] != channels:
        raise ValueError(f"{name}: expected {channels} channels, got {taken.shape[2]}")
    if channels and bn_take_out(&limbs[0, 0, 0], &taken[0, 0, 0], rows - BN_MORE_ROWS,
                                channels) >= 0:
        raise ValueError(
            f"{name}: expected a part without NaN or Inf for -: other parts may have them, too")
    return rest


def pack_state(state, int rows):
    """The state in its canonical form, without limbs that are 0 in all channels; and which rows
    are left."""
    packed = canonical_state(state, rows)
    cdef int64_t[:, :, ::1] limbs = packed
    cdef int n = rows - BN_MORE_ROWS
    if limbs.shape[2]:
        bn_fold_signs(&limbs[0, 0, 0], n, limbs.shape[2])
    left = packed.any(axis=(1, 2))
    left[n:] = True
    return packed[left], left


def unpack_state(packed, left):
    """The state that `pack_state` has packed."""
    cdef int64_t count
    cdef int rows = len(left)
    state = np.zeros((rows, BN_SUMS, packed.shape[2]), INT64)
    state[left] = packed
    cdef int64_t[:, :, ::1] limbs = state
    if limbs.shape[2]:
        bn_unfold_signs(&limbs[0, 0, 0], rows - BN_MORE_ROWS, limbs.shape[2])
    return as_state(state, rows, &count)


def state_statistics(state, str dtype):
    """Mean and sum of squares about it, from the state of a part or of several; and the number of
    elements per channel.

    With s, the sum of src, and q, the sum of its squares, over M elements, they are s / M and
    (M*q - s**2) / M. M*q - s**2 is computed as an integer, so cancellation loses nothing.
    """
    cdef int64_t count, wrong = -1
    cdef int code = DTYPES.index(dtype)
    cdef const int64_t[:, :, ::1] limbs = as_state(state, rows_of_state(code, True), &count)
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
    cdef uint64_t mode = fp_mode_enter()
    wrong = bn_state_stats(&limbs[0, 0, 0], <int>limbs.shape[0] - BN_MORE_ROWS, channels,
                           &found[0, 0])
    fp_mode_leave(mode)
    check_limbs(wrong, "array")
    return result, count
