#include "model/encoder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "model/block.h"
#include "model/rope.h"

const struct encoder_traits ENCODER_BERT = {
    .word = "embeddings.word_embeddings", .position = "embeddings.position_embeddings",
    .type = "embeddings.token_type_embeddings", .embed_norm = "embeddings.LayerNorm", .layer = "encoder.layer",
    .qkv = {"attention.self.query", "attention.self.key", "attention.self.value"}, .o = "attention.output.dense",
    .attention_norm = "attention.output.LayerNorm", .up = "intermediate.dense", .down = "output.dense",
    .mlp_norm = "output.LayerNorm", .norm_bias = true,
    .refused = {"is_decoder", "add_cross_attention"},
    .ignored = {"pooler", "embeddings.position_ids", "/cls"}};
const struct encoder_traits ENCODER_XLM_ROBERTA = {
    .word = "embeddings.word_embeddings", .position = "embeddings.position_embeddings", .position_after_pad = true,
    .type = "embeddings.token_type_embeddings", .embed_norm = "embeddings.LayerNorm", .layer = "encoder.layer",
    .qkv = {"attention.self.query", "attention.self.key", "attention.self.value"}, .o = "attention.output.dense",
    .attention_norm = "attention.output.LayerNorm", .up = "intermediate.dense", .down = "output.dense",
    .mlp_norm = "output.LayerNorm", .norm_bias = true,
    .refused = {"is_decoder", "add_cross_attention"},
    .ignored = {"pooler", "embeddings.position_ids", "/lm_head"}};
const struct encoder_traits ENCODER_NOMIC_BERT = {
    .word = "embeddings.word_embeddings", .type = "embeddings.token_type_embeddings", .embed_norm = "emb_ln",
    .layer = "encoder.layers", .qkv = {"attn.Wqkv"}, .o = "attn.out_proj", .attention_norm = "norm1",
    .up = "mlp.fc11", .gate = "mlp.fc12", .down = "mlp.fc2", .mlp_norm = "norm2", .rope = true, .norm_bias = true,
    .qkv_bias_key = "qkv_proj_bias", .o_bias_key = "qkv_proj_bias", .up_bias_key = "mlp_fc1_bias",
    .down_bias_key = "mlp_fc2_bias",
    .refused = {"prenorm", "use_rms_norm", "parallel_block", "rotary_emb_interleaved", "moe_every_n_layers"},
    .ignored = {"pooler", "/cls"}};
const struct encoder_traits ENCODER_MODERNBERT = {
    .word = "embeddings.tok_embeddings", .embed_norm = "embeddings.norm", .layer = "layers", .qkv = {"attn.Wqkv"},
    .o = "attn.Wo", .attention_norm = "attn_norm", .up = "mlp.Wi", .glu_fused = true, .down = "mlp.Wo",
    .mlp_norm = "mlp_norm", .pre_norm = true, .final_norm = "final_norm", .rope = true,
    .qkv_bias_key = "attention_bias", .o_bias_key = "attention_bias", .up_bias_key = "mlp_bias",
    .down_bias_key = "mlp_bias", .refused = {"norm_bias"}, .ignored = {"/head", "/decoder"}};

struct norm {
    const float *weight, *bias; // weight NULL: there is no such norm here
};

struct encoder_layer {
    struct weight *q, *k, *v, *o, *gate, *up, *down;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias;
    struct norm attention_norm, mlp_norm;
    uint32_t kv_layer, window;
    const struct rope_table *rope;
};

struct encoder {
    const struct encoder_traits *traits;
    struct weight *word, *position, *type;
    struct norm embed_norm, final_norm;
    struct encoder_layer *layers; // [n_layers]
    struct rope_table rope, rope_sliding;
    uint32_t position_off;
    uint32_t kv_layer[2]; // of full and of sliding layers; UINT32_MAX: none yet
    enum glu_kind glu;
    enum unary_kind unary;
    // Scratch: [n_tokens, ...]
    struct mat h, x, q, k, v, attended, inner, up;
    int32_t *ids; // [n_tokens] host memory
};

