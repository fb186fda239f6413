/* bare_loops.c: a bare loop that bounds what any operation can reach on this memory.
 *
 * Compiled by benchmarks/compiled.py for this machine. The loop moves bytes as an operation must
 * and computes nothing that costs time. In one pass it reads some tensors and writes others (the
 * floor). With two passes, it first reads the former once more, as an operation that sums before it
 * writes must if no cache helps. Every thread takes one contiguous share. With `nontemporal`,
 * stores bypass the cache.
 */
#include <stdint.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

/* One register: gcc moves wider vectors through memory, at several times the loop's cost. */
#ifdef __AVX512F__
enum { BYTES = 64 };
#elif defined(__AVX2__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
typedef uint64_t v __attribute__((vector_size(BYTES)));
typedef uint64_t v_any __attribute__((vector_size(BYTES), aligned(1)));

static inline void store(v *to, v value, int nontemporal) {
#ifdef __AVX512F__
    if (nontemporal) {
        _mm512_stream_si512((void *)to, (__m512i)value);
        return;
    }
#elif defined(__AVX2__)
    if (nontemporal) {
        _mm256_stream_si256((void *)to, (__m256i)value);
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

enum { MOST_READ = 3, MOST_WRITTEN = 2 };

static inline __attribute__((always_inline)) void move(const v_any **from, int reads, v **to,
                                                       int writes, int64_t n, int passes,
                                                       int threads, int nontemporal) {
#pragma omp parallel num_threads(threads)
    {
        v sums[4] = {{0}};
        for (int pass = 1; pass < passes; pass++) {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < n / 4; i++)
                for (int k = 0; k < 4; k++)
#pragma GCC unroll 4
                    for (int r = 0; r < reads; r++)
                        sums[k] ^= from[r][4 * i + k];
        }
        take(sums[0] + sums[1] + sums[2] + sums[3]);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) {
            v value = from[0][i];
#pragma GCC unroll 4
            for (int r = 1; r < reads; r++)
                value += from[r][i];
#pragma GCC unroll 4
            for (int w = 0; w < writes; w++)
                store(&to[w][i], value + (uint64_t)w + 1, nontemporal);
        }
        fence();
    }
}

static int64_t to_next_line(const void *p) {
    return (int64_t)(-(uintptr_t)p & 63);
}

/* Only whole cache lines are written, from the first one in each result on; bytes before and after
 * them are left alone. */
void loop(const char **read, int reads, char **written, int writes, int64_t bytes, int passes,
          int threads, int nontemporal) {
    const int64_t head = to_next_line(written[0]);
    int64_t most = head;
    const v_any *from[MOST_READ];
    v *to[MOST_WRITTEN];
    for (int r = 0; r < reads; r++)
        from[r] = (const v_any *)(read[r] + head);
    for (int w = 0; w < writes; w++) {
        const int64_t own = to_next_line(written[w]);
        to[w] = (v *)(written[w] + own);
        most = own > most ? own : most;
    }
    const int64_t n = bytes > most ? (bytes - most) / 64 * 64 / BYTES : 0;
    if (reads == 1)
        move(from, 1, to, 1, n, passes, threads, nontemporal);
    else if (reads == 2)
        move(from, 2, to, 1, n, passes, threads, nontemporal);
    else
        move(from, 3, to, 2, n, passes, threads, nontemporal);
}
