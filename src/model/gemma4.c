#include "model/gemma4.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "model/block.h"
#include "model/moe.h"
#include "model/rope.h"

struct gemma4_layer {
    const float *input_norm, *post_attention_norm, *pre_mlp_norm, *post_mlp_norm;
    struct weight *q, *k, *v, *o; // k NULL: another layer's KV is used; v NULL: V is the raw K projection
    const float *q_norm, *k_norm;
    struct weight *gate, *up, *down;
    // Experts beside the MLP; NULL without.
    struct moe *moe;
    const float *router_norm; // router.scale / sqrt(d_model), the weight of the router's norm
    const float *post_mlp_norm_1, *pre_experts_norm, *post_experts_norm;
    // Per-layer input; NULL without.
    struct weight *ple_gate, *ple_projection;
    const float *ple_norm;
    float scalar; // the layer's result is multiplied by it
    bool sliding;
    uint32_t head_dim, n_kv_heads, d_ff, kv_layer;
};

struct gemma4 {
    struct gemma4_layer *layers; // [n_layers]
    const float *norm;
    struct rope_table rope, rope_sliding;
    enum glu_kind glu;
    float embed_scale;
    uint32_t ple_dim; // 0 without per-layer inputs
    struct weight *ple_embed, *ple_model_projection;
    const float *ple_projection_norm;
    uint32_t q_width, kv_width, ff_width; // largest of any layer
    const struct moe *moe;                // any layer's
    // Scratch, [n_tokens, ...]; the last two [n_logits, ...].
    struct mat h, x, q, k, v, attended, branch, gate, ple, ple_projected, ple_inner, router_x, wanted,
        wanted_ple;
    struct moe_scratch moe_scratch;
};

static const struct moe_traits EXPERTS = {
    .router = "router.proj", .experts = "experts", .stacked = "experts.switch_glu", .layout = MOE_FUSED,
    .fused_up = "experts.gate_up_proj", .fused_down = "experts.down_proj", .route = ROUTE_SOFTMAX_TOPK,
    .normalize = MOE_NORMALIZE_ALWAYS, .n_experts_key = "num_experts", .n_used_key = "top_k_experts",
    .ff_key = "moe_intermediate_size", .expert_scale = "router.per_expert_scale", .glu = GLU_GELU_TANH};

// ---- Binding ----------------------------------------------------------------------------------
static bool bind_vectors(struct binder *binder, uint32_t l, uint32_t d, struct gemma4_layer *layer,
                         bool with_experts, struct err *err) {
    struct {
        const char *name;
        const float **to;
        uint32_t n;
    } vectors[] = {
        {"input_layernorm", &layer->input_norm, d},
        {"post_attention_layernorm", &layer->post_attention_norm, d},
        {"pre_feedforward_layernorm", &layer->pre_mlp_norm, d},
        {"post_feedforward_layernorm", &layer->post_mlp_norm, d},
        {"self_attn.q_norm", &layer->q_norm, layer->head_dim},
        {"post_feedforward_layernorm_1", &layer->post_mlp_norm_1, d},
        {"pre_feedforward_layernorm_2", &layer->pre_experts_norm, d},
        {"post_feedforward_layernorm_2", &layer->post_experts_norm, d},
    };
    for (size_t i = 0; i < (with_experts ? 8 : 5); i++) {
        char name[BIND_PATH_BYTES];
        bind_path(binder, name, "layers.%u.%s.weight", l, vectors[i].name);
        *vectors[i].to = bind_vector(binder, name, vectors[i].n, 0, err);
        if (!*vectors[i].to)
            return false;
    }
    char name[BIND_PATH_BYTES];
    layer->scalar = 1;
    bind_path(binder, name, "layers.%u.layer_scalar", l);
    return !bind_has(binder, name) || bind_values(binder, name, &layer->scalar, 1, err);
}

// The donor of a layer that has no KV of its own: the last earlier layer of its type that has.
static uint32_t kv_donor(const struct gemma4 *g, uint32_t l) {
    for (uint32_t i = l; i-- > 0;)
        if (g->layers[i].k && g->layers[i].sliding == g->layers[l].sliding)
            return i;
    return UINT32_MAX;
}

