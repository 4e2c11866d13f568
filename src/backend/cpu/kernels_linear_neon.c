#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/linear_kernels.h"
#include "base/half.h"

#define ALWAYS static inline __attribute__((always_inline))
#if defined(__clang__)
#define WITH_DOT __attribute__((target("dotprod")))
#else
#define WITH_DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

static float32x4_t f32x4(const float *p) { return vld1q_f32(p); }

// ---- Rounding -----------------------------------------------------------------------------------
static void quantize(const float *x, uint32_t n, uint32_t group, bool nibbles, int8_t *q, float *scales,
                     float *sums, int32_t *isums) {
    static const uint8_t NIBBLE_ORDER[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    const uint8x16_t order = vld1q_u8(NIBBLE_ORDER);
    for (uint32_t g = 0; g < n / group; g++, x += group, q += group) {
        uint32x4_t top = vdupq_n_u32(0);
        for (uint32_t i = 0; i < group; i += 4)
            top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(f32x4(x + i))));
        float absmax = f32_from_bits(vmaxvq_u32(top));
        bool zero = absmax < 0x1p-100f;
        float32x4_t to_int = vdupq_n_f32(zero ? 0.0f : 127.0f / absmax);
        int32x4_t sum4 = vdupq_n_s32(0);
        for (uint32_t i = 0; i < group; i += 16) {
            int32x4_t v[4];
            UNROLL for (int j = 0; j < 4; j++) { // a NaN gives -127
                v[j] = vcvtnq_s32_f32(vmaxnmq_f32(vmulq_f32(f32x4(x + i + 4 * j), to_int), vdupq_n_f32(-127.0f)));
                sum4 = vaddq_s32(sum4, v[j]);
            }
            int8x16_t bytes = vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]))),
                                          vmovn_s16(vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]))));
            vst1q_s8(q + i, nibbles ? vqtbl1q_s8(bytes, order) : bytes);
        }
        int32_t sum = vaddvq_s32(sum4);
        scales[g] = zero ? 0.0f : absmax * (1.0f / 127.0f);
        sums[g] = scales[g] * (float)sum;
        isums[g] = sum;
    }
}

// ---- Panels -------------------------------------------------------------------------------------
// Sixteen bytes of each of four rows: to[i] = their 32-bit piece i, row after row.
ALWAYS void transpose(const uint8_t *const rows[4], size_t at, uint8x16_t to[4]) {
    uint32x4_t r[4];
    UNROLL for (int i = 0; i < 4; i++)
        r[i] = vreinterpretq_u32_u8(vld1q_u8(rows[i] + at));
    uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(r[0], r[1])), b = vreinterpretq_u64_u32(vtrn2q_u32(r[0], r[1]));
    uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(r[2], r[3])), d = vreinterpretq_u64_u32(vtrn2q_u32(r[2], r[3]));
    to[0] = vreinterpretq_u8_u64(vtrn1q_u64(a, c));
    to[1] = vreinterpretq_u8_u64(vtrn1q_u64(b, d));
    to[2] = vreinterpretq_u8_u64(vtrn2q_u64(a, c));
    to[3] = vreinterpretq_u8_u64(vtrn2q_u64(b, d));
}

