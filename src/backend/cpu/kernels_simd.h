// backend/cpu/kernels_simd.h - the kernels in the vector vocabulary of simd_<level>.h, which the
// including file has chosen. Included once, by each kernels_<level>.c.
//
// Rule 2 in vectors: a tail is loaded into whole vectors and goes through the same instructions, so an
// element's bits do not depend on which lane it lies in; a sum across elements has one order, given by
// their positions.
#ifndef LOAM_BACKEND_CPU_KERNELS_SIMD_H
#define LOAM_BACKEND_CPU_KERNELS_SIMD_H
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/half.h"

#define INLINE static inline __attribute__((always_inline))

enum { KEYS = KV_PAGE_TOKENS };

// ---- Functions ------------------------------------------------------------------------------------
// e^r - 1 - r = r^2 P(r) for |r| <= ln(2)/2: P by Remez exchange, relative error of e^r below 3.1e-9.
INLINE vf exp_rest(vf r) {
    vf p = vf_set(1.38145371e-3f);
    p = vf_fma(p, r, vf_set(8.36874545e-3f));
    p = vf_fma(p, r, vf_set(4.1668389e-2f));
    p = vf_fma(p, r, vf_set(1.66665211e-1f));
    return vf_fma(p, r, vf_set(4.9999994e-1f));
}

// x = n ln 2 + r; ln 2 in two parts, the first with few bits so that n * part is exact.
INLINE vf exp_reduce(vf x, vf *n) {
    *n = vf_round(x * vf_set(1.44269504f));
    vf r = vf_fnma(*n, vf_set(0.693145751953125f), x);
    return vf_fnma(*n, vf_set(1.42860682030941723e-6f), r);
}

// Within 1 ulp; below -104 it is 0, above 88.73 infinity; exp(0) = 1 exactly.
INLINE vf vf_exp(vf x) {
    x = vf_max(vf_set(-104.0f), x);
    x = vf_min(vf_set(89.0f), x);
    vf n, r = exp_reduce(x, &n);
    vf e = vf_fma(r * r, exp_rest(r), r) + vf_set(1.0f);
    return vf_scale2(e, n);
}

// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), without cancellation near 0.
INLINE vf vf_expm1(vf x) {
    x = vf_max(vf_set(-104.0f), x);
    x = vf_min(vf_set(88.0f), x);
    vf n, r = exp_reduce(x, &n);
    vf e = vf_fma(r * r, exp_rest(r), r), power = vf_scale2(vf_set(1.0f), n);
    return vf_fma(power, e, power - vf_set(1.0f));
}

INLINE vf vf_sigmoid(vf x) {
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(vf_set(0.0f) - x));
}

// |x| < 0.625: x + x^3 Q(x^2), Q by Remez exchange, relative error below 4.4e-9; else 1 - 2/(e^2x + 1).
INLINE vf vf_tanh(vf x) {
    vf u = x * x, a = vf_abs(x);
    vf q = vf_set(-5.70498779e-3f);
    q = vf_fma(q, u, vf_set(2.0639088e-2f));
    q = vf_fma(q, u, vf_set(-5.37397154e-2f));
    q = vf_fma(q, u, vf_set(1.33314416e-1f));
    q = vf_fma(q, u, vf_set(-3.33332807e-1f));
    vf small = vf_fma(x * u, q, x);
    vf large = vf_set(1.0f) - vf_set(2.0f) / (vf_exp(a + a) + vf_set(1.0f));
    return vf_select_lt(a, vf_set(0.625f), small, vf_copysign(large, x));
}

// 1 + erf(x), from Abramowitz & Stegun 7.1.26 for erfc(|x|), absolute error below 2e-7.
INLINE vf one_plus_erf(vf x) {
    vf a = vf_abs(x), t = vf_set(1.0f) / vf_fma(vf_set(0.3275911f), a, vf_set(1.0f));
    vf p = vf_set(1.061405429f);
    p = vf_fma(p, t, vf_set(-1.453152027f));
    p = vf_fma(p, t, vf_set(1.421413741f));
    p = vf_fma(p, t, vf_set(-0.284496736f));
    p = vf_fma(p, t, vf_set(0.254829592f));
    vf erfc = p * t * vf_exp(vf_set(0.0f) - a * a);
    return vf_select_lt(x, vf_set(0.0f), erfc, vf_set(2.0f) - erfc);
}

INLINE vf vf_silu(vf x) {
    return x * vf_sigmoid(x);
}
INLINE vf vf_gelu(vf x) {
    return vf_set(0.5f) * x * one_plus_erf(x * vf_set(0.70710678f));
}
INLINE vf vf_gelu_tanh(vf x) {
    vf inner = vf_set(0.79788456f) * vf_fma(vf_set(0.044715f) * x * x, x, x);
    return vf_set(0.5f) * x * (vf_set(1.0f) + vf_tanh(inner));
}
INLINE vf vf_relu(vf x) {
    return vf_select_lt(vf_set(0.0f), x, x, vf_set(0.0f));
}

static float exp_simd(float x) {
    float lanes[VF_N];
    vf_store(lanes, vf_exp(vf_set(x)));
    return lanes[0];
}

// ---- Elementwise ----------------------------------------------------------------------------------
INLINE vf glu_lanes(enum glu_kind kind, vf g, vf u, vf alpha, vf limit) {
    switch (kind) {
    case GLU_SILU: return vf_silu(g) * u;
    case GLU_GELU: return vf_gelu(g) * u;
    case GLU_GELU_TANH: return vf_gelu_tanh(g) * u;
    case GLU_RELU: return vf_relu(g) * u;
    case GLU_CLAMPED_SWIGLU:
        g = vf_min(limit, g);
        u = vf_max(vf_set(0.0f) - limit, vf_min(limit, u));
        return (u + vf_set(1.0f)) * (g * vf_sigmoid(alpha * g));
    case GLU_SIGMOID: return u * vf_sigmoid(g);
    }
    return g;
}

INLINE void glu_loop(enum glu_kind kind, const float *gate, const float *up, float *y, size_t n, float alpha,
                     float limit) {
    vf a = vf_set(alpha), l = vf_set(limit);
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(y + i, glu_lanes(kind, vf_load(gate + i), vf_load(up + i), a, l));
    if (i < n)
        vf_store_n(y + i, glu_lanes(kind, vf_load_n(gate + i, n - i), vf_load_n(up + i, n - i), a, l), n - i);
}