static bool bind_kv(struct model *model, struct binder *binder, uint32_t l, bool k_is_v, bool shared,
                    struct err *err) {
    struct gemma4 *g = model->impl;
    struct gemma4_layer *layer = &g->layers[l];
    uint32_t d = model->config->d_model, n_kv = layer->n_kv_heads * layer->head_dim;
    char path[BIND_PATH_BYTES];
    if (shared) {
        uint32_t donor = kv_donor(g, l);
        if (donor == UINT32_MAX)
            return err_set(err, ERR_FORMAT, "config.json: layer %u shares the KV of an earlier layer of its type, "
                           "but there is none", l);
        layer->kv_layer = g->layers[donor].kv_layer;
        bind_path(binder, path, "layers.%u.self_attn.k_", l); // the hub keeps them; nobody reads them
        model_ignore(model, path);
        bind_path(binder, path, "layers.%u.self_attn.v_", l);
        model_ignore(model, path);
        return true;
    }
    bind_path(binder, path, "layers.%u.self_attn.k_proj", l);
    layer->k = bind_linear(binder, path, n_kv, d, err);
    bind_path(binder, path, "layers.%u.self_attn.k_norm.weight", l);
    layer->k_norm = layer->k ? bind_vector(binder, path, layer->head_dim, 0, err) : NULL;
    if (!layer->k_norm)
        return false;
    if (!k_is_v) {
        bind_path(binder, path, "layers.%u.self_attn.v_proj", l);
        layer->v = bind_linear(binder, path, n_kv, d, err);
        if (!layer->v)
            return false;
    }
    uint32_t group = model_group(model, layer->sliding ? model->config->sliding_window : 0, err);
    if (group == UINT32_MAX)
        return false;
    layer->kv_layer = model_add_kv(model, l, (struct kv_layer_desc){
        .group = group, .n_heads = layer->n_kv_heads, .k_dim = layer->head_dim, .v_dim = layer->head_dim});
    return true;
}

static bool bind_matrices(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct gemma4 *g = model->impl;
    struct gemma4_layer *layer = &g->layers[l];
    const struct model_config *c = model->config;
    uint32_t n_q = c->n_heads * layer->head_dim, d = c->d_model;
    struct {
        const char *module;
        struct weight **to;
        uint32_t n_out, n_in;
    } matrices[] = {
        {"self_attn.q_proj", &layer->q, n_q, d},
        {"self_attn.o_proj", &layer->o, d, n_q},
        {"mlp.gate_proj", &layer->gate, layer->d_ff, d},
        {"mlp.up_proj", &layer->up, layer->d_ff, d},
        {"mlp.down_proj", &layer->down, d, layer->d_ff},
        {"per_layer_input_gate", &layer->ple_gate, g->ple_dim, d},
        {"per_layer_projection", &layer->ple_projection, d, g->ple_dim},
    };
    char path[BIND_PATH_BYTES];
    for (size_t i = 0; i < (g->ple_dim ? 7 : 5); i++) {
        bind_path(binder, path, "layers.%u.%s", l, matrices[i].module);
        *matrices[i].to = bind_linear(binder, path, matrices[i].n_out, matrices[i].n_in, err);
        if (!*matrices[i].to)
            return false;
    }
    if (!g->ple_dim)
        return true;
    bind_path(binder, path, "layers.%u.post_per_layer_input_norm.weight", l);
    layer->ple_norm = bind_vector(binder, path, d, 0, err);
    return layer->ple_norm != NULL;
}

static bool bind_experts(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct gemma4 *g = model->impl;
    struct gemma4_layer *layer = &g->layers[l];
    uint32_t d = model->config->d_model;
    char path[BIND_PATH_BYTES];
    g->moe = layer->moe = moe_bind(model, binder, &EXPERTS, l, err);
    float *scale = layer->moe ? model_store_host(binder->store, d * sizeof *scale, err) : NULL;
    bind_path(binder, path, "layers.%u.router.scale", l);
    if (!scale || !bind_values(binder, path, scale, d, err))
        return false;
    for (uint32_t i = 0; i < d; i++)
        scale[i] /= sqrtf((float)d);
    float *uploaded = model_store_alloc(binder->store, d * sizeof *uploaded, err);
    if (!uploaded)
        return false;
    model->be->ops->upload(model->be, uploaded, scale, d * sizeof *uploaded);
    layer->router_norm = uploaded;
    return true;
}

