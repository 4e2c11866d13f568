#include "backend/cpu/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"

struct weight {
    struct weight_desc desc;
    size_t row_bytes;
};

enum { ROWS_A_TILE = 16 };

// ---- Weights ------------------------------------------------------------------------------------
static float scalar_at(const void *data, enum dtype dtype, size_t i) {
    uint16_t h;
    float f;
    if (dtype == DTYPE_F32) {
        memcpy(&f, (const char *)data + 4 * i, sizeof f);
        return f;
    }
    memcpy(&h, (const char *)data + 2 * i, sizeof h);
    return dtype == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

// The float32 values of row `row`.
static void weight_row(const struct weight *w, size_t row, float *out) {
    const struct weight_desc *d = &w->desc;
    const uint8_t *data = (const uint8_t *)d->data + row * w->row_bytes;
    size_t n = d->n_in;
    switch (d->format) {
    case WEIGHT_F32:
    case WEIGHT_F16:
    case WEIGHT_BF16: {
        enum dtype dtype = d->format == WEIGHT_F32   ? DTYPE_F32
                           : d->format == WEIGHT_F16 ? DTYPE_F16
                                                     : DTYPE_BF16;
        for (size_t i = 0; i < n; i++)
            out[i] = scalar_at(data, dtype, i);
        break;
    }
    case WEIGHT_AFFINE:
        for (size_t i = 0; i < n; i++) {
            size_t bit = i * d->bits, byte = bit / 8, group = row * (n / d->group) + i / d->group;
            uint32_t word = data[byte];
            if (bit % 8 + d->bits > 8)
                word |= (uint32_t)data[byte + 1] << 8;
            uint32_t q = word >> bit % 8 & ((1u << d->bits) - 1);
            out[i] = scalar_at(d->scales, d->scale_dtype, group) * (float)q +
                     scalar_at(d->biases, d->scale_dtype, group);
        }
        break;
    case WEIGHT_MXFP4:
        for (size_t i = 0; i < n; i++)
            out[i] = F4E2M1_VALUES[data[i / 2] >> i % 2 * 4 & 15] *
                     f8e8m0_to_f32(((const uint8_t *)d->scales)[(row * n + i) / 32]);
        break;
    case WEIGHT_MXFP8:
        for (size_t i = 0; i < n; i++)
            out[i] = f8e4m3_to_f32(data[i]) * f8e8m0_to_f32(((const uint8_t *)d->scales)[(row * n + i) / 32]);
        break;
    case WEIGHT_NVFP4:
        for (size_t i = 0; i < n; i++)
            out[i] = F4E2M1_VALUES[data[i / 2] >> i % 2 * 4 & 15] *
                     f8e4m3_to_f32(((const uint8_t *)d->scales)[(row * n + i) / 16]);
        break;
    }
}

static uint32_t format_bits(const struct weight_desc *d) {
    switch (d->format) {
    case WEIGHT_F32: return 32;
    case WEIGHT_F16:
    case WEIGHT_BF16: return 16;
    case WEIGHT_AFFINE: return d->bits;
    case WEIGHT_MXFP8: return 8;
    default: return 4;
    }
}

static uint32_t format_group(const struct weight_desc *d) {
    switch (d->format) {
    case WEIGHT_AFFINE: return d->group;
    case WEIGHT_MXFP4:
    case WEIGHT_MXFP8: return 32;
    case WEIGHT_NVFP4: return 16;
    default: return 1;
    }
}

struct weight *cpu_weight_create(struct backend *be, const struct weight_desc *desc, struct err *err) {
    (void)be;
    if (desc->format == WEIGHT_AFFINE && (desc->bits < 2 || desc->bits > 8 || desc->bits == 7)) {
        err_set(err, ERR_UNSUPPORTED, "affine weights of %u bits: 2, 3, 4, 5, 6 and 8 are known", desc->bits);
        return NULL;
    }
    uint32_t group = format_group(desc);
    if (group == 0 || desc->n_in % group != 0) {
        err_set(err, ERR_UNSUPPORTED, "a weight row of %u elements does not divide into groups of %u",
                desc->n_in, group);
        return NULL;
    }
    struct weight *w = calloc(1, sizeof *w);
    if (!w) {
        err_set(err, ERR_NOMEM, "out of memory for a weight");
        return NULL;
    }
    w->desc = *desc;
    w->row_bytes = (size_t)desc->n_in * format_bits(desc) / 8;
    return w;
}

void cpu_weight_destroy(struct backend *be, struct weight *weight) {
    (void)be;
    free(weight);
}

bool cpu_weights_ready(struct backend *be, struct err *err) {
    (void)be;
    (void)err;
    return true;
}

// ---- Products -----------------------------------------------------------------------------------
struct cpu_scratch_bytes cpu_linear_scratch(const struct cpu_backend *cb, const struct backend_limits *limits) {
    (void)cb;
    size_t thread = ((size_t)max_u32(limits->n_cols_max, limits->d_expert) + 4 * (size_t)limits->d_expert) *
                    sizeof(float);
    return (struct cpu_scratch_bytes){.thread = thread};
}

struct product {
    struct cpu_backend *cb;
    struct mat x;
    const struct weight *weight;
    const float *bias;
    struct mat y;
    enum linear_store store;
    float scale, softcap;
};

static void product_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    const struct product *p = job;
    uint32_t n_out = p->weight->desc.n_out, from = tile_idx * ROWS_A_TILE;
    float *row = p->cb->thread_scratch[thread_idx];
    for (uint32_t o = from; o < min_u32(from + ROWS_A_TILE, n_out); o++) {
        weight_row(p->weight, o, row);
        for (uint32_t i = 0; i < p->x.n_rows; i++) {
            float v = p->cb->kernels.linear.dot_f32(mat_row(p->x, i), row, p->weight->desc.n_in);
            v = p->scale * (v + (p->bias ? p->bias[o] : 0.0f));
            if (p->softcap > 0)
                v = p->softcap * tanhf(v / p->softcap);
            float *y = mat_row(p->y, i) + o;
            *y = p->store == LINEAR_ADD ? *y + v : v;
        }
    }
}