static void glu_simd(enum glu_kind kind, const float *gate, const float *up, float *y, size_t n, float alpha,
                     float limit) {
    switch (kind) { // a constant kind in each call: the choice is made outside the loop
    case GLU_SILU: glu_loop(GLU_SILU, gate, up, y, n, alpha, limit); break;
    case GLU_GELU: glu_loop(GLU_GELU, gate, up, y, n, alpha, limit); break;
    case GLU_GELU_TANH: glu_loop(GLU_GELU_TANH, gate, up, y, n, alpha, limit); break;
    case GLU_RELU: glu_loop(GLU_RELU, gate, up, y, n, alpha, limit); break;
    case GLU_CLAMPED_SWIGLU: glu_loop(GLU_CLAMPED_SWIGLU, gate, up, y, n, alpha, limit); break;
    case GLU_SIGMOID: glu_loop(GLU_SIGMOID, gate, up, y, n, alpha, limit); break;
    }
}

INLINE vf unary_lanes(enum unary_kind kind, const float p[4], vf x) {
    switch (kind) {
    case UNARY_SILU: return vf_silu(x);
    case UNARY_GELU: return vf_gelu(x);
    case UNARY_GELU_TANH: return vf_gelu_tanh(x);
    case UNARY_RELU: return vf_relu(x);
    case UNARY_RELU2: return vf_relu(x) * vf_relu(x);
    case UNARY_SIGMOID: return vf_sigmoid(x);
    case UNARY_TANH_CAP: return vf_set(p[0]) * vf_tanh(x / vf_set(p[0]));
    case UNARY_XIELU: {
        vf linear = vf_set(p[2]) * x;
        vf positive = vf_fma(vf_set(p[0]) * x, x, linear);
        vf negative = vf_fma(vf_expm1(vf_min(vf_set(p[3]), x)) - x, vf_set(p[1]), linear);
        return vf_select_lt(vf_set(0.0f), x, positive, negative);
    }
    }
    return x;
}

INLINE void unary_loop(enum unary_kind kind, const float p[4], const float *x, float *y, size_t n) {
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(y + i, unary_lanes(kind, p, vf_load(x + i)));
    if (i < n)
        vf_store_n(y + i, unary_lanes(kind, p, vf_load_n(x + i, n - i)), n - i);
}

static void unary_simd(enum unary_kind kind, const float p[4], const float *x, float *y, size_t n) {
    switch (kind) {
    case UNARY_SILU: unary_loop(UNARY_SILU, p, x, y, n); break;
    case UNARY_GELU: unary_loop(UNARY_GELU, p, x, y, n); break;
    case UNARY_GELU_TANH: unary_loop(UNARY_GELU_TANH, p, x, y, n); break;
    case UNARY_RELU: unary_loop(UNARY_RELU, p, x, y, n); break;
    case UNARY_RELU2: unary_loop(UNARY_RELU2, p, x, y, n); break;
    case UNARY_SIGMOID: unary_loop(UNARY_SIGMOID, p, x, y, n); break;
    case UNARY_TANH_CAP: unary_loop(UNARY_TANH_CAP, p, x, y, n); break;
    case UNARY_XIELU: unary_loop(UNARY_XIELU, p, x, y, n); break;
    }
}

static void axpby_simd(float a, const float *x, float b, float *y, size_t n) {
    vf va = vf_set(a), vb = vf_set(b);
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(y + i, va * vf_load(x + i) + vb * vf_load(y + i));
    if (i < n)
        vf_store_n(y + i, va * vf_load_n(x + i, n - i) + vb * vf_load_n(y + i, n - i), n - i);
}

static void mul_simd(const float *x, float *y, size_t n) {
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(y + i, vf_load(x + i) * vf_load(y + i));
    if (i < n)
        vf_store_n(y + i, vf_load_n(x + i, n - i) * vf_load_n(y + i, n - i), n - i);
}

static void scale_simd(float a, float *y, size_t n) {
    vf va = vf_set(a);
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(y + i, va * vf_load(y + i));
    if (i < n)
        vf_store_n(y + i, va * vf_load_n(y + i, n - i), n - i);
}

static void attention_merge_simd(float a, float *o, float b, const float *x, size_t n) {
    vf va = vf_set(a), vb = vf_set(b);
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(o + i, vf_fma(vf_load(o + i), va, vb * vf_load(x + i)));
    if (i < n)
        vf_store_n(o + i, vf_fma(vf_load_n(o + i, n - i), va, vb * vf_load_n(x + i, n - i)), n - i);
}

static void rope_simd(float *x, const float *cos, const float *sin, size_t n_pairs, bool interleaved) {
    size_t j = 0;
    for (; j + VF_N <= n_pairs; j += VF_N) {
        vf a, b, c = vf_load(cos + j), s = vf_load(sin + j);
        if (interleaved) {
            vf_load_pairs(x + 2 * j, &a, &b);
            vf_store_pairs(x + 2 * j, a * c - b * s, b * c + a * s);
        } else {
            a = vf_load(x + j);
            b = vf_load(x + n_pairs + j);
            vf_store(x + j, a * c - b * s);
            vf_store(x + n_pairs + j, b * c + a * s);
        }
    }
    for (; j < n_pairs; j++) { // the same roundings
        float *a = interleaved ? x + 2 * j : x + j, *b = interleaved ? a + 1 : x + n_pairs + j;
        float a0 = *a, b0 = *b;
        *a = a0 * cos[j] - b0 * sin[j];
        *b = b0 * cos[j] + a0 * sin[j];
    }
}

// ---- Norms ----------------------------------------------------------------------------------------
// Sum of (x - mean)^2 in four interleaved chains.
INLINE float sum_squares(const float *x, vf mean, size_t n) {
    vf acc[4] = {vf_set(0.0f), vf_set(0.0f), vf_set(0.0f), vf_set(0.0f)};
    size_t i = 0;
    for (; i + 4 * VF_N <= n; i += 4 * VF_N) {
        UNROLL for (int c = 0; c < 4; c++) {
            vf v = vf_load(x + i + (size_t)c * VF_N) - mean;
            acc[c] = vf_fma(v, v, acc[c]);
        }
    }
    for (; i + VF_N <= n; i += VF_N) {
        vf v = vf_load(x + i) - mean;
        acc[0] = vf_fma(v, v, acc[0]);
    }
    float sum = vf_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
    float m[VF_N];
    vf_store(m, mean);
    for (; i < n; i++)
        sum = fmaf(x[i] - m[0], x[i] - m[0], sum);
    return sum;
}