static void pack_codes(const struct weight *w, uint32_t out, uint32_t k, uint32_t n_k, const void *following,
                       uint8_t *codes) {
    if (w->nibbles && n_k % 32 != 0) { // NVFP4's odd number of groups
        linear_pack_codes_ref(w, out, k, n_k, following, codes);
        return;
    }
    const char *next = following;
    const uint8x16_t low = vdupq_n_u8(15), f4_codes = vld1q_u8(F4_CODES);
    for (uint32_t quarter = 0; quarter < 4; quarter++, codes += 16) {
        uint8_t plain[4][PANEL_K];
        const uint8_t *rows[4];
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t row = out + quarter * 4 + r;
            row = row < w->desc.n_out ? row : w->desc.n_out - 1;
            rows[r] = (const uint8_t *)w->desc.data + row * w->row_bytes + (size_t)k * w->bits / 8;
            if (w->bits != 8 && !w->nibbles) {
                linear_unpack_ref(w, row, k, n_k, plain[r]);
                rows[r] = plain[r];
            }
        }
        uint8x16_t words[4];
        if (w->nibbles) {
            for (uint32_t at = 0; at < n_k / 2; at += 16, next += 64) {
                __builtin_prefetch(next);
                transpose(rows, at, words);
                for (uint32_t i = 0; i < 4; i++) {
                    uint8x16_t even = vandq_u8(words[i], low), odd = vshrq_n_u8(words[i], 4);
                    if (w->code_zero) {
                        even = vqtbl1q_u8(f4_codes, even);
                        odd = vqtbl1q_u8(f4_codes, odd);
                    }
                    vst1q_u8(codes + (size_t)at * 32 + 128 * i, even);
                    vst1q_u8(codes + (size_t)at * 32 + 128 * i + 64, odd);
                }
            }
        } else {
            for (uint32_t at = 0; at < n_k; at += 16, next += 8 * w->bits) {
                __builtin_prefetch(next);
                transpose(rows, at, words);
                for (uint32_t i = 0; i < 4; i++)
                    vst1q_u8(codes + (size_t)at * 16 + 64 * i, words[i]);
            }
        }
    }
}

// ---- Int products -------------------------------------------------------------------------------
// R rows by the 16 outputs of a panel, 16 elements at a time: with sdot, or with widening products of pairs.
// Codes are taken as signed; 8-bit ones become q - 128, and 128 * sum(x_q) is added.
struct int_tile {
    const int8_t *q[4];
    const float *scales[4], *sums[4];
    const int32_t *isums[4];
    float *acc[4];
};

#define DOT_LANE(lane)                                                                                   \
    UNROLL for (int o = 0; o < 4; o++) {                                                                        \
        int8x16_t w = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(codes + 64 * (lane) + 16 * o), sign));       \
        UNROLL for (int r = 0; r < R; r++)                                                                      \
            dot[r][o] = vdotq_laneq_s32(dot[r][o], w, x[r], lane);                                       \
    }

// acc[r] += of one group, from its dot products.
ALWAYS void add_group(const struct int_panels *p, const struct int_tile *t, int r, uint32_t g, int32x4_t dot[4],
                      const float *scales, const float *biases) {
    int32_t zero = (p->code_max > 127 ? -128 : p->code_zero) * t->isums[r][g];
    float32x4_t scale = vdupq_n_f32(t->scales[r][g]), sum = vdupq_n_f32(t->sums[r][g]);
    UNROLL for (int o = 0; o < 4; o++) {
        float32x4_t a = f32x4(t->acc[r] + 4 * o);
        a = vfmaq_f32(a, vmulq_f32(scale, f32x4(scales + 4 * o)), vcvtq_f32_s32(vsubq_s32(dot[o], vdupq_n_s32(zero))));
        if (biases)
            a = vfmaq_f32(a, f32x4(biases + 4 * o), sum);
        vst1q_f32(t->acc[r] + 4 * o, a);
    }
}

WITH_DOT static inline void rows_dot(const struct int_panels *p, const uint8_t *codes, const float *scales,
                                     const float *biases, const struct int_tile *t, const int R) {
    const uint8x16_t sign = vdupq_n_u8(p->code_max > 127 ? 0x80 : 0);
    uint32_t k = 0;
    for (uint32_t g = 0; g < p->n_k / p->group; g++) {
        int32x4_t dot[4][4];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int o = 0; o < 4; o++)
                dot[r][o] = vdupq_n_s32(0);
        for (uint32_t end = k + p->group; k < end; k += 16, codes += 256) {
            int8x16_t x[4];
            UNROLL for (int r = 0; r < R; r++)
                x[r] = vld1q_s8(t->q[r] + k);
            DOT_LANE(0)
            DOT_LANE(1)
            DOT_LANE(2)
            DOT_LANE(3)
        }
        UNROLL for (int r = 0; r < R; r++)
            add_group(p, t, r, g, dot[r], scales + g * PANEL_OUTS, biases ? biases + g * PANEL_OUTS : NULL);
    }
}

WITH_DOT static void tile_dot(const struct int_panels *p, const uint8_t *codes, const float *scales,
                              const float *biases, const struct int_tile *t, uint32_t n) {
    if (n == 4)
        rows_dot(p, codes, scales, biases, t, 4);
    else if (n == 3)
        rows_dot(p, codes, scales, biases, t, 3);
    else if (n == 2)
        rows_dot(p, codes, scales, biases, t, 2);
    else
        rows_dot(p, codes, scales, biases, t, 1);
}