static void product_run(struct product *p) {
    uint32_t n_out = p->weight->desc.n_out;
    cpu_run(p->cb, product_tile, p, (n_out + ROWS_A_TILE - 1) / ROWS_A_TILE,
            (uint64_t)n_out * p->weight->desc.n_in * p->x.n_rows);
}

void cpu_linear(struct backend *be, const struct linear_args *args) {
    for (uint32_t i = 0; i < args->n_outputs; i++) {
        const struct linear_output *out = &args->outputs[i];
        product_run(&(struct product){.cb = cpu_backend(be),
                                      .x = args->x,
                                      .weight = out->weight,
                                      .bias = out->bias,
                                      .y = out->y,
                                      .store = args->store,
                                      .scale = args->scale});
    }
}

float *cpu_logits(struct backend *be, struct mat x, const struct weight *head, const float *bias, float scale,
                  float softcap) {
    struct cpu_backend *cb = cpu_backend(be);
    struct mat y = {cb->logits, x.n_rows, head->desc.n_out, head->desc.n_out};
    product_run(&(struct product){
        .cb = cb, .x = x, .weight = head, .bias = bias, .y = y, .scale = scale, .softcap = softcap});
    return cb->logits;
}

struct embed_job {
    const struct weight *table;
    const int32_t *ids;
    float scale;
    struct mat y;
};

static void embed_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct embed_job *e = job;
    float *y = mat_row(e->y, tile_idx);
    weight_row(e->table, (size_t)e->ids[tile_idx], y);
    for (uint32_t i = 0; i < e->table->desc.n_in; i++)
        y[i] *= e->scale;
}

void cpu_embed(struct backend *be, const struct weight *table, const int32_t *ids, float scale, struct mat y) {
    struct cpu_backend *cb = cpu_backend(be);
    struct embed_job e = {table, ids ? ids : cb->step->token_ids, scale, y};
    cpu_run(cb, embed_tile, &e, y.n_rows, (uint64_t)y.n_rows * y.n_cols * 8);
}

