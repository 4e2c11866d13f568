#include "backend/cpu/linear_x86.h"

// ---- Int products -------------------------------------------------------------------------------
// vpdpbusd adds four products of a code and an activation to each output's int32: exact, whatever the code.
enum { TILE_ROWS = 8 };

struct int_tile {
    const int8_t *q[TILE_ROWS];
    const float *scales[TILE_ROWS], *sums[TILE_ROWS];
    const int32_t *isums[TILE_ROWS];
    float *acc[TILE_ROWS];
};

// R rows by C panels.
ALWAYS void int_rows(const struct int_panels *p, uint32_t panel, const struct int_tile *t, const int R, const int C,
                     const bool has_bias) {
    uint32_t n_groups = p->n_k / p->group;
    size_t codes_stride = (size_t)p->n_k * PANEL_OUTS, scales_stride = (size_t)n_groups * PANEL_OUTS;
    const uint8_t *codes = p->codes + panel * codes_stride;
    const float *scales = p->scales + panel * scales_stride;
    const float *biases = has_bias ? p->biases + panel * scales_stride : NULL;
    for (uint32_t g = 0, k = 0; g < n_groups; g++, scales += PANEL_OUTS, biases += has_bias ? PANEL_OUTS : 0) {
        __m512i dot[TILE_ROWS][2];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++)
                dot[r][c] = _mm512_setzero_si512();
        for (uint32_t end = k + p->group; k < end; k += 4, codes += 64) {
            __m512i w[2];
            UNROLL for (int c = 0; c < C; c++)
                w[c] = _mm512_load_si512(codes + c * codes_stride);
            UNROLL for (int r = 0; r < R; r++) {
                int32_t four;
                memcpy(&four, t->q[r] + k, sizeof four);
                __m512i x = _mm512_set1_epi32(four);
                UNROLL for (int c = 0; c < C; c++)
                    dot[r][c] = _mm512_dpbusd_epi32(dot[r][c], w[c], x);
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            __m512 scale = _mm512_set1_ps(t->scales[r][g]), sum = _mm512_set1_ps(t->sums[r][g]);
            UNROLL for (int c = 0; c < C; c++) {
                if (!has_bias)
                    dot[r][c] = _mm512_sub_epi32(dot[r][c], _mm512_set1_epi32(p->code_zero * t->isums[r][g]));
                float *to = t->acc[r] + c * PANEL_OUTS;
                __m512 a = _mm512_loadu_ps(to);
                a = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_load_ps(scales + c * scales_stride)),
                                    _mm512_cvtepi32_ps(dot[r][c]), a);
                if (has_bias)
                    a = _mm512_fmadd_ps(_mm512_load_ps(biases + c * scales_stride), sum, a);
                _mm512_storeu_ps(to, a);
            }
        }
    }
}

ALWAYS void int_rows_n(const struct int_panels *p, uint32_t panel, const struct int_tile *t, uint32_t n, const int C,
                       const bool has_bias) {
    switch (n) {
    case 1:
        int_rows(p, panel, t, 1, C, has_bias);
        break;
    case 2:
        int_rows(p, panel, t, 2, C, has_bias);
        break;
    case 3:
        int_rows(p, panel, t, 3, C, has_bias);
        break;
    case 4:
        int_rows(p, panel, t, 4, C, has_bias);
        break;
    case 5:
        int_rows(p, panel, t, 5, C, has_bias);
        break;
    case 6:
        int_rows(p, panel, t, 6, C, has_bias);
        break;
    case 7:
        int_rows(p, panel, t, 7, C, has_bias);
        break;
    default:
        int_rows(p, panel, t, 8, C, has_bias);
        break;
    }
}

ALWAYS void int_panels_kind(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride,
                            const bool has_bias) {
    // The codes of two panels stay in the first-level cache while the rows stream by, which are fewer bytes.
    for (uint32_t panel = 0, c; panel < p->n_panels; panel += c) {
        c = p->n_panels - panel < 2 ? 1 : 2;
        for (uint32_t r = 0; r < x->n; r += TILE_ROWS) {
            struct int_tile t;
            uint32_t n = x->n - r < TILE_ROWS ? x->n - r : TILE_ROWS;
            for (uint32_t i = 0; i < n; i++) {
                size_t row = row_at(x->idx, r + i);
                t.q[i] = x->q + row * x->q_stride;
                t.scales[i] = x->scales + row * x->group_stride;
                t.sums[i] = x->sums + row * x->group_stride;
                t.isums[i] = x->isums + row * x->group_stride;
                t.acc[i] = acc + (r + i) * acc_stride + panel * PANEL_OUTS;
            }
            if (c == 2)
                int_rows_n(p, panel, &t, n, 2, has_bias);
            else
                int_rows_n(p, panel, &t, n, 1, has_bias);
        }
    }
}