static void tile_plain(const struct int_panels *p, const uint8_t *codes, const float *scales, const float *biases,
                       const struct int_tile *t, uint32_t n) {
    const uint8x16_t sign = vdupq_n_u8(p->code_max > 127 ? 0x80 : 0);
    for (uint32_t r = 0; r < n; r++) {
        const uint8_t *from = codes;
        uint32_t k = 0;
        for (uint32_t g = 0; g < p->n_k / p->group; g++) {
            int32x4_t dot[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
            for (uint32_t end = k + p->group; k < end; k += 4, from += 64) {
                int32_t four;
                memcpy(&four, t->q[r] + k, sizeof four);
                int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
                UNROLL for (int o = 0; o < 4; o++) {
                    int8x16_t w = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + 16 * o), sign));
                    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
                    int32x4_t high = vpaddlq_s16(vmull_high_s8(w, x));
                    dot[o] = vaddq_s32(dot[o], vpaddq_s32(low, high));
                }
            }
            add_group(p, t, (int)r, g, dot, scales + g * PANEL_OUTS, biases ? biases + g * PANEL_OUTS : NULL);
        }
    }
}

typedef void tile_fn(const struct int_panels *p, const uint8_t *codes, const float *scales, const float *biases,
                     const struct int_tile *t, uint32_t n);

ALWAYS void panels_by(tile_fn *tile, const struct int_panels *p, const struct int_rows *x, float *acc,
                      size_t acc_stride) {
    uint32_t n_groups = p->n_k / p->group;
    for (uint32_t i = 0; i < p->n_panels; i++) {
        size_t at = (size_t)i * n_groups * PANEL_OUTS;
        for (uint32_t r = 0; r < x->n; r += 4) {
            struct int_tile t;
            uint32_t n = x->n - r < 4 ? x->n - r : 4;
            for (uint32_t j = 0; j < n; j++) {
                size_t row = row_at(x->idx, r + j);
                t.q[j] = x->q + row * x->q_stride;
                t.scales[j] = x->scales + row * x->group_stride;
                t.sums[j] = x->sums + row * x->group_stride;
                t.isums[j] = x->isums + row * x->group_stride;
                t.acc[j] = acc + (r + j) * acc_stride + i * PANEL_OUTS;
            }
            tile(p, p->codes + (size_t)i * p->n_k * PANEL_OUTS, p->scales + at, p->biases ? p->biases + at : NULL, &t,
                 n);
        }
    }
}

static void int_panels_dot(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride) {
    panels_by(tile_dot, p, x, acc, acc_stride);
}

static void int_panels_plain(const struct int_panels *p, const struct int_rows *x, float *acc, size_t acc_stride) {
    panels_by(tile_plain, p, x, acc, acc_stride);
}

