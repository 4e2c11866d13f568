// backend/cpu/linear_x86.h - what the x86-64 levels of the matrix products share. Included by files that are
// compiled for AVX2 or more.
#ifndef LOAM_BACKEND_CPU_LINEAR_X86_H
#define LOAM_BACKEND_CPU_LINEAR_X86_H
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/linear_kernels.h"

// int_panels of the AVX-512 level.
void linear_int_panels_avx512(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride);

#define ALWAYS static inline __attribute__((always_inline))

// The places of eight rows from `out` on in an array of row_bytes a row; behind the last row the last.
ALWAYS void rows_from(const struct weight *w, const void *data, size_t row_bytes, uint32_t out,
                      const uint8_t *rows[8]) {
    for (uint32_t r = 0; r < 8; r++) {
        uint32_t row = out + r < w->desc.n_out ? out + r : w->desc.n_out - 1;
        rows[r] = (const uint8_t *)data + row * row_bytes;
    }
}

// Every 64 bytes of eight rows: ask for as many of what comes next, in the order of its addresses, which
// the processor's own prefetcher then follows. (Asking for each row's next line instead reached 60% of the
// read rate where this reaches 85%.)
ALWAYS const char *prefetch_eight(const char *next) {
    UNROLL for (int i = 0; i < 8; i++)
        _mm_prefetch(next + 64 * i, _MM_HINT_T1);
    return next + 512;
}

// What follows a panel's codes, scales or biases in the file, fetched in the order of its addresses.
ALWAYS void prefetch_lines(const char *at, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch(at + i, _MM_HINT_T0);
}

// The first n <= 8 of eight 16-bit or 8-bit scales: what lies behind them may not be read.
ALWAYS __m128i load_scales(const uint8_t *at, uint32_t n, uint32_t bytes) {
    if (n == 8)
        return bytes == 2 ? _mm_loadu_si128((const __m128i *)at) : _mm_loadl_epi64((const __m128i *)at);
    uint8_t last[16] = {0};
    memcpy(last, at, (size_t)n * bytes);
    return _mm_loadu_si128((const __m128i *)last);
}

// to[i] = lane i of each of eight rows.
ALWAYS void transpose_halves(const __m128i r[8], __m128i to[8]) {
    __m128i a[8], b[8];
    UNROLL for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        to[2 * i] = _mm_unpacklo_epi64(b[i], b[i + 4]);
        to[2 * i + 1] = _mm_unpackhi_epi64(b[i], b[i + 4]);
    }
}

enum scale_kind { SCALE_BF16, SCALE_F16, SCALE_E8M0, SCALE_E4M3 };

// Eight E4M3 values. A multiplication by 2^120 would do for both kinds, but subnormals are slow to multiply.
ALWAYS __m256 f8_to_f32(__m256i code) {
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
    __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(0x3C000000));
    __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
    __m256 is_normal = _mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(7)));
    __m256 value = _mm256_blendv_ps(subnormal, _mm256_castsi256_ps(normal), is_normal);
    value = _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(code, 7), 31)));
    __m256 is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F)));
    return _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), is_nan);
}

// Eight scales, widened to 16 bits, as float32; those of 4-bit floats halved, whose codes are doubled.
ALWAYS __m256 scales_to_f32(__m128i v, enum scale_kind kind) {
    if (kind == SCALE_F16)
        return _mm256_cvtph_ps(v);
    __m256i wide = _mm256_cvtepu16_epi32(v);
    if (kind == SCALE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    __m256 nan = _mm256_set1_ps(__builtin_nanf(""));
    if (kind == SCALE_E8M0) { // 0 is 2^-127, a subnormal
        __m256i bits = _mm256_slli_epi32(wide, 23);
        bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x00400000),
                                  _mm256_cmpeq_epi32(wide, _mm256_setzero_si256()));
        __m256 is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(wide, _mm256_set1_epi32(255)));
        return _mm256_blendv_ps(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f)), nan, is_nan);
    }
    return _mm256_mul_ps(f8_to_f32(wide), _mm256_set1_ps(0.5f));
}

// Scales [group, group + n), n <= 8, of eight rows: to[i * stride + row].
ALWAYS void scale_block(const uint8_t *const rows[8], uint32_t group, uint32_t n, enum scale_kind kind, float *to,
                        size_t stride) {
    uint32_t bytes = kind <= SCALE_F16 ? 2 : 1;
    __m128i r[8], columns[8];
    UNROLL for (int i = 0; i < 8; i++) {
        r[i] = load_scales(rows[i] + (size_t)group * bytes, n, bytes);
        if (bytes == 1)
            r[i] = _mm_cvtepu8_epi16(r[i]);
    }
    transpose_halves(r, columns);
    for (uint32_t i = 0; i < 8; i++)
        if (n == 8 || i < n)
            _mm256_storeu_ps(to + i * stride, scales_to_f32(columns[i], kind));
}
#endif
