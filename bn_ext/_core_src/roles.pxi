"""The roles of arrays in a call, and a table of the functions and what C enters for them. Included by core.pyx."""

cdef enum:
    # An array's role: an operand; a vector; sums (or statistics) of parts; a workspace; a state; or
    # the dense copy of an operand. c.pxi names all operands except the gate, which C makes.
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
    ROLES = COPIES + BN_OPERANDS  # at most 64: a call has them as bits

# In the order of roles.
cdef tuple NAMES = (
    "src", "diff_dst", "src_1", "diff_diff_src", "gate",
    "dst", "diff_src", "diff_diff_dst", "diff_src_1",
    "mean", "variance", "gamma", "beta", "diff_diff_gamma", "diff_diff_beta",
    "diff_gamma", "diff_beta", "running_mean", "running_variance",
    "sums", "workspace", "sums",
)

cdef enum:
    BACKWARD
    BACKWARD_SUMS       # the sums of a part
    TRAINING
    TRAINING_SUMS
    RUNNING             # running statistics, from the sums of all parts
    INFERENCE
    DOUBLE_BACKWARD
    FUNCTIONS
    MOST_OUTPUTS = 4

ctypedef bn_status (*c_entry)(const bn_problem *p) noexcept nogil
ctypedef bn_status (*c_half)(const bn_problem *p, const bn_parts *parts) noexcept nogil

# What is written, in the order of out and of the result; diff_src_1 only where it is wanted.
cdef int[MOST_OUTPUTS] BACKWARD_OUT = [DIFF_SRC, DIFF_GAMMA, DIFF_BETA, DIFF_SRC_1]
cdef int[3] DOUBLE_BACKWARD_OUT = [DIFF_SRC, DIFF_DIFF_DST, DIFF_GAMMA]
cdef int[3] FORWARD_OUT = [DST, MEAN, VARIANCE]
cdef tuple NO_ARRAYS = (None,) * MOST_OUTPUTS


cdef struct Entry:
    c_entry run             # in one call; each may be NULL
    c_entry run_exactly
    c_half reduce           # the sums of a part
    c_half reduce_exactly
    c_half finish           # from the sums of all parts
    unsigned needs          # roles that must be given, as bits; the others may be None
    bint reduces            # are sums the result? else the two that reduce are NULL
    bint is_forward         # is the workspace written, not read?
    int n_outputs
    const int *outputs


cdef enum:
    GRADIENT_DATA = 1 << SRC | 1 << DIFF_DST | 1 << MEAN
    STATISTICS = 1 << MEAN | 1 << VARIANCE

cdef Entry[FUNCTIONS] ENTRY
ENTRY[BACKWARD] = Entry(
    bn_backward, bn_backward_exactly, NULL, NULL, bn_backward_finish,
    GRADIENT_DATA | STATISTICS, False, False, 3, &BACKWARD_OUT[0])
ENTRY[BACKWARD_SUMS] = Entry(
    NULL, NULL, bn_backward_reduce, bn_backward_reduce_exactly, NULL,
    GRADIENT_DATA, True, False, 0, NULL)
ENTRY[TRAINING] = Entry(
    bn_training, bn_training_exactly, NULL, NULL, NULL, 1 << SRC, False, True, 3, &FORWARD_OUT[0])
ENTRY[TRAINING_SUMS] = Entry(
    NULL, NULL, bn_training_reduce, bn_training_reduce_exactly, NULL, 1 << SRC, True, True, 0, NULL)
ENTRY[RUNNING] = Entry(
    NULL, NULL, NULL, NULL, bn_training_finish, 1 << SRC, False, True, 2, &FORWARD_OUT[1])
ENTRY[INFERENCE] = Entry(
    bn_inference, NULL, NULL, NULL, NULL, 1 << SRC | STATISTICS, False, True, 1, &FORWARD_OUT[0])
ENTRY[DOUBLE_BACKWARD] = Entry(
    bn_double_backward, NULL, NULL, NULL, NULL,
    GRADIENT_DATA | STATISTICS | 1 << DIFF_DIFF_SRC, False, False, 3, &DOUBLE_BACKWARD_OUT[0])
# The types of results, by entry; None: the first array.
cdef list RESULTS = [None] * FUNCTIONS
RESULTS[BACKWARD] = BatchNormGradients
RESULTS[TRAINING] = BatchNormTraining
RESULTS[DOUBLE_BACKWARD] = BatchNormDoubleBackward
