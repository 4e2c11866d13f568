#include "backend/cpu/kv_layout.h"

#include <math.h>

#include "base/half.h"

enum { TOKENS = KV_PAGE_TOKENS, PART_ALIGN = 64 };

static size_t aligned(size_t n) {
    return (n + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

static size_t code_bytes(enum kv_kind kind, uint32_t dim) {
    size_t n = (size_t)TOKENS * ((dim + 1) & ~1u);
    switch (kind) {
    case KV_F32: return 4 * n;
    case KV_F16:
    case KV_BF16: return 2 * n;
    case KV_Q8: return n;
    case KV_Q4: return n / 2;
    }
    return 0;
}

struct kv_layout kv_layout_make(enum kv_kind kind, uint32_t k_dim, uint32_t v_dim, bool v_in_k) {
    struct kv_layout l = {.kind = kind, .v_in_k = v_in_k, .k_dim = k_dim, .v_dim = v_dim};
    bool quantized = kind == KV_Q8 || kind == KV_Q4;
    size_t k_params = quantized ? (size_t)kv_n_groups(k_dim) * TOKENS * 2 : 0;
    size_t v_params = quantized ? (size_t)kv_n_groups(v_dim) * TOKENS * 2 : 0;
    l.k_scales = aligned(code_bytes(kind, k_dim));
    l.k_biases = l.k_scales + k_params;
    size_t end = aligned(l.k_biases + k_params);
    if (v_in_k) { // the value part is the key part
        l.v_scales = l.k_scales;
        l.v_biases = l.k_biases;
    } else {
        l.v_codes = end;
        l.v_scales = end + aligned(code_bytes(kind, v_dim));
        l.v_biases = l.v_scales + v_params;
        end = aligned(l.v_biases + v_params);
    }
    l.block_bytes = end;
    return l;
}

// ---- One element --------------------------------------------------------------------------------
// Index of the element in the code array, in elements, by the table of kv_layout.h.
static size_t token_major(const struct kv_layout *l, uint32_t n_dims, uint32_t token, uint32_t dim) {
    if (l->kind != KV_Q4)
        return (size_t)token * n_dims + dim;
    uint32_t half = (n_dims + 1) / 2;
    return dim < half ? ((size_t)token * half + dim) * 2 : ((size_t)token * half + dim - half) * 2 + 1;
}

static size_t key_index(const struct kv_layout *l, uint32_t token, uint32_t dim) {
    if (l->v_in_k)
        return token_major(l, l->k_dim, token, dim);
    if (l->kind == KV_BF16 || l->kind == KV_Q4)
        return ((size_t)(dim / 2) * TOKENS + token) * 2 + dim % 2;
    return (size_t)dim * TOKENS + token;
}

static size_t value_index(const struct kv_layout *l, uint32_t token, uint32_t dim) {
    if (l->v_in_k)
        return key_index(l, token, dim);
    if (l->kind == KV_BF16)
        return ((size_t)(token / 2) * l->v_dim + dim) * 2 + token % 2;
    return token_major(l, l->v_dim, token, dim);
}

static float element(enum kv_kind kind, const void *codes, size_t i, const uint16_t *scale,
                     const uint16_t *bias) {
    switch (kind) {
    case KV_F32: return ((const float *)codes)[i];
    case KV_F16: return f16_to_f32(((const uint16_t *)codes)[i]);
    case KV_BF16: return bf16_to_f32(((const uint16_t *)codes)[i]);
    case KV_Q8: return fmaf(f16_to_f32(*scale), ((const uint8_t *)codes)[i], f16_to_f32(*bias));
    case KV_Q4:
        return fmaf(f16_to_f32(*scale), (float)(((const uint8_t *)codes)[i / 2] >> i % 2 * 4 & 15),
                    f16_to_f32(*bias));
    }
    return 0;
}

float kv_key_at(const struct kv_layout *l, const void *block, uint32_t token, uint32_t dim) {
    const char *base = block;
    size_t param = (size_t)(dim / KV_GROUP) * TOKENS + token;
    return element(l->kind, base, key_index(l, token, dim), (const uint16_t *)(base + l->k_scales) + param,
                   (const uint16_t *)(base + l->k_biases) + param);
}

float kv_value_at(const struct kv_layout *l, const void *block, uint32_t token, uint32_t dim) {
    const char *base = block;
    size_t param = (size_t)(dim / KV_GROUP) * TOKENS + token;
    return element(l->kind, base + l->v_codes, value_index(l, token, dim),
                   (const uint16_t *)(base + l->v_scales) + param, (const uint16_t *)(base + l->v_biases) + param);
}

// ---- Writing ------------------------------------------------------------------------------------
typedef size_t index_fn(const struct kv_layout *l, uint32_t token, uint32_t dim);

// Where a token's elements lie in every kind but q4: dim d at at + d / 2 * pair + d % 2 * odd.
struct path {
    size_t at, pair, odd;
};

static struct path path_of(const struct kv_layout *l, index_fn *index, uint32_t token) {
    size_t at = index(l, token, 0);
    return (struct path){at, index(l, token, 2) - at, index(l, token, 1) - at};
}

#define STORE_ALL(type, value)                                                                                   \
    do {                                                                                                         \
        type *to = (type *)codes + path.at;                                                                      \
        uint32_t d = 0;                                                                                          \
        for (; d + 2 <= dim; d += 2, to += path.pair) {                                                          \
            to[0] = value(x[d]);                                                                                 \
            to[path.odd] = value(x[d + 1]);                                                                      \
        }                                                                                                        \
        if (d < dim)                                                                                             \
            to[0] = value(x[d]);                                                                                 \
    } while (0)

// Affine: bias = min, scale = (max - min) / levels, both rounded to f16 first, so that the codes make up
// for the rounding.
static void store_quantized(const struct kv_layout *l, uint8_t *codes, uint16_t *scales, uint16_t *biases,
                            index_fn *index, const struct path *path, uint32_t token, const float *x,
                            uint32_t dim) {
    float levels = l->kind == KV_Q8 ? 255.0f : 15.0f;
    for (uint32_t g = 0; g < kv_n_groups(dim); g++) {
        uint32_t from = g * KV_GROUP, to = from + KV_GROUP < dim ? from + KV_GROUP : dim;
        float low = x[from], high = x[from];
        for (uint32_t d = from + 1; d < to; d++) {
            low = x[d] < low ? x[d] : low;
            high = x[d] > high ? x[d] : high;
        }
        uint16_t bias16 = f16_from_f32(low), scale16 = f16_from_f32((high - low) / levels);
        float bias = f16_to_f32(bias16), scale = f16_to_f32(scale16);
        float inverse = scale > 0 ? 1.0f / scale : 0.0f;
        scales[(size_t)g * TOKENS + token] = scale16;
        biases[(size_t)g * TOKENS + token] = bias16;
        for (uint32_t d = from; d < to; d++) {
            float q = (x[d] - bias) * inverse;
            q = q > 0 ? q < levels ? q : levels : 0.0f; // NaN gives 0
            // Rounds to the nearest, ties to even: above 2^23 float32 has whole numbers only.
            uint8_t code = (uint8_t)((q + 0x1.8p23f) - 0x1.8p23f);
            if (l->kind == KV_Q8) {
                codes[path->at + d / 2 * path->pair + d % 2 * path->odd] = code;
                continue;
            }
            size_t i = index(l, token, d);
            codes[i / 2] = (uint8_t)((codes[i / 2] & (i % 2 ? 0x0F : 0xF0)) | code << i % 2 * 4);
        }
    }
}

static void store(const struct kv_layout *l, void *codes, void *scales, void *biases, index_fn *index,
                  uint32_t token, const float *x, uint32_t dim) {
    struct path path = path_of(l, index, token);
    switch (l->kind) {
    case KV_F32:
        STORE_ALL(float, +);
        break;
    case KV_F16:
        STORE_ALL(uint16_t, f16_from_f32);
        break;
    case KV_BF16:
        STORE_ALL(uint16_t, bf16_from_f32);
        break;
    case KV_Q8:
    case KV_Q4:
        store_quantized(l, codes, scales, biases, index, &path, token, x, dim);
        break;
    }
}

void kv_store_token(const struct kv_layout *l, void *block, uint32_t token, const float *k, const float *v) {
    char *base = block;
    store(l, base, base + l->k_scales, base + l->k_biases, key_index, token, k, l->k_dim);
    if (!l->v_in_k && l->v_dim)
        store(l, base + l->v_codes, base + l->v_scales, base + l->v_biases, value_index, token, v, l->v_dim);
}
