"""What _runtime, the wrappers in specs and the tests ask for, beside functions of C that
_core.pxd hands on. Included by _core.pyx."""


def _available_isas():
    return tuple([bn_isa_name(level).decode() for level in range(bn_isa_count())])


def _get_isa():
    return bn_isa_name(bn_isa_current()).decode()


def _use_isa(name):
    """Switch levels, in this process."""
    bn_isa_use(_available_isas().index(name))


def _cache_sizes():
    """(bytes of a core's second-level cache, of the last-level cache)."""
    return bn_l2_bytes(), bn_last_level_bytes()


def _parked():
    """(bytes, blocks) of large memory that is kept for the next results."""
    cdef int blocks
    cdef int64_t bytes = bn_parked_bytes(&blocks)
    return bytes, blocks


def _last_call():
    """(threads that took tasks, tasks per pass) of this thread's last call."""
    cdef int threads
    cdef int64_t tasks
    bn_last_call(&threads, &tasks)
    return threads, tasks


def _schedule(dtype, dims, int channel_axis, int threads):
    """How a backward call would share its work among threads. There need be no arrays."""
    cdef ptrdiff_t shape[BN_MAX_AXES]
    cdef ptrdiff_t strides[BN_MAX_AXES]
    cdef bn_view views[BN_OPERANDS]
    cdef bn_order order
    cdef bn_problem p
    cdef int axis, role, code = DTYPE_NAMES.index(dtype)
    cdef ptrdiff_t step = bn_dtype_table[code].element_bytes
    memset(&p, 0, sizeof(bn_problem))
    for axis in reversed(range(len(dims))):
        shape[axis], strides[axis] = dims[axis], step
        step *= dims[axis]
    for role in range(BN_OPERANDS):
        views[role].data = NULL
        views[role].itemsize = bn_dtype_table[code].element_bytes
        views[role].ndim, views[role].shape, views[role].strides = len(dims), shape, strides
    p.dtype, p.training = <bn_dtype>code, True
    bn_order_of(&views[SRC], channel_axis, &order)
    bn_set_axes(&p, views, &order, channel_axis)
    return bn_schedule_of_backward(&p, threads)


def _committed(call, dict state, dict after):
    """Call a compiled function; then update state before any Python code, such as a signal
    handler, can run."""
    result = call()
    state.update(after)
    return result
