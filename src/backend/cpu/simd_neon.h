// backend/cpu/simd_neon.h - the vector vocabulary of kernels_simd.h in arm64 Advanced SIMD.
#ifndef LOAM_BACKEND_CPU_SIMD_NEON_H
#define LOAM_BACKEND_CPU_SIMD_NEON_H
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { VF_N = 4, VF_REGISTERS = 32 };
typedef float32x4_t vf;

static inline vf vf_set(float x) { return vdupq_n_f32(x); }
static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }

// The first n lanes, n < VF_N; the others are 0.
static inline vf vf_load_n(const float *p, size_t n) {
    float lanes[VF_N] = {0};
    for (size_t i = 0; i < n; i++)
        lanes[i] = p[i];
    return vf_load(lanes);
}
static inline void vf_store_n(float *p, vf v, size_t n) {
    float lanes[VF_N];
    vf_store(lanes, v);
    for (size_t i = 0; i < n; i++)
        p[i] = lanes[i];
}

static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }  // a b + c
static inline vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); } // c - a b
// If one is NaN, the second, as on x86.
static inline vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf vf_abs(vf a) { return vabsq_f32(a); }
static inline vf vf_copysign(vf magnitude, vf sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000), sign, magnitude);
}
static inline vf vf_sqrt(vf a) { return vsqrtq_f32(a); }
static inline vf vf_round(vf a) { return vrndnq_f32(a); }
// a < b ? x : y; false with NaN.
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
// x 2^n for whole n in [-252, 252], in two factors so that subnormal results round once.
static inline vf vf_scale2(vf x, vf n) {
    int32x4_t i = vcvtq_s32_f32(n), half = vshrq_n_s32(i, 1), rest = vsubq_s32(i, half), bias = vdupq_n_s32(127);
    vf a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    vf b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(x, a), b);
}
static inline float vf_sum(vf v) {
    float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
}
static inline float vf_top(vf v) {
    float lanes[VF_N];
    vf_store(lanes, v);
    float a = lanes[0] > lanes[2] ? lanes[0] : lanes[2], b = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
    return a > b ? a : b;
}

static inline vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline uint32x4_t load_u8_(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
static inline vf vf_load_u8(const uint8_t *p) { return vcvtq_f32_u32(load_u8_(p)); }
static inline vf vf_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
// VF_N pairs of bf16: the firsts and the seconds.
static inline void vf_load_bf16_pairs(const uint16_t *p, vf *first, vf *second) {
    uint32x4_t raw = vreinterpretq_u32_u16(vld1q_u16(p));
    *first = vreinterpretq_f32_u32(vshlq_n_u32(raw, 16));
    *second = vreinterpretq_f32_u32(vandq_u32(raw, vdupq_n_u32(0xFFFF0000)));
}
// The low and high halves of VF_N bytes.
static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    uint32x4_t raw = load_u8_(p);
    *low = vcvtq_f32_u32(vandq_u32(raw, vdupq_n_u32(15)));
    *high = vcvtq_f32_u32(vshrq_n_u32(raw, 4));
}
// Pairs (x0, x1), (x2, x3) ... of 2 VF_N floats, taken apart and put together.
static inline void vf_load_pairs(const float *p, vf *first, vf *second) {
    float32x4x2_t pairs = vld2q_f32(p);
    *first = pairs.val[0];
    *second = pairs.val[1];
}
static inline void vf_store_pairs(float *p, vf first, vf second) {
    vst2q_f32(p, (float32x4x2_t){{first, second}});
}
#endif