// A tile owns columns of the output and walks their gate and up rows.
struct glu_product {
    struct cpu_backend *cb;
    struct mat x;
    const struct weight *gate, *up;
    enum glu_kind kind;
    struct mat y;
};

static void glu_product_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    const struct glu_product *p = job;
    uint32_t n_out = p->gate->desc.n_out, n_in = p->gate->desc.n_in, from = tile_idx * ROWS_A_TILE;
    float *row = p->cb->thread_scratch[thread_idx];
    for (uint32_t o = from; o < min_u32(from + ROWS_A_TILE, n_out); o++) {
        weight_row(p->gate, o, row);
        for (uint32_t i = 0; i < p->x.n_rows; i++)
            mat_row(p->y, i)[o] = p->cb->kernels.linear.dot_f32(mat_row(p->x, i), row, n_in);
        weight_row(p->up, o, row);
        for (uint32_t i = 0; i < p->x.n_rows; i++) {
            float up = p->cb->kernels.linear.dot_f32(mat_row(p->x, i), row, n_in);
            float *y = mat_row(p->y, i) + o;
            p->cb->kernels.glu(p->kind, y, &up, y, 1, 0, 0);
        }
    }
}

void cpu_linear_glu(struct backend *be, struct mat x, const struct weight *gate, const struct weight *up,
                    enum glu_kind kind, struct mat y) {
    struct glu_product p = {cpu_backend(be), x, gate, up, kind, y};
    cpu_run(p.cb, glu_product_tile, &p, (gate->desc.n_out + ROWS_A_TILE - 1) / ROWS_A_TILE,
            (uint64_t)2 * gate->desc.n_out * gate->desc.n_in * x.n_rows);
}

// ---- Experts: a tile is a token ------------------------------------------------------------------
struct experts_job {
    struct cpu_backend *cb;
    const struct experts_args *args;
};

static void experts_tile(void *job, uint32_t t, uint32_t thread_idx) {
    const struct experts_job *e = job;
    const struct experts_args *a = e->args;
    dot_f32_fn *dot = e->cb->kernels.linear.dot_f32;
    uint32_t d = a->x.n_cols, d_expert = a->gate[0]->desc.n_out;
    float *row = e->cb->thread_scratch[thread_idx], *gate = row + max_u32(d, d_expert), *up = gate + d_expert;
    float *x = mat_row(a->x, t), *y = mat_row(a->y, t);
    if (a->store == LINEAR_STORE)
        memset(y, 0, d * sizeof *y);
    for (uint32_t k = 0; k < a->n_used; k++) {
        uint32_t expert = a->experts[(size_t)t * a->n_used + k];
        float weight = a->weights[(size_t)t * a->n_used + k] * a->scale;
        for (uint32_t o = 0; o < d_expert; o++) {
            weight_row(a->gate[expert], o, row);
            gate[o] = dot(x, row, d) + (a->gate_bias ? a->gate_bias[(size_t)expert * d_expert + o] : 0.0f);
            weight_row(a->up[expert], o, row);
            up[o] = dot(x, row, d) + (a->up_bias ? a->up_bias[(size_t)expert * d_expert + o] : 0.0f);
        }
        e->cb->kernels.glu(a->glu, gate, up, gate, d_expert, a->alpha, a->limit);
        for (uint32_t o = 0; o < d; o++) {
            weight_row(a->down[expert], o, row);
            y[o] += weight * (dot(gate, row, d_expert) +
                              (a->down_bias ? a->down_bias[(size_t)expert * d + o] : 0.0f));
        }
    }
}

void cpu_experts(struct backend *be, const struct experts_args *args) {
    struct experts_job e = {cpu_backend(be), args};
    cpu_run(e.cb, experts_tile, &e, args->x.n_rows,
            (uint64_t)args->x.n_rows * args->n_used * args->x.n_cols * args->gate[0]->desc.n_out);
}