static bool read_placeholders(struct model *model, struct err *err) {
    static const char *const KEYS[] = {"image_token_id", "audio_token_id", "video_token_id"};
    for (int i = 0; i < 3; i++) {
        int64_t id = -1;
        if (!json_get_i64(model->config->root, KEYS[i], &id, "config.json", err))
            return false;
        if (id >= 0 && id < model->config->n_vocab)
            model->placeholders[model->n_placeholders++] = (int32_t)id;
    }
    int32_t pad = model->config->pad;
    model->placeholder_as = pad >= 0 && (uint32_t)pad < model->config->n_vocab ? pad : 0;
    return true;
}

struct layer_rules {
    uint32_t global_head_dim, n_global_kv_heads, n_shared;
    bool k_eq_v, experts, double_wide;
};

static bool bind_layer(struct model *model, struct binder *binder, const struct layer_rules *rules,
                       uint32_t l, struct err *err) {
    struct gemma4 *g = model->impl;
    struct gemma4_layer *layer = &g->layers[l];
    const struct model_config *c = model->config;
    bool shared = l >= c->n_layers - rules->n_shared;
    layer->sliding = c->layer_types[l] == LAYER_SLIDING;
    bool k_is_v = !layer->sliding && rules->k_eq_v;
    layer->head_dim = layer->sliding ? c->head_dim : rules->global_head_dim;
    layer->n_kv_heads = k_is_v ? rules->n_global_kv_heads : c->n_kv_heads;
    layer->d_ff = shared && rules->double_wide ? 2 * c->d_ff : c->d_ff;
    if (layer->n_kv_heads == 0 || c->n_heads % layer->n_kv_heads)
        return err_set(err, ERR_FORMAT, "config.json: %u heads cannot share %u key heads", c->n_heads,
                       layer->n_kv_heads);
    g->q_width = max_u32(g->q_width, c->n_heads * layer->head_dim);
    g->kv_width = max_u32(g->kv_width, layer->n_kv_heads * layer->head_dim);
    g->ff_width = max_u32(g->ff_width, layer->d_ff);
    return bind_vectors(binder, l, c->d_model, layer, rules->experts, err) &&
           bind_matrices(model, binder, l, err) && bind_kv(model, binder, l, k_is_v, shared, err) &&
           (!rules->experts || bind_experts(model, binder, l, err));
}

static bool bind_per_layer_inputs(struct model *model, struct binder *binder, struct err *err) {
    struct gemma4 *g = model->impl;
    const struct model_config *c = model->config;
    uint32_t n_vocab = c->n_vocab, width;
    if (!json_get_u32(c->text, "hidden_size_per_layer_input", &g->ple_dim, "config.json", err) ||
        !json_get_u32(c->text, "vocab_size_per_layer_input", &n_vocab, "config.json", err))
        return false;
    if (g->ple_dim == 0)
        return true;
    if (g->ple_dim > 65536 || n_vocab < c->n_vocab)
        return err_set(err, ERR_UNSUPPORTED, "config.json: per-layer inputs of %u for %u of %u tokens are not "
                       "supported", g->ple_dim, n_vocab, c->n_vocab);
    width = c->n_layers * g->ple_dim;
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "embed_tokens_per_layer");
    g->ple_embed = bind_linear(binder, path, n_vocab, width, err);
    bind_path(binder, path, "per_layer_model_projection");
    g->ple_model_projection = g->ple_embed ? bind_linear(binder, path, width, c->d_model, err) : NULL;
    bind_path(binder, path, "per_layer_projection_norm.weight");
    g->ple_projection_norm = g->ple_model_projection ? bind_vector(binder, path, g->ple_dim, 0, err) : NULL;
    return g->ple_projection_norm != NULL;
}

