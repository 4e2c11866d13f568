#include <math.h>
#include <string.h>

#include "backend/cpu/linear_kernels.h"
#include "base/half.h"

static const uint8_t NIBBLE_ORDER[8] = {0, 2, 4, 6, 1, 3, 5, 7};

static inline float scalar_at(const void *data, enum dtype dtype, size_t i) {
    uint16_t h;
    float f;
    if (dtype == DTYPE_F32) {
        memcpy(&f, (const char *)data + 4 * i, sizeof f);
        return f;
    }
    memcpy(&h, (const char *)data + 2 * i, sizeof h);
    return dtype == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

float linear_scale_ref(const struct weight *w, uint32_t row, uint32_t group) {
    size_t i = (size_t)row * w->n_groups + group;
    switch (w->desc.format) {
    case WEIGHT_AFFINE:
        return scalar_at(w->desc.scales, w->desc.scale_dtype, i);
    case WEIGHT_NVFP4:
        return f8e4m3_to_f32(((const uint8_t *)w->desc.scales)[i]);
    default:
        return f8e8m0_to_f32(((const uint8_t *)w->desc.scales)[i]);
    }
}

float linear_bias_ref(const struct weight *w, uint32_t row, uint32_t group) {
    return scalar_at(w->desc.biases, w->desc.scale_dtype, (size_t)row * w->n_groups + group);
}

// k and n are multiples of 8: eight codes fill `bits` bytes.
void linear_unpack_ref(const struct weight *w, uint32_t row, uint32_t k, uint32_t n, uint8_t *codes) {
    const uint8_t *data = (const uint8_t *)w->desc.data + row * w->row_bytes + (size_t)k * w->bits / 8;
    for (uint32_t i = 0; i < n; i += 8, data += w->bits) {
        uint64_t word = 0;
        for (uint32_t b = 0; b < w->bits; b++)
            word |= (uint64_t)data[b] << 8 * b;
        for (uint32_t j = 0; j < 8; j++)
            codes[i + j] = (uint8_t)(word >> j * w->bits & ((1u << w->bits) - 1));
    }
}

// ---- Int ----------------------------------------------------------------------------------------
// Rounds to the nearest, ties to even, as every level does.
static void quantize_ref(const float *x, uint32_t n, uint32_t group, bool nibbles, int8_t *q, float *scales,
                         float *sums, int32_t *isums) {
    for (uint32_t g = 0; g < n / group; g++, x += group, q += group) {
        uint32_t top = 0; // as bits, so that a NaN is greatest
        for (uint32_t i = 0; i < group; i++) {
            uint32_t bits = f32_bits(x[i]) & 0x7FFFFFFF;
            top = bits > top ? bits : top;
        }
        float absmax = f32_from_bits(top);
        // Below 2^-100 the reciprocal could overflow: such a group counts as zeros.
        bool zero = absmax < 0x1p-100f;
        float to_int = zero ? 0.0f : 127.0f / absmax;
        int32_t sum = 0;
        for (uint32_t i = 0; i < group; i++) {
            uint32_t from = nibbles ? (i & ~7u) + NIBBLE_ORDER[i % 8] : i;
            float v = x[from] * to_int;
            q[i] = (int8_t)rintf(v > -127.0f ? v : -127.0f); // NaN: the scale is not finite either
            sum += q[i];
        }
        scales[g] = zero ? 0.0f : absmax * (1.0f / 127.0f);
        sums[g] = scales[g] * (float)sum;
        isums[g] = sum;
    }
}

void linear_pack_codes_ref(const struct weight *w, uint32_t out, uint32_t k, uint32_t n_k,
                           const void *following, uint8_t *codes) {
    (void)following;
    uint8_t row[PANEL_K];
    for (uint32_t o = 0; o < PANEL_OUTS; o++) {
        uint32_t r = out + o < w->desc.n_out ? out + o : w->desc.n_out - 1;
        linear_unpack_ref(w, r, k, n_k, row);
        for (uint32_t i = 0; i < n_k; i++) {
            uint8_t code = row[w->nibbles ? (i & ~7u) + NIBBLE_ORDER[i % 8] : i];
            if (w->code_zero)
                code = F4_CODES[code];
            codes[((size_t)(i / 4) * PANEL_OUTS + o) * 4 + i % 4] = code;
        }
    }
}

static void pack_scalars(const struct weight *w, const void *data, uint32_t out, uint32_t group, uint32_t n_groups,
                         float *to) {
    for (uint32_t o = 0; o < PANEL_OUTS; o++) {
        uint32_t r = out + o < w->desc.n_out ? out + o : w->desc.n_out - 1;
        size_t from = (size_t)r * w->n_groups + group;
        for (uint32_t g = 0; g < n_groups; g++)
            to[g * PANEL_OUTS + o] = scalar_at(data, w->desc.scale_dtype, from + g);
    }
}

void linear_pack_scales_ref(const struct weight *w, uint32_t out, uint32_t group, uint32_t n_groups,
                            float *scales, float *biases) {
    if (biases) {
        pack_scalars(w, w->desc.scales, out, group, n_groups, scales);
        pack_scalars(w, w->desc.biases, out, group, n_groups, biases);
        return;
    }
    for (uint32_t o = 0; o < PANEL_OUTS; o++) {
        uint32_t r = out + o < w->desc.n_out ? out + o : w->desc.n_out - 1;
        for (uint32_t g = 0; g < n_groups; g++) // codes are twice the value
            scales[g * PANEL_OUTS + o] = 0.5f * linear_scale_ref(w, r, group + g);
    }
}

static void int_panels_ref(const struct int_panels *p, const struct int_rows *x, float *acc,
                           size_t acc_stride) {
    uint32_t n_groups = p->n_k / p->group;
    for (uint32_t r = 0; r < x->n; r++) {
        size_t row = row_at(x->idx, r);
        const int8_t *q = x->q + row * x->q_stride;
        for (uint32_t o = 0; o < p->n_panels * PANEL_OUTS; o++) {
            const uint8_t *codes = p->codes + (size_t)(o / 16) * p->n_k * PANEL_OUTS + o % 16 * 4;
            float sum = acc[r * acc_stride + o];
            for (uint32_t g = 0; g < n_groups; g++) {
                size_t at = ((size_t)(o / 16) * n_groups + g) * PANEL_OUTS + o % 16;
                size_t x_at = row * x->group_stride + g;
                int32_t dot = -p->code_zero * x->isums[x_at];
                for (uint32_t i = g * p->group; i < (g + 1) * p->group; i++)
                    dot += codes[(size_t)(i / 4) * 64 + i % 4] * q[i];
                sum = fmaf(x->scales[x_at] * p->scales[at], (float)dot, sum);
                if (p->biases)
                    sum = fmaf(p->biases[at], x->sums[x_at], sum);
            }
            acc[r * acc_stride + o] = sum;
        }
    }
}

// ---- Float --------------------------------------------------------------------------------------
void linear_dequantize_ref(const struct weight *w, uint32_t row, uint32_t k, uint32_t n, float *out) {
    const uint8_t *data = (const uint8_t *)w->desc.data + row * w->row_bytes;
    switch (w->desc.format) {
    case WEIGHT_F32:
    case WEIGHT_F16:
    case WEIGHT_BF16: {
        enum dtype dtype = w->desc.format == WEIGHT_F32   ? DTYPE_F32
                           : w->desc.format == WEIGHT_F16 ? DTYPE_F16
                                                          : DTYPE_BF16;
        for (uint32_t i = 0; i < n; i++)
            out[i] = scalar_at(data, dtype, k + i);
        return;
    }
    case WEIGHT_AFFINE:
    case WEIGHT_MXFP4:
    case WEIGHT_MXFP8:
    case WEIGHT_NVFP4:
        break;
    }
    for (uint32_t i = 0, piece; i < n; i += piece) {
        uint8_t codes[128];
        uint32_t group = (k + i) / w->group;
        piece = (group + 1) * w->group - (k + i);
        piece = piece < n - i ? piece : n - i;
        linear_unpack_ref(w, row, k + i, piece, codes);
        float scale = linear_scale_ref(w, row, group);
        float bias = w->desc.format == WEIGHT_AFFINE ? linear_bias_ref(w, row, group) : 0.0f;
        for (uint32_t j = 0; j < piece; j++)
            out[i + j] = w->desc.format == WEIGHT_AFFINE  ? scale * (float)codes[j] + bias
                         : w->desc.format == WEIGHT_MXFP8 ? scale * f8e4m3_to_f32(codes[j])
                                                          : scale * F4E2M1_VALUES[codes[j]];
    }
}

static void float_block_ref(const float *w, size_t w_stride, uint32_t n_outs, const struct float_rows *x,
                            uint32_t n_k, float *lanes) {
    for (uint32_t r = 0; r < x->n; r++) {
        const float *row = x->x + row_at(x->idx, r) * x->stride;
        for (uint32_t o = 0; o < n_outs; o++, lanes += FLOAT_LANES)
            for (uint32_t i = 0; i < (n_k + 15) / 16 * 16; i++)
                lanes[i % 16] = fmaf(i < n_k ? row[i] : 0.0f, w[o * w_stride + i], lanes[i % 16]);
    }
}

static void dense_dot_ref(enum weight_format format, const void *w, size_t stride, uint32_t n_outs,
                          const float *x, uint32_t n, float *out) {
    enum dtype dtype = format == WEIGHT_F32 ? DTYPE_F32 : format == WEIGHT_F16 ? DTYPE_F16 : DTYPE_BF16;
    for (uint32_t o = 0; o < n_outs; o++) {
        float lanes[FLOAT_LANES] = {0};
        const char *row = (const char *)w + o * stride;
        for (uint32_t i = 0; i < (n + 15) / 16 * 16; i++)
            lanes[i % 16] = fmaf(i < n ? x[i] : 0.0f, i < n ? scalar_at(row, dtype, i) : 0.0f, lanes[i % 16]);
        out[o] = lanes_sum(lanes);
    }
}

void linear_kernels_use_ref(struct linear_kernels *kernels) {
    *kernels = (struct linear_kernels){
        .quantize = quantize_ref,
        .pack_codes = linear_pack_codes_ref,
        .pack_scales = linear_pack_scales_ref,
        .int_panels = int_panels_ref,
        .many_rows = UINT32_MAX,
        .dequantize = linear_dequantize_ref,
        .float_block = float_block_ref,
        .dense_dot = dense_dot_ref,
    };
}
