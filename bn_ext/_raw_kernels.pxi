"""A kernel by itself, to be checked or tuned. Included by _core.pyx."""

cdef const bn_dtype_kernels *kernels_of(isa, dtype) except NULL:
    cdef int level = _available_isas().index(isa)
    cdef int code = DTYPE_NAMES.index(dtype)
    return &bn_kernels_of(level).dtype[code]


def _formulas():
    """Their names, as the C table has them."""
    return tuple([formula_table[f].name.decode() for f in range(FORMULAS)])


def _kernel_interface():
    """What kernels.h and formulas.h say, with names for roles: sizes, and the table of formulas.

    "formulas" is {formula: {"sum" or "write": (reads, writes, takes), "plain": operand or None}}.
    """
    operands = {BN_SRC: "src", BN_DIFF_DST: "diff_dst", BN_DIFF_SRC: "diff_src"}
    coefs = {COEF_MEAN: "mean", COEF_SHIFT: "shift", COEF_SLOPE: "slope", COEF_SCALE: "scale"}
    cdef pass_needs needs
    cdef int f, which
    formulas = {}
    for f, name in enumerate(_formulas()):
        formulas[name] = {"plain": operands.get(formula_table[f].plain)}
        for which, word in ((SUM, "sum"), (WRITE, "write")):
            needs = formula_table[f].each_pass[which]
            formulas[name][word] = tuple([
                tuple([names[role] for role in sorted(names) if bits >> role & 1])
                for names, bits in ((operands, needs.reads), (operands, needs.writes),
                                    (coefs, needs.takes))
            ])
    return {
        "operands": tuple([operands[role] for role in range(BN_OPERANDS)]),
        "coefs": tuple([coefs[role] for role in range(COEFS)]),
        "sums": MOST_SUMS, "rows": BN_ROWS, "stretch": BN_STRETCH_BYTES, "pad": BN_PAD,
        "formulas": formulas,
    }


cdef bn_sums sums_of(double[:, ::1] planes, float[:, ::1] float_sums) except *:
    cdef bn_sums sums
    sums.plane = &planes[0, 0]
    sums.stride = planes.shape[1]
    sums.float_sums = &float_sums[0, 0] if float_sums is not None else NULL
    return sums


def _run_kernel(isa, dtype, pass_, formula, block, const unsigned char[:, ::1] coefs,
                double[:, ::1] planes, float[:, ::1] float_sums, int64_t stride, int calls=1):
    """Run the kernel of a pass ("sum" or "write") of a formula `calls` times. Nothing is checked.

    block: (addresses, pitches, steps, repeats, rows, cols, nontemporal, uniform), the
    first three for src, diff_dst and diff_src. coefs: (COEFS, bytes), planes of
    `stride` numbers. planes, float_sums: the sums, as kernels.h has them.
    """
    cdef const bn_dtype_kernels *kernels = kernels_of(isa, dtype)
    cdef int f = _formulas().index(formula)
    cdef bint summing = pass_ == "sum"
    cdef bn_sums sums = sums_of(planes, float_sums)
    cdef bn_coefs c
    cdef bn_block b
    cdef uint64_t mode
    cdef int i, _i
    c.column = &coefs[0, 0]
    c.stride = stride
    addresses, pitches, steps, b.repeats, b.rows, b.cols, b.nontemporal, b.uniform = block
    for i in range(BN_OPERANDS):
        b.data[i] = <char *><uintptr_t>addresses[i]
        b.pitch[i] = pitches[i]
        b.step[i] = steps[i]
    with nogil:
        mode = fp_mode_enter()
        for _i in range(calls):
            if summing:
                kernels.sum[f](&b, &c, &sums)
            else:
                kernels.write[f](&b, &c)
        fp_mode_leave(mode)


def _run_sums_kernel(isa, dtype, name, double[:, ::1] planes, float[:, ::1] float_sums, int64_t n,
                     double[:, ::1] other):
    """Run a kernel that works on sums: flush; add (other to them); sum_columns (into other)."""
    cdef const bn_dtype_kernels *kernels = kernels_of(isa, dtype)
    cdef bn_sums sums = sums_of(planes, float_sums), others
    cdef uint64_t mode = fp_mode_enter()
    if name == "flush":
        kernels.flush(&sums, n)
    else:
        others = sums_of(other, None)
        if name == "add":
            kernels.add(&sums, &others, n)
        else:
            kernels.sum_columns(&sums, n, &others)
    fp_mode_leave(mode)


def _run_expand(isa, dtype, const unsigned char[::1] channel, int64_t all_, int64_t channels,
                int64_t each, unsigned char[::1] column):
    """Lay out by columns one number per channel, as bytes of the arithmetic type."""
    kernels_of(isa, dtype).expand(&channel[0], all_, channels, each, &column[0])
