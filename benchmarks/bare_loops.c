/* bare_loops.c: bare loops that bound what any gradient can reach on this memory.
 *
 * Compiled by benchmarks/bare_loops.py with this machine's compiler, for this machine. Each
 * loop moves bytes as a gradient must and computes nothing that costs time:
 *     two     reads diff_dst, writes diff_src               (frozen, diff_src alone)
 *     three   reads src and diff_dst, writes diff_src       (the floor)
 *     five    reads both, then reads both again and writes  (two passes without a cache)
 * Every thread takes one contiguous share. With `nontemporal`, stores bypass the cache.
 * And, to be compared with, the gradient itself without any art: `plain`.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef uint64_t v __attribute__((vector_size(64)));
typedef uint64_t v_any __attribute__((vector_size(64), aligned(1)));

static inline void store(v *to, v value, int nontemporal) {
#ifdef __AVX512F__
    if (nontemporal) {
        _mm512_stream_si512((void *)to, (__m512i)value);
        return;
    }
#elif defined(__AVX2__)
    if (nontemporal) {
        __m256i half[2];
        memcpy(half, &value, sizeof half);
        _mm256_stream_si256((__m256i *)to, half[0]);
        _mm256_stream_si256((__m256i *)to + 1, half[1]);
        return;
    }
#endif
    (void)nontemporal;
    *to = value;
}

static void fence(void) {
#ifdef __x86_64__
    _mm_sfence();
#endif
}

static volatile uint64_t sink;

static void take(v value) {
    if (value[0] == 0x123456789abcdefu)
        sink = value[1];
}

/* What is written is whole cache lines of diff_src; bytes before and behind them are left alone.
 * Moves all three there, and gives their number. */
static int64_t lines(const v_any **src, const v_any **diff_dst, v **diff_src, int64_t bytes) {
    const int64_t head = (int64_t)(-(uintptr_t)*diff_src & 63);
    *src = (const v_any *)((const char *)*src + head);
    *diff_dst = (const v_any *)((const char *)*diff_dst + head);
    *diff_src = (v *)((char *)*diff_src + head);
    return bytes > head ? (bytes - head) / 64 : 0;
}

void two(const v_any *src, const v_any *diff_dst, v *diff_src, int64_t bytes, int threads,
         int nontemporal) {
    const int64_t n = lines(&src, &diff_dst, &diff_src, bytes);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++)
            store(&diff_src[i], diff_dst[i] + 1, nontemporal);
        fence();
    }
}

void three(const v_any *src, const v_any *diff_dst, v *diff_src, int64_t bytes, int threads,
           int nontemporal) {
    const int64_t n = lines(&src, &diff_dst, &diff_src, bytes);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++)
            store(&diff_src[i], src[i] + diff_dst[i], nontemporal);
        fence();
    }
}

void five(const v_any *src, const v_any *diff_dst, v *diff_src, int64_t bytes, int threads,
          int nontemporal) {
    const int64_t n = lines(&src, &diff_dst, &diff_src, bytes);
#pragma omp parallel num_threads(threads)
    {
        v sums[4] = {{0}};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n / 4; i++)
            for (int k = 0; k < 4; k++)
                sums[k] += src[4 * i + k] ^ diff_dst[4 * i + k];
        take(sums[0] + sums[1] + sums[2] + sums[3]);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++)
            store(&diff_src[i], src[i] + diff_dst[i], nontemporal);
        fence();
    }
}

/* The gradient as a textbook has it: two loops in memory order, sums in doubles, one
 * thread. sums is working space of 2 * channels. */
void plain(const float *src, const float *diff_dst, float *diff_src, int64_t outer,
           int64_t channels, int64_t inner, const float *mean, const float *variance,
           const float *gamma, float *diff_gamma, float *diff_beta, float epsilon, double *sums) {
    const double m = (double)outer * (double)inner;
    memset(sums, 0, 2 * (size_t)channels * sizeof *sums);
    for (int64_t n = 0; n < outer; n++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t x = 0; x < inner; x++) {
                const int64_t i = (n * channels + c) * inner + x;
                sums[c] += diff_dst[i];
                sums[channels + c] += diff_dst[i] * (src[i] - mean[c]);
            }
    for (int64_t c = 0; c < channels; c++) {
        diff_beta[c] = (float)sums[c];
        diff_gamma[c] = (float)(sums[channels + c] / sqrt(variance[c] + epsilon));
    }
    for (int64_t n = 0; n < outer; n++)
        for (int64_t c = 0; c < channels; c++) {
            const float rstd = 1 / sqrtf(variance[c] + epsilon), scale = gamma[c] * rstd;
            const float shift = (float)(diff_beta[c] / m),
                        slope = (float)(rstd * diff_gamma[c] / m);
            for (int64_t x = 0; x < inner; x++) {
                const int64_t i = (n * channels + c) * inner + x;
                diff_src[i] = scale * (diff_dst[i] - (shift + (src[i] - mean[c]) * slope));
            }
        }
}