static void norm_rms_simd(const float *x, const float *w, float eps, float *y, size_t n) {
    vf factor = vf_set(1.0f / sqrtf(sum_squares(x, vf_set(0.0f), n) / (float)n + eps)), one = vf_set(1.0f);
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        vf_store(y + i, vf_load(x + i) * factor * (w ? vf_load(w + i) : one));
    if (i < n)
        vf_store_n(y + i, vf_load_n(x + i, n - i) * factor * (w ? vf_load_n(w + i, n - i) : one), n - i);
}

static void norm_layer_simd(const float *x, const float *w, const float *b, float eps, float *y, size_t n) {
    vf acc = vf_set(0.0f), one = vf_set(1.0f), zero = acc;
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N)
        acc = acc + vf_load(x + i);
    if (i < n)
        acc = acc + vf_load_n(x + i, n - i);
    vf mean = vf_set(vf_sum(acc) / (float)n);
    vf factor = vf_set(1.0f / sqrtf(sum_squares(x, mean, n) / (float)n + eps));
    for (i = 0; i + VF_N <= n; i += VF_N)
        vf_store(y + i, (vf_load(x + i) - mean) * factor * (w ? vf_load(w + i) : one) + (b ? vf_load(b + i) : zero));
    if (i < n)
        vf_store_n(y + i,
                   (vf_load_n(x + i, n - i) - mean) * factor * (w ? vf_load_n(w + i, n - i) : one) +
                       (b ? vf_load_n(b + i, n - i) : zero),
                   n - i);
}

// ---- Attention: blocks ----------------------------------------------------------------------------
enum { GROUPS_MAX = KV_DIM_MAX / KV_GROUP };

// Scales and biases of a quantized block, in float32.
struct params {
    float scale[GROUPS_MAX][KEYS], bias[GROUPS_MAX][KEYS];
};

INLINE void params_load(struct params *p, const void *scales, const void *biases, uint32_t n_groups) {
    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t j = 0; j < KEYS; j += VF_N) {
            vf_store(p->scale[g] + j, vf_load_f16((const uint16_t *)scales + g * KEYS + j));
            vf_store(p->bias[g] + j, vf_load_f16((const uint16_t *)biases + g * KEYS + j));
        }
    }
}

INLINE bool kind_quantized(enum kv_kind kind) {
    return kind == KV_Q8 || kind == KV_Q4;
}

// Keys of dims d and d + 1 (d even) from the transposed layout, lanes = tokens [j, j + VF_N).
INLINE void load_keys(enum kv_kind kind, const void *codes, const struct params *params, uint32_t d, uint32_t j,
                      vf *k0, vf *k1) {
    size_t i = (size_t)d * KEYS + j;
    switch (kind) {
    case KV_F32:
        *k0 = vf_load((const float *)codes + i);
        *k1 = vf_load((const float *)codes + i + KEYS);
        break;
    case KV_F16:
        *k0 = vf_load_f16((const uint16_t *)codes + i);
        *k1 = vf_load_f16((const uint16_t *)codes + i + KEYS);
        break;
    case KV_BF16: vf_load_bf16_pairs((const uint16_t *)codes + (size_t)d * KEYS + 2 * j, k0, k1); break;
    case KV_Q8:
        *k0 = vf_load_u8((const uint8_t *)codes + i);
        *k1 = vf_load_u8((const uint8_t *)codes + i + KEYS);
        break;
    case KV_Q4: vf_load_nibbles((const uint8_t *)codes + (size_t)d / 2 * KEYS + j, k0, k1); break;
    }
    if (kind_quantized(kind)) {
        vf scale = vf_load(params->scale[d / KV_GROUP] + j), bias = vf_load(params->bias[d / KV_GROUP] + j);
        *k0 = vf_fma(scale, *k0, bias);
        *k1 = vf_fma(scale, *k1, bias);
    }
}

// Elements [i, i + VF_N) of a token-major row; q4: of the low or the high halves of its bytes.
INLINE vf load_row(enum kv_kind kind, bool high, const void *row, uint32_t i) {
    switch (kind) {
    case KV_F32: return vf_load((const float *)row + i);
    case KV_F16: return vf_load_f16((const uint16_t *)row + i);
    case KV_BF16: return vf_load_bf16((const uint16_t *)row + i);
    case KV_Q8: return vf_load_u8((const uint8_t *)row + i);
    case KV_Q4: {
        vf low, up;
        vf_load_nibbles((const uint8_t *)row + i, &low, &up);
        return high ? up : low;
    }
    }
    return vf_set(0.0f);
}

// ---- Attention: scores ----------------------------------------------------------------------------
// How many vectors of lanes a tile of n_q queries holds in registers.
INLINE uint32_t tile_vectors(uint32_t n_q) {
    if (VF_REGISTERS == 16)
        return n_q == 1 ? 8 : n_q == 2 ? 4 : 2;
    return VF_N == 16 ? 4 : n_q <= 2 ? 8 : 4;
}

enum { TILE_VECTORS_MAX = 8, PANEL = ATTENTION_PANEL, LINE = 64 };

// Bytes that one vector of elements takes, and whether two rows (of dims, of tokens) lie in pairs.
INLINE uint32_t vector_bytes(enum kv_kind kind) {
    return VF_N * (kind == KV_F32 || kind == KV_BF16 ? 4 : kind == KV_F16 ? 2 : 1);
}

// Fetch the line `ahead` of p, if the v-th vector of a row begins one.
INLINE void fetch(const void *p, ptrdiff_t ahead, uint32_t v, uint32_t bytes) {
    if (v * bytes % LINE == 0)
        __builtin_prefetch((const char *)p + ahead, 0, 2);
}

