"""The arguments of a call, each kept by its role. Included by core.pyx."""

cdef int convert(Call c, int role, object a) except -1:
    """Convert an array. None is accepted where the function does not need this role."""
    if a is None and not c.entry.needs >> role & 1:
        return 0
    return keep(c, role, a if type(a) is ndarray else as_array(a, NAMES[role]))


cdef int convert_output(Call c, int role, object a) except -1:
    """Convert an array that is written."""
    if type(a) is not ndarray:
        name = name_of(c, role)
        if isinstance(a, np.ma.MaskedArray):
            raise TypeError(
                f"{name}: masked arrays are not accepted, because the mask would not be written; pass "
                "its data attribute"
            )
        if not isinstance(a, ndarray):
            raise no_ndarray(a, name)
        a = base_array(a, name)
    return keep(c, role, a)


cdef int convert_options(Call c, object data_format, object num_threads, object words,
                         bint dry) except -1:
    """Convert the options that every function takes."""
    c.words = words
    c.dry = dry
    c.format = as_format(data_format)
    if num_threads is not None:
        threads = as_index(num_threads, "num_threads", "an integer or None", 1)
        c.problem.num_threads = min(threads, INT_MAX)
    return 0


cdef int convert_gate(Call c, object relu, object beta, object dst, object workspace,
                      object diff_src_1) except -1:
    """Convert the argument that tells which elements a ReLU passed: exactly one of beta, dst and
    workspace."""
    if (beta is None and dst is None and workspace is None and relu is False
            and diff_src_1 is False):
        return 0
    c.problem.relu = as_flag(relu, "relu")
    cdef bint wanted = as_flag(diff_src_1, "diff_src_1")
    gates = {"beta": beta, "dst": dst, "workspace": workspace}
    names = [name for name, gate in gates.items() if gate is not None]
    if not c.problem.relu and names:
        raise without_relu(names[0])
    if c.problem.relu and len(names) != 1:
        raise ValueError(
            "beta, dst and workspace: expected exactly one of them with relu=True, got "
            + (" and ".join(names) or "none")
        )
    if wanted and (beta is not None or not names):
        raise ValueError(
            "diff_src_1: expected relu=True with dst or workspace, got "
            + ("beta, which says nothing of src_1" if names else "relu=False")
        )
    c.n_outputs += wanted
    convert(c, BETA, beta)
    convert(c, DST, dst)
    return convert(c, WORKSPACE, workspace)


cdef int convert_backward(Call c, object src, object diff_dst, object mean, object variance,
                          object gamma, object epsilon) except -1:
    """Convert what every function of the backward pass takes."""
    convert(c, SRC, src)
    convert(c, DIFF_DST, diff_dst)
    convert(c, MEAN, mean)
    if has(c, BETA) and (variance is None or epsilon is None):
        name, kind = ("variance", "an array") if variance is None else ("epsilon", "a number")
        raise ValueError(f"{name}: expected {kind}, because beta is given; got None")
    if epsilon is not None or not c.entry.reduces:
        c.problem.epsilon = as_epsilon(epsilon)
    convert(c, VARIANCE, variance)
    return convert(c, GAMMA, gamma)


cdef int convert_affine(Call c, object gamma, object beta, object epsilon, object src_1,
                        object relu, object workspace) except -1:
    """Convert what is needed to compute dst from statistics."""
    c.problem.relu = as_flag(relu, "relu")
    if workspace is not None:
        if not c.problem.relu:
            raise without_relu("workspace")
        convert_output(c, WORKSPACE, workspace)
    c.problem.epsilon = as_epsilon(epsilon)
    convert(c, GAMMA, gamma)
    convert(c, BETA, beta)
    return convert(c, SRC_1, src_1)


cdef object without_relu(str name):
    """The error for an argument that needs relu=True."""
    return ValueError(f"relu: expected True with {name}, got False; pass relu=True or no {name}")


cdef int convert_running(Call c, object mean, object variance, object factor,
                         object correction) except -1:
    """Convert the running statistics and the options of their update: all four, or none."""
    four = {"running_mean": mean, "running_variance": variance,
            "exponential_avg_factor": factor, "correction": correction}
    missing = [name for name, value in four.items() if value is None]
    if len(missing) == len(four):
        return 0
    if missing:
        raise ValueError(
            "running_mean, running_variance, exponential_avg_factor and correction: expected all "
            f"four or none, got no {any_of(missing)}"
        )
    c.problem.exponential_avg_factor = as_real(
        factor, "exponential_avg_factor", "a finite number")
    freedom = as_index(correction, "correction", "0 or 1")
    if freedom not in (0, 1):
        raise ValueError(f"correction: expected 0 or 1, got {shown(freedom)}")
    c.problem.correction = freedom
    convert_output(c, RUNNING_MEAN, mean)
    return convert_output(c, RUNNING_VARIANCE, variance)


cdef int convert_sums(Call c, object sums) except -1:
    """Take the sums of all parts."""
    if sums is None:
        return 0
    c.sums = sums
    c.exact = False  # nothing is summed
    array = sums[0]
    return keep(c, STATE if array.dtype == INT64 else SUMS, as_dense(array))


cdef tuple convert_out(Call c, object out):
    """Convert the arrays in `out`. For each output, return the array as it was given, or None."""
    cdef int i, n = c.n_outputs
    if out is None:
        return NO_ARRAYS
    if n == 1:
        out = (out,)
    elif not isinstance(out, SEQUENCES):
        raise TypeError(f"{expected_out(c)}, got {type_name(out)}")
    arrays = tuple(out)
    if len(arrays) != n:
        raise ValueError(f"{expected_out(c)}, got a sequence of length {len(arrays)}")
    if not c.vectors_wanted and (arrays[1] is not None or arrays[2] is not None):
        raise ValueError(
            "out: expected None for diff_gamma and diff_beta with param_grads=False, got "
            f"{type_name(arrays[1])} and {type_name(arrays[2])}"
        )
    for i in range(n):
        if arrays[i] is not None:
            convert_output(c, c.entry.outputs[i], arrays[i])
    return arrays


cdef str expected_out(Call c):
    names = []
    for i in range(c.n_outputs):
        names.append(NAMES[c.entry.outputs[i]])
    return f"out: expected ({', '.join(names)}), each an array or None"
