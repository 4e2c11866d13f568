#include "model/mla.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "model/rope.h"

struct mla_dims {
    const struct mla_traits *traits;
    uint32_t n_heads, nope, rope, v, kv_lora, q_lora; // q_lora 0: q_proj straight from the input
    uint32_t index_heads, index_dim, index_topk;      // 0 without an indexer
    float scale;
    struct rope_table rope_table, index_rope;
    // Scratch, [n_tokens, ...].
    struct mat q_a, q, q_latent, kv, out_latent, out, index_q, index_k, index_weights;
    uint32_t *selected; // [n_tokens, index_topk]; lives on for layers that share their predecessor's
};

struct mla {
    struct mla_dims *dims;
    struct weight *q_a, *q_b, *kv_a, *o;
    struct weight **k_up; // [n_heads] of [kv_lora, nope]: query head into the latent space
    struct weight **v_up; // [n_heads] of [v, kv_lora]: latent result to the head's values
    const float *q_a_norm, *kv_a_norm;
    struct weight *index_q, *index_k, *index_weights;
    const float *index_k_norm, *index_k_norm_bias;
    uint32_t kv_layer, index_layer;
    bool selects; // has an indexer of its own, else it uses the last choice
};

// The norms of the two latents and of the index keys use this epsilon whatever the config says.
static const float LATENT_EPS = 1e-6f;
enum { DIM_MAX = 1 << 16 };

const struct weight *mla_o_proj(const struct mla *mla) {
    return mla->o;
}

uint32_t mla_out_width(const struct mla_dims *dims) {
    return dims->n_heads * dims->v;
}

static uint32_t k_width(const struct mla_dims *d) {
    return d->kv_lora + d->rope;
}

struct mla_dims *mla_dims_bind(struct model *model, const struct mla_traits *traits, struct err *err) {
    const struct model_config *c = model->config;
    const char *what = "config.json";
    struct mla_dims *d = arena_new(&model->arena, struct mla_dims);
    if (!d) {
        err_set(err, ERR_NOMEM, "out of memory for the attention layers");
        return NULL;
    }
    d->traits = traits;
    d->n_heads = c->n_heads;
    bool interleaved = true;
    if (!json_get_u32(c->text, "qk_nope_head_dim", &d->nope, what, err) ||
        !json_get_u32(c->text, "qk_rope_head_dim", &d->rope, what, err) ||
        !json_get_u32(c->text, "v_head_dim", &d->v, what, err) ||
        !json_get_u32(c->text, "kv_lora_rank", &d->kv_lora, what, err) ||
        !json_get_u32(c->text, "q_lora_rank", &d->q_lora, what, err) ||
        !json_get_bool(c->text, traits->interleave_key, &interleaved, what, err) ||
        (traits->indexer && (!json_get_u32(c->text, "index_n_heads", &d->index_heads, what, err) ||
                             !json_get_u32(c->text, "index_head_dim", &d->index_dim, what, err) ||
                             !json_get_u32(c->text, "index_topk", &d->index_topk, what, err))))
        return NULL;
    if (d->nope == 0 || d->rope == 0 || d->rope % 2 || d->v == 0 || d->kv_lora == 0 || d->nope > DIM_MAX ||
        d->rope > DIM_MAX || d->v > DIM_MAX || d->kv_lora > DIM_MAX || d->q_lora > DIM_MAX) {
        err_set(err, ERR_FORMAT, "config.json: latent attention of rank %u with heads of %u + %u and %u is none "
                "that loam runs", d->kv_lora, d->nope, d->rope, d->v);
        return NULL;
    }
    if (traits->indexer && (d->index_heads == 0 || d->index_dim < d->rope || d->index_dim > DIM_MAX ||
                            d->index_heads > DIM_MAX || d->index_topk == 0 || d->q_lora == 0)) {
        err_set(err, ERR_FORMAT, "config.json: an indexer of %u heads of %u choosing %u keys is none that loam "
                "runs", d->index_heads, d->index_dim, d->index_topk);
        return NULL;
    }
    // Heads are cut out of packed rows: see heads_of().
    if (d->n_heads * (d->nope + d->rope) % 32 || d->n_heads * k_width(d) % 32 || d->n_heads * d->v % 32) {
        err_set(err, ERR_UNSUPPORTED, "latent attention of %u heads of %u + %u is not supported", d->n_heads,
                d->nope, d->rope);
        return NULL;
    }
    d->scale = 1 / sqrtf((float)(d->nope + d->rope));
    if (c->rope.kind == ROPE_YARN && c->rope.mscale_all_dim > 0) {
        double m = rope_yarn_mscale(c->rope.factor, c->rope.mscale_all_dim);
        d->scale = (float)((double)d->scale * m * m);
    }
    struct rope_config rope = c->rope;
    rope.partial = 1;
    bool index_interleaved = traits->index_interleaved;
    if (!json_get_bool(c->text, "indexer_rope_interleave", &index_interleaved, what, err) ||
        !rope_table_init(&d->rope_table, &rope, d->rope, c->ctx_len_max, interleaved, &model->store, err) ||
        !rope_table_init(&d->index_rope, &rope, d->rope, c->ctx_len_max, index_interleaved, &model->store,
                         err))
        return NULL;
    model->n_heads_max = max_u32(model->n_heads_max, max_u32(d->n_heads, d->index_heads));
    model->head_dim_max = max_u32(model->head_dim_max, max_u32(k_width(d), d->index_dim));
    model->n_cols_max = max_u32(model->n_cols_max, max_u32(d->n_heads * d->v, max_u32(d->q_lora, k_width(d))));
    return d;
}

