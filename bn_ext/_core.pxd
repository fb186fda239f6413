# The C interface, as src_c/bn.h declares it.
from libc.stdint cimport int64_t, uint64_t, uintptr_t


cdef extern from "bn.h" nogil:
    ctypedef bint c_bool "bool"

    ctypedef enum bn_dtype:
        BN_F32
        BN_F64
        BN_F16
        BN_BF16

    ctypedef enum bn_status:
        BN_OK
        BN_NO_MEMORY

    enum:
        BN_SRC
        BN_DIFF_DST
        BN_DIFF_SRC
        BN_OPERANDS
        BN_MAX_AXES

    ctypedef struct bn_axis:
        int64_t size
        int64_t stride[3]

    ctypedef struct bn_vector:
        char *data
        int64_t stride
        bn_dtype dtype

    ctypedef struct bn_problem:
        bn_dtype dtype
        char *data[3]
        int n_outer
        int n_inner
        bn_axis outer[64]
        bn_axis channel
        bn_axis inner[64]
        bn_vector mean
        bn_vector variance
        bn_vector gamma
        bn_vector diff_gamma
        bn_vector diff_beta
        double epsilon
        c_bool training
        int num_threads

    bn_status bn_backward(const bn_problem *p)
    bn_status bn_backward_reduce(const bn_problem *p, double *sums)
    bn_status bn_backward_apply(const bn_problem *p, const double *sums, double count)

    ctypedef struct bn_block:
        char *data[3]
        int64_t pitch[3]
        int64_t step[3]
        int64_t repeats
        int64_t cols
        int rows
        c_bool streaming
        c_bool uniform

    ctypedef struct bn_coefs:
        const void *column
        int64_t stride

    ctypedef struct bn_sums:
        double *plane
        int64_t stride
        float *running

    ctypedef void bn_kernel(const bn_block *block, const bn_coefs *coefs, const bn_sums *sums)

    ctypedef struct bn_dtype_kernels:
        bn_kernel *reduce
        bn_kernel *apply
        bn_kernel *scale
        void (*fold)(const bn_sums *sums, int64_t n)
        void (*add)(const bn_sums *to, const bn_sums *terms, int64_t n)
        void (*total)(const bn_sums *sums, int64_t n, const bn_sums *to)
        void (*expand)(const void *channel, int64_t all, int64_t channels, int64_t each,
                       void *column)

    ctypedef struct bn_kernels:
        bn_dtype_kernels dtype[4]

    const bn_kernels *bn_kernels_of(int level)

    int bn_isa_count()
    const char *bn_isa_name(int level)
    int bn_isa_current()
    void bn_isa_use(int level)

    void bn_set_cpu_quota(int threads)
    void bn_cache_sizes(int64_t *l2, int64_t *last_level)
    void bn_set_cache_sizes(int64_t l2, int64_t last_level)
    int bn_default_threads()
    c_bool bn_has_openmp()
    uintptr_t bn_openmp_address()
    c_bool bn_forked()
    void bn_last_call(int *threads, int64_t *tasks)


cdef extern from "fp_mode.h" nogil:
    uint64_t fp_mode_enter()
    void fp_mode_leave(uint64_t mode)