static const struct encoder_traits *traits_of(const struct model *model) {
    static const struct {
        const char *model_type;
        const struct encoder_traits *traits;
    } TYPES[] = {{"bert", &ENCODER_BERT}, {"xlm-roberta", &ENCODER_XLM_ROBERTA}, {"roberta", &ENCODER_XLM_ROBERTA},
                 {"nomic_bert", &ENCODER_NOMIC_BERT}, {"modernbert", &ENCODER_MODERNBERT}};
    size_t i = 0;
    while (strcmp(TYPES[i].model_type, model->family->model_type) != 0)
        i++;
    return TYPES[i].traits;
}

// ---- Binding ----------------------------------------------------------------------------------
static bool bind_norm(const struct model *model, struct binder *binder, const char *path, struct norm *out,
                      struct err *err) {
    const struct encoder *e = model->impl;
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s.weight", path);
    out->weight = bind_vector(binder, name, model->config->d_model, 0, err);
    if (!out->weight || !e->traits->norm_bias)
        return out->weight != NULL;
    snprintf(name, sizeof name, "%s.bias", path);
    out->bias = bind_vector(binder, name, model->config->d_model, 0, err);
    return out->bias != NULL;
}

// A module's matrix, or a part of it, with its bias if `key` says so.
static bool bind_module(const struct model *model, struct binder *binder, uint32_t l, const char *module,
                        struct bind_shape shape, const char *key, struct weight **weight, const float **bias,
                        struct err *err) {
    const struct encoder *e = model->impl;
    char path[BIND_PATH_BYTES], name[BIND_PATH_BYTES + 16];
    bind_path(binder, path, "%s.%u.%s", e->traits->layer, l, module);
    *weight = bind_matrix(binder, path, shape, err);
    bool has_bias = key == NULL;
    if (!*weight || (key && !json_get_bool(model->config->text, key, &has_bias, "config.json", err)))
        return false;
    if (!has_bias)
        return true;
    snprintf(name, sizeof name, "%s.bias", path);
    *bias = bind_vector_part(binder, name, shape.n_out_total, shape.from, shape.n_out, 0, err);
    return *bias != NULL;
}

static bool bind_attention(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct encoder *e = model->impl;
    const struct encoder_traits *t = e->traits;
    struct encoder_layer *layer = &e->layers[l];
    uint32_t d = model->config->d_model;
    struct weight **weights[3] = {&layer->q, &layer->k, &layer->v};
    const float **biases[3] = {&layer->q_bias, &layer->k_bias, &layer->v_bias};
    for (uint32_t i = 0; i < 3; i++) {
        struct bind_shape shape = {.n_out = d, .n_in = d};
        if (!t->qkv[1])
            shape.n_out_total = 3 * d, shape.from = i * d;
        if (!bind_module(model, binder, l, t->qkv[t->qkv[1] ? i : 0], shape, t->qkv_bias_key, weights[i], biases[i],
                         err))
            return false;
    }
    return bind_module(model, binder, l, t->o, (struct bind_shape){.n_out = d, .n_in = d}, t->o_bias_key, &layer->o,
                       &layer->o_bias, err);
}

static bool bind_mlp(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct encoder *e = model->impl;
    const struct encoder_traits *t = e->traits;
    struct encoder_layer *layer = &e->layers[l];
    uint32_t d = model->config->d_model, ff = model->config->d_ff;
    struct bind_shape wide = {.n_out = ff, .n_in = d}, second = wide;
    if (t->glu_fused) {
        wide.n_out_total = second.n_out_total = 2 * ff;
        second.from = ff;
        if (!bind_module(model, binder, l, t->up, wide, t->up_bias_key, &layer->gate, &layer->gate_bias, err))
            return false;
    } else if (t->gate && !bind_module(model, binder, l, t->gate, wide, t->up_bias_key, &layer->gate,
                                       &layer->gate_bias, err)) {
        return false;
    }
    return bind_module(model, binder, l, t->up, second, t->up_bias_key, &layer->up, &layer->up_bias, err) &&
           bind_module(model, binder, l, t->down, (struct bind_shape){.n_out = d, .n_in = ff}, t->down_bias_key,
                       &layer->down, &layer->down_bias, err);
}

