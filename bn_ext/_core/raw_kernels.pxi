"""A kernel by itself, to be checked or tuned. Included by core.pyx."""

cdef const bn_dtype_kernels *kernels_of(isa, dtype) except NULL:
    cdef int level = _available_isas().index(isa)
    cdef int code = DTYPES.index(dtype)
    return bn_kernels_of(level).dtype[code]


def _formulas():
    """The names of the formulas, in the order of the C table."""
    return tuple([formula_table[f].name.decode() for f in range(FORMULAS)])


def _kernel_interface():
    """Sizes and the table of formulas, from kernels.h and formulas.h, with names for roles.

    "layouts" is {code: name}, for coefficients. "paired" names the dtypes whose coefficients, if
    laid out AS_RING (kernels.h), have even columns first.
    "formulas" is {formula: (reads, writes, takes)}, "sums" is {formula: number of sums}.
    """
    operands = dict(enumerate(NAMES[:BN_OPERANDS]))
    coefs = {
        COEF_MEAN: "mean", COEF_SHIFT: "shift", COEF_SLOPE: "slope", COEF_SCALE: "scale",
        COEF_CROSS: "cross", COEF_BEND: "bend", COEF_OFFSET: "offset",
    }
    cdef formula_needs needs
    cdef int f
    formulas, sums = {}, {}
    for f, name in enumerate(_formulas()):
        needs = formula_table[f]
        sums[name] = needs.sums
        formulas[name] = tuple([
            tuple([names[role] for role in sorted(names) if bits >> role & 1])
            for names, bits in ((operands, needs.reads), (operands, needs.writes),
                                (coefs, needs.takes))
        ])
    return {
        "operands": NAMES[:BN_OPERANDS],
        "coefs": tuple([coefs[role] for role in range(COEFS)]),
        "stretch_bytes": BN_STRETCH_BYTES,
        "sums": sums, "rows": BN_ROWS, "group": BN_GROUP, "strands": BN_STRANDS, "pad": BN_PAD,
        "ring_pad": BN_RING_PAD,
        "layouts": {BY_COLUMNS: "by columns", AS_RING: "as a ring", ONE_FOR_ALL: "one for all"},
        "paired": tuple([name for name in DTYPES
                         if kernels_of(_available_isas()[0], name).paired]),
        "formulas": formulas,
    }


cdef bn_sums sums_of(double[:, ::1] planes, double[:, ::1] group) except *:
    cdef bn_sums sums
    sums.plane = &planes[0, 0]
    sums.stride = planes.shape[1]
    sums.group = &group[0, 0] if group is not None else NULL
    sums.count = planes.shape[0] // 2
    return sums


cdef bn_block block_of(block) except *:
    cdef bn_block b
    cdef int i
    addresses, pitches, steps, b.repeats, b.rows, b.cols = block
    for i in range(BN_OPERANDS):
        b.data[i] = <char *><uintptr_t>addresses[i]
        b.pitch[i] = pitches[i]
        b.step[i] = steps[i]
    return b


def _run_sum_kernel(isa, dtype, formula, bint folds, block, const unsigned char[:, ::1] coefs,
                    int64_t stride, double[:, ::1] planes, double[:, ::1] group):
    """Run a formula's sum kernel, or its fold kernel. Nothing is checked.

    block: (addresses, pitches, steps, repeats, rows, cols), the first three by
    operand. coefs: (COEFS, bytes), each row `stride` numbers. planes: the sums,
    laid out as in kernels.h; group: an array of the same size, as scratch memory.
    """
    cdef const bn_dtype_kernels *kernels = kernels_of(isa, dtype)
    cdef int f = _formulas().index(formula)
    cdef bn_sum_kernel *kernel = kernels.fold[f] if folds else kernels.sum[f]
    cdef bn_sums sums = sums_of(planes, group)
    cdef bn_coefs c = bn_coefs(&coefs[0, 0], stride, 0, BY_COLUMNS)
    cdef bn_block b = block_of(block)
    kernel(&b, &c, &sums)


def _run_runs_kernel(isa, dtype, formula, bint folded, parts, apart,
                     const unsigned char[:, ::1] coefs, double[:, ::1] planes):
    """Run a formula's sum_runs kernel once; planes has a column for each channel.

    parts: blocks, each as for _run_sum_kernel. apart: bytes from channel to channel, by
    operand. coefs: (COEFS, bytes). planes: set to the sums. Nothing is checked.
    """
    cdef bn_sum_runs_kernel *kernel = kernels_of(isa, dtype).sum_runs[<int>_formulas().index(formula)]
    cdef bn_sums sums = sums_of(planes, None)
    cdef bn_coefs c = bn_coefs(&coefs[0, 0], planes.shape[1], 0, ONE_FOR_ALL)
    cdef bn_runs runs
    cdef int i
    runs.channels, runs.parts, runs.folded = planes.shape[1], len(parts), folded
    for i in range(runs.parts):
        runs.part[i] = block_of(parts[i])
    for i in range(BN_OPERANDS):
        runs.apart[i] = apart[i]
    kernel(&runs, &c, &sums)


def _run_write_kernel(isa, dtype, formula, span, const unsigned char[:, ::1] coefs,
                      int64_t stride, int64_t period, int layout):
    """Run a formula's write kernel. Nothing is checked.

    span: (addresses, steps, aparts, pitches, repeats, channels, cols, first, strands, nontemporal,
    relu), the first four by operand. coefs, stride: as for _run_sum_kernel. period, layout: see
    kernels.h.
    """
    cdef bn_write_kernel *kernel = kernels_of(isa, dtype).write[<int>_formulas().index(formula)]
    cdef bn_coefs c = bn_coefs(&coefs[0, 0], stride, period, <bn_layout>layout)
    cdef bn_span s
    cdef int i
    addresses, steps, aparts, pitches, *others = span
    s.repeats, s.channels, s.cols, s.first, s.strands, s.nontemporal, s.relu = others
    for i in range(BN_OPERANDS):
        s.data[i] = <char *><uintptr_t>addresses[i]
        s.step[i] = s.ahead[i] = steps[i]
        s.apart[i], s.pitch[i] = aparts[i], pitches[i]
    s.fetches = s.nontemporal
    kernel(&s, &c)


def _run_passed(isa, dtype, const unsigned char[::1] elements, int64_t n, uint64_t[::1] to):
    kernels_of(isa, dtype).relu_mask(<const char *>&elements[0], n, &to[0])
