"""Exact sums: functions on states, and checks of the state in a call. Included by core.pyx.

A state is an int64 array of shape (k, 2, C); src_c/exact/state.h describes its rows.
"""

cdef object UNITS_OF_LIMB = <int64_t>1 << BN_LIMB_BITS  # that make one of the next limb


cdef object rounded_state(Call c, double *count):
    """The sums of a call's state, each rounded once; `count` is set to its number of elements per
    channel."""
    cdef const bn_format *format = format_of(c.dtype, False)
    cdef bn_problem p
    cdef bn_parts parts
    cdef int64_t stranger, wrong
    result = zeros(FLOAT64, (BN_SUMS, c.channels))
    cdef double[:, ::1] sums = result
    count[0] = 0
    if not c.channels:
        return result
    memset(&p, 0, sizeof(bn_problem))
    p.dtype, p.channels = <bn_dtype>c.dtype, c.channels
    parts = bn_parts(&sums[0, 0], <int64_t *>c.view[STATE].data, 0)
    p.vector[BN_MEAN] = vector_of(c, MEAN)
    count[0] = count_of_state(parts.state, format, c.channels, "sums")
    stranger = bn_state_mismatch(parts.state, format, &p)
    wrong = bn_backward_round(&p, &parts)
    if stranger >= 0:
        raise ValueError(
            "sums: expected parts that were all summed about this mean, with this dtype; in channel "
            f"{stranger}, some were not"
        )
    check_limbs(wrong, "sums")
    return result


cdef int64_t count_of_state(const int64_t *state, const bn_format *format, Py_ssize_t channels,
                            str name) except -1:
    """The number of elements per channel. Raises a ValueError if it differs between channels, or if
    too many states were added."""
    cdef Py_ssize_t i, row = BN_SUMS * channels
    cdef const int64_t *count = state + (format.limbs + BN_COUNT_AND_STAMP) * row
    cdef const int64_t *parts = state + (format.limbs + BN_PARTS_ADDED) * row
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

cdef class StateFormat:
    """A row of C's table of formats: how the sums of a dtype and a kind are integers."""

    cdef const bn_format *row
    cdef readonly int rows  # of a state

    def __cinit__(self, str dtype, bint of_moments):
        self.row = format_of(DTYPES.index(dtype), of_moments)
        self.rows = rows_of_state(self.row)


#: The formats of exact sums by the dtype of the data: of moments, or of gradients.
STATE_FORMATS = {(dtype, of_moments): StateFormat(dtype, of_moments)
                 for dtype in DTYPES for of_moments in (False, True)}


cdef object as_state(object state, StateFormat format, int64_t *count):
    """A dense array of a state, which must have this format; `count` is set to its number of
    elements per channel. The state may have been changed since it was made, but nobody else can
    change this array's shape: it is new."""
    a = as_dense(state.view())
    if a.dtype != INT64 or a.ndim != 3 or a.shape[0] != format.rows or a.shape[1] != BN_SUMS:
        raise ValueError(
            f"array: expected int64 of shape ({format.rows}, 2, C), got {a.dtype} of shape {a.shape}"
        )
    cdef const int64_t[:, :, ::1] limbs = a
    count[0] = 0
    if limbs.shape[2]:
        count[0] = count_of_state(&limbs[0, 0, 0], format.row, limbs.shape[2], "array")
    return a


def state_count(state, StateFormat format not None):
    """The number of elements per channel in a state."""
    cdef int64_t count
    as_state(state, format, &count)
    return count


def state_sums(state, StateFormat format not None):
    """The two sums of each channel of a state, each rounded once."""
    cdef int64_t count, wrong = -1
    cdef uint64_t mode
    cdef const int64_t[:, :, ::1] limbs = as_state(state, format, &count)
    result = np.zeros((BN_SUMS, limbs.shape[2]))
    cdef double[:, ::1] sums = result
    if limbs.shape[2]:
        mode = fp_mode_enter()
        wrong = bn_round_state(&limbs[0, 0, 0], format.row, limbs.shape[2], &sums[0, 0])
        fp_mode_leave(mode)
        check_limbs(wrong, "array")
    return result


def canonical_state(state, StateFormat format not None):
    """A new state in the unique form, as if it had been computed in one part."""
    cdef int64_t count, wrong = -1
    copy = as_state(state, format, &count).copy()
    cdef int64_t[:, :, ::1] limbs = copy
    if limbs.shape[2]:
        wrong = bn_make_canonical(&limbs[0, 0, 0], format.row, limbs.shape[2])
        check_limbs(wrong, "array")
    return copy


def added_states(state, other, StateFormat format not None):
    """The sum of two states."""
    return of_few_parts(state, format) + of_few_parts(other, format)


cdef object of_few_parts(object state, StateFormat format):
    """The state itself; after half as many parts as it may have, its canonical form, of one."""
    cdef int64_t count
    a = as_state(state, format, &count)
    many = a.size and a[format.row.limbs + BN_PARTS_ADDED, 0, 0] > BN_MOST_PARTS // 2
    return canonical_state(a, format) if many else a


def pack_state(state, StateFormat format not None):
    """The state in its canonical form, without limbs that are 0 in all channels; and which rows are
    left. So that these are few, the highest limbs of a negative sum, -1 and all ones, become 0, and
    the limb below them negative."""
    cdef int k
    packed = canonical_state(state, format)
    for k in range(format.row.limbs - 1, 0, -1):
        ones = packed[k] == -1
        packed[k] += ones
        packed[k - 1] -= ones * UNITS_OF_LIMB
    left = packed.any(axis=(1, 2))
    left[format.row.limbs:] = True
    return packed[left], left


def unpack_state(packed, left, StateFormat format not None):
    """The state that `pack_state` has packed; or another, if it was damaged meanwhile."""
    cdef int64_t count
    cdef int k
    state = np.zeros((format.rows, BN_SUMS, packed.shape[2]), INT64)
    state[left] = packed
    for k in range(1, format.row.limbs):
        negative = state[k - 1] < 0
        state[k] -= negative
        state[k - 1] += negative * UNITS_OF_LIMB
    return as_state(state, format, &count)


def state_statistics(state, StateFormat format not None):
    """Mean and sum of squares about it, from the state of a part or of several; and the number of
    elements per channel.

    With s, the sum of src, and q, the sum of its squares, over M elements, they are s / M and
    (M*q - s**2) / M. M*q - s**2 is computed as an integer, so cancellation loses nothing.
    """
    cdef int64_t count, wrong = -1
    cdef const int64_t[:, :, ::1] limbs = as_state(state, format, &count)
    cdef Py_ssize_t channels = limbs.shape[2]
    result = np.zeros((BN_SUMS, channels))
    cdef double[:, ::1] stats = result
    cdef bn_problem p
    cdef bn_parts parts
    if not channels:
        return result, count
    memset(&p, 0, sizeof(bn_problem))
    p.channels = channels
    cdef int64_t stranger = bn_state_mismatch(&limbs[0, 0, 0], format.row, &p)
    if stranger >= 0:
        raise ValueError(
            f"array: expected a sum of parts of {DTYPES[format.row.dtype]} data; channel {stranger} is "
            "not such a sum"
        )
    cdef uint64_t mode = fp_mode_enter()
    wrong = bn_state_stats(&limbs[0, 0, 0], format.row, channels, &stats[0, 0])
    fp_mode_leave(mode)
    check_limbs(wrong, "array")
    return result, count