static bool bind_layer(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct encoder *e = model->impl;
    const struct model_config *c = model->config;
    struct encoder_layer *layer = &e->layers[l];
    bool sliding = c->layer_types[l] == LAYER_SLIDING;
    layer->window = sliding ? model_window_each_side(c->sliding_window) : 0;
    layer->rope = !e->traits->rope ? NULL : sliding ? &e->rope_sliding : &e->rope;
    // Keys and values live no longer than their layer: all layers of a kind share the pages of one.
    if (e->kv_layer[sliding] == UINT32_MAX) {
        uint32_t group = model_group(model, layer->window, err);
        if (group == UINT32_MAX)
            return false;
        e->kv_layer[sliding] = model_add_kv(model, l, (struct kv_layer_desc){
            .group = group, .n_heads = c->n_heads, .k_dim = c->head_dim, .v_dim = c->head_dim});
    }
    layer->kv_layer = e->kv_layer[sliding];
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "%s.%u.%s", e->traits->layer, l, e->traits->attention_norm);
    if (!(e->traits->pre_norm && l == 0) && !bind_norm(model, binder, path, &layer->attention_norm, err))
        return false;
    bind_path(binder, path, "%s.%u.%s", e->traits->layer, l, e->traits->mlp_norm);
    return bind_norm(model, binder, path, &layer->mlp_norm, err) && bind_attention(model, binder, l, err) &&
           bind_mlp(model, binder, l, err);
}

static bool bind_embeddings(struct model *model, struct binder *binder, struct err *err) {
    struct encoder *e = model->impl;
    struct model_config *c = model->config;
    const struct encoder_traits *t = e->traits;
    char path[BIND_PATH_BYTES];
    bind_path(binder, path, "%s", t->word);
    e->word = model->embed = bind_linear(binder, path, c->n_vocab, c->d_model, err);
    if (!e->word)
        return false;
    if (t->position) {
        bind_path(binder, path, "%s", t->position);
        e->position = bind_linear(binder, path, c->ctx_len_max, c->d_model, err);
        if (!e->position)
            return false;
        if (t->position_after_pad)
            e->position_off = (uint32_t)(c->pad < 0 ? 1 : c->pad) + 1;
        if (e->position_off >= c->ctx_len_max)
            return err_set(err, ERR_FORMAT, "config.json: positions begin at %u, but there are %u of them",
                           e->position_off, c->ctx_len_max);
        c->ctx_len_max -= e->position_off;
    }
    if (t->type) {
        uint32_t n_types = 2;
        if (!json_get_u32(c->text, "type_vocab_size", &n_types, "config.json", err))
            return false;
        bind_path(binder, path, "%s", t->type);
        e->type = n_types ? bind_linear(binder, path, n_types, c->d_model, err) : NULL;
        if (n_types && !e->type)
            return false;
    }
    bind_path(binder, path, "%s", t->embed_norm);
    return bind_norm(model, binder, path, &e->embed_norm, err);
}

static bool check_config(const struct model *model, const struct encoder_traits *t, struct err *err) {
    const struct model_config *c = model->config;
    for (size_t i = 0; i < sizeof t->refused / sizeof *t->refused; i++) {
        const json_t *value = t->refused[i] ? json_object_get(c->text, t->refused[i]) : NULL;
        if (json_is_true(value) || (json_is_number(value) && json_number_value(value) > 0))
            return err_set(err, ERR_UNSUPPORTED, "config.json: \"%s\" changes what the model computes in a way that loam "
                           "does not implement for model type %s", t->refused[i], model->family->model_type);
    }
    struct str positions = STR("absolute");
    if (!json_get_str(c->text, "position_embedding_type", &positions, "config.json", err))
        return false;
    if (!t->rope && !str_eq_c(positions, "absolute"))
        return err_set(err, ERR_UNSUPPORTED, "config.json: \"position_embedding_type\" is \"%.64s\"; loam implements "
                       "\"absolute\"", positions.data);
    if (c->n_heads * c->head_dim != c->d_model)
        return err_set(err, ERR_FORMAT, "config.json: %u heads of %u do not make \"hidden_size\" %u", c->n_heads,
                       c->head_dim, c->d_model);
    return true;
}