// A [n_rows, n_cols] matrix of 16- or 32-bit elements, transposed into the store.
static const void *transposed(struct binder *binder, const uint8_t *in, size_t n_rows, size_t n_cols,
                              size_t element_bytes, struct err *err) {
    uint8_t *out = model_store_host(binder->store, n_rows * n_cols * element_bytes, err);
    for (size_t r = 0; out && r < n_rows; r++)
        for (size_t c = 0; c < n_cols; c++)
            memcpy(out + (c * n_rows + r) * element_bytes, in + (r * n_cols + c) * element_bytes,
                   element_bytes);
    return out;
}

// Hugging Face: kv_b_proj [n_heads * (nope + v), kv_lora]. Its key half is turned, its value half is read in
// place.
static bool bind_kv_b(struct binder *binder, struct mla *mla, const char *path, struct err *err) {
    const struct mla_dims *d = mla->dims;
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s.scales", path);
    if (bind_has(binder, name))
        return err_set(err, ERR_UNSUPPORTED, "%s is quantized before it is split into embed_q and unembed_out; "
                       "convert the model again with a current mlx-lm", path);
    snprintf(name, sizeof name, "%s.weight", path);
    uint64_t rows = (uint64_t)d->n_heads * (d->nope + d->v);
    const struct tensor *tensor =
        weights_take_shaped(binder->weights, name, 2, (const uint64_t[]){rows, d->kv_lora}, err);
    if (!tensor)
        return false;
    size_t element = dtype_bytes(tensor->dtype), head_bytes = (size_t)(d->nope + d->v) * d->kv_lora * element;
    enum weight_format format = tensor->dtype == DTYPE_F32   ? WEIGHT_F32
                                : tensor->dtype == DTYPE_F16 ? WEIGHT_F16
                                                             : WEIGHT_BF16;
    if (tensor->dtype != DTYPE_F32 && tensor->dtype != DTYPE_F16 && tensor->dtype != DTYPE_BF16)
        return err_set(err, ERR_UNSUPPORTED, "tensor %s has dtype %s; loam reads F32, F16 and BF16 there", name,
                       dtype_name(tensor->dtype));
    for (uint32_t h = 0; h < d->n_heads; h++) {
        const uint8_t *head = tensor->data.data + head_bytes * h;
        const void *turned = transposed(binder, head, d->nope, d->kv_lora, element, err);
        if (!turned)
            return false;
        struct weight_desc k = {.format = format, .n_out = d->kv_lora, .n_in = d->nope, .data = turned};
        struct weight_desc v = {.format = format, .n_out = d->v, .n_in = d->kv_lora,
                                .data = head + (size_t)d->nope * d->kv_lora * element};
        mla->k_up[h] = bind_desc(binder, &k, (size_t)d->nope * d->kv_lora * element, path, err);
        mla->v_up[h] = mla->k_up[h] ? bind_desc(binder, &v, (size_t)d->v * d->kv_lora * element, path, err)
                                    : NULL;
        if (!mla->v_up[h])
            return false;
    }
    return true;
}