// ---- Float --------------------------------------------------------------------------------------
// R rows by O outputs, the quarter of the lanes that begins at `quarter`, so that 4 by 4 sums fit.
ALWAYS void float_tile(const float *const x[4], const float *w, size_t w_stride, uint32_t n_k, uint32_t quarter,
                       float *lanes, size_t row_lanes, const int R, const int O) {
    float32x4_t acc[4][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int o = 0; o < O; o++)
            acc[r][o] = f32x4(lanes + (size_t)r * row_lanes + o * FLOAT_LANES + quarter);
    uint32_t i = quarter;
    for (; i + 4 <= n_k; i += 16) {
        float32x4_t weights[4];
        UNROLL for (int o = 0; o < O; o++)
            weights[o] = f32x4(w + o * w_stride + i);
        UNROLL for (int r = 0; r < R; r++) {
            float32x4_t v = f32x4(x[r] + i);
            UNROLL for (int o = 0; o < O; o++)
                acc[r][o] = vfmaq_f32(acc[r][o], v, weights[o]);
        }
    }
    if (i - quarter < n_k) { // padded, also where nothing but padding is left for this quarter
        UNROLL for (int r = 0; r < R; r++) {
            float last[4] = {0};
            if (i < n_k)
                memcpy(last, x[r] + i, (n_k - i) * sizeof *last);
            UNROLL for (int o = 0; o < O; o++)
                acc[r][o] = vfmaq_f32(acc[r][o], f32x4(last), f32x4(w + o * w_stride + i));
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int o = 0; o < O; o++)
            vst1q_f32(lanes + (size_t)r * row_lanes + o * FLOAT_LANES + quarter, acc[r][o]);
}

static void float_block(const float *w, size_t w_stride, uint32_t n_outs, const struct float_rows *x, uint32_t n_k,
                        float *lanes) {
    size_t row_lanes = (size_t)n_outs * FLOAT_LANES;
    for (uint32_t r = 0; r < x->n; r += 4) {
        const float *rows[4];
        uint32_t n = x->n - r < 4 ? x->n - r : 4;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = x->x + row_at(x->idx, r + i) * x->stride;
        for (uint32_t o = 0; o < n_outs; o += 4) {
            uint32_t m = n_outs - o < 4 ? n_outs - o : 4;
            float *to = lanes + r * row_lanes + o * FLOAT_LANES;
            const float *from = w + o * w_stride;
            for (uint32_t quarter = 0; quarter < 16; quarter += 4) {
                if (n == 4 && m == 4)
                    float_tile(rows, from, w_stride, n_k, quarter, to, row_lanes, 4, 4);
                else
                    for (uint32_t i = 0; i < n; i++)
                        for (uint32_t j = 0; j < m; j++)
                            float_tile(rows + i, from + j * w_stride, w_stride, n_k, quarter,
                                       to + i * row_lanes + j * FLOAT_LANES, row_lanes, 1, 1);
            }
        }
    }
}

ALWAYS float32x4_t load_dense(enum weight_format format, const char *row, size_t i) {
    if (format == WEIGHT_F32)
        return f32x4((const float *)(const void *)row + i);
    uint16x4_t h = vld1_u16((const uint16_t *)(const void *)row + i);
    return format == WEIGHT_F16 ? vcvt_f32_f16(vreinterpret_f16_u16(h)) : vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

ALWAYS void dense_rows(enum weight_format format, const char *w, size_t stride, const float *x, uint32_t n,
                       float *out, const int O) {
    size_t bytes = format == WEIGHT_F32 ? 4 : 2;
    float32x4_t acc[4][4];
    UNROLL for (int o = 0; o < O; o++)
        UNROLL for (int j = 0; j < 4; j++)
            acc[o][j] = vdupq_n_f32(0);
    for (uint32_t i = 0; i < n; i += 16) {
        float x_last[16] = {0};
        const float *v = x + i;
        if (n - i < 16)
            v = memcpy(x_last, v, (n - i) * sizeof *v);
        UNROLL for (int o = 0; o < O; o++) {
            char last[64] = {0};
            const char *row = w + o * stride + i * bytes;
            if (n - i < 16)
                row = memcpy(last, row, (n - i) * bytes);
            UNROLL for (int j = 0; j < 4; j++)
                acc[o][j] = vfmaq_f32(acc[o][j], f32x4(v + 4 * j), load_dense(format, row, 4 * (size_t)j));
        }
    }
    UNROLL for (int o = 0; o < O; o++) {
        float32x4_t s = vaddq_f32(vaddq_f32(acc[o][0], acc[o][2]), vaddq_f32(acc[o][1], acc[o][3]));
        out[o] = (vgetq_lane_f32(s, 0) + vgetq_lane_f32(s, 2)) + (vgetq_lane_f32(s, 1) + vgetq_lane_f32(s, 3));
    }
}

ALWAYS void dense_outs(enum weight_format format, const char *w, size_t stride, uint32_t n_outs, const float *x,
                       uint32_t n, float *out) {
    uint32_t o = 0;
    for (; o + 4 <= n_outs; o += 4)
        dense_rows(format, w + o * stride, stride, x, n, out + o, 4);
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

void linear_kernels_use_neon(struct linear_kernels *kernels, const struct cpu_features *features) {
    kernels->quantize = quantize;
    kernels->pack_codes = pack_codes;
    kernels->int_panels = features->arm_dot ? int_panels_dot : int_panels_plain;
    kernels->float_block = float_block;
    kernels->dense_dot = dense_dot;
}