// Where the keys of dims d, d + 1 and tokens from j lie, and how far it is to the second row.
INLINE const char *key_address(enum kv_kind kind, const void *codes, uint32_t d, uint32_t j) {
    const char *base = codes;
    switch (kind) {
    case KV_F32: return base + ((size_t)d * KEYS + j) * 4;
    case KV_F16: return base + ((size_t)d * KEYS + j) * 2;
    case KV_BF16: return base + ((size_t)d * KEYS + 2 * j) * 2;
    case KV_Q8: return base + (size_t)d * KEYS + j;
    case KV_Q4: return base + (size_t)d / 2 * KEYS + j;
    }
    return base;
}

// `prefetch` is a constant: the keys come from memory, not from what was just unpacked.
INLINE void scores_tile(enum kv_kind kind, bool prefetch, const void *codes, const struct params *params,
                        uint32_t k_dim, const float *q, const uint32_t n_q, uint32_t j0, ptrdiff_t ahead, float *s) {
    const uint32_t n_v = tile_vectors(n_q);
    const bool paired = kind == KV_BF16 || kind == KV_Q4;
    vf acc[PANEL][TILE_VECTORS_MAX];
    UNROLL for (uint32_t i = 0; i < n_q; i++)
        UNROLL for (uint32_t v = 0; v < n_v; v++)
            acc[i][v] = vf_set(0.0f);
    uint32_t d = 0;
    for (; d + 2 <= k_dim; d += 2, q += 2 * PANEL) {
        if (prefetch) {
            UNROLL for (uint32_t v = 0; v < n_v; v++) {
                fetch(key_address(kind, codes, d, j0 + v * VF_N), ahead, v, vector_bytes(kind));
                if (!paired)
                    fetch(key_address(kind, codes, d + 1, j0 + v * VF_N), ahead, v, vector_bytes(kind));
            }
        }
        if (n_q <= 3) { // hold the queries' elements, stream the keys
            vf b0[3], b1[3];
            UNROLL for (uint32_t i = 0; i < n_q; i++) {
                b0[i] = vf_set(q[i]);
                b1[i] = vf_set(q[PANEL + i]);
            }
            UNROLL for (uint32_t v = 0; v < n_v; v++) {
                vf k0, k1;
                load_keys(kind, codes, params, d, j0 + v * VF_N, &k0, &k1);
                UNROLL for (uint32_t i = 0; i < n_q; i++)
                    acc[i][v] = vf_fma(b1[i], k1, vf_fma(b0[i], k0, acc[i][v]));
            }
        } else { // hold the keys, stream the queries' elements
            vf k0[4], k1[4];
            UNROLL for (uint32_t v = 0; v < n_v; v++)
                load_keys(kind, codes, params, d, j0 + v * VF_N, &k0[v], &k1[v]);
            UNROLL for (uint32_t i = 0; i < n_q; i++) {
                vf b0 = vf_set(q[i]);
                UNROLL for (uint32_t v = 0; v < n_v; v++)
                    acc[i][v] = vf_fma(b0, k0[v], acc[i][v]);
            }
            UNROLL for (uint32_t i = 0; i < n_q; i++) {
                vf b1 = vf_set(q[PANEL + i]);
                UNROLL for (uint32_t v = 0; v < n_v; v++)
                    acc[i][v] = vf_fma(b1, k1[v], acc[i][v]);
            }
        }
    }
    if (d < k_dim) { // the pair's second half is padding
        UNROLL for (uint32_t v = 0; v < n_v; v++) {
            vf k0, k1;
            load_keys(kind, codes, params, d, j0 + v * VF_N, &k0, &k1);
            UNROLL for (uint32_t i = 0; i < n_q; i++)
                acc[i][v] = vf_fma(vf_set(q[i]), k0, acc[i][v]);
        }
    }
    UNROLL for (uint32_t i = 0; i < n_q; i++)
        UNROLL for (uint32_t v = 0; v < n_v; v++)
            vf_store(s + i * KEYS + j0 + v * VF_N, acc[i][v]);
}

// All panels against the keys of one tile, which thereby stay in the first-level cache; then what is
// left over, which may take more keys at a time.
INLINE void scores_kind(enum kv_kind kind, bool prefetch, const void *codes, const struct params *params,
                        uint32_t k_dim, const float *q, uint32_t n_q, uint32_t n_keys, ptrdiff_t ahead, float *s) {
    uint32_t n_whole = n_q / PANEL, j, i;
    for (j = 0; n_whole && j < n_keys; j += tile_vectors(PANEL) * VF_N)
        for (i = 0; i < n_whole; i++)
            scores_tile(kind, prefetch, codes, params, k_dim, q + (size_t)i * PANEL * k_dim, PANEL, j, ahead,
                        s + (size_t)i * PANEL * KEYS);
    q += (size_t)n_whole * PANEL * k_dim;
    s += (size_t)n_whole * PANEL * KEYS;
    switch (n_q % PANEL) {
    case 1:
        for (j = 0; j < n_keys; j += tile_vectors(1) * VF_N)
            scores_tile(kind, prefetch, codes, params, k_dim, q, 1, j, ahead, s);
        break;
    case 2:
        for (j = 0; j < n_keys; j += tile_vectors(2) * VF_N)
            scores_tile(kind, prefetch, codes, params, k_dim, q, 2, j, ahead, s);
        break;
    case 3:
        for (j = 0; j < n_keys; j += tile_vectors(3) * VF_N)
            scores_tile(kind, prefetch, codes, params, k_dim, q, 3, j, ahead, s);
        break;
    }
}

static void attention_scores_simd(const struct kv_layout *layout, const void *block, const float *q, uint32_t n_q,
                                  uint32_t n_keys, ptrdiff_t ahead, float *s) {
    const char *base = block;
    uint32_t dim = layout->k_dim;
    struct params params;
    if (kind_quantized(layout->kind))
        params_load(&params, base + layout->k_scales, base + layout->k_biases, kv_n_groups(dim));
    switch (layout->kind) {
    case KV_F32: scores_kind(KV_F32, true, base, NULL, dim, q, n_q, n_keys, ahead, s); break;
    case KV_F16: scores_kind(KV_F16, true, base, NULL, dim, q, n_q, n_keys, ahead, s); break;
    case KV_BF16: scores_kind(KV_BF16, true, base, NULL, dim, q, n_q, n_keys, ahead, s); break;
    case KV_Q8: scores_kind(KV_Q8, true, base, &params, dim, q, n_q, n_keys, ahead, s); break;
    case KV_Q4: scores_kind(KV_Q4, true, base, &params, dim, q, n_q, n_keys, ahead, s); break;
    }
}