// MLX: embed_q [n_heads, kv_lora, nope] and unembed_out [n_heads, v, kv_lora], perhaps quantized.
static bool bind_split_kv_b(struct binder *binder, struct mla *mla, uint32_t l, struct err *err) {
    const struct mla_dims *d = mla->dims;
    char path[BIND_PATH_BYTES];
    for (uint32_t h = 0; h < d->n_heads; h++) {
        struct bind_shape k = {.n_out = d->kv_lora, .n_in = d->nope, .n_experts = d->n_heads, .expert = h};
        struct bind_shape v = {.n_out = d->v, .n_in = d->kv_lora, .n_experts = d->n_heads, .expert = h};
        bind_path(binder, path, "layers.%u.self_attn.embed_q", l);
        mla->k_up[h] = bind_matrix(binder, path, k, err);
        bind_path(binder, path, "layers.%u.self_attn.unembed_out", l);
        mla->v_up[h] = mla->k_up[h] ? bind_matrix(binder, path, v, err) : NULL;
        if (!mla->v_up[h])
            return false;
    }
    return true;
}

// True if layer l has no indexer of its own and uses the choice of the layer before it.
static bool shares_selection(const struct model *model, uint32_t l) {
    const json_t *types = json_object_get(model->config->text, "indexer_types");
    const char *type = json_string_value(json_array_get(types, l));
    return type && strcmp(type, "shared") == 0;
}

static bool bind_indexer(struct model *model, struct binder *binder, struct mla *mla, uint32_t l,
                         struct err *err) {
    const struct mla_dims *d = mla->dims;
    char path[BIND_PATH_BYTES];
    if (l > 0 && shares_selection(model, l))
        return true;
    mla->selects = true;
    bind_path(binder, path, "layers.%u.self_attn.indexer.wq_b", l);
    mla->index_q = bind_linear(binder, path, d->index_heads * d->index_dim, d->q_lora, err);
    bind_path(binder, path, "layers.%u.self_attn.indexer.wk", l);
    mla->index_k = mla->index_q ? bind_linear(binder, path, d->index_dim, model->config->d_model, err) : NULL;
    bind_path(binder, path, "layers.%u.self_attn.indexer.weights_proj", l);
    mla->index_weights =
        mla->index_k ? bind_linear(binder, path, d->index_heads, model->config->d_model, err) : NULL;
    bind_path(binder, path, "layers.%u.self_attn.indexer.k_norm.weight", l);
    mla->index_k_norm = mla->index_weights ? bind_vector(binder, path, d->index_dim, 0, err) : NULL;
    bind_path(binder, path, "layers.%u.self_attn.indexer.k_norm.bias", l);
    mla->index_k_norm_bias = mla->index_k_norm ? bind_vector(binder, path, d->index_dim, 0, err) : NULL;
    if (!mla->index_k_norm_bias)
        return false;
    mla->index_layer = model_add_kv(model, l, (struct kv_layer_desc){
        .group = 0, .n_heads = 1, .k_dim = d->index_dim});
    return true;
}

