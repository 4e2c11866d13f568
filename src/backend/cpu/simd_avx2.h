// backend/cpu/simd_avx2.h - the vector vocabulary of kernels_simd.h in AVX2, FMA and F16C.
#ifndef LOAM_BACKEND_CPU_SIMD_AVX2_H
#define LOAM_BACKEND_CPU_SIMD_AVX2_H
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { VF_N = 8, VF_REGISTERS = 16 };
typedef __m256 vf;

static inline vf vf_set(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }

// The first n lanes, n < VF_N; the others are 0.
static inline __m256i vf_mask(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_load_n(const float *p, size_t n) { return _mm256_maskload_ps(p, vf_mask(n)); }
static inline void vf_store_n(float *p, vf v, size_t n) { _mm256_maskstore_ps(p, vf_mask(n), v); }

static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }   // a b + c
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); } // c - a b
// If one is NaN, the second.
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf vf_copysign(vf magnitude, vf sign) {
    return _mm256_or_ps(vf_abs(magnitude), _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
static inline vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// a < b ? x : y; false with NaN.
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// x 2^n for whole n in [-252, 252], in two factors so that subnormal results round once.
static inline vf vf_scale2(vf x, vf n) {
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half);
    __m256i bias = _mm256_set1_epi32(127);
    vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, a), b);
}
static inline float vf_sum(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_top(vf v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_u8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
// VF_N pairs of bf16: the firsts and the seconds.
static inline void vf_load_bf16_pairs(const uint16_t *p, vf *first, vf *second) {
    __m256i raw = _mm256_loadu_si256((const __m256i *)p);
    *first = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
    *second = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xFFFF0000)));
}
// The low and high halves of VF_N bytes.
static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    __m256i raw = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    *low = _mm256_cvtepi32_ps(_mm256_and_si256(raw, _mm256_set1_epi32(15)));
    *high = _mm256_cvtepi32_ps(_mm256_srli_epi32(raw, 4));
}
// Pairs (x0, x1), (x2, x3) ... of 2 VF_N floats, taken apart and put together.
static inline void vf_load_pairs(const float *p, vf *first, vf *second) {
    vf a = vf_load(p), b = vf_load(p + VF_N);
    vf low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *first = _mm256_shuffle_ps(low, high, 0x88);
    *second = _mm256_shuffle_ps(low, high, 0xDD);
}
static inline void vf_store_pairs(float *p, vf first, vf second) {
    vf low = _mm256_unpacklo_ps(first, second), high = _mm256_unpackhi_ps(first, second);
    vf_store(p, _mm256_permute2f128_ps(low, high, 0x20));
    vf_store(p + VF_N, _mm256_permute2f128_ps(low, high, 0x31));
}
#endif