static void attention_scores_f32_simd(const float *k, uint32_t k_dim, const float *q, uint32_t n_q, uint32_t n_keys,
                                      float *s) {
    scores_kind(KV_F32, false, k, NULL, k_dim, q, n_q, n_keys, 0, s);
}

static void attention_softmax_simd(float *s, uint64_t seen, float scale, float softcap, float *m, float *l) {
    vf x[KEYS / VF_N], vscale = vf_set(scale), cap = vf_set(softcap);
    for (uint32_t v = 0; v < KEYS / VF_N; v++) {
        x[v] = vf_load(s + v * VF_N) * vscale;
        if (softcap > 0)
            x[v] = cap * vf_tanh(x[v] / cap);
    }
    if (seen != UINT64_MAX) {
        for (uint32_t v = 0; v < KEYS / VF_N; v++)
            vf_store(s + v * VF_N, x[v]);
        for (uint32_t j = 0; j < KEYS; j++)
            if (!(seen >> j & 1))
                s[j] = -INFINITY;
        for (uint32_t v = 0; v < KEYS / VF_N; v++)
            x[v] = vf_load(s + v * VF_N);
    }
    vf top = x[0];
    for (uint32_t v = 1; v < KEYS / VF_N; v++)
        top = vf_max(top, x[v]);
    *m = vf_top(top);
    top = vf_set(*m);
    vf sum = vf_set(0.0f);
    for (uint32_t v = 0; v < KEYS / VF_N; v++) {
        vf p = vf_exp(x[v] - top); // exp(-infinity) is 0: hidden keys add nothing
        sum = sum + p;
        vf_store(s + v * VF_N, p);
    }
    *l = vf_sum(sum);
}

// ---- Attention: values ----------------------------------------------------------------------------
// A run of dims whose elements unpack alike: dims [dim, dim + n) are elements [code, code + n) of a row.
struct segment {
    uint32_t dim, code, n;
    const float *scale, *bias; // [KEYS], quantized kinds
};

// The n_v vectors of dims from i0 on, the last with n_last lanes. Pointers run along the tokens.
INLINE void values_tile(enum kv_kind kind, bool high, bool prefetch, const void *codes, size_t stride,
                        const struct segment *seg, uint32_t i0, const uint32_t n_v, uint32_t n_last, const float *p,
                        const uint32_t n_q, uint32_t from, uint32_t to, ptrdiff_t ahead, const float *a,
                        const float *b, float *o, size_t o_stride) {
    vf acc[PANEL][TILE_VECTORS_MAX];
    UNROLL for (uint32_t i = 0; i < n_q; i++)
        UNROLL for (uint32_t v = 0; v < n_v; v++)
            acc[i][v] = vf_set(0.0f);
    uint32_t j = from, code = seg->code + i0;
    const float *pj = p + from;
    if (kind == KV_BF16) { // rows lie in pairs of tokens
        const uint16_t *pairs = (const uint16_t *)codes + ((size_t)(from / 2) * stride + code) * 2;
        vf v0, v1;
        if (j & 1 && j < to) {
            UNROLL for (uint32_t v = 0; v < n_v; v++) {
                vf_load_bf16_pairs(pairs + 2 * v * VF_N, &v0, &v1);
                UNROLL for (uint32_t i = 0; i < n_q; i++)
                    acc[i][v] = vf_fma(vf_set(pj[i * KEYS]), v1, acc[i][v]);
            }
            j++, pj++, pairs += 2 * stride;
        }
        for (; j + 2 <= to; j += 2, pj += 2, pairs += 2 * stride) {
            if (prefetch)
                UNROLL for (uint32_t v = 0; v < n_v; v++)
                    fetch(pairs + 2 * v * VF_N, ahead, v, vector_bytes(kind));
            if (n_q <= 3) {
                vf b0[3], b1[3];
                UNROLL for (uint32_t i = 0; i < n_q; i++) {
                    b0[i] = vf_set(pj[i * KEYS]);
                    b1[i] = vf_set(pj[i * KEYS + 1]);
                }
                UNROLL for (uint32_t v = 0; v < n_v; v++) {
                    vf_load_bf16_pairs(pairs + 2 * v * VF_N, &v0, &v1);
                    UNROLL for (uint32_t i = 0; i < n_q; i++)
                        acc[i][v] = vf_fma(b1[i], v1, vf_fma(b0[i], v0, acc[i][v]));
                }
            } else {
                vf w0[4], w1[4];
                UNROLL for (uint32_t v = 0; v < n_v; v++)
                    vf_load_bf16_pairs(pairs + 2 * v * VF_N, &w0[v], &w1[v]);
                UNROLL for (uint32_t i = 0; i < n_q; i++) {
                    vf b0 = vf_set(pj[i * KEYS]);
                    UNROLL for (uint32_t v = 0; v < n_v; v++)
                        acc[i][v] = vf_fma(b0, w0[v], acc[i][v]);
                }
                UNROLL for (uint32_t i = 0; i < n_q; i++) {
                    vf b1 = vf_set(pj[i * KEYS + 1]);
                    UNROLL for (uint32_t v = 0; v < n_v; v++)
                        acc[i][v] = vf_fma(b1, w1[v], acc[i][v]);
                }
            }
        }
        if (j < to) {
            UNROLL for (uint32_t v = 0; v < n_v; v++) {
                vf_load_bf16_pairs(pairs + 2 * v * VF_N, &v0, &v1);
                UNROLL for (uint32_t i = 0; i < n_q; i++)
                    acc[i][v] = vf_fma(vf_set(pj[i * KEYS]), v0, acc[i][v]);
            }
        }
    } else {
        const char *row = (const char *)codes + ((size_t)from * stride + code) * (vector_bytes(kind) / VF_N);
        for (; j < to; j++, pj++, row += stride * (vector_bytes(kind) / VF_N)) {
            vf x[TILE_VECTORS_MAX];
            UNROLL for (uint32_t v = 0; v < n_v; v++) {
                if (prefetch)
                    fetch(row + v * vector_bytes(kind), ahead, v, vector_bytes(kind));
                x[v] = load_row(kind, high, row, v * VF_N);
                if (kind_quantized(kind))
                    x[v] = vf_fma(vf_set(seg->scale[j]), x[v], vf_set(seg->bias[j]));
            }
            UNROLL for (uint32_t i = 0; i < n_q; i++) {
                vf b0 = vf_set(pj[i * KEYS]);
                UNROLL for (uint32_t v = 0; v < n_v; v++)
                    acc[i][v] = vf_fma(b0, x[v], acc[i][v]);
            }
        }
    }
    UNROLL for (uint32_t i = 0; i < n_q; i++) {
        vf va = vf_set(a[i]), vb = vf_set(b[i]);
        UNROLL for (uint32_t v = 0; v < n_v; v++) {
            float *at = o + i * o_stride + seg->dim + i0 + v * VF_N;
            if (v + 1 < n_v || n_last == VF_N)
                vf_store(at, vf_fma(vf_load(at), va, vb * acc[i][v]));
            else
                vf_store_n(at, vf_fma(vf_load_n(at, n_last), va, vb * acc[i][v]), n_last);
        }
    }
}

