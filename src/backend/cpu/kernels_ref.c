// The specification of every kernel, in the order of its formula.
#include <math.h>

#include "backend/cpu/cpu_kernels.h"

enum { KEYS = KV_PAGE_TOKENS };

// ---- Elementwise and norms ------------------------------------------------------------------------
static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static float gelu(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

static float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

static void norm_rms_ref(const float *x, const float *w, float eps, float *y, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    float factor = 1.0f / sqrtf(sum / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * factor * (w ? w[i] : 1.0f);
}

static void norm_layer_ref(const float *x, const float *w, const float *b, float eps, float *y, size_t n) {
    float sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    float mean = sum / (float)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / sqrtf(squares / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * factor * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f);
}

static void glu_ref(enum glu_kind kind, const float *gate, const float *up, float *y, size_t n, float alpha,
                    float limit) {
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i];
        switch (kind) {
        case GLU_SILU: y[i] = g * sigmoid(g) * u; break;
        case GLU_GELU: y[i] = gelu(g) * u; break;
        case GLU_GELU_TANH: y[i] = gelu_tanh(g) * u; break;
        case GLU_RELU: y[i] = (g > 0 ? g : 0.0f) * u; break;
        case GLU_CLAMPED_SWIGLU:
            g = g > limit ? limit : g;
            u = u > limit ? limit : u < -limit ? -limit : u;
            y[i] = (u + 1.0f) * (g * sigmoid(alpha * g));
            break;
        case GLU_SIGMOID: y[i] = u * sigmoid(g); break;
        }
    }
}

static void unary_ref(enum unary_kind kind, const float p[4], const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        switch (kind) {
        case UNARY_SILU: y[i] = v * sigmoid(v); break;
        case UNARY_GELU: y[i] = gelu(v); break;
        case UNARY_GELU_TANH: y[i] = gelu_tanh(v); break;
        case UNARY_RELU: y[i] = v > 0 ? v : 0.0f; break;
        case UNARY_RELU2: y[i] = v > 0 ? v * v : 0.0f; break;
        case UNARY_SIGMOID: y[i] = sigmoid(v); break;
        case UNARY_TANH_CAP: y[i] = p[0] * tanhf(v / p[0]); break;
        case UNARY_XIELU: // Huang & Schlag 2024, "Deriving activation functions via integration"
            if (v > 0)
                y[i] = p[0] * v * v + p[2] * v;
            else
                y[i] = (expm1f(v < p[3] ? v : p[3]) - v) * p[1] + p[2] * v;
            break;
        }
    }
}

static void axpby_ref(float a, const float *x, float b, float *y, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] = a * x[i] + b * y[i];
}

static void mul_ref(const float *x, float *y, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] *= x[i];
}

static void scale_ref(float a, float *y, size_t n) {
    for (size_t i = 0; i < n; i++)
        y[i] *= a;
}

static void rope_ref(float *x, const float *cos, const float *sin, size_t n_pairs, bool interleaved) {
    for (size_t j = 0; j < n_pairs; j++) {
        float *a = interleaved ? x + 2 * j : x + j, *b = interleaved ? a + 1 : x + n_pairs + j;
        float a0 = *a, b0 = *b;
        *a = a0 * cos[j] - b0 * sin[j];
        *b = b0 * cos[j] + a0 * sin[j];
    }
}

// ---- Attention ------------------------------------------------------------------------------------
static void kv_load_k_ref(const struct kv_layout *layout, const void *block, float *out) {
    for (uint32_t d = 0; d < layout->k_dim; d++)
        for (uint32_t j = 0; j < KEYS; j++)
            out[(size_t)d * KEYS + j] = kv_key_at(layout, block, j, d);
}

static void kv_load_v_ref(const struct kv_layout *layout, const void *block, float *out) {
    for (uint32_t j = 0; j < KEYS; j++)
        for (uint32_t d = 0; d < layout->v_dim; d++)
            out[(size_t)j * layout->v_dim + d] = kv_value_at(layout, block, j, d);
}

// Element d of query i.
static float query_at(const float *q, uint32_t k_dim, uint32_t i, uint32_t d) {
    return q[((size_t)(i / ATTENTION_PANEL) * k_dim + d) * ATTENTION_PANEL + i % ATTENTION_PANEL];
}

static void attention_scores_ref(const struct kv_layout *layout, const void *block, const float *q, uint32_t n_q,
                                 uint32_t n_keys, ptrdiff_t ahead, float *s) {
    (void)ahead;
    for (uint32_t i = 0; i < n_q; i++) {
        for (uint32_t j = 0; j < n_keys; j++) {
            float sum = 0;
            for (uint32_t d = 0; d < layout->k_dim; d++)
                sum = fmaf(query_at(q, layout->k_dim, i, d), kv_key_at(layout, block, j, d), sum);
            s[i * KEYS + j] = sum;
        }
    }
}

static void attention_scores_f32_ref(const float *k, uint32_t k_dim, const float *q, uint32_t n_q, uint32_t n_keys,
                                     float *s) {
    for (uint32_t i = 0; i < n_q; i++) {
        for (uint32_t j = 0; j < n_keys; j++) {
            float sum = 0;
            for (uint32_t d = 0; d < k_dim; d++)
                sum = fmaf(query_at(q, k_dim, i, d), k[(size_t)d * KEYS + j], sum);
            s[i * KEYS + j] = sum;
        }
    }
}

