/* vec_neon.h: NEON, which every 64-bit Arm has: 16 bytes. */
#pragma once

#include <arm_neon.h>

#define VEC_BYTES 16
#include "kernels/registers/vec_types.h"

INLINE bool f32_any_nan(f32v a, f32v b) {
    return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
}
INLINE bool f64_any_nan(f64v a, f64v b) {
    return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
}

INLINE f64v widen_low(f32v v) {
    return (f64v)vcvt_f64_f32(vget_low_f32((float32x4_t)v));
}
INLINE f64v widen_high(f32v v) {
    return (f64v)vcvt_high_f64_f32((float32x4_t)v);
}

#define OWN_F16
INLINE f32v widen_f16(u16h half) {
    return (f32v)vcvt_f32_f16((float16x4_t)half);
}
INLINE u16h narrow_f16(f32v v) {
    return (u16h)vcvt_f16_f32((float32x4_t)v);
}
#define OWN_JOIN_HALVES
INLINE u32v join_halves(u16h low, u16h high) {
    return (u32v)vcombine_u16((uint16x4_t)low, (uint16x4_t)high);
}
