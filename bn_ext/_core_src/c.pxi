# The C interface, as the headers in src_c declare it. Python can call the cpdef functions.
from cpython.object cimport PyTypeObject
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport INT64_MAX, int64_t, uint64_t, uintptr_t


cdef extern from "Python.h":
    void Py_CLEAR(PyObject *a)


cdef extern from *:
    """
    #define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
    #define NPY_TARGET_VERSION NPY_1_25_API_VERSION
    """

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyArray_Descr
    ctypedef struct PyArrayObject
    ctypedef ptrdiff_t npy_intp
    PyTypeObject *array_type "&PyArray_Type"
    int import_array "_import_array"() except -1
    char *PyArray_BYTES(PyArrayObject *a) nogil
    int PyArray_NDIM(PyArrayObject *a) nogil
    npy_intp *PyArray_DIMS(PyArrayObject *a) nogil
    npy_intp *PyArray_STRIDES(PyArrayObject *a) nogil
    npy_intp PyArray_ITEMSIZE(PyArrayObject *a) nogil
    PyArray_Descr *PyArray_DESCR(PyArrayObject *a) nogil
    int PyArray_FLAGS(PyArrayObject *a) nogil
    npy_intp PyArray_NBYTES(PyArrayObject *a) nogil
    enum:
        NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE
    # Takes a reference of dtype.
    object PyArray_NewFromDescr(PyTypeObject *type, PyArray_Descr *dtype, int ndim,
                                const npy_intp *shape, const npy_intp *strides, void *data,
                                int flags, PyObject *parent)
    int PyArray_SetBaseObject(PyArrayObject *a, PyObject *base) except -1  # takes one of base

import_array()


cdef extern from * nogil:
    int lowest_bit "__builtin_ctzll"(uint64_t bits)


cdef extern from "base/bn.h" nogil:
    ctypedef bint c_bool "bool"

    ctypedef enum bn_dtype:
        BN_F32, BN_F64, BN_BF16

    ctypedef enum bn_status:
        BN_OK

    enum:
        BN_DTYPES
        SRC "BN_SRC", DIFF_DST "BN_DIFF_DST", SRC_1 "BN_SRC_1", DIFF_DIFF_SRC "BN_DIFF_DIFF_SRC", BN_GATE
        DST "BN_DST", DIFF_SRC "BN_DIFF_SRC", DIFF_DIFF_DST "BN_DIFF_DIFF_DST"
        DIFF_SRC_1 "BN_DIFF_SRC_1", BN_OPERANDS
        BN_MEAN, BN_VARIANCE, BN_GAMMA, BN_BETA, BN_DIFF_DIFF_GAMMA, BN_DIFF_DIFF_BETA
        BN_DIFF_GAMMA, BN_DIFF_BETA, BN_RUNNING_MEAN, BN_RUNNING_VARIANCE, BN_VECTORS
        BN_MAX_AXES, BN_SUMS

    ctypedef struct bn_vector:
        char *data
        int64_t stride
        bn_dtype dtype

    ctypedef struct bn_view:
        char *data
        ptrdiff_t itemsize
        int ndim
        const ptrdiff_t *shape
        const ptrdiff_t *strides

    ctypedef struct bn_axes:
        int n
        signed char axis[BN_MAX_AXES]

    ctypedef struct bn_problem:
        bn_dtype dtype
        char *data[BN_OPERANDS]
        int64_t channels
        const bn_view *strided[BN_OPERANDS]
        const bn_axes *axes
        bn_vector vector[BN_VECTORS]
        double epsilon
        c_bool training, relu
        double exponential_avg_factor
        int correction, num_threads

    ctypedef struct bn_parts:
        double *sums
        int64_t *state
        double count

    int bn_rows_of_statistics(bn_dtype dtype)
    cpdef double power_above "bn_power_above"(double count)


cdef extern from "call/call.h" nogil:
    bn_status bn_backward(const bn_problem *p)
    bn_status bn_backward_reduce(const bn_problem *p, const bn_parts *parts)
    bn_status bn_backward_finish(const bn_problem *p, const bn_parts *parts)
    bn_status bn_training(const bn_problem *p)
    bn_status bn_training_reduce(const bn_problem *p, const bn_parts *parts)
    bn_status bn_training_finish(const bn_problem *p, const bn_parts *parts)
    bn_status bn_inference(const bn_problem *p)
    bn_status bn_double_backward(const bn_problem *p)
    bn_status bn_backward_exactly(const bn_problem *p)
    bn_status bn_backward_reduce_exactly(const bn_problem *p, const bn_parts *parts)
    bn_status bn_training_exactly(const bn_problem *p)
    bn_status bn_training_reduce_exactly(const bn_problem *p, const bn_parts *parts)
    int64_t bn_backward_round(const bn_problem *p, const bn_parts *parts)