static void attention_softmax_ref(float *s, uint64_t seen, float scale, float softcap, float *m, float *l) {
    float top = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < KEYS; j++) {
        if (!(seen >> j & 1))
            continue;
        s[j] *= scale;
        if (softcap > 0)
            s[j] = softcap * tanhf(s[j] / softcap);
        top = s[j] > top ? s[j] : top;
    }
    for (uint32_t j = 0; j < KEYS; j++) {
        s[j] = seen >> j & 1 ? expf(s[j] - top) : 0.0f;
        sum += s[j];
    }
    *m = top;
    *l = sum;
}

static void attention_values_ref(const struct kv_layout *layout, const void *block, const float *p, uint32_t n_q,
                                 uint32_t from, uint32_t to, ptrdiff_t ahead, const float *a, const float *b,
                                 float *o, size_t o_stride) {
    (void)ahead;
    for (uint32_t i = 0; i < n_q; i++) {
        for (uint32_t d = 0; d < layout->v_dim; d++) {
            float sum = 0;
            for (uint32_t j = from; j < to; j++)
                sum = fmaf(p[i * KEYS + j], kv_value_at(layout, block, j, d), sum);
            o[i * o_stride + d] = fmaf(o[i * o_stride + d], a[i], b[i] * sum);
        }
    }
}

static void attention_values_f32_ref(const float *v, uint32_t v_dim, const float *p, uint32_t n_q, uint32_t from,
                                     uint32_t to, const float *a, const float *b, float *o, size_t o_stride) {
    for (uint32_t i = 0; i < n_q; i++) {
        for (uint32_t d = 0; d < v_dim; d++) {
            float sum = 0;
            for (uint32_t j = from; j < to; j++)
                sum = fmaf(p[i * KEYS + j], v[(size_t)j * v_dim + d], sum);
            o[i * o_stride + d] = fmaf(o[i * o_stride + d], a[i], b[i] * sum);
        }
    }
}

static void kv_gather_ref(const struct kv_layout *layout, const void *block, const uint8_t *tokens, uint32_t n,
                          float *k, float *v) {
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t d = 0; d < layout->k_dim; d++)
            k[(size_t)d * KEYS + j] = kv_key_at(layout, block, tokens[j], d);
        for (uint32_t d = 0; d < layout->v_dim; d++)
            v[(size_t)j * layout->v_dim + d] = kv_value_at(layout, block, tokens[j], d);
    }
}

static void attention_merge_ref(float a, float *o, float b, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        o[i] = fmaf(o[i], a, b * x[i]);
}

// ---- The rest -------------------------------------------------------------------------------------
static void softmax_ref(const float *x, float *y, size_t n) {
    float top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; i++) {
        y[i] = expf(x[i] - top);
        sum += y[i];
    }
    for (size_t i = 0; i < n; i++)
        y[i] /= sum;
}

static void conv_ref(const float *const *x, const float *const *w, uint32_t n_taps, const float *bias, float *y,
                     size_t n) {
    for (size_t c = 0; c < n; c++) {
        float sum = bias ? bias[c] : 0.0f;
        for (uint32_t t = 0; t < n_taps; t++)
            sum = fmaf(w[t][c], x[t][c], sum);
        y[c] = sum;
    }
}

static void delta_ref(float *state, size_t state_stride, const float *k, const float *q, uint32_t k_dim,
                      const float *v, float decay, float beta, float *out, uint32_t n) {
    for (uint32_t c = 0; c < n; c++) {
        float held = 0, sum = 0;
        for (uint32_t i = 0; i < k_dim; i++) {
            state[i * state_stride + c] *= decay;
            held = fmaf(k[i], state[i * state_stride + c], held);
        }
        float u = beta * (v[c] - held);
        for (uint32_t i = 0; i < k_dim; i++) {
            state[i * state_stride + c] = fmaf(k[i], u, state[i * state_stride + c]);
            sum = fmaf(q[i], state[i * state_stride + c], sum);
        }
        out[c] = sum;
    }
}

static void index_reduce_ref(const float *s, const float *w, uint32_t n_heads, float scale, float *out) {
    for (uint32_t j = 0; j < KEYS; j++) {
        float sum = 0;
        for (uint32_t h = 0; h < n_heads; h++)
            sum = fmaf(w[h], s[h * KEYS + j] > 0 ? s[h * KEYS + j] : 0.0f, sum);
        out[j] = scale * sum;
    }
}

void cpu_kernels_use_ref(struct cpu_kernels *kernels) {
    *kernels = (struct cpu_kernels){
        .norm_rms = norm_rms_ref,
        .norm_layer = norm_layer_ref,
        .glu = glu_ref,
        .unary = unary_ref,
        .axpby = axpby_ref,
        .mul = mul_ref,
        .scale = scale_ref,
        .rope = rope_ref,
        .kv_load_k = kv_load_k_ref,
        .kv_load_v = kv_load_v_ref,
        .attention_scores = attention_scores_ref,
        .attention_scores_f32 = attention_scores_f32_ref,
        .attention_softmax = attention_softmax_ref,
        .attention_values = attention_values_ref,
        .attention_values_f32 = attention_values_f32_ref,
        .kv_gather = kv_gather_ref,
        .attention_merge = attention_merge_ref,
        .softmax = softmax_ref,
        .conv = conv_ref,
        .delta = delta_ref,
        .index_reduce = index_reduce_ref,
        .exp = expf,
    };
    linear_kernels_use_ref(&kernels->linear);
}