// All queries for one tile of dims, which thereby stay in the first-level cache. n_q is their number in a
// tile; n_tiles tiles follow each other.
INLINE void values_segment(enum kv_kind kind, bool high, bool prefetch, const void *codes, size_t stride,
                           const struct segment *seg, const float *p, const uint32_t n_q, uint32_t n_tiles,
                           uint32_t from, uint32_t to, ptrdiff_t ahead, const float *a, const float *b, float *o,
                           size_t o_stride) {
    const uint32_t n_v = tile_vectors(n_q);
    uint32_t i = 0, t;
    for (; i + n_v * VF_N <= seg->n; i += n_v * VF_N)
        for (t = 0; t < n_tiles; t++)
            values_tile(kind, high, prefetch, codes, stride, seg, i, n_v, VF_N, p + (size_t)t * n_q * KEYS, n_q, from,
                        to, ahead, a + t * n_q, b + t * n_q, o + t * n_q * o_stride, o_stride);
    for (; i < seg->n; i += VF_N) {
        uint32_t left = seg->n - i < VF_N ? seg->n - i : VF_N;
        for (t = 0; t < n_tiles; t++)
            values_tile(kind, high, prefetch, codes, stride, seg, i, 1, left, p + (size_t)t * n_q * KEYS, n_q, from,
                        to, ahead, a + t * n_q, b + t * n_q, o + t * n_q * o_stride, o_stride);
    }
}

INLINE void values_queries(enum kv_kind kind, bool high, bool prefetch, const void *codes, size_t stride,
                           const struct segment *seg, const float *p, uint32_t n_q, uint32_t from, uint32_t to,
                           ptrdiff_t ahead, const float *a, const float *b, float *o, size_t o_stride) {
    uint32_t n = n_q / PANEL, whole = n * PANEL;
    if (n)
        values_segment(kind, high, prefetch, codes, stride, seg, p, PANEL, n, from, to, ahead, a, b, o, o_stride);
    p += (size_t)whole * KEYS, a += whole, b += whole, o += whole * o_stride;
    switch (n_q % PANEL) {
    case 1:
        values_segment(kind, high, prefetch, codes, stride, seg, p, 1, 1, from, to, ahead, a, b, o, o_stride);
        break;
    case 2:
        values_segment(kind, high, prefetch, codes, stride, seg, p, 2, 1, from, to, ahead, a, b, o, o_stride);
        break;
    case 3:
        values_segment(kind, high, prefetch, codes, stride, seg, p, 3, 1, from, to, ahead, a, b, o, o_stride);
        break;
    }
}

// Dims [from, to) of a quantized row, whose first element is the row's first, in segments of one group.
INLINE void values_groups(enum kv_kind kind, bool high, const void *codes, size_t stride,
                          const struct params *params, uint32_t dim, uint32_t dim_to, const float *p, uint32_t n_q,
                          uint32_t from, uint32_t to, ptrdiff_t ahead, const float *a, const float *b, float *o,
                          size_t o_stride) {
    uint32_t code = 0;
    while (dim < dim_to) {
        uint32_t group = dim / KV_GROUP, end = (group + 1) * KV_GROUP < dim_to ? (group + 1) * KV_GROUP : dim_to;
        struct segment seg = {dim, code, end - dim, params->scale[group], params->bias[group]};
        values_queries(kind, high, !high, codes, stride, &seg, p, n_q, from, to, ahead, a, b, o, o_stride);
        code += end - dim;
        dim = end;
    }
}

static void attention_values_simd(const struct kv_layout *layout, const void *block, const float *p, uint32_t n_q,
                                  uint32_t from, uint32_t to, ptrdiff_t ahead, const float *a, const float *b,
                                  float *o, size_t o_stride) {
    const char *base = block;
    const void *codes = base + layout->v_codes;
    uint32_t dim = layout->v_dim, half = (dim + 1) / 2;
    struct segment all = {0, 0, dim, NULL, NULL};
    struct params params;
    if (kind_quantized(layout->kind))
        params_load(&params, base + layout->v_scales, base + layout->v_biases, kv_n_groups(dim));
    switch (layout->kind) {
    case KV_F32: values_queries(KV_F32, false, true, codes, dim, &all, p, n_q, from, to, ahead, a, b, o, o_stride); break;
    case KV_F16: values_queries(KV_F16, false, true, codes, dim, &all, p, n_q, from, to, ahead, a, b, o, o_stride); break;
    case KV_BF16:
        values_queries(KV_BF16, false, true, codes, dim, &all, p, n_q, from, to, ahead, a, b, o, o_stride);
        break;
    case KV_Q8:
        values_groups(KV_Q8, false, codes, dim, &params, 0, dim, p, n_q, from, to, ahead, a, b, o, o_stride);
        break;
    case KV_Q4:
        values_groups(KV_Q4, false, codes, half, &params, 0, half, p, n_q, from, to, ahead, a, b, o, o_stride);
        values_groups(KV_Q4, true, codes, half, &params, half, dim, p, n_q, from, to, ahead, a, b, o, o_stride);
        break;
    }
}

static void attention_values_f32_simd(const float *v, uint32_t v_dim, const float *p, uint32_t n_q, uint32_t from,
                                      uint32_t to, const float *a, const float *b, float *o, size_t o_stride) {
    struct segment all = {0, 0, v_dim, NULL, NULL};
    values_queries(KV_F32, false, false, v, v_dim, &all, p, n_q, from, to, 0, a, b, o, o_stride);
}

