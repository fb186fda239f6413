/* kernel.c: what program.py checks: an inference in float32, and a fault on a thread of its own,
 * which Python cannot turn into an error. */
#include <math.h>
#include <stddef.h>
#include <windows.h>

__declspec(dllexport) void inference(const float *src, const float *mean, const float *variance,
                                     const float *gamma, const float *beta, float *dst, size_t rows,
                                     size_t channels, double epsilon) {
    for (size_t i = 0; i < rows * channels; i++) {
        const size_t c = i % channels;
        dst[i] = (float)((src[i] - mean[c]) * (gamma[c] / sqrt(variance[c] + epsilon)) + beta[c]);
    }
}

static DWORD WINAPI write_to(void *place) {
    *(volatile float *)place = 1;
    return 0;
}

__declspec(dllexport) void crash(void) {
    WaitForSingleObject(CreateThread(NULL, 0, write_to, NULL, 0, NULL), INFINITE);
}