bool encoder_bind(struct model *model, struct binder *binder, struct err *err) {
    const struct model_config *c = model->config;
    struct encoder *e = arena_new(&model->arena, struct encoder);
    model->impl = e;
    if (e)
        e->layers = arena_array(&model->arena, struct encoder_layer, c->n_layers);
    if (!e || !e->layers)
        return err_set(err, ERR_NOMEM, "out of memory for the model's layers");
    const struct encoder_traits *t = e->traits = traits_of(model);
    model->is_encoder = true;
    e->kv_layer[0] = e->kv_layer[1] = UINT32_MAX;
    char probe[BIND_PATH_BYTES];
    snprintf(probe, sizeof probe, "%s.weight", t->word);
    binder_init(binder, binder->store, binder->weights, c, probe);
    bool gated = t->gate || t->glu_fused;
    e->unary = unary_of_activation(c->activation);
    if (gated && !glu_of_activation(c->activation, &e->glu))
        return err_set(err, ERR_UNSUPPORTED, "model type %s with this activation is not supported",
                       model->family->model_type);
    if (!check_config(model, t, err) ||
        (t->rope && (!rope_table_init(&e->rope, &c->rope, c->head_dim, c->ctx_len_max, false, &model->store, err) ||
                     !rope_table_init(&e->rope_sliding, &c->rope_sliding, c->head_dim, c->ctx_len_max, false,
                                      &model->store, err))))
        return false;
    model->n_heads_max = c->n_heads;
    model->head_dim_max = c->head_dim;
    model->n_cols_max = max_u32(c->d_model, c->d_ff);
    if (!bind_embeddings(model, binder, err))
        return false;
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (!bind_layer(model, binder, l, err))
            return false;
    char path[BIND_PATH_BYTES];
    for (size_t i = 0; i < sizeof t->ignored / sizeof *t->ignored && t->ignored[i]; i++) {
        bool absolute = t->ignored[i][0] == '/';
        bind_path(binder, path, absolute ? "/%s" : "%s", t->ignored[i] + (absolute ? 1 : 0));
        model_ignore(model, path);
    }
    if (!t->final_norm)
        return true;
    bind_path(binder, path, "%s", t->final_norm);
    return bind_norm(model, binder, path, &e->final_norm, err);
}

// ---- Scratch ----------------------------------------------------------------------------------
enum { N_SCRATCH = 8 };
static void scratch_widths(const struct model *model, uint32_t w[N_SCRATCH]) {
    uint32_t d = model->config->d_model, ff = model->config->d_ff;
    uint32_t all[N_SCRATCH] = {d, d, d, d, d, d, ff, ff};
    memcpy(w, all, sizeof all);
}

bool encoder_prepare(struct model *model, const struct model_limits *limits, struct err *err) {
    struct encoder *e = model->impl;
    struct mat *mats[N_SCRATCH] = {&e->h, &e->x, &e->q, &e->k, &e->v, &e->attended, &e->inner, &e->up};
    uint32_t w[N_SCRATCH];
    scratch_widths(model, w);
    for (int i = 0; i < N_SCRATCH; i++)
        if (!model_new_mat(model, limits->n_tokens, w[i], mats[i], err))
            return false;
    e->ids = model_store_host(&model->store, limits->n_tokens * sizeof *e->ids, err);
    return e->ids != NULL;
}

uint64_t encoder_workspace_bytes(const struct model *model, const struct model_limits *limits) {
    uint32_t w[N_SCRATCH];
    uint64_t total = limits->n_tokens * sizeof(int32_t);
    scratch_widths(model, w);
    for (int i = 0; i < N_SCRATCH; i++)
        total += model_mat_bytes(model, limits->n_tokens, w[i]);
    return total;
}

// ---- The step ---------------------------------------------------------------------------------
static void norm_into(const struct model *model, const struct norm *norm, struct mat x, struct mat y) {
    model->be->ops->norm(model->be, &(struct norm_args){
        .kind = NORM_LAYER, .eps = model->config->norm_eps, .weight = norm->weight, .bias = norm->bias,
        .width = x.n_cols, .x = x, .y = y});
}

static void embed(const struct model *model, const struct step *step, struct mat h, struct mat x) {
    struct encoder *e = model->impl;
    const struct backend_ops *ops = model->be->ops;
    ops->embed(model->be, e->word, NULL, 1, h);
    if (e->type) { // one text: the first type
        memset(e->ids, 0, step->n_tokens * sizeof *e->ids);
        ops->embed(model->be, e->type, e->ids, 1, x);
        ops->axpby(model->be, 1, x, 1, h);
    }
    if (e->position) {
        for (uint32_t i = 0; i < step->n_tokens; i++)
            e->ids[i] = (int32_t)(step->positions[i] + e->position_off);
        ops->embed(model->be, e->position, e->ids, 1, x);
        ops->axpby(model->be, 1, x, 1, h);
    }
    norm_into(model, &e->embed_norm, h, h);
}

