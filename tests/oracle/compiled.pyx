# cython: language_level=3, embedsignature=False, freethreading_compatible=True
"""A kernel by itself, to be checked or tuned; setup.py links it from the objects of the extension."""

from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memset


cdef extern from "base/bn.h" nogil:
    ctypedef bint c_bool "bool"

    enum:
        BN_DTYPES
        BN_SRC, BN_DIFF_DST, BN_SRC_1, BN_DIFF_DIFF_SRC, BN_GATE
        BN_DST, BN_DIFF_SRC, BN_DIFF_DIFF_DST, BN_DIFF_SRC_1, BN_OPERANDS

    ctypedef struct bn_dtype_facts:
        const char *name

    const bn_dtype_facts bn_dtype_table[BN_DTYPES]


cdef extern from "kernels/kernels.h" nogil:
    enum:
        BN_ROWS, BN_GROUP, BN_STRETCH_BYTES
        FORMULAS, GATES
        COEF_MEAN, COEF_SHIFT, COEF_SLOPE, COEF_SCALE, COEF_CROSS, COEF_BEND, COEF_OFFSET, COEFS
        BN_BOXES, BN_ABREAST, BN_PAD, BN_RING_PAD

    ctypedef struct formula_needs:
        const char *name
        unsigned reads, writes, takes
        int sums

    ctypedef struct formula:
        int base, gate

    const formula_needs base_table[FORMULAS]
    const formula_needs gate_table[GATES]
    unsigned bn_reads(formula f)
    unsigned bn_writes(formula f)
    unsigned bn_takes(formula f)

    ctypedef struct bn_place:
        char *data[BN_OPERANDS]
        int64_t bit

    ctypedef struct bn_box:
        bn_place at
        int64_t next_row[BN_OPERANDS]
        int64_t next_repeat[BN_OPERANDS]
        int64_t next_channel[BN_OPERANDS]
        int64_t repeats, channels, cols
        int rows
        int64_t prefetch_bytes[BN_OPERANDS]
        c_bool folded, nontemporal

    ctypedef struct bn_coefs:
        const void *column
        int64_t stride, period
        c_bool one_per_channel

    ctypedef struct bn_sums:
        double *plane
        int64_t stride
        void *group
        int n

    ctypedef void bn_sum_kernel(const bn_box *box, int boxes, const bn_coefs *coefs,
                                const bn_sums *sums)
    ctypedef void bn_write_kernel(const bn_box *box, const bn_coefs *coefs)

    ctypedef struct bn_dtype_kernels:
        bn_sum_kernel *sum[FORMULAS][GATES]
        bn_sum_kernel *sum_runs[FORMULAS][GATES]
        bn_write_kernel *write[FORMULAS][GATES]
        void (*relu_mask)(const char *source, int64_t n, uint64_t *to)
        c_bool paired


cdef extern from "call/dispatch.h" nogil:
    ctypedef struct bn_level:
        const char *name
        const bn_dtype_kernels *kernels[BN_DTYPES]

    int bn_level_count()
    const bn_level *bn_level_of(int number)


cdef tuple DTYPES = tuple([bn_dtype_table[code].name.decode() for code in range(BN_DTYPES)])
cdef tuple ISAS = tuple([bn_level_of(level).name.decode() for level in range(bn_level_count())])
cdef dict OPERANDS = {
    BN_SRC: "src", BN_DIFF_DST: "diff_dst", BN_SRC_1: "src_1", BN_DIFF_DIFF_SRC: "diff_diff_src",
    BN_GATE: "gate", BN_DST: "dst", BN_DIFF_SRC: "diff_src", BN_DIFF_DIFF_DST: "diff_diff_dst",
    BN_DIFF_SRC_1: "diff_src_1",
}
cdef dict COEFFICIENTS = {
    COEF_MEAN: "mean", COEF_SHIFT: "shift", COEF_SLOPE: "slope", COEF_SCALE: "scale",
    COEF_CROSS: "cross", COEF_BEND: "bend", COEF_OFFSET: "offset",
}


cdef const bn_dtype_kernels *kernels_of(isa, dtype) except NULL:
    cdef int level = ISAS.index(isa)
    cdef int code = DTYPES.index(dtype)
    return bn_level_of(level).kernels[code]


def formulas():
    """The formulas that have kernels, by name, in the order of the C table."""
    cdef const bn_dtype_kernels *kernels = kernels_of(ISAS[0], DTYPES[0])
    return {
        (<bytes>base_table[base].name + <bytes>gate_table[gate].name).decode(): (base, gate)
        for base in range(FORMULAS) for gate in range(GATES)
        if kernels.sum[<int>base][<int>gate] or kernels.write[<int>base][<int>gate]
    }