bool gemma4_bind(struct model *model, struct binder *binder, struct err *err) {
    const struct model_config *c = model->config;
    const char *what = "config.json";
    if (str_eq_c(c->root_model_type, "gemma4_assistant"))
        return err_set(err, ERR_UNSUPPORTED, "this is a drafter that speeds up another Gemma 4 model; it cannot "
                       "answer on its own");
    struct gemma4 *g = arena_new(&model->arena, struct gemma4);
    model->impl = g;
    if (g)
        g->layers = arena_array(&model->arena, struct gemma4_layer, c->n_layers);
    if (!g || !g->layers)
        return err_set(err, ERR_NOMEM, "out of memory for the model's layers");
    struct layer_rules rules = {.global_head_dim = c->head_dim, .n_global_kv_heads = c->n_kv_heads};
    if (!json_get_u32(c->text, "global_head_dim", &rules.global_head_dim, what, err) ||
        !json_get_u32(c->text, "num_global_key_value_heads", &rules.n_global_kv_heads, what, err) ||
        !json_get_u32(c->text, "num_kv_shared_layers", &rules.n_shared, what, err) ||
        !json_get_bool(c->text, "attention_k_eq_v", &rules.k_eq_v, what, err) ||
        !json_get_bool(c->text, "enable_moe_block", &rules.experts, what, err) ||
        !json_get_bool(c->text, "use_double_wide_mlp", &rules.double_wide, what, err) ||
        !json_get_f32(c->text, "final_logit_softcapping", &model->logit_softcap, what, err))
        return false;
    if (rules.global_head_dim == 0 || rules.global_head_dim > 8192 || rules.n_shared >= c->n_layers)
        return err_set(err, ERR_FORMAT, "config.json: full layers with heads of %u, the last %u of %u layers "
                       "sharing KV, is no Gemma 4 that loam runs", rules.global_head_dim, rules.n_shared,
                       c->n_layers);
    if (!read_placeholders(model, err))
        return false;
    if (!glu_of_activation(c->activation, &g->glu))
        return err_set(err, ERR_UNSUPPORTED, "Gemma 4 with this hidden_activation is not supported");
    // The reference keeps the factor in the weights' bf16.
    g->embed_scale = bf16_to_f32(bf16_from_f32(sqrtf((float)c->d_model)));
    if (!rope_table_init(&g->rope, &c->rope, rules.global_head_dim, c->ctx_len_max, false, &model->store,
                         err) ||
        !rope_table_init(&g->rope_sliding, &c->rope_sliding, c->head_dim, c->ctx_len_max, false,
                         &model->store, err) ||
        !block_bind_embeddings(model, binder, err) || !bind_per_layer_inputs(model, binder, err))
        return false;
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (!bind_layer(model, binder, &rules, l, err))
            return false;
    model->n_heads_max = c->n_heads;
    model->head_dim_max = max_u32(c->head_dim, rules.global_head_dim);
    model->n_cols_max = max_u32(model->n_cols_max, max_u32(c->d_model, max_u32(g->q_width, g->ff_width)));
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "norm.weight");
    g->norm = bind_vector(binder, path, c->d_model, 0, err);
    return g->norm != NULL;
}

// ---- Scratch ----------------------------------------------------------------------------------
enum { N_SCRATCH = 14, N_TOKEN_SCRATCH = 12 };
static void scratch_widths(const struct model *model, uint32_t w[N_SCRATCH]) {
    const struct gemma4 *g = model->impl;
    uint32_t d = model->config->d_model, ple = model->config->n_layers * g->ple_dim;
    uint32_t all[N_SCRATCH] = {d, d, g->q_width, g->kv_width, g->kv_width, g->q_width, d, g->ff_width, ple,
                               ple, g->ple_dim, g->moe ? d : 0, g->q_width, g->ple_dim};
    memcpy(w, all, sizeof all);
}

bool gemma4_prepare(struct model *model, const struct model_limits *limits, struct err *err) {
    struct gemma4 *g = model->impl;
    struct mat *mats[N_SCRATCH] = {&g->h, &g->x, &g->q, &g->k, &g->v, &g->attended, &g->branch, &g->gate,
                                   &g->ple, &g->ple_projected, &g->ple_inner, &g->router_x, &g->wanted,
                                   &g->wanted_ple};
    uint32_t w[N_SCRATCH];
    scratch_widths(model, w);
    for (int i = 0; i < N_SCRATCH; i++)
        if (w[i] && !model_new_mat(model, i < N_TOKEN_SCRATCH ? limits->n_tokens : limits->n_logits, w[i],
                                   mats[i], err))
            return false;
    return !g->moe || moe_prepare(model, g->moe, limits->n_tokens, &g->moe_scratch, err);
}

