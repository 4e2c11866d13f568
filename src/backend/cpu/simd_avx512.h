// backend/cpu/simd_avx512.h - the vector vocabulary of kernels_simd.h in AVX-512 (F, BW, DQ, VL).
#ifndef LOAM_BACKEND_CPU_SIMD_AVX512_H
#define LOAM_BACKEND_CPU_SIMD_AVX512_H
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { VF_N = 16, VF_REGISTERS = 32 };
typedef __m512 vf;

static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }

// The first n lanes, n < VF_N; the others are 0.
static inline __mmask16 vf_mask(size_t n) { return (__mmask16)((1u << n) - 1); }
static inline vf vf_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(vf_mask(n), p); }
static inline void vf_store_n(float *p, vf v, size_t n) { _mm512_mask_storeu_ps(p, vf_mask(n), v); }

static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   // a b + c
static inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } // c - a b
// If one is NaN, the second.
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
static inline vf vf_copysign(vf magnitude, vf sign) {
    return _mm512_or_ps(vf_abs(magnitude), _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}
static inline vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf vf_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a < b ? x : y; false with NaN.
static inline vf vf_select_lt(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// x 2^n for whole n.
static inline vf vf_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
// Halves onto halves, as AVX2 does with its eight lanes.
static inline float vf_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_top(vf v) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
// VF_N pairs of bf16: the firsts and the seconds.
static inline void vf_load_bf16_pairs(const uint16_t *p, vf *first, vf *second) {
    __m512i raw = _mm512_loadu_si512(p);
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
    *second = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xFFFF0000)));
}
// The low and high halves of VF_N bytes.
static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    __m512i raw = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    *low = _mm512_cvtepi32_ps(_mm512_and_si512(raw, _mm512_set1_epi32(15)));
    *high = _mm512_cvtepi32_ps(_mm512_srli_epi32(raw, 4));
}
// Pairs (x0, x1), (x2, x3) ... of 2 VF_N floats, taken apart and put together.
static inline void vf_load_pairs(const float *p, vf *first, vf *second) {
    const __m512i EVEN = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vf a = vf_load(p), b = vf_load(p + VF_N);
    *first = _mm512_permutex2var_ps(a, EVEN, b);
    *second = _mm512_permutex2var_ps(a, _mm512_add_epi32(EVEN, _mm512_set1_epi32(1)), b);
}
static inline void vf_store_pairs(float *p, vf first, vf second) {
    const __m512i LOW = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    vf_store(p, _mm512_permutex2var_ps(first, LOW, second));
    vf_store(p + VF_N, _mm512_permutex2var_ps(first, _mm512_add_epi32(LOW, _mm512_set1_epi32(8)), second));
}
#endif