cdef extern from "exact/state.h" nogil:
    enum:
        BN_LIMB_BITS, BN_MOST_PARTS, BN_LOG2_TERMS, BN_LOG2_TERMS_OF_PART
        BN_COUNT_AND_STAMP, BN_PARTS_ADDED, BN_MORE_ROWS

    ctypedef enum bn_kind_of_state:
        BN_OF_GRADIENTS, BN_OF_MOMENTS, BN_KINDS_OF_STATE

    ctypedef struct bn_format:
        bn_dtype dtype
        bn_kind_of_state kind
        int limbs

    const bn_format bn_formats[BN_DTYPES][BN_KINDS_OF_STATE]
    int64_t bn_state_mismatch(const int64_t *state, const bn_format *format, const bn_problem *p)
    int64_t bn_make_canonical(int64_t *state, const bn_format *format, int64_t channels)
    int64_t bn_round_state(const int64_t *state, const bn_format *format, int64_t channels,
                           double *sums)
    int64_t bn_state_stats(const int64_t *state, const bn_format *format, int64_t channels,
                           double *stats)


cdef extern from "base/channel.h" nogil:
    void vector_read(const bn_vector *v, int64_t first, int64_t n, double *to)


cdef extern from "arrays/gates.h" nogil:
    int64_t bn_bytes_of_bits(int64_t elements)
    void bn_make_bits(const bn_problem *p, char *to)
    bn_status bn_open_gate(bn_problem *p)
    void bn_close_gate(bn_problem *p)


cdef extern from "base/machine.h" nogil:
    cpdef void set_threads_limit "bn_set_threads_limit"(int threads)
    cpdef int default_threads "bn_default_threads"()
    cpdef c_bool has_openmp "bn_has_openmp"()
    cpdef int cpus "bn_cpus"()
    cpdef c_bool fork_limits "bn_fork_limits"()
    int64_t bn_l2_bytes()
    int64_t bn_last_level_bytes()
    cpdef void set_cache_sizes "bn_set_cache_sizes"(int64_t l2, int64_t last_level)
    cpdef c_bool last_level_is_far "bn_last_level_is_far"()
    cpdef void set_last_level_far "bn_set_last_level_far"(c_bool far)


cdef extern from "base/system.h" nogil:
    cpdef int64_t memory_bytes "bn_memory_bytes"()
    void bn_told_caches(int64_t *l2, int64_t *last_level)
    c_bool bn_told_processor(char *name, size_t room)
    c_bool bn_told_library(int number, char *path, size_t room)


cdef extern from "threads/schedule.h" nogil:
    ctypedef struct bn_call_facts:
        int threads
        int64_t tasks
        c_bool joint

    cpdef bn_call_facts last_call "bn_last_call"()


cdef extern from "base/dtypes.h" nogil:
    ctypedef struct bn_dtype_facts:
        const char *name
        int element_bytes

    const bn_dtype_facts bn_dtype_table[BN_DTYPES]


cdef extern from "arrays/axes.h" nogil:
    void bn_axes_of(const bn_view *src, int channel_axis, bn_axes *axes)
    ptrdiff_t bn_bytes_of_axes(int ndim)
    void bn_write_axes(const bn_view *src, int channel_axis, const bn_axes *axes,
                       unsigned char *to)
    c_bool bn_read_axes(const unsigned char *order, const bn_view *src, int channel_axis,
                        bn_axes *axes)
    c_bool bn_follows(const bn_view *view, const bn_axes *axes, c_bool dense)
    void bn_set_axes(bn_problem *p, const bn_view *views, const bn_axes *axes,
                     int channel_axis)
    c_bool bn_same_shape(const bn_view *a, const bn_view *b)
    c_bool bn_same_place(const bn_view *a, const bn_view *b)
    c_bool bn_overlaps_itself(const bn_view *view)
    c_bool bn_extents_meet(const bn_view *a, const bn_view *b)
    void bn_copy_elements(const bn_view *view, char *dense, const bn_axes *axes, c_bool written,
                          int num_threads)


cdef extern from "call/strided.h" nogil:
    c_bool bn_suits_tasks(const bn_view *view, const bn_axes *axes, c_bool written)


cdef extern from "call/dispatch.h" nogil:
    ctypedef struct bn_level:
        const char *name

    int bn_level_count()
    const bn_level *bn_level_of(int number)
    const bn_level *bn_level_current()
    void bn_level_use(int number)


cdef extern from "base/fp_mode.h" nogil:
    uint64_t fp_mode_enter()
    void fp_mode_leave(uint64_t mode)