// ---- Attention: unpacking -------------------------------------------------------------------------
INLINE void store_lanes(float *out, vf x, size_t n) {
    if (n >= VF_N)
        vf_store(out, x);
    else
        vf_store_n(out, x, n);
}

// Elements [0, n) of a token-major row, the dims from `dim` on.
INLINE void unpack_part(enum kv_kind kind, bool high, const void *row, uint32_t token, const struct params *params,
                        uint32_t dim, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n;) {
        uint32_t end = n;
        vf scale = vf_set(0.0f), bias = scale;
        if (kind_quantized(kind)) {
            uint32_t group = (dim + i) / KV_GROUP;
            end = (group + 1) * KV_GROUP - dim < n ? (group + 1) * KV_GROUP - dim : n;
            scale = vf_set(params->scale[group][token]);
            bias = vf_set(params->bias[group][token]);
        }
        for (; i < end; i += VF_N) {
            vf x = load_row(kind, high, row, i);
            if (kind_quantized(kind))
                x = vf_fma(scale, x, bias);
            store_lanes(out + i, x, end - i);
        }
        i = end;
    }
}

// The first n of the row_dim elements of row `token`.
static void unpack_row(enum kv_kind kind, const void *codes, uint32_t row_dim, uint32_t token,
                       const struct params *params, uint32_t n, float *out) {
    const char *base = codes;
    size_t at = (size_t)token * row_dim;
    switch (kind) {
    case KV_F32: unpack_part(KV_F32, false, base + at * 4, token, params, 0, n, out); break;
    case KV_F16: unpack_part(KV_F16, false, base + at * 2, token, params, 0, n, out); break;
    case KV_BF16: unpack_part(KV_BF16, false, base + at * 2, token, params, 0, n, out); break;
    case KV_Q8: unpack_part(KV_Q8, false, base + at, token, params, 0, n, out); break;
    case KV_Q4: {
        uint32_t half = (row_dim + 1) / 2;
        const char *row = base + (size_t)token * half;
        unpack_part(KV_Q4, false, row, token, params, 0, half < n ? half : n, out);
        if (n > half)
            unpack_part(KV_Q4, true, row, token, params, half, n - half, out + half);
        break;
    }
    }
}

static void kv_load_v_simd(const struct kv_layout *layout, const void *block, float *out) {
    const char *base = block;
    const void *codes = base + layout->v_codes;
    uint32_t dim = layout->v_dim;
    if (layout->kind == KV_BF16 && !layout->v_in_k) {
        for (uint32_t j = 0; j < KEYS; j += 2) {
            const uint16_t *pairs = (const uint16_t *)codes + (size_t)j * dim;
            for (uint32_t i = 0; i < dim; i += VF_N) {
                vf first, second;
                vf_load_bf16_pairs(pairs + 2 * i, &first, &second);
                store_lanes(out + (size_t)j * dim + i, first, dim - i);
                store_lanes(out + (size_t)(j + 1) * dim + i, second, dim - i);
            }
        }
        return;
    }
    struct params params;
    if (kind_quantized(layout->kind))
        params_load(&params, base + layout->v_scales, base + layout->v_biases, kv_n_groups(dim));
    for (uint32_t j = 0; j < KEYS; j++)
        unpack_row(layout->kind, codes, layout->v_in_k ? layout->k_dim : dim, j, &params, dim, out + (size_t)j * dim);
}

INLINE void load_keys_kind(enum kv_kind kind, const void *codes, const struct params *params, uint32_t dim,
                           float *out) {
    uint32_t d = 0;
    vf k0, k1;
    for (; d + 2 <= dim; d += 2) {
        for (uint32_t j = 0; j < KEYS; j += VF_N) {
            load_keys(kind, codes, params, d, j, &k0, &k1);
            vf_store(out + (size_t)d * KEYS + j, k0);
            vf_store(out + (size_t)(d + 1) * KEYS + j, k1);
        }
    }
    for (uint32_t j = 0; d < dim && j < KEYS; j += VF_N) {
        load_keys(kind, codes, params, d, j, &k0, &k1);
        vf_store(out + (size_t)d * KEYS + j, k0);
    }
}

static void kv_load_k_simd(const struct kv_layout *layout, const void *block, float *out) {
    const char *base = block;
    uint32_t dim = layout->k_dim;
    struct params params;
    if (kind_quantized(layout->kind))
        params_load(&params, base + layout->k_scales, base + layout->k_biases, kv_n_groups(dim));
    if (layout->v_in_k) {
        float row[KV_DIM_MAX];
        for (uint32_t j = 0; j < KEYS; j++) {
            unpack_row(layout->kind, block, dim, j, &params, dim, row);
            for (uint32_t d = 0; d < dim; d++)
                out[(size_t)d * KEYS + j] = row[d];
        }
        return;
    }
    switch (layout->kind) {
    case KV_F32: memcpy(out, block, (size_t)dim * KEYS * sizeof *out); break;
    case KV_F16: load_keys_kind(KV_F16, block, NULL, dim, out); break;
    case KV_BF16: load_keys_kind(KV_BF16, block, NULL, dim, out); break;
    case KV_Q8: load_keys_kind(KV_Q8, block, &params, dim, out); break;
    case KV_Q4: load_keys_kind(KV_Q4, block, &params, dim, out); break;
    }
}

static void kv_gather_simd(const struct kv_layout *layout, const void *block, const uint8_t *tokens, uint32_t n,
                           float *k, float *v) {
    const char *base = block;
    uint32_t k_dim = layout->k_dim, v_dim = layout->v_dim;
    struct params params;
    if (kind_quantized(layout->kind))
        params_load(&params, base + layout->k_scales, base + layout->k_biases, kv_n_groups(k_dim));
    for (uint32_t j = 0; j < n; j++) {
        float row[KV_DIM_MAX], *v_row = v + (size_t)j * v_dim;
        if (layout->v_in_k) {
            unpack_row(layout->kind, block, k_dim, tokens[j], &params, k_dim, row);
            memcpy(v_row, row, v_dim * sizeof *row);
        } else {
            for (uint32_t d = 0; d < k_dim; d++)
                row[d] = kv_key_at(layout, block, tokens[j], d);
            for (uint32_t d = 0; d < v_dim; d++)
                v_row[d] = kv_value_at(layout, block, tokens[j], d);
        }
        for (uint32_t d = 0; d < k_dim; d++)
            k[(size_t)d * KEYS + j] = row[d];
    }
}

