/* bn.h: the C interface of bn_ext.
 *
 * Batch-normalization backward over a tensor seen as (outer, channels, inner):
 * every element belongs to one channel, and a channel's M = outer * inner
 * elements share a mean, a variance and a gamma. With dy = diff_dst,
 * xc = src - mean and rstd = 1/sqrt(variance + epsilon):
 *
 *     diff_beta  = sum(dy)
 *     diff_gamma = rstd * sum(dy * xc)
 *     training   diff_src = gamma*rstd * (dy - (diff_beta/M + xc * rstd*diff_gamma/M))
 *     frozen     diff_src = gamma*rstd * dy
 *
 * The caller has checked everything: this side trusts shapes, strides and
 * pointers, and asks only that diff_src be src, or diff_dst, or share no byte
 * with either.
 */
#ifndef BN_H
#define BN_H

#include <stdbool.h>
#include <stdint.h>

/* Before anything else of ours fails for want of vector types or __builtin_convertvector. */
#if defined(__clang__)
#if __clang_major__ < 14
#error "bn_ext needs clang 14 or newer"
#endif
#elif defined(__GNUC__)
#if __GNUC__ < 11
#error "bn_ext needs gcc 11 or newer"
#endif
#else
#error "bn_ext needs gcc 11, clang 14, or newer; on Windows clang-cl"
#endif

#ifdef __FAST_MATH__
#error "bn_ext promises the same bits everywhere: -ffast-math breaks that"
#endif

typedef enum { BN_F32, BN_F64, BN_F16, BN_BF16, BN_DTYPES } bn_dtype;
typedef enum { BN_OK, BN_NO_MEMORY } bn_status;

/* ---- the problem ------------------------------------------------------- */

enum { BN_SRC, BN_DIFF_DST, BN_DIFF_SRC, BN_OPERANDS };
enum { BN_MAX_AXES = 64 };

/* One axis: its length and its step, in bytes, through each operand. */
typedef struct {
    int64_t size;
    int64_t stride[BN_OPERANDS];
} bn_axis;

/* A (C,) vector of any table dtype; data is NULL where the vector is absent. */
typedef struct {
    char *data;
    int64_t stride; /* bytes */
    bn_dtype dtype;
} bn_vector;

/* The axes before the channel (outer), the channel, the axes after it (inner),
 * slowest first, neighbours merged wherever all operands allow. The last axis
 * of all is contiguous in every operand. Without axes, outer or inner is 1. */
typedef struct {
    bn_dtype dtype;
    char *data[BN_OPERANDS];
    int n_outer, n_inner;
    bn_axis outer[BN_MAX_AXES], channel, inner[BN_MAX_AXES];

    bn_vector mean, variance, gamma; /* gamma absent: ones */
    bn_vector diff_gamma, diff_beta; /* absent: not wanted */
    double epsilon;
    bool training;
    int num_threads; /* 0: chosen from the machine and the size */
} bn_problem;

/* sums is (2, channels): sum(dy), then sum(dy * xc). bn_backward gives the same
 * bits as bn_backward_reduce followed by bn_backward_apply over the same arrays.
 * Nothing is written unless BN_OK is returned. */
bn_status bn_backward(const bn_problem *p);
bn_status bn_backward_reduce(const bn_problem *p, double *sums);
bn_status bn_backward_apply(const bn_problem *p, const double *sums, double count);

/* ---- kernels: one table per instruction-set level ---------------------- */

enum { BN_ROWS = 8, BN_STRETCH_BYTES = 128 };

/* Up to BN_ROWS rows of one run of columns, `pitch` bytes apart, and the same again
 * `repeats` times, each `step` bytes on. The cols elements of a row are contiguous. A
 * kernel touches no byte outside them. Only where diff_src is written: with `streaming`
 * it bypasses the cache where it fills registers; with `uniform` all columns are of one
 * channel, and coefficients are laid out for BN_STRETCH_BYTES of elements alone. */
typedef struct {
    char *data[BN_OPERANDS];
    int64_t pitch[BN_OPERANDS];
    int64_t step[BN_OPERANDS];
    int64_t repeats, cols;
    int rows;
    bool streaming, uniform;
} bn_block;

/* What a channel contributes to the formula, one value per column, in the arithmetic
 * type (double for BN_F64, float for the others): planes of `stride` numbers each. */
enum { BN_MEAN, BN_SHIFT, BN_SLOPE, BN_SCALE, BN_COEFS };

typedef struct {
    const void *column;
    int64_t stride;
} bn_coefs;

/* Running sums of every column, in planes of `stride` doubles each: sum(dy),
 * sum(dy * xc), and behind them what rounding took from each of the two
 * (BN_F64 alone; the other types sum floats in doubles and lose nothing that
 * matters). 16-bit types sum a few blocks in floats first, `running`, of the same two
 * sums. Kernels may add zeros to up to BN_PAD columns behind the last. */
enum { BN_SUM_DY, BN_SUM_DY_XC, BN_LOST_DY, BN_LOST_DY_XC, BN_PLANES };
enum { BN_PAD = 64 };

typedef struct {
    double *plane;
    int64_t stride;
    float *running;
} bn_sums;

typedef void bn_kernel(const bn_block *block, const bn_coefs *coefs, const bn_sums *sums);

typedef struct {
    bn_kernel *reduce; /* the sums */
    bn_kernel *apply;  /* training diff_src */
    bn_kernel *scale;  /* frozen diff_src */

    /* Move n columns of `running` into the doubles. */
    void (*fold)(const bn_sums *sums, int64_t n);

    /* Add n columns of sums to n others. */
    void (*add)(const bn_sums *to, const bn_sums *from, int64_t n);

    /* Sum n neighbouring columns to one, the first of `to`. */
    void (*total)(const bn_sums *sums, int64_t n, const bn_sums *to);

    /* Lay per-channel values out by columns: (all, channels, each). */
    void (*expand)(const void *channel, int64_t all, int64_t channels, int64_t each, void *column);
} bn_dtype_kernels;

typedef struct {
    const char *name;
    bn_dtype_kernels dtype[BN_DTYPES];
} bn_kernels;

/* ---- dispatch ---------------------------------------------------------- */

int bn_isa_count(void);             /* levels this CPU can run, worst first */
const char *bn_isa_name(int level); /* 0 <= level < bn_isa_count() */
int bn_isa_current(void);
void bn_isa_use(int level);
const bn_kernels *bn_kernels_of(int level);
const bn_kernels *bn_kernels_current(void);

/* ---- process-wide state ------------------------------------------------ */

void bn_set_cpu_quota(int threads); /* a container's limit; 0: none */
int bn_default_threads(void);       /* what num_threads = 0 may use at most, now */
void bn_cache_sizes(int64_t *l2, int64_t *last_level);   /* bytes, as asked from the system */
void bn_set_cache_sizes(int64_t l2, int64_t last_level); /* 0: ask again */
bool bn_has_openmp(void);
uintptr_t bn_openmp_address(void); /* of a function of the runtime that serves us; 0: none */
bool bn_forked(void);
void bn_last_call(int *threads, int64_t *tasks); /* of this thread's last call */

#endif