static struct mat attention(const struct model *model, const struct encoder_layer *layer, struct mat x) {
    struct encoder *e = model->impl;
    const struct model_config *c = model->config;
    const struct backend_ops *ops = model->be->ops;
    struct mat q = mat_first(e->q, x.n_rows), k = mat_first(e->k, x.n_rows), v = mat_first(e->v, x.n_rows);
    struct mat out = mat_first(e->attended, x.n_rows);
    ops->linear(model->be, &(struct linear_args){
        .x = x, .n_outputs = 3, .scale = 1,
        .outputs = {{layer->q, layer->q_bias, q}, {layer->k, layer->k_bias, k}, {layer->v, layer->v_bias, v}}});
    ops->qkv(model->be, &(struct qkv_args){
        .layer = layer->kv_layer, .pool = model->kv, .n_heads = c->n_heads, .n_kv_heads = c->n_heads,
        .head_dim = c->head_dim, .v_dim = c->head_dim, .q = q, .k = k, .v = v, .rope = layer->rope});
    ops->attention(model->be, &(struct attention_args){
        .layer = layer->kv_layer, .pool = model->kv, .n_heads = c->n_heads, .q = q, .out = out,
        .scale = 1 / sqrtf((float)c->head_dim), .window = layer->window, .bidirectional = true});
    return out;
}

static struct mat mlp_inner(const struct model *model, const struct encoder_layer *layer, struct mat x) {
    struct encoder *e = model->impl;
    const struct backend_ops *ops = model->be->ops;
    struct mat inner = mat_first(e->inner, x.n_rows), up = mat_first(e->up, x.n_rows);
    if (!layer->gate) {
        ops->linear(model->be, &(struct linear_args){
            .x = x, .n_outputs = 1, .scale = 1, .outputs = {{layer->up, layer->up_bias, inner}}});
        ops->unary(model->be, e->unary, (const float[4]){0}, inner, inner);
    } else {
        ops->linear(model->be, &(struct linear_args){
            .x = x, .n_outputs = 2, .scale = 1,
            .outputs = {{layer->gate, layer->gate_bias, inner}, {layer->up, layer->up_bias, up}}});
        ops->glu(model->be, &(struct glu_args){.kind = e->glu, .gate = inner, .up = up, .y = inner});
    }
    return inner;
}

static void add(const struct model *model, const struct weight *weight, const float *bias, struct mat x, struct mat h) {
    model->be->ops->linear(model->be, &(struct linear_args){
        .x = x, .n_outputs = 1, .outputs = {{weight, bias, h}}, .store = LINEAR_ADD, .scale = 1});
}

void encoder_forward(struct model *model, const struct step *step) {
    struct encoder *e = model->impl;
    const bool pre = e->traits->pre_norm;
    struct mat h = mat_first(e->h, step->n_tokens), x = mat_first(e->x, step->n_tokens);
    struct mat out = mat_first(model->states_out, step->n_tokens);
    embed(model, step, h, x);
    model_tap(model, -1, h);
    for (uint32_t l = 0; l < model->config->n_layers; l++) {
        const struct encoder_layer *layer = &e->layers[l];
        bool norm_first = pre && layer->attention_norm.weight;
        if (norm_first)
            norm_into(model, &layer->attention_norm, h, x);
        add(model, layer->o, layer->o_bias, attention(model, layer, norm_first ? x : h), h);
        if (!pre)
            norm_into(model, &layer->attention_norm, h, h);
        else
            norm_into(model, &layer->mlp_norm, h, x);
        add(model, layer->down, layer->down_bias, mlp_inner(model, layer, pre ? x : h), h);
        if (!pre)
            norm_into(model, &layer->mlp_norm, h, h);
        model_tap(model, (int)l, h);
    }
    if (e->final_norm.weight)
        norm_into(model, &e->final_norm, h, out);
    else
        model->be->ops->axpby(model->be, 1, h, 0, out);
    if (step->n_logits)
        model->be->ops->gather(model->be, out, NULL, mat_first(model->hidden, step->n_logits));
}