struct mla *mla_bind(struct model *model, struct binder *binder, const struct mla_dims *dims, uint32_t l,
                     struct err *err) {
    const struct model_config *c = model->config;
    struct mla *mla = arena_new(&model->arena, struct mla);
    if (mla) {
        mla->k_up = arena_array(&model->arena, struct weight *, dims->n_heads);
        mla->v_up = arena_array(&model->arena, struct weight *, dims->n_heads);
    }
    if (!mla || !mla->k_up || !mla->v_up) {
        err_set(err, ERR_NOMEM, "out of memory for an attention layer");
        return NULL;
    }
    mla->dims = (struct mla_dims *)(uintptr_t)dims;
    const struct mla_dims *d = dims;
    char path[BIND_PATH_BYTES], name[BIND_PATH_BYTES];
    uint32_t n_q = d->n_heads * (d->nope + d->rope);
    if (d->q_lora) {
        bind_path(binder, path, "layers.%u.self_attn.q_a_proj", l);
        mla->q_a = bind_linear(binder, path, d->q_lora, c->d_model, err);
        bind_path(binder, path, "layers.%u.self_attn.q_a_layernorm.weight", l);
        mla->q_a_norm = mla->q_a ? bind_vector(binder, path, d->q_lora, 0, err) : NULL;
        if (!mla->q_a_norm)
            return NULL;
    }
    bind_path(binder, path, d->q_lora ? "layers.%u.self_attn.q_b_proj" : "layers.%u.self_attn.q_proj", l);
    mla->q_b = bind_linear(binder, path, n_q, d->q_lora ? d->q_lora : c->d_model, err);
    bind_path(binder, path, "layers.%u.self_attn.kv_a_proj_with_mqa", l);
    mla->kv_a = mla->q_b ? bind_linear(binder, path, k_width(d), c->d_model, err) : NULL;
    bind_path(binder, path, "layers.%u.self_attn.kv_a_layernorm.weight", l);
    mla->kv_a_norm = mla->kv_a ? bind_vector(binder, path, d->kv_lora, 0, err) : NULL;
    bind_path(binder, path, "layers.%u.self_attn.o_proj", l);
    mla->o = mla->kv_a_norm ? bind_linear(binder, path, c->d_model, d->n_heads * d->v, err) : NULL;
    if (!mla->o)
        return NULL;
    // Either half tells that the folder has them apart.
    bind_path(binder, name, "layers.%u.self_attn.embed_q.weight", l);
    bind_path(binder, path, "layers.%u.self_attn.unembed_out.weight", l);
    bool split = bind_has(binder, name) || bind_has(binder, path);
    bind_path(binder, path, "layers.%u.self_attn.kv_b_proj", l);
    if (!(split ? bind_split_kv_b(binder, mla, l, err) : bind_kv_b(binder, mla, path, err)))
        return NULL;
    if (model_group(model, 0, err) != 0) // the only kind of layer here
        return NULL;
    mla->kv_layer = model_add_kv(model, l, (struct kv_layer_desc){
        .group = 0, .n_heads = 1, .k_dim = k_width(d), .v_dim = d->kv_lora, .v_in_k = true});
    if (d->traits->indexer && !bind_indexer(model, binder, mla, l, err))
        return NULL;
    return mla;
}

// ---- Scratch ----------------------------------------------------------------------------------
enum { N_SCRATCH = 9 };
static void scratch_widths(const struct mla_dims *d, uint32_t w[N_SCRATCH]) {
    uint32_t all[N_SCRATCH] = {max_u32(d->q_lora, 1), d->n_heads * (d->nope + d->rope),
                               d->n_heads * k_width(d), k_width(d), d->n_heads * d->kv_lora,
                               d->n_heads * d->v, d->index_heads * d->index_dim, d->index_dim,
                               d->index_heads};
    memcpy(w, all, sizeof all);
}

bool mla_prepare(struct model *model, struct mla_dims *d, uint32_t n_tokens, struct err *err) {
    struct mat *mats[N_SCRATCH] = {&d->q_a, &d->q, &d->q_latent, &d->kv, &d->out_latent, &d->out,
                                   &d->index_q, &d->index_k, &d->index_weights};
    uint32_t w[N_SCRATCH];
    scratch_widths(d, w);
    for (int i = 0; i < N_SCRATCH; i++)
        if (w[i] && !model_new_mat(model, n_tokens, w[i], mats[i], err))
            return false;
    if (d->index_topk)
        d->selected = model_store_alloc(&model->store, (size_t)n_tokens * d->index_topk * sizeof *d->selected,
                                        err);
    return d->index_topk == 0 || d->selected;
}

uint64_t mla_workspace_bytes(const struct model *model, const struct mla_dims *d, uint32_t n_tokens) {
    uint32_t w[N_SCRATCH];
    uint64_t total = (uint64_t)n_tokens * d->index_topk * sizeof *d->selected;
    scratch_widths(d, w);
    for (int i = 0; i < N_SCRATCH; i++)
        total += w[i] ? model_mat_bytes(model, n_tokens, w[i]) : 0;
    return total;
}

