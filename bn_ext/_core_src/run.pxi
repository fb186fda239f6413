"""How a call goes, from arguments to result. Included by core.pyx.

    new_call  make a call that has no arrays (call.pxi)
    convert   keep the arguments' arrays (arguments.pxi)
    run_call  set the floating-point mode in which it computes
              check: pin them; raise all errors (inputs.pxi, outputs.pxi); a dry run ends here
              new_results, new_sums: allocate what is returned (outputs.pxi)
              compute: copy operands that cannot be walked, and run the C code

Nothing may fail once something is written.
"""

cdef object run_call(Call c, object out):
    """Run the call. Return the arrays in `out`, with new ones in place of None; or sums. After a
    MemoryError, nothing has been written."""
    cdef bn_status status
    arrays = convert_out(c, out)  # the last that may run the caller's methods, in the caller's mode
    c.mode, c.computes = fp_mode_enter(), True
    check(c)
    if c.dry:
        c.succeeded = True
        return None
    result = new_sums(c) if c.entry.reduces else new_results(c, arrays)
    if c.channels and not (c.is_empty and c.entry.reduces):
        fill_problem(c)
        check_memory(c)
        if is_brief(c):
            status = compute(c)
        else:
            with nogil:
                status = compute(c)
        if status != BN_OK and release_kept():
            status = compute(c)
        if status != BN_OK:
            raise MemoryError("bn_ext: not enough memory for sums and coefficients")
    if c.entry.is_forward and has(c, WORKSPACE):
        bn_write_axes(&c.view[SRC], c.channel_axis, &c.axes, axes_in_workspace(c))
    c.succeeded = True
    return result


cdef int check(Call c) except -1:
    """Raise every error that the arguments can cause.

    From here on, the caller's code can run only in finalizers, but these may change an array at any
    allocation. So whatever C is given is read from an array only once.
    """
    cdef int role
    cdef uint64_t left = c.roles
    while left:
        role = take_role(&left)
        pin(c, role, array_of(c, role))
    check_data(c)
    check_terms(c)
    for role in range(MEAN, DIFF_DIFF_BETA + 1):
        if is_read(c, role):
            check_vector(c, role, "float64")
    check_sums(c)
    check_running(c)
    if has(c, WORKSPACE):
        check_workspace(c)
    check_outputs(c)
    check_sharing(c)
    return warn_of_negative(c)


cdef uint64_t VECTOR_ROLES = ((<uint64_t>1 << BN_VECTORS) - 1) << VECTORS


cdef int fill_problem(Call c) except -1:
    """Fill in the problem that C reads. An operand that cannot be walked in the order of `axes` is
    copied by tasks or, before the first of them, as a whole. An absent operand gets src's strides."""
    cdef bn_view walked[BN_OPERANDS]
    cdef bn_problem *p = &c.problem
    cdef uint64_t left
    cdef int role
    for role in range(BN_OPERANDS):
        walked[role] = c.view[role] if has(c, role) else walked[SRC]
        p.strided[role] = NULL
        if not has(c, role) or c.is_empty or bn_follows(&c.view[role], &c.axes, makes_bits(c, role)):
            continue
        if not makes_bits(c, role) and bn_suits_tasks(&c.view[role], &c.axes, is_output(c, role)):
            p.strided[role] = &c.view[role]
        else:
            pin_new(c, COPIES + role, new_like_src(c, &c.axes))
            walked[role] = c.view[COPIES + role]
    bn_set_axes(p, walked, &c.axes, c.channel_axis)
    p.axes = &c.axes
    for role in range(BN_OPERANDS):
        if not has(c, role):
            p.data[role] = NULL
    if has(c, WORKSPACE) and not c.entry.is_forward:
        p.data[BN_GATE] = c.view[WORKSPACE].data
    left = c.roles & VECTOR_ROLES
    while left:
        role = take_role(&left)
        p.vector[role - VECTORS] = vector_of(c, role)
    p.dtype = <bn_dtype>c.dtype
    c.parts.sums, c.parts.state = <double *>c.view[SUMS].data, <int64_t *>c.view[STATE].data
    return 0


cdef bint makes_bits(Call c, int role) noexcept:
    """Are a gate's bits made from this operand, all at once?"""
    return role == DST and (has(c, WORKSPACE) or not c.entry.is_forward)


cdef enum:
    # A call of at most this many elements (10 us of work) on one thread keeps the GIL: releasing it
    # and taking it again costs 0.1 us, and far more if other threads want it.
    BRIEF = 1024


cdef bint is_brief(Call c) noexcept:
    return (
        c.problem.num_threads <= 1
        and c.channels <= BRIEF
        and c.elements <= BRIEF
        and c.channels * c.elements <= BRIEF
    )


cdef bn_status run_entry(Call c) noexcept nogil:
    """Enter the C code by the door that fits: for sums, from sums, or for all in one call."""
    cdef const bn_problem *p = &c.problem
    if c.entry.reduces:
        return (c.entry.reduce_exactly if c.exact else c.entry.reduce)(p, &c.parts)
    if has(c, SUMS):
        return c.entry.finish(p, &c.parts)
    return (c.entry.run_exactly if c.exact else c.entry.run)(p)


cdef bn_status compute(Call c) noexcept nogil:
    """Run the C code. Before it, fill copies of inputs; after it, copy those of outputs back."""
    cdef bn_problem *p = &c.problem
    cdef bint opens = not c.entry.is_forward and has(c, DST)
    cdef bn_status status = BN_OK
    cdef uint64_t copied = c.roles >> COPIES, left = copied
    cdef int role
    while left:
        role = take_role(&left)
        if not is_output(c, role):
            bn_copy_elements(&c.view[role], p.data[role], &c.axes, False, p.num_threads)
    if opens:
        status = bn_open_gate(p)
    if status == BN_OK:
        status = run_entry(c)
        if opens:
            bn_close_gate(p)
    if status != BN_OK:
        return status
    if c.entry.is_forward and has(c, WORKSPACE):
        bn_make_bits(p, c.view[WORKSPACE].data)
    while copied:
        role = take_role(&copied)
        if is_output(c, role):
            bn_copy_elements(&c.view[role], p.data[role], &c.axes, True, p.num_threads)
    return status
