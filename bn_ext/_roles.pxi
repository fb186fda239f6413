"""What arrays are in a call, what can be called, and what that writes. Included by _core.pyx."""

cdef enum:
    # An array's role: an operand, a vector, sums (or statistics) of parts, bits; then what operands
    # are copied to that cannot be walked. (The gate is an operand that no array stands for.)
    SRC = BN_SRC
    DIFF_DST = BN_DIFF_DST
    SRC_1 = BN_SRC_1
    DIFF_DIFF_SRC = BN_DIFF_DIFF_SRC
    DST = BN_DST
    DIFF_SRC = BN_DIFF_SRC
    DIFF_DIFF_DST = BN_DIFF_DIFF_DST
    DIFF_SRC_1 = BN_DIFF_SRC_1
    VECTORS = BN_OPERANDS
    MEAN = VECTORS + BN_MEAN
    VARIANCE = VECTORS + BN_VARIANCE
    GAMMA = VECTORS + BN_GAMMA
    BETA = VECTORS + BN_BETA
    DIFF_DIFF_GAMMA = VECTORS + BN_DIFF_DIFF_GAMMA
    DIFF_DIFF_BETA = VECTORS + BN_DIFF_DIFF_BETA
    DIFF_GAMMA = VECTORS + BN_DIFF_GAMMA
    DIFF_BETA = VECTORS + BN_DIFF_BETA
    RUNNING_MEAN = VECTORS + BN_RUNNING_MEAN
    RUNNING_VARIANCE = VECTORS + BN_RUNNING_VARIANCE
    SUMS = VECTORS + BN_VECTORS
    WORKSPACE = SUMS + 1
    STATE = WORKSPACE + 1
    COPIES = STATE + 1
    ROLES = COPIES + BN_OPERANDS

_NAMES = {
    SRC: "src",
    DIFF_DST: "diff_dst",
    SRC_1: "src_1",
    DIFF_DIFF_SRC: "diff_diff_src",
    DST: "dst",
    DIFF_SRC: "diff_src",
    DIFF_DIFF_DST: "diff_diff_dst",
    DIFF_SRC_1: "diff_src_1",
    MEAN: "mean",
    VARIANCE: "variance",
    GAMMA: "gamma",
    BETA: "beta",
    DIFF_DIFF_GAMMA: "diff_diff_gamma",
    DIFF_DIFF_BETA: "diff_diff_beta",
    DIFF_GAMMA: "diff_gamma",
    DIFF_BETA: "diff_beta",
    RUNNING_MEAN: "running_mean",
    RUNNING_VARIANCE: "running_variance",
    SUMS: "sums",
    WORKSPACE: "workspace",
    STATE: "sums",
}
cdef tuple NAMES = tuple([_NAMES.get(role) for role in range(ROLES)])
del _NAMES
# As messages call them where they are written.
cdef tuple OUTPUT_NAMES = tuple([f"out: {name}" for name in NAMES])

cdef enum:
    # The rows of sums: those of C, the elements per channel, and of statistics ones, which are no
    # longer ones where statistics were added.
    COUNT = BN_SUMS
    MARK = COUNT + 1

cdef enum:
    # What is called.
    BACKWARD_WHOLE
    BACKWARD_REDUCE
    BACKWARD_APPLY
    TRAINING_WHOLE
    TRAINING_REDUCE
    TRAINING_APPLY
    INFERENCE
    DOUBLE_BACKWARD
    ENTRIES

cdef enum:
    # What is written: by each of these what it has in this table, but where diff_src_1 is wanted.
    WITH_DIFF_SRC_1 = ENTRIES
    LISTS
    MOST_OUTPUTS = 4

# As `out` and the result have it; then how many that are.
cdef int OUTPUTS[LISTS][MOST_OUTPUTS]
cdef int N_OUTPUTS[LISTS]
# What the result is: a named tuple, or the one array.
cdef tuple RESULTS


cdef tuple list_outputs():
    """Fill the two; return the results."""
    listed = {
        BACKWARD_WHOLE: (BatchNormGradients, DIFF_SRC, DIFF_GAMMA, DIFF_BETA),
        BACKWARD_APPLY: (BatchNormGradients, DIFF_SRC, DIFF_GAMMA, DIFF_BETA),
        TRAINING_WHOLE: (BatchNormTraining, DST, MEAN, VARIANCE),
        TRAINING_APPLY: (BatchNormTraining, DST, MEAN, VARIANCE),
        INFERENCE: (None, DST),
        DOUBLE_BACKWARD: (BatchNormDoubleBackward, DIFF_SRC, DIFF_DIFF_DST, DIFF_GAMMA),
        WITH_DIFF_SRC_1: (BatchNormAddGradients, DIFF_SRC, DIFF_GAMMA, DIFF_BETA, DIFF_SRC_1),
    }
    cdef int index, i, role
    results = []
    for index in range(LISTS):
        result, *roles = listed.get(index, (None,))
        results.append(result)
        N_OUTPUTS[index] = len(roles)
        for i, role in enumerate(roles):
            OUTPUTS[index][i] = role
    return tuple(results)


RESULTS = list_outputs()
cdef tuple NONE_GIVEN = (None,) * MOST_OUTPUTS