// ---- The step ---------------------------------------------------------------------------------
static void select_keys(const struct model *model, const struct mla *mla, struct mat x, struct mat q_a) {
    struct mla_dims *d = mla->dims;
    const struct backend_ops *ops = model->be->ops;
    struct mat q = mat_first(d->index_q, x.n_rows), k = mat_first(d->index_k, x.n_rows);
    struct mat weights = mat_first(d->index_weights, x.n_rows);
    model_linear(model, mla->index_q, q_a, q);
    model_linear(model, mla->index_k, x, k);
    model_linear(model, mla->index_weights, x, weights);
    // K is normed and both are rotated on the way into the index key cache.
    ops->qkv(model->be, &(struct qkv_args){
        .layer = mla->index_layer, .pool = model->kv, .n_heads = d->index_heads, .n_kv_heads = 1,
        .head_dim = d->index_dim, .q = q, .k = k, .k_norm = mla->index_k_norm,
        .k_norm_bias = mla->index_k_norm_bias, .norm_kind = NORM_LAYER, .norm_eps = LATENT_EPS,
        .rope = &d->index_rope});
    ops->index(model->be, &(struct index_args){
        .layer = mla->index_layer, .pool = model->kv, .n_heads = d->index_heads, .head_dim = d->index_dim,
        .q = q, .weights = weights, .scale = 1 / sqrtf((float)d->index_dim * (float)d->index_heads),
        .n_selected = d->index_topk, .selected = d->selected});
}

struct mat mla_forward(const struct model *model, const struct mla *mla, struct mat x) {
    struct mla_dims *d = mla->dims;
    struct backend *be = model->be;
    const struct backend_ops *ops = be->ops;
    uint32_t n = x.n_rows, head = d->nope + d->rope;
    struct mat q_a = mat_first(d->q_a, n), q = mat_first(d->q, n), latent = mat_first(d->q_latent, n);
    struct mat kv = mat_first(d->kv, n), out_latent = mat_first(d->out_latent, n), out = mat_first(d->out, n);
    if (d->q_lora) {
        model_linear(model, mla->q_a, x, q_a);
        model_rms_norm(model, LATENT_EPS, mla->q_a_norm, q_a, q_a);
    }
    model_linear(model, mla->q_b, d->q_lora ? q_a : x, q);
    model_linear(model, mla->kv_a, x, kv);
    struct mat kv_latent = mat_cols(be, kv, 0, d->kv_lora);
    model_rms_norm(model, LATENT_EPS, mla->kv_a_norm, kv_latent, kv_latent);
    for (uint32_t h = 0; h < d->n_heads; h++)
        model_linear(model, mla->k_up[h], mat_cols(be, q, h * head, d->nope),
                     mat_cols(be, latent, h * k_width(d), d->kv_lora));
    ops->axpby(be, 1, mat_cols(be, mat_heads(q, head), d->nope, d->rope), 0,
               mat_cols(be, mat_heads(latent, k_width(d)), d->kv_lora, d->rope));
    ops->qkv(be, &(struct qkv_args){
        .layer = mla->kv_layer, .pool = model->kv, .n_heads = d->n_heads, .n_kv_heads = 1,
        .head_dim = k_width(d), .v_dim = d->kv_lora, .q = latent, .k = kv, .norm_eps = LATENT_EPS,
        .rope = &d->rope_table, .rope_off = d->kv_lora});
    if (mla->selects)
        select_keys(model, mla, x, q_a);
    ops->attention(be, &(struct attention_args){
        .layer = mla->kv_layer, .pool = model->kv, .n_heads = d->n_heads, .q = latent, .out = out_latent,
        .scale = d->scale, .selected = d->index_topk ? d->selected : NULL, .n_selected = d->index_topk});
    for (uint32_t h = 0; h < d->n_heads; h++)
        model_linear(model, mla->v_up[h], mat_cols(be, out_latent, h * d->kv_lora, d->kv_lora),
               mat_cols(be, out, h * d->v, d->v));
    return out;
}