void linear_int_panels_avx512(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride) {
    if (p->biases)
        int_panels_kind(p, x, acc, acc_stride, true);
    else
        int_panels_kind(p, x, acc, acc_stride, false);
}

// ---- Few rows -------------------------------------------------------------------------------------
// Sixteen bytes of each of sixteen rows: to[i] = their 32-bit piece i, row after row.
ALWAYS void transpose16(const uint8_t *const rows[16], size_t at, __m512i to[4]) {
    __m512i r[4];
    UNROLL for (int i = 0; i < 4; i++) {
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(rows[i + 4] + at)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(rows[i + 8] + at)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(rows[i + 12] + at)), 3);
    }
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    to[0] = _mm512_unpacklo_epi64(a, c);
    to[1] = _mm512_unpackhi_epi64(a, c);
    to[2] = _mm512_unpacklo_epi64(b, d);
    to[3] = _mm512_unpackhi_epi64(b, d);
}

// R rows, straight from the file's layout: codes are taken apart in registers, once for all rows. The same
// sums as a panel's.
ALWAYS void few_rows16(const struct weight *w, uint32_t out, const struct int_tile *x, const int R, const bool bytes,
                       const bool f4, const enum scale_kind kind) {
    enum { CHAINS_MAX = 2 };
    const int chains = R == 1 ? 2 : 1;
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i f4_codes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)F4_CODES));
    const uint8_t *rows[16], *scale_rows[16], *bias_rows[16];
    size_t scale_row_bytes = (size_t)w->n_groups * (kind <= SCALE_F16 ? 2 : 1);
    for (uint32_t half = 0; half < 16; half += 8) {
        rows_from(w, w->desc.data, w->row_bytes, out + half, rows + half);
        rows_from(w, w->desc.scales, scale_row_bytes, out + half, scale_rows + half);
        if (!f4)
            rows_from(w, w->desc.biases, scale_row_bytes, out + half, bias_rows + half);
    }
    const char *next = (const char *)w->desc.data + ((size_t)out + PANEL_OUTS) * w->row_bytes;
    size_t next_scales = ((size_t)out + PANEL_OUTS) * scale_row_bytes;
    uint32_t piece = bytes ? 16 : 32, pieces = w->group / piece, n_groups = w->n_groups, at = 0, k = 0;
    __m512 sum[TILE_ROWS];
    UNROLL for (int r = 0; r < R; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint32_t first = 0, n; first < n_groups; first += n) {
        _Alignas(64) float scales[8][16], biases[8][16];
        n = n_groups - first < 8 ? n_groups - first : 8;
        size_t scale_bytes = PANEL_OUTS * scale_row_bytes / n_groups * n;
        prefetch_lines((const char *)w->desc.scales + next_scales, scale_bytes);
        if (!f4)
            prefetch_lines((const char *)w->desc.biases + next_scales, scale_bytes);
        next_scales += scale_bytes;
        for (uint32_t half = 0; half < 16; half += 8) {
            scale_block(scale_rows + half, first, n, kind, scales[0] + half, 16);
            if (!f4)
                scale_block(bias_rows + half, first, n, kind, biases[0] + half, 16);
        }
        for (uint32_t i = 0; i < n; i++) {
            __m512i dot[TILE_ROWS][CHAINS_MAX];
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int c = 0; c < chains; c++)
                    dot[r][c] = _mm512_setzero_si512();
            for (uint32_t p = 0; p < pieces; p++, at += 16, k += piece) {
                if (at % 32 == 0)
                    next = prefetch_eight(next);
                __m512i words[4];
                transpose16(rows, at, words);
                UNROLL for (int j = 0; j < 4; j++) {
                    if (bytes) {
                        UNROLL for (int r = 0; r < R; r++) {
                            int32_t four;
                            memcpy(&four, x->q[r] + k + 4 * j, sizeof four);
                            int c = j % chains;
                            dot[r][c] = _mm512_dpbusd_epi32(dot[r][c], words[j], _mm512_set1_epi32(four));
                        }
                        continue;
                    }
                    __m512i even = _mm512_and_si512(words[j], low);
                    __m512i odd = _mm512_and_si512(_mm512_srli_epi16(words[j], 4), low);
                    if (f4) {
                        even = _mm512_shuffle_epi8(f4_codes, even);
                        odd = _mm512_shuffle_epi8(f4_codes, odd);
                    }
                    UNROLL for (int r = 0; r < R; r++) {
                        int32_t four[2];
                        memcpy(four, x->q[r] + k + 8 * j, sizeof four);
                        int c = 1 % chains;
                        dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], even, _mm512_set1_epi32(four[0]));
                        dot[r][c] = _mm512_dpbusd_epi32(dot[r][c], odd, _mm512_set1_epi32(four[1]));
                    }
                }
            }
            uint32_t g = first + i;
            UNROLL for (int r = 0; r < R; r++) {
                __m512i whole = chains == 2 ? _mm512_add_epi32(dot[r][0], dot[r][1]) : dot[r][0];
                if (f4)
                    whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(w->code_zero * x->isums[r][g]));
                __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x->scales[r][g]), _mm512_load_ps(scales[i]));
                sum[r] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(whole), sum[r]);
                if (!f4)
                    sum[r] = _mm512_fmadd_ps(_mm512_load_ps(biases[i]), _mm512_set1_ps(x->sums[r][g]), sum[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        _mm512_storeu_ps(x->acc[r], sum[r]);
}

// Five, say, go as six, the last one twice.
#define FEW_ROWS(name, bytes, f4, kind)                                                                  \
    static void name(const struct weight *w, uint32_t out, const struct int_tile *x, uint32_t n) {       \
        if (n == 1)                                                                                      \
            few_rows16(w, out, x, 1, bytes, f4, kind);                                                   \
        else if (n == 2)                                                                                 \
            few_rows16(w, out, x, 2, bytes, f4, kind);                                                   \
        else if (n <= 4)                                                                                 \
            few_rows16(w, out, x, 4, bytes, f4, kind);                                                   \
        else if (n <= 6)                                                                                 \
            few_rows16(w, out, x, 6, bytes, f4, kind);                                                   \
        else                                                                                             \
            few_rows16(w, out, x, 8, bytes, f4, kind);                                                   \
    }
FEW_ROWS(rows_4bit_bf16, false, false, SCALE_BF16)
FEW_ROWS(rows_4bit_f16, false, false, SCALE_F16)
FEW_ROWS(rows_8bit_bf16, true, false, SCALE_BF16)
FEW_ROWS(rows_8bit_f16, true, false, SCALE_F16)
FEW_ROWS(rows_mxfp4, false, true, SCALE_E8M0)

static bool int_few(const struct weight *w, uint32_t out, const struct int_rows *x, float *acc, size_t acc_stride) {
    struct int_tile t;
    for (uint32_t i = 0; i < (x->n <= 2 ? x->n : TILE_ROWS); i++) {
        uint32_t r = i < x->n ? i : x->n - 1;
        size_t row = row_at(x->idx, r);
        t.q[i] = x->q + row * x->q_stride;
        t.scales[i] = x->scales + row * x->group_stride;
        t.sums[i] = x->sums + row * x->group_stride;
        t.isums[i] = x->isums + row * x->group_stride;
        t.acc[i] = acc + r * acc_stride;
    }
    bool bf16 = w->desc.scale_dtype == DTYPE_BF16;
    if (w->desc.format == WEIGHT_MXFP4)
        rows_mxfp4(w, out, &t, x->n);
    else if (w->desc.format != WEIGHT_AFFINE || w->desc.scale_dtype == DTYPE_F32)
        return false;
    else if (w->bits == 4)
        (bf16 ? rows_4bit_bf16 : rows_4bit_f16)(w, out, &t, x->n);
    else if (w->bits == 8)
        (bf16 ? rows_8bit_bf16 : rows_8bit_f16)(w, out, &t, x->n);
    else
        return false;
    return true;
}

// ---- Float --------------------------------------------------------------------------------------
// R rows by O outputs; the 16 lanes are one register.
ALWAYS void float_tile(const float *const x[4], const float *w, size_t w_stride, uint32_t n_k, float *lanes,
                       size_t row_lanes, const int R, const int O) {
    __m512 acc[4][6];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int o = 0; o < O; o++)
            acc[r][o] = _mm512_loadu_ps(lanes + (size_t)r * row_lanes + o * FLOAT_LANES);
    for (uint32_t i = 0; i < n_k; i += 16) {
        __mmask16 mask = (__mmask16)(n_k - i >= 16 ? 0xFFFF : (1u << (n_k - i)) - 1);
        __m512 v[4];
        UNROLL for (int r = 0; r < R; r++)
            v[r] = _mm512_maskz_loadu_ps(mask, x[r] + i);
        UNROLL for (int o = 0; o < O; o++) {
            __m512 weights = _mm512_loadu_ps(w + o * w_stride + i);
            UNROLL for (int r = 0; r < R; r++)
                acc[r][o] = _mm512_fmadd_ps(v[r], weights, acc[r][o]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int o = 0; o < O; o++)
            _mm512_storeu_ps(lanes + (size_t)r * row_lanes + o * FLOAT_LANES, acc[r][o]);
}

static void float_block(const float *w, size_t w_stride, uint32_t n_outs, const struct float_rows *x,
                        uint32_t n_k, float *lanes) {
    size_t row_lanes = (size_t)n_outs * FLOAT_LANES;
    for (uint32_t r = 0; r < x->n; r += 4) {
        const float *rows[4];
        uint32_t n = x->n - r < 4 ? x->n - r : 4;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = x->x + row_at(x->idx, r + i) * x->stride;
        for (uint32_t o = 0, m; o < n_outs; o += m) {
            m = n_outs - o < 6 ? 1 : 6;
            float *to = lanes + r * row_lanes + o * FLOAT_LANES;
            const float *from = w + o * w_stride;
            if (m == 6 && n == 4)
                float_tile(rows, from, w_stride, n_k, to, row_lanes, 4, 6);
            else
                for (uint32_t i = 0; i < n; i++)
                    if (m == 6)
                        float_tile(rows + i, from, w_stride, n_k, to + i * row_lanes, row_lanes, 1, 6);
                    else
                        float_tile(rows + i, from, w_stride, n_k, to + i * row_lanes, row_lanes, 1, 1);
        }
    }
}

ALWAYS __m512 load_dense(enum weight_format format, const char *row, size_t i, __mmask16 mask) {
    if (format == WEIGHT_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)(const void *)row + i);
    __m256i h = _mm256_maskz_loadu_epi16(mask, row + 2 * i);
    return format == WEIGHT_F16 ? _mm512_cvtph_ps(h)
                                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

ALWAYS void dense_rows(enum weight_format format, const char *w, size_t stride, const float *x, uint32_t n,
                       float *out, const int O) {
    size_t bytes = format == WEIGHT_F32 ? 4 : 2;
    __m512 acc[8];
    UNROLL for (int o = 0; o < O; o++)
        acc[o] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = (__mmask16)(n - i >= 16 ? 0xFFFF : (1u << (n - i)) - 1);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        UNROLL for (int o = 0; o < O; o++) {
            const char *row = w + o * stride;
            _mm_prefetch(row + i * bytes + 1024, _MM_HINT_T0);
            acc[o] = _mm512_fmadd_ps(v, load_dense(format, row, i, mask), acc[o]);
        }
    }
    UNROLL for (int o = 0; o < O; o++) {
        __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(acc[o]), _mm512_extractf32x8_ps(acc[o], 1));
        __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
        s4 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
        out[o] = _mm_cvtss_f32(_mm_add_ss(s4, _mm_movehdup_ps(s4)));
    }
}

