/* vec_types.h: the types of registers, for an instruction set's file, which defines VEC_BYTES and
 * includes this one. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Under a sanitizer, fully inlined loops with their checks would take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* Compilers must be told which loops to unroll. EACH is for those over constants. */
#define UNROLLED   _Pragma("GCC unroll 8")
#define ROLLED     _Pragma("GCC unroll 1")
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* gcc clones a function for constant arguments, even if the function must not be inlined. */
#if defined(__clang__)
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noinline, noclone))
#endif

/* On machines without vectors clang cannot unroll some loops: they are slow there, not wrong. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

typedef float f32v __attribute__((vector_size(VEC_BYTES)));
typedef double f64v __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t u32v __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t u64v __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t u16h __attribute__((vector_size(VEC_BYTES / 2)));

/* The same, at any address in memory, and whatever type was written there. */
typedef f32v f32v_any __attribute__((aligned(1), may_alias));
typedef f64v f64v_any __attribute__((aligned(1), may_alias));
typedef u32v u32v_any __attribute__((aligned(1), may_alias));
typedef u16h u16h_any __attribute__((aligned(1), may_alias));

/* A lane of a comparison is all ones where the comparison holds, else all zeros. */
INLINE u32v select_u32(u32v where, u32v yes, u32v no) {
    return (where & yes) | (~where & no);
}