cdef formula formula_of(name) except *:
    base, gate = formulas()[name]
    return formula(base, gate)


def interface():
    """Sizes and the table of formulas, from kernels.h and formulas.h, with names for roles.

    "paired" names the dtypes whose coefficients, if they are a ring (kernels.h), have even columns
    first.
    "formulas" is {formula: (reads, writes, takes)}, "sums" is {formula: number of sums}.
    """
    cdef formula f
    roles, sums = {}, {}
    for name in formulas():
        f = formula_of(name)
        sums[name] = base_table[f.base].sums
        roles[name] = tuple([
            tuple([names[role] for role in sorted(names) if bits >> role & 1])
            for names, bits in ((OPERANDS, bn_reads(f)), (OPERANDS, bn_writes(f)),
                                (COEFFICIENTS, bn_takes(f)))
        ])
    return {
        "operands": tuple([OPERANDS[role] for role in range(BN_OPERANDS)]),
        "coefs": tuple([COEFFICIENTS[role] for role in range(COEFS)]),
        "stretch_bytes": BN_STRETCH_BYTES,
        "sums": sums, "rows": BN_ROWS, "group": BN_GROUP, "abreast": BN_ABREAST, "pad": BN_PAD,
        "ring_pad": BN_RING_PAD,
        "paired": tuple([name for name in DTYPES
                         if kernels_of(ISAS[0], name).paired]),
        "formulas": roles,
    }


cdef bn_sums sums_of(double[:, ::1] planes, double[:, ::1] group) except *:
    cdef bn_sums sums
    sums.plane = &planes[0, 0]
    sums.stride = planes.shape[1]
    sums.group = &group[0, 0] if group is not None else NULL
    sums.n = planes.shape[0] // 2
    return sums


cdef bn_box box_of(box) except *:
    cdef bn_box b
    cdef int i
    memset(&b, 0, sizeof(b))
    addresses, b.at.bit, rows, repeats, channels, b.rows, b.repeats, b.channels, b.cols, *flag = box
    for i in range(BN_OPERANDS):
        b.at.data[i] = <char *><uintptr_t>addresses[i]
        b.next_row[i], b.next_repeat[i], b.next_channel[i] = rows[i], repeats[i], channels[i]
    b.nontemporal = any(flag)
    for i in range(BN_OPERANDS):  # as for the next tile: the next channel is prefetched
        b.prefetch_bytes[i] = b.next_channel[i] * b.nontemporal
    return b


def run_sum_kernel(isa, dtype, name, str form, boxes, const unsigned char[:, ::1] coefs,
                   int64_t stride, double[:, ::1] planes, double[:, ::1] group):
    """Run a formula's kernel that sums "columns", "short runs" or "long runs".

    boxes: one or two of (addresses, bit, distances from row to row, from repeat to repeat and from
    channel to channel, rows, repeats, channels, cols), distances by operand; to write, then
    nontemporal. coefs: (COEFS, bytes), each row `stride` numbers. planes: the sums, laid out as in
    kernels.h; group: an array of the same size, as scratch memory, for columns. Nothing is checked.
    """
    cdef const bn_dtype_kernels *kernels = kernels_of(isa, dtype)
    cdef formula f = formula_of(name)
    cdef bint columns = form == "columns"
    cdef bn_sum_kernel *kernel = (
        kernels.sum[f.base][f.gate] if columns else kernels.sum_runs[f.base][f.gate]
    )
    cdef bn_sums sums = sums_of(planes, group)
    cdef bn_coefs c = bn_coefs(&coefs[0, 0], stride, 0, not columns)
    cdef bn_box[BN_BOXES] box
    cdef int n = len(boxes)
    for i in range(n):
        box[i] = box_of(boxes[i])
        box[i].folded = form == "long runs"
    kernel(box, n, &c, &sums)


def run_write_kernel(isa, dtype, name, box, const unsigned char[:, ::1] coefs,
                     int64_t stride, int64_t period, bint one_per_channel):
    """Run a formula's write kernel. Nothing is checked.

    box, coefs, stride: as for run_sum_kernel. period, one_per_channel: see kernels.h.
    """
    cdef formula f = formula_of(name)
    cdef bn_write_kernel *kernel = kernels_of(isa, dtype).write[f.base][f.gate]
    cdef bn_coefs c = bn_coefs(&coefs[0, 0], stride, period, one_per_channel)
    cdef bn_box b = box_of(box)
    kernel(&b, &c)


def run_relu_mask(isa, dtype, const unsigned char[::1] elements, int64_t n, uint64_t[::1] to):
    kernels_of(isa, dtype).relu_mask(<const char *>&elements[0], n, &to[0])