ALWAYS void dense_outs(enum weight_format format, const char *w, size_t stride, uint32_t n_outs, const float *x,
                       uint32_t n, float *out) {
    uint32_t o = 0;
    for (; o + 8 <= n_outs; o += 8)
        dense_rows(format, w + o * stride, stride, x, n, out + o, 8);
    for (; o < n_outs; o++)
        dense_rows(format, w + o * stride, stride, x, n, out + o, 1);
}

static void dense_dot(enum weight_format format, const void *w, size_t stride, uint32_t n_outs, const float *x,
                      uint32_t n, float *out) {
    if (format == WEIGHT_BF16)
        dense_outs(WEIGHT_BF16, w, stride, n_outs, x, n, out);
    else if (format == WEIGHT_F16)
        dense_outs(WEIGHT_F16, w, stride, n_outs, x, n, out);
    else
        dense_outs(WEIGHT_F32, w, stride, n_outs, x, n, out);
}

void linear_kernels_use_avx512(struct linear_kernels *kernels, const struct cpu_features *features) {
    (void)features;
    kernels->int_panels = linear_int_panels_avx512;
    kernels->int_few = int_few;
    kernels->few_rows = TILE_ROWS;
    kernels->many_rows = 2 * TILE_ROWS;
    kernels->float_block = float_block;
    kernels->dense_dot = dense_dot;
}