// ---- The rest -------------------------------------------------------------------------------------
static void softmax_simd(const float *x, float *y, size_t n) {
    float top = -INFINITY;
    for (size_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    vf vtop = vf_set(top), acc = vf_set(0.0f);
    size_t i = 0;
    for (; i + VF_N <= n; i += VF_N) {
        vf e = vf_exp(vf_load(x + i) - vtop);
        vf_store(y + i, e);
        acc = acc + e;
    }
    if (i < n) {
        vf_store_n(y + i, vf_exp(vf_load_n(x + i, n - i) - vtop), n - i);
        acc = acc + vf_load_n(y + i, n - i);
    }
    vf sum = vf_set(vf_sum(acc));
    for (i = 0; i + VF_N <= n; i += VF_N)
        vf_store(y + i, vf_load(y + i) / sum);
    if (i < n)
        vf_store_n(y + i, vf_load_n(y + i, n - i) / sum, n - i);
}

static void conv_simd(const float *const *x, const float *const *w, uint32_t n_taps, const float *bias, float *y,
                      size_t n) {
    size_t c = 0;
    for (; c + VF_N <= n; c += VF_N) {
        vf sum = bias ? vf_load(bias + c) : vf_set(0.0f);
        for (uint32_t t = 0; t < n_taps; t++)
            sum = vf_fma(vf_load(w[t] + c), vf_load(x[t] + c), sum);
        vf_store(y + c, sum);
    }
    if (c < n) {
        vf sum = bias ? vf_load_n(bias + c, n - c) : vf_set(0.0f);
        for (uint32_t t = 0; t < n_taps; t++)
            sum = vf_fma(vf_load_n(w[t] + c, n - c), vf_load_n(x[t] + c, n - c), sum);
        vf_store_n(y + c, sum, n - c);
    }
}

// n_v vectors of columns, the last with n_last lanes.
INLINE void delta_columns(float *state, size_t state_stride, const float *k, const float *q, uint32_t k_dim,
                          const float *v, float decay, float beta, float *out, const uint32_t n_v,
                          const uint32_t n_last) {
    vf held[4], u[4], sum[4], vdecay = vf_set(decay);
    UNROLL for (uint32_t c = 0; c < n_v; c++)
        held[c] = sum[c] = vf_set(0.0f);
    for (uint32_t i = 0; i < k_dim; i++) {
        vf ki = vf_set(k[i]);
        UNROLL for (uint32_t c = 0; c < n_v; c++) {
            float *at = state + i * state_stride + c * VF_N;
            vf s = (n_last == VF_N ? vf_load(at) : vf_load_n(at, n_last)) * vdecay;
            n_last == VF_N ? vf_store(at, s) : vf_store_n(at, s, n_last);
            held[c] = vf_fma(ki, s, held[c]);
        }
    }
    UNROLL for (uint32_t c = 0; c < n_v; c++)
        u[c] = vf_set(beta) * ((n_last == VF_N ? vf_load(v + c * VF_N) : vf_load_n(v + c * VF_N, n_last)) - held[c]);
    for (uint32_t i = 0; i < k_dim; i++) {
        vf ki = vf_set(k[i]), qi = vf_set(q[i]);
        UNROLL for (uint32_t c = 0; c < n_v; c++) {
            float *at = state + i * state_stride + c * VF_N;
            vf s = vf_fma(ki, u[c], n_last == VF_N ? vf_load(at) : vf_load_n(at, n_last));
            n_last == VF_N ? vf_store(at, s) : vf_store_n(at, s, n_last);
            sum[c] = vf_fma(qi, s, sum[c]);
        }
    }
    UNROLL for (uint32_t c = 0; c < n_v; c++)
        n_last == VF_N ? vf_store(out + c * VF_N, sum[c]) : vf_store_n(out + c * VF_N, sum[c], n_last);
}

static void delta_simd(float *state, size_t state_stride, const float *k, const float *q, uint32_t k_dim,
                       const float *v, float decay, float beta, float *out, uint32_t n) {
    uint32_t c = 0;
    for (; c + 4 * VF_N <= n; c += 4 * VF_N)
        delta_columns(state + c, state_stride, k, q, k_dim, v + c, decay, beta, out + c, 4, VF_N);
    for (; c + VF_N <= n; c += VF_N)
        delta_columns(state + c, state_stride, k, q, k_dim, v + c, decay, beta, out + c, 1, VF_N);
    if (c < n)
        delta_columns(state + c, state_stride, k, q, k_dim, v + c, decay, beta, out + c, 1, n - c);
}

static void index_reduce_simd(const float *s, const float *w, uint32_t n_heads, float scale, float *out) {
    for (uint32_t j = 0; j < KEYS; j += VF_N) {
        vf sum = vf_set(0.0f);
        for (uint32_t h = 0; h < n_heads; h++)
            sum = vf_fma(vf_set(w[h]), vf_relu(vf_load(s + h * KEYS + j)), sum);
        vf_store(out + j, vf_set(scale) * sum);
    }
}

static void cpu_kernels_use_simd(struct cpu_kernels *kernels) {
    kernels->norm_rms = norm_rms_simd;
    kernels->norm_layer = norm_layer_simd;
    kernels->glu = glu_simd;
    kernels->unary = unary_simd;
    kernels->axpby = axpby_simd;
    kernels->mul = mul_simd;
    kernels->scale = scale_simd;
    kernels->rope = rope_simd;
    kernels->kv_load_k = kv_load_k_simd;
    kernels->kv_load_v = kv_load_v_simd;
    kernels->attention_scores = attention_scores_simd;
    kernels->attention_scores_f32 = attention_scores_f32_simd;
    kernels->attention_softmax = attention_softmax_simd;
    kernels->attention_values = attention_values_simd;
    kernels->attention_values_f32 = attention_values_f32_simd;
    kernels->kv_gather = kv_gather_simd;
    kernels->attention_merge = attention_merge_simd;
    kernels->softmax = softmax_simd;
    kernels->conv = conv_simd;
    kernels->delta = delta_simd;
    kernels->index_reduce = index_reduce_simd;
    kernels->exp = exp_simd;
}
#endif