uint64_t gemma4_workspace_bytes(const struct model *model, const struct model_limits *limits) {
    const struct gemma4 *g = model->impl;
    uint32_t w[N_SCRATCH];
    uint64_t total = g->moe ? moe_workspace_bytes(model, g->moe, limits->n_tokens) : 0;
    scratch_widths(model, w);
    for (int i = 0; i < N_SCRATCH; i++)
        total += w[i] ? model_mat_bytes(model, i < N_TOKEN_SCRATCH ? limits->n_tokens : limits->n_logits, w[i])
                      : 0;
    return total;
}

// ---- The step ---------------------------------------------------------------------------------
static void norm(const struct model *model, const float *weight, struct mat x, struct mat y) {
    model_rms_norm(model, model->config->norm_eps, weight, x, y);
}

static struct mat first(struct mat x, uint32_t n_rows, uint32_t n_cols) {
    x.n_rows = n_rows;
    x.n_cols = n_cols;
    return x;
}

// (norm(projection of the embeddings) + embedding of the token for each layer) / sqrt(2), [n, layers * dim].
static void per_layer_inputs(const struct model *model, struct mat h) {
    struct gemma4 *g = model->impl;
    const struct backend_ops *ops = model->be->ops;
    struct mat ple = mat_first(g->ple, h.n_rows), projected = mat_first(g->ple_projected, h.n_rows);
    float half = sqrtf(0.5f);
    ops->embed(model->be, g->ple_embed, NULL, sqrtf((float)g->ple_dim), ple);
    ops->linear(model->be, &(struct linear_args){
        .x = h, .n_outputs = 1, .scale = 1 / sqrtf((float)model->config->d_model),
        .outputs = {{g->ple_model_projection, NULL, projected}}});
    ops->norm(model->be, &(struct norm_args){.kind = NORM_RMS, .eps = model->config->norm_eps,
                                             .weight = g->ple_projection_norm, .width = g->ple_dim,
                                             .x = projected, .y = projected});
    ops->axpby(model->be, half, projected, half, ple);
}

static struct mat attention(const struct model *model, const struct gemma4_layer *layer, struct mat x) {
    struct gemma4 *g = model->impl;
    const struct backend_ops *ops = model->be->ops;
    uint32_t n = x.n_rows, n_heads = model->config->n_heads;
    uint32_t n_q = n_heads * layer->head_dim, n_kv = layer->n_kv_heads * layer->head_dim;
    struct mat q = first(g->q, n, n_q), k = first(g->k, n, n_kv), v = first(g->v, n, n_kv);
    struct mat out = first(g->attended, n, n_q);
    ops->linear(model->be, &(struct linear_args){
        .x = x, .n_outputs = layer->v ? 3 : layer->k ? 2 : 1, .scale = 1,
        .outputs = {{layer->q, NULL, q}, {layer->k, NULL, k}, {layer->v, NULL, v}}});
    if (layer->k && !layer->v)
        ops->axpby(model->be, 1, k, 0, v); // V is K before its norm and rope
    ops->qkv(model->be, &(struct qkv_args){
        .layer = layer->kv_layer, .pool = layer->k ? model->kv : NULL, .n_heads = n_heads,
        .n_kv_heads = layer->n_kv_heads, .head_dim = layer->head_dim, .v_dim = layer->head_dim, .q = q, .k = k,
        .v = v, .q_norm = layer->q_norm, .k_norm = layer->k_norm, .v_norm = true,
        .norm_eps = model->config->norm_eps, .rope = layer->sliding ? &g->rope_sliding : &g->rope});
    ops->attention(model->be, &(struct attention_args){
        .layer = layer->kv_layer, .pool = model->kv, .n_heads = n_heads, .q = q, .out = out, .scale = 1,
        .window = layer->sliding ? model->config->sliding_window : 0});
    return out;
}

// h += norm(MLP of norm(h)), with the experts' part added before the last norm where there is one.
static void feed_forward(const struct model *model, const struct gemma4_layer *layer, struct mat h,
                         struct mat x) {
    struct gemma4 *g = model->impl;
    const struct backend_ops *ops = model->be->ops;
    struct mat inner = first(g->gate, h.n_rows, layer->d_ff), branch = mat_first(g->branch, h.n_rows);
    norm(model, layer->pre_mlp_norm, h, x);
    ops->linear_glu(model->be, x, layer->gate, layer->up, g->glu, inner);
    model_linear(model, layer->down, inner, branch);
    if (layer->moe) {
        struct mat router_x = mat_first(g->router_x, h.n_rows);
        norm(model, layer->post_mlp_norm_1, branch, branch);
        norm(model, layer->router_norm, h, router_x);
        moe_route(model, layer->moe, &g->moe_scratch, router_x);
        norm(model, layer->pre_experts_norm, h, x);
        moe_experts(model, layer->moe, &g->moe_scratch, x, router_x, LINEAR_STORE, 1);
        norm(model, layer->post_experts_norm, router_x, router_x);
        ops->axpby(model->be, 1, router_x, 1, branch);
    }
    norm(model, layer->post_mlp_norm, branch, branch);
    ops->axpby(model->be, 1, branch, 1, h);
}

static void per_layer_branch(const struct model *model, const struct gemma4_layer *layer, struct mat ple,
                             struct mat h) {
    struct gemma4 *g = model->impl;
    const struct backend_ops *ops = model->be->ops;
    struct mat inner = mat_first(g->ple_inner, h.n_rows), branch = mat_first(g->branch, h.n_rows);
    model_linear(model, layer->ple_gate, h, inner);
    ops->glu(model->be, &(struct glu_args){.kind = g->glu, .gate = inner, .up = ple, .y = inner});
    model_linear(model, layer->ple_projection, inner, branch);
    norm(model, layer->ple_norm, branch, branch);
    ops->axpby(model->be, 1, branch, 1, h);
}

void gemma4_forward(struct model *model, const struct step *step) {
    struct gemma4 *g = model->impl;
    struct backend *be = model->be;
    const uint32_t n_layers = model->config->n_layers;
    struct mat h = mat_first(g->h, step->n_tokens), x = mat_first(g->x, step->n_tokens);
    struct mat branch = mat_first(g->branch, step->n_tokens);
    bool narrow = !model->tap && step->n_logits < step->n_tokens;
    be->ops->embed(be, model->embed, NULL, g->embed_scale, h);
    model_tap(model, -1, h);
    if (g->ple_dim)
        per_layer_inputs(model, h);
    for (uint32_t l = 0; l < n_layers; l++) {
        const struct gemma4_layer *layer = &g->layers[l];
        struct mat ple = g->ple_dim ? mat_cols(be, mat_first(g->ple, step->n_tokens), l * g->ple_dim, g->ple_dim)
                                    : (struct mat){0};
        norm(model, layer->input_norm, h, x);
        struct mat attended = attention(model, layer, x);
        if (narrow && l + 1 == n_layers) { // nobody reads the other tokens any more
            if (step->n_logits == 0)
                return;
            struct mat all[3] = {h, attended, ple};
            h = mat_first(model->hidden, step->n_logits);
            attended = first(g->wanted, step->n_logits, attended.n_cols);
            ple = mat_first(g->wanted_ple, step->n_logits);
            be->ops->gather(be, all[0], NULL, h);
            be->ops->gather(be, all[1], NULL, attended);
            if (g->ple_dim)
                be->ops->gather(be, all[2], NULL, ple);
            x = mat_first(x, step->n_logits);
            branch = mat_first(branch, step->n_logits);
        }
        model_linear(model, layer->o, attended, branch);
        norm(model, layer->post_attention_norm, branch, branch);
        be->ops->axpby(be, 1, branch, 1, h);
        feed_forward(model, layer, h, x);
        if (g->ple_dim)
            per_layer_branch(model, layer, ple, h);
        if (layer->scalar != 1)
            be->ops->axpby(be, 0, h, layer->scalar, h);
        model_tap(model, (int)l, h);
    }
    if (step->n_logits == 0)
        return;
    struct mat hidden = mat_first(model->hidden, step->n_logits);
    if (model->tap) {
        be->ops->gather(be, h, NULL, hidden);
        h = hidden;
    }
    norm(model, g->norm, h, hidden);
}
