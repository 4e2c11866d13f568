#include "model/block.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "model/delta_net.h"
#include "model/mla.h"
#include "model/moe.h"
#include "model/rope.h"
#include "model/short_conv.h"

struct norm {
    const float *weight, *bias; // weight NULL: there is no such norm in this family
};

struct block_layer {
    struct norm attention_in, attention_out, mlp_in, mlp_out;
    struct delta_net *delta; // a recurrent layer: nothing of attention below
    struct mla *mla;         // latent attention: likewise
    struct short_conv *conv; // a gated convolution: likewise
    struct weight *q, *k, *v, *o;
    const float *q_bias, *k_bias, *v_bias, *o_bias;
    const float *q_norm, *k_norm;
    struct weight *gate, *up, *down; // gate NULL: a plain MLP
    const float *gate_bias, *up_bias, *down_bias;
    float xielu[4];     // of ACT_XIELU: alpha_p, alpha_n, beta, eps
    struct moe *moe;    // experts instead of gate, up, down
    const float *sinks; // [n_heads], or NULL
    uint32_t kv_layer;
    uint32_t window;
    const struct rope_table *rope; // NULL: no position encoding
};

struct block_model {
    struct block_layer *layers; // [n_layers]
    struct norm norm;
    struct rope_table rope, rope_sliding;
    float embed_scale, residual_scale, attention_scale, attention_softcap;
    enum glu_kind glu;
    enum unary_kind unary;
    // Scratch: [n_tokens, ...]
    struct mat h, x, q, k, v, attention, branch, gate, up;
    struct mat wanted; // [n_logits, ...]: the last mixer's result for the tokens whose logits are wanted
    struct mla_dims *mla; // NULL unless the family has latent attention
    float norm_add; // to every stored norm weight
    struct mat gated_q; // [n_tokens, 2 * heads * head_dim]: q and gate a head
    const struct delta_net *delta; // any layer's, likewise
    struct delta_net_scratch delta_scratch;
    struct mat conv_scratch;
    bool has_conv;
    const struct moe *moe; // any layer's, to size its scratch; NULL without experts
    struct moe_scratch moe_scratch;
};

bool glu_of_activation(enum activation activation, enum glu_kind *out) {
    switch (activation) {
    case ACT_SILU:
        *out = GLU_SILU;
        return true;
    case ACT_GELU:
        *out = GLU_GELU;
        return true;
    case ACT_GELU_TANH:
        *out = GLU_GELU_TANH;
        return true;
    case ACT_RELU:
        *out = GLU_RELU;
        return true;
    default:
        return false;
    }
}

enum unary_kind unary_of_activation(enum activation activation) {
    static const enum unary_kind KINDS[] = {
        [ACT_SILU] = UNARY_SILU, [ACT_GELU] = UNARY_GELU, [ACT_GELU_TANH] = UNARY_GELU_TANH,
        [ACT_RELU] = UNARY_RELU, [ACT_RELU2] = UNARY_RELU2, [ACT_XIELU] = UNARY_XIELU,
    };
    return KINDS[activation];
}

// ---- Binding ----------------------------------------------------------------------------------
static bool has_bias(const struct model *model, enum bias_rule rule, bool *out, struct err *err) {
    const json_t *text = model->config->text;
    *out = rule == BIAS_ALWAYS;
    switch (rule) {
    case BIAS_ATTENTION_KEY:
        return json_get_bool(text, "attention_bias", out, "config.json", err);
    case BIAS_MLP_KEY:
        return json_get_bool(text, "mlp_bias", out, "config.json", err);
    case BIAS_ATTENTION_OUT_KEY:
        return json_get_bool(text, "attention_out_bias", out, "config.json", err);
    case BIAS_QKV_KEY:
        *out = true;
        return json_get_bool(text, "qkv_bias", out, "config.json", err);
    case BIAS_USE_KEY:
        *out = true;
        return json_get_bool(text, "use_bias", out, "config.json", err);
    case BIAS_USE_KEY_OFF:
        return json_get_bool(text, "use_bias", out, "config.json", err);
    case BIAS_USE_QKV_KEY:
        return json_get_bool(text, "use_qkv_bias", out, "config.json", err);
    default:
        return true;
    }
}

static bool bind_norm(struct model *model, struct binder *binder, const char *module, uint32_t n,
                      struct norm *out, struct err *err) {
    const struct block_traits *traits = model->family->block;
    const struct block_model *block = model->impl;
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s.weight", module);
    out->weight = bind_vector(binder, name, n, block->norm_add, err);
    if (!out->weight)
        return false;
    if (traits->norm_bias) {
        snprintf(name, sizeof name, "%s.bias", module);
        out->bias = bind_vector(binder, name, n, 0, err);
        return out->bias != NULL;
    }
    return true;
}

struct linear {
    struct weight **weight;
    const float **bias; // NULL: none wanted
};

// One module, or a slice of a fused one, with its bias.
static bool bind_linear_bias(struct binder *binder, const char *path, struct bind_shape shape,
                             struct linear out, bool with_bias, struct err *err) {
    *out.weight = bind_matrix(binder, path, shape, err);
    if (!*out.weight)
        return false;
    if (!with_bias)
        return true;
    char name[BIND_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s.bias", path);
    *out.bias = bind_vector_part(binder, name, shape.n_out_total, shape.from, shape.n_out, 0, err);
    return *out.bias != NULL;
}

static bool bind_attention(struct model *model, struct binder *binder, uint32_t l,
                           struct block_layer *layer, struct err *err) {
    const struct model_config *c = model->config;
    const struct block_traits *traits = model->family->block;
    uint32_t n_q = c->n_heads * c->head_dim, n_kv = c->n_kv_heads * c->head_dim;
    bool qkv_bias, o_bias;
    if (!has_bias(model, traits->qkv_bias, &qkv_bias, err) ||
        !has_bias(model, traits->o_bias, &o_bias, err))
        return false;
    struct linear outs[3] = {
        {&layer->q, &layer->q_bias}, {&layer->k, &layer->k_bias}, {&layer->v, &layer->v_bias}};
    static const char *const NAMES[3] = {"q_proj", "k_proj", "v_proj"};
    uint32_t widths[3] = {traits->attention_gate ? 2 * n_q : n_q, n_kv, n_kv}, from = 0;
    char path[BIND_PATH_BYTES];
    for (int i = 0; i < 3; i++) {
        struct bind_shape shape = {.n_out = widths[i], .n_in = c->d_model};
        if (traits->qkv_fused) {
            shape.n_out_total = n_q + 2 * n_kv;
            shape.from = from;
            from += widths[i];
        }
        bind_path(binder, path, "layers.%u.self_attn.%s", l, traits->qkv_fused ? "qkv_proj" : NAMES[i]);
        if (!bind_linear_bias(binder, path, shape, outs[i], qkv_bias, err))
            return false;
    }
    bind_path(binder, path, "layers.%u.self_attn.%s", l, traits->o_name ? traits->o_name : "o_proj");
    struct linear o = {&layer->o, &layer->o_bias};
    if (!bind_linear_bias(binder, path, (struct bind_shape){.n_out = c->d_model, .n_in = n_q}, o, o_bias,
                          err))
        return false;
    bool head_norm = traits->head_norm != HEAD_NORM_NONE;
    if (traits->head_norm == HEAD_NORM_KEY) {
        head_norm = false;
        if (!json_get_bool(c->text, "use_qk_norm", &head_norm, "config.json", err))
            return false;
    }
    if (head_norm) {
        bool whole = traits->head_norm == HEAD_NORM_WHOLE;
        float norm_add = ((struct block_model *)model->impl)->norm_add;
        const char *const *names = traits->head_norm_names;
        bind_path(binder, path, "layers.%u.self_attn.%s.weight", l, names[0] ? names[0] : "q_norm");
        layer->q_norm = bind_vector(binder, path, whole ? n_q : c->head_dim, norm_add, err);
        bind_path(binder, path, "layers.%u.self_attn.%s.weight", l, names[1] ? names[1] : "k_norm");
        layer->k_norm = layer->q_norm
                            ? bind_vector(binder, path, whole ? n_kv : c->head_dim, norm_add, err)
                            : NULL;
        if (!layer->k_norm)
            return false;
    }
    return true;
}

static bool bind_sinks(struct model *model, struct binder *binder, uint32_t l, struct block_layer *layer,
                       struct err *err) {
    char name[BIND_PATH_BYTES];
    bind_path(binder, name, "layers.%u.self_attn.sinks", l);
    layer->sinks = bind_vector(binder, name, model->config->n_heads, 0, err);
    return layer->sinks != NULL;
}

// The four numbers of a layer's xIELU, its alphas as they are used. Source: Huang & Schlag 2024, "Deriving
// activation functions via integration"; transformers activations.py.
static bool bind_xielu(struct binder *binder, uint32_t l, float p[4], struct err *err) {
    static const char *const NAMES[4] = {"alpha_p", "alpha_n", "beta", "eps"};
    p[2] = 0.5f; // constants, which not every file holds
    p[3] = -1e-6f;
    for (int i = 0; i < 4; i++) {
        char name[BIND_PATH_BYTES];
        bind_path(binder, name, "layers.%u.mlp.act_fn.%s", l, NAMES[i]);
        if ((i < 2 || bind_has(binder, name)) && !bind_values(binder, name, &p[i], 1, err))
            return false;
    }
    p[0] = log1pf(expf(p[0]));
    p[1] = p[2] + log1pf(expf(p[1]));
    return true;
}

static bool bind_mlp(struct model *model, struct binder *binder, uint32_t l, struct block_layer *layer,
                     struct err *err) {
    const struct model_config *c = model->config;
    const struct block_traits *traits = model->family->block;
    static const char *const DEFAULT_NAMES[3] = {"gate_proj", "up_proj", "down_proj"};
    const char *names[3], *module = traits->mlp_module ? traits->mlp_module : "mlp";
    for (int i = 0; i < 3; i++)
        names[i] = traits->mlp_names[i] ? traits->mlp_names[i] : DEFAULT_NAMES[i];
    bool bias;
    if (!has_bias(model, traits->mlp_bias, &bias, err) ||
        (c->activation == ACT_XIELU && !bind_xielu(binder, l, layer->xielu, err)))
        return false;
    struct linear gate = {&layer->gate, &layer->gate_bias}, up = {&layer->up, &layer->up_bias},
                  down = {&layer->down, &layer->down_bias};
    struct bind_shape wide = {.n_out = c->d_ff, .n_in = c->d_model};
    char path[BIND_PATH_BYTES];
    if (traits->mlp == MLP_GLU_FUSED) { // gate first, then up
        wide.n_out_total = 2 * c->d_ff;
        bind_path(binder, path, "layers.%u.%s.gate_up_proj", l, module);
        struct bind_shape second = wide;
        second.from = c->d_ff;
        if (!bind_linear_bias(binder, path, wide, gate, bias, err) ||
            !bind_linear_bias(binder, path, second, up, bias, err))
            return false;
    } else {
        if (traits->mlp == MLP_GLU) {
            bind_path(binder, path, "layers.%u.%s.%s", l, module, names[0]);
            if (!bind_linear_bias(binder, path, wide, gate, bias, err))
                return false;
        }
        bind_path(binder, path, "layers.%u.%s.%s", l, module, names[1]);
        if (!bind_linear_bias(binder, path, wide, up, bias, err))
            return false;
    }
    bind_path(binder, path, "layers.%u.%s.%s", l, module, names[2]);
    return bind_linear_bias(binder, path, (struct bind_shape){.n_out = c->d_model, .n_in = c->d_ff}, down,
                            bias, err);
}

// Experts, in the layers that have them; else the MLP.
static bool bind_feed_forward(struct model *model, struct binder *binder, uint32_t l,
                              struct block_layer *layer, struct err *err) {
    const struct moe_traits *traits = model->family->block->moe;
    bool sparse = false;
    if (traits && !moe_layer_is_sparse(model, traits, l, &sparse, err))
        return false;
    if (!sparse)
        return bind_mlp(model, binder, l, layer, err);
    struct block_model *block = model->impl;
    block->moe = layer->moe = moe_bind(model, binder, traits, l, err);
    return layer->moe != NULL;
}

static bool bind_norms(struct model *model, struct binder *binder, uint32_t l, struct block_layer *layer,
                       struct err *err) {
    const struct block_traits *traits = model->family->block;
    static const char *const DEFAULT_NAMES[4] = {
        "input_layernorm", "post_attention_layernorm", "post_attention_layernorm",
        "post_feedforward_layernorm"};
    enum norm_place place = traits->norm_place;
    struct norm *norms[4] = {&layer->attention_in, &layer->attention_out, &layer->mlp_in, &layer->mlp_out};
    bool wanted[4] = {
        place != NORMS_AFTER,
        place == NORMS_AFTER || place == NORMS_BOTH,
        place == NORMS_BEFORE || place == NORMS_BOTH,
        place == NORMS_AFTER || place == NORMS_BOTH,
    };
    for (int i = 0; i < 4; i++) {
        if (!wanted[i])
            continue;
        char path[BIND_PATH_BYTES];
        bind_path(binder, path, "layers.%u.%s", l,
                  traits->norm_names[i] ? traits->norm_names[i] : DEFAULT_NAMES[i]);
        if (!bind_norm(model, binder, path, model->config->d_model, norms[i], err))
            return false;
    }
    return true;
}

// True if the config says that layer l has no rope (SmolLM 3: 1 = rope, 0 = none).
static bool layer_without_rope(const struct model *model, uint32_t l) {
    const json_t *list = json_object_get(model->config->text, "no_rope_layers");
    const json_t *entry = json_array_get(list, l);
    if (entry)
        return json_is_integer(entry) && json_integer_value(entry) == 0;
    uint32_t interval = 4;
    struct err ignored;
    json_get_u32(model->config->text, "no_rope_layer_interval", &interval, "config.json", &ignored);
    return interval && (l + 1) % interval == 0;
}

static bool bind_layer(struct model *model, struct binder *binder, uint32_t l, struct err *err) {
    struct block_model *block = model->impl;
    struct block_layer *layer = &block->layers[l];
    const struct model_config *c = model->config;
    const struct block_traits *traits = model->family->block;
    bool sliding = c->layer_types[l] == LAYER_SLIDING;
    if (c->layer_types[l] == LAYER_LINEAR) {
        if (!traits->attention_gate)
            return err_set(err, ERR_UNSUPPORTED, "layer %u has linear attention, which model type %s lacks in "
                           "loam", l, model->family->model_type);
        block->delta = layer->delta = delta_net_bind(model, binder, l, err);
        return layer->delta && bind_norms(model, binder, l, layer, err) &&
               bind_feed_forward(model, binder, l, layer, err);
    }
    if (c->layer_types[l] == LAYER_CONV) {
        if (!traits->short_conv)
            return err_set(err, ERR_UNSUPPORTED, "layer %u is a convolution, which model type %s lacks in loam", l,
                           model->family->model_type);
        block->has_conv = true;
        layer->conv = short_conv_bind(model, binder, l, err);
        return layer->conv && bind_norms(model, binder, l, layer, err) &&
               bind_feed_forward(model, binder, l, layer, err);
    }
    if (block->mla) {
        layer->mla = mla_bind(model, binder, block->mla, l, err);
        return layer->mla && bind_norms(model, binder, l, layer, err) &&
               bind_feed_forward(model, binder, l, layer, err);
    }
    layer->window = sliding ? c->sliding_window : 0;
    if (sliding && model->is_encoder)
        layer->window = model_window_each_side(c->sliding_window);
    uint32_t group = model_group(model, layer->window, err);
    if (group == UINT32_MAX)
        return false;
    layer->kv_layer = model_add_kv(model, l, (struct kv_layer_desc){
        .group = group, .n_heads = c->n_kv_heads, .k_dim = c->head_dim, .v_dim = c->head_dim});
    layer->rope = sliding ? &block->rope_sliding : &block->rope;
    bool sliding_only = traits->rope_layers == ROPE_SLIDING ||
                        (traits->rope_layers == ROPE_SLIDING_MIXED && c->sliding_window > 0);
    if ((sliding_only && !sliding) || (traits->no_rope_layers && layer_without_rope(model, l)))
        layer->rope = NULL;
    return bind_norms(model, binder, l, layer, err) && bind_attention(model, binder, l, layer, err) &&
           bind_feed_forward(model, binder, l, layer, err) &&
           (!traits->sinks || bind_sinks(model, binder, l, layer, err));
}

// The numbers that scale things: all 1 for most families.
static bool bind_scales(struct model *model, struct err *err) {
    struct block_model *block = model->impl;
    const struct model_config *c = model->config;
    const struct block_traits *traits = model->family->block;
    const char *what = "config.json";
    block->embed_scale = 1;
    block->residual_scale = 1;
    block->attention_scale = 1 / sqrtf((float)c->head_dim);
    if (traits->embed_sqrt_d) // the reference keeps the factor in the weights' bf16
        block->embed_scale = bf16_to_f32(bf16_from_f32(sqrtf((float)c->d_model)));
    if (traits->multipliers) {
        float logits_scaling = 1;
        block->attention_scale = 1; // what the configuration class says
        if (!json_get_f32(c->text, "embedding_multiplier", &block->embed_scale, what, err) ||
            !json_get_f32(c->text, "residual_multiplier", &block->residual_scale, what, err) ||
            !json_get_f32(c->text, "attention_multiplier", &block->attention_scale, what, err) ||
            !json_get_f32(c->text, "logits_scaling", &logits_scaling, what, err))
            return false;
        if (logits_scaling == 0)
            return err_set(err, ERR_FORMAT, "config.json: \"logits_scaling\" is 0");
        model->logit_scale = 1 / logits_scaling;
    }
    if (traits->query_scale) {
        double scalar = 256; // likewise
        if (!json_get_f64(c->text, "query_pre_attn_scalar", &scalar, what, err))
            return false;
        if (scalar <= 0)
            return err_set(err, ERR_FORMAT, "config.json: \"query_pre_attn_scalar\" must be positive");
        block->attention_scale = (float)(1 / sqrt(scalar));
    }
    if (traits->logit_scale)
        model->logit_scale = 0.0625f; // what the configuration class says
    if (traits->logit_scale && !json_get_f32(c->text, "logit_scale", &model->logit_scale, what, err))
        return false;
    if (c->rope.query_beta > 0 && !traits->query_beta)
        return err_set(err, ERR_UNSUPPORTED, "config.json: \"llama_4_scaling_beta\" changes what the model computes in a "
                       "way that loam does not implement for model type %s", model->family->model_type);
    model->query_beta = c->rope.query_beta;
    model->query_ctx = c->rope.ctx_original;
    const json_t *caps[2] = {json_object_get(c->text, "attn_logit_softcapping"),
                             json_object_get(c->text, "final_logit_softcapping")};
    if (traits->softcap_defaults[0] > 0) { // where the config is silent; null means none
        block->attention_softcap = caps[0] ? 0 : traits->softcap_defaults[0];
        model->logit_softcap = caps[1] ? 0 : traits->softcap_defaults[1];
    }
    if (traits->softcaps &&
        (!json_get_f32(c->text, "attn_logit_softcapping", &block->attention_softcap, what, err) ||
         !json_get_f32(c->text, "final_logit_softcapping", &model->logit_softcap, what, err)))
        return false;
    return true;
}

bool block_bind_embeddings(struct model *model, struct binder *binder, struct err *err) {
    const struct model_config *c = model->config;
    char path[BIND_PATH_BYTES], weight_name[BIND_PATH_BYTES];
    bind_path(binder, path, "embed_tokens");
    model->embed = bind_linear(binder, path, c->n_vocab, c->d_model, err);
    if (!model->embed)
        return false;
    // The head has the text model's prefix or none; some multimodal exports keep it under language_model.
    static const char *const HEADS[] = {"lm_head", "language_model.lm_head", "model.lm_head"};
    const char *head = NULL;
    for (size_t i = 0; !head && i < sizeof HEADS / sizeof *HEADS; i++) {
        char scales_name[BIND_PATH_BYTES]; // a head that lost its weight is missed by its own name
        snprintf(weight_name, sizeof weight_name, "%s.weight", HEADS[i]);
        snprintf(scales_name, sizeof scales_name, "%s.scales", HEADS[i]);
        if (bind_has(binder, weight_name) || bind_has(binder, scales_name))
            head = HEADS[i];
    }
    if (model->is_encoder)
        return true;
    if (c->tie_embeddings) {
        model->head = model->embed;
        if (head) { // written by some exporters although tied: the tie wins, as in the reference
            model_ignore(model, head);
        }
        return true;
    }
    // Saved as the bare model, whose tensors have no prefix: an embedding model needs no head.
    if (!head && binder->prefix[0] == '\0')
        return true;
    model->head = bind_linear(binder, head ? head : "lm_head", c->n_vocab, c->d_model, err);
    return model->head != NULL;
}

bool block_bind(struct model *model, struct binder *binder, struct err *err) {
    const struct model_config *c = model->config;
    const struct block_traits *traits = model->family->block;
    struct block_model *block = arena_new(&model->arena, struct block_model);
    model->impl = block;
    if (block)
        block->layers = arena_array(&model->arena, struct block_layer, c->n_layers);
    if (!block || !block->layers)
        return err_set(err, ERR_NOMEM, "out of memory for the model's layers");
    block->norm_add = traits->norm_add;
    if (traits->bidirectional_key) // "vision" is about images
        model->is_encoder = json_is_true(json_object_get(c->text, "use_bidirectional_attention"));
    if (traits->norm_add_in_hub)
        block->norm_add = delta_net_is_hub_layout(model, binder) ? 1 : 0;
    if (traits->attention_gate && c->n_heads * c->head_dim % 32)
        return err_set(err, ERR_UNSUPPORTED, "gated attention of %u heads of %u is not supported", c->n_heads,
                       c->head_dim); // gate and q are taken apart as whole rows of a packed matrix
    block->unary = unary_of_activation(c->activation);
    if (traits->mlp != MLP_PLAIN && !glu_of_activation(c->activation, &block->glu))
        return err_set(err, ERR_UNSUPPORTED, "model type %s with this hidden_act is not supported",
                       model->family->model_type);
    if (!rope_table_init(&block->rope, &c->rope, c->head_dim, c->ctx_len_max, traits->rope_interleaved,
                         &model->store, err) ||
        !rope_table_init(&block->rope_sliding, &c->rope_sliding, c->head_dim, c->ctx_len_max,
                         traits->rope_interleaved, &model->store, err))
        return false;
    if (c->rope.kind == ROPE_LONGROPE)
        model->rope_variant_from = c->rope.ctx_original;
    if (traits->mla) {
        block->mla = mla_dims_bind(model, traits->mla, err);
        if (!block->mla)
            return false;
    }
    model->n_heads_max = max_u32(model->n_heads_max, c->n_heads);
    model->head_dim_max = max_u32(model->head_dim_max, c->head_dim);
    model->n_cols_max = max_u32(model->n_cols_max,
                                max_u32(max_u32(c->d_model, c->d_ff), c->n_heads * c->head_dim));
    if (!block_bind_embeddings(model, binder, err) || !bind_scales(model, err))
        return false;
    const json_t *no_rope = json_object_get(c->text, "no_rope_layers");
    if (traits->no_rope_layers && json_is_array(no_rope) && json_array_size(no_rope) != c->n_layers)
        return err_set(err, ERR_FORMAT, "config.json: \"no_rope_layers\" has %zu entries for %u layers",
                       json_array_size(no_rope), c->n_layers);
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (!bind_layer(model, binder, l, err))
            return false;
    char path[BIND_PATH_BYTES];
    if (traits->extra_layers) {
        bind_path(binder, path, "layers.%u.", c->n_layers);
        model_ignore(model, path);
    }
    bind_path(binder, path, "%s", traits->final_norm ? traits->final_norm : "norm");
    return bind_norm(model, binder, path, c->d_model, &block->norm, err);
}

// ---- Scratch ----------------------------------------------------------------------------------
// Columns of each scratch matrix, in the order of block_model's fields.
enum { N_SCRATCH = 9 };
static void scratch_widths(const struct model *model, uint32_t widths[N_SCRATCH]) {
    const struct model_config *c = model->config;
    uint32_t n_q = c->n_heads * c->head_dim, n_kv = c->n_kv_heads * c->head_dim;
    uint32_t all[N_SCRATCH] = {c->d_model, c->d_model, n_q, n_kv, n_kv, n_q, c->d_model, c->d_ff, c->d_ff};
    memcpy(widths, all, sizeof all);
}

// Widest result of a layer's mixer, before its output projection.
static uint32_t mixer_width_max(const struct model *model) {
    const struct block_model *block = model->impl;
    uint32_t width = model->config->n_heads * model->config->head_dim;
    if (block->delta)
        width = max_u32(width, delta_net_out_width(block->delta));
    return block->mla ? max_u32(width, mla_out_width(block->mla)) : width;
}

bool block_prepare(struct model *model, const struct model_limits *limits, struct err *err) {
    struct block_model *block = model->impl;
    struct mat *mats[N_SCRATCH] = {&block->h, &block->x, &block->q, &block->k, &block->v,
                                   &block->attention, &block->branch, &block->gate, &block->up};
    uint32_t widths[N_SCRATCH];
    scratch_widths(model, widths);
    for (int i = 0; i < N_SCRATCH; i++)
        if (!model_new_mat(model, limits->n_tokens, widths[i], mats[i], err))
            return false;
    if (!model_new_mat(model, limits->n_logits, mixer_width_max(model), &block->wanted, err))
        return false;
    if (model->family->block->attention_gate &&
        !model_new_mat(model, limits->n_tokens, 2 * widths[2], &block->gated_q, err))
        return false;
    if (block->mla && !mla_prepare(model, block->mla, limits->n_tokens, err))
        return false;
    if (block->delta && !delta_net_prepare(model, block->delta, limits->n_tokens, &block->delta_scratch, err))
        return false;
    if (block->has_conv && !short_conv_prepare(model, limits->n_tokens, &block->conv_scratch, err))
        return false;
    return !block->moe || moe_prepare(model, block->moe, limits->n_tokens, &block->moe_scratch, err);
}

uint64_t block_workspace_bytes(const struct model *model, const struct model_limits *limits) {
    uint32_t widths[N_SCRATCH];
    uint64_t total = 0;
    scratch_widths(model, widths);
    for (int i = 0; i < N_SCRATCH; i++)
        total += model_mat_bytes(model, limits->n_tokens, widths[i]);
    const struct block_model *block = model->impl;
    total += model_mat_bytes(model, limits->n_logits, mixer_width_max(model));
    if (model->family->block->attention_gate)
        total += model_mat_bytes(model, limits->n_tokens, 2 * widths[2]);
    if (block->mla)
        total += mla_workspace_bytes(model, block->mla, limits->n_tokens);
    if (block->delta)
        total += delta_net_workspace_bytes(model, block->delta, limits->n_tokens);
    if (block->has_conv)
        total += short_conv_workspace_bytes(model, limits->n_tokens);
    return total + (block->moe ? moe_workspace_bytes(model, block->moe, limits->n_tokens) : 0);
}

// ---- The step ---------------------------------------------------------------------------------
static void norm_into(const struct model *model, const struct norm *norm, struct mat x, struct mat y) {
    model->be->ops->norm(model->be, &(struct norm_args){
        .kind = model->family->block->norm, .eps = model->config->norm_eps, .weight = norm->weight,
        .bias = norm->bias, .width = x.n_cols, .x = x, .y = y});
}

static struct mat attention(const struct model *model, const struct block_layer *layer, struct mat x) {
    struct block_model *b = model->impl;
    uint32_t n = x.n_rows;
    const struct model_config *c = model->config;
    const struct backend_ops *ops = model->be->ops;
    struct mat q = mat_first(b->q, n), k = mat_first(b->k, n), v = mat_first(b->v, n);
    bool gated = model->family->block->attention_gate;
    struct mat projected = gated ? mat_first(b->gated_q, n) : q;
    ops->linear(model->be, &(struct linear_args){
        .x = x, .n_outputs = 3, .scale = 1,
        .outputs = {{layer->q, layer->q_bias, projected}, {layer->k, layer->k_bias, k},
                    {layer->v, layer->v_bias, v}}});
    // A row of q and gate a head: [n_tokens * n_heads, 2 * head_dim].
    struct mat pairs = mat_heads(projected, 2 * c->head_dim);
    if (gated)
        ops->axpby(model->be, 1, mat_cols(model->be, pairs, 0, c->head_dim), 0, mat_heads(q, c->head_dim));
    ops->qkv(model->be, &(struct qkv_args){
        .layer = layer->kv_layer, .pool = model->kv, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim, .v_dim = c->head_dim, .q = q, .k = k, .v = v, .q_norm = layer->q_norm,
        .k_norm = layer->k_norm, .norm_whole = model->family->block->head_norm == HEAD_NORM_WHOLE,
        .norm_after_rope = model->family->block->head_norm_after_rope,
        .norm_eps = c->norm_eps, .rope = layer->rope});
    if (model->query_scale)
        ops->mul(model->be, model_query_scale(model, n), q);
    struct mat attended = mat_first(b->attention, n);
    ops->attention(model->be, &(struct attention_args){
        .layer = layer->kv_layer, .pool = model->kv, .n_heads = c->n_heads, .q = q, .out = attended,
        .scale = b->attention_scale, .window = layer->window, .softcap = b->attention_softcap,
        .sinks = layer->sinks, .bidirectional = model->is_encoder});
    if (gated)
        ops->glu(model->be, &(struct glu_args){
            .kind = GLU_SIGMOID, .gate = mat_cols(model->be, pairs, c->head_dim, c->head_dim),
            .up = mat_heads(attended, c->head_dim), .y = mat_heads(attended, c->head_dim)});
    return attended;
}

// The MLP of `x` up to the input of `down`, in b->gate.
static struct mat mlp_inner(const struct model *model, const struct block_layer *layer, struct mat x) {
    struct block_model *b = model->impl;
    const struct backend_ops *ops = model->be->ops;
    struct mat inner = mat_first(b->gate, x.n_rows), up = mat_first(b->up, x.n_rows);
    if (!layer->gate) {
        ops->linear(model->be, &(struct linear_args){
            .x = x, .n_outputs = 1, .scale = 1, .outputs = {{layer->up, layer->up_bias, inner}}});
        ops->unary(model->be, b->unary, layer->xielu, inner, inner);
    } else if (layer->gate_bias) {
        ops->linear(model->be, &(struct linear_args){
            .x = x, .n_outputs = 2, .scale = 1,
            .outputs = {{layer->gate, layer->gate_bias, inner}, {layer->up, layer->up_bias, up}}});
        ops->glu(model->be, &(struct glu_args){.kind = b->glu, .gate = inner, .up = up, .y = inner});
    } else {
        ops->linear_glu(model->be, x, layer->gate, layer->up, b->glu, inner);
    }
    return inner;
}

// h += residual_scale * norm?(W x + bias)
static void add_branch(const struct model *model, const struct weight *weight, const float *bias,
                       const struct norm *norm, struct mat x, struct mat h) {
    struct block_model *b = model->impl;
    const struct backend_ops *ops = model->be->ops;
    if (!norm->weight) {
        ops->linear(model->be, &(struct linear_args){
            .x = x, .n_outputs = 1, .outputs = {{weight, bias, h}}, .store = LINEAR_ADD,
            .scale = b->residual_scale});
        return;
    }
    struct mat branch = mat_first(b->branch, h.n_rows);
    ops->linear(model->be, &(struct linear_args){
        .x = x, .n_outputs = 1, .outputs = {{weight, bias, branch}}, .scale = 1});
    norm_into(model, norm, branch, branch);
    ops->axpby(model->be, b->residual_scale, branch, 1, h);
}

// h += residual_scale * norm?(experts or MLP of x)
static void feed_forward(const struct model *model, const struct block_layer *layer, struct mat x,
                         struct mat h) {
    struct block_model *b = model->impl;
    if (!layer->moe) {
        add_branch(model, layer->down, layer->down_bias, &layer->mlp_out, mlp_inner(model, layer, x), h);
    } else if (!layer->mlp_out.weight) {
        moe_forward(model, layer->moe, &b->moe_scratch, mat_first(x, h.n_rows), h, LINEAR_ADD,
                    b->residual_scale);
    } else {
        struct mat branch = mat_first(b->branch, h.n_rows);
        moe_forward(model, layer->moe, &b->moe_scratch, mat_first(x, h.n_rows), branch, LINEAR_STORE, 1);
        norm_into(model, &layer->mlp_out, branch, branch);
        model->be->ops->axpby(model->be, b->residual_scale, branch, 1, h);
    }
}

// The tokens whose logits are wanted, alone: nobody reads the others after the last attention. Only h,
// the attention's result and (for NORM_SHARED) the normed input live on; each moves to a scratch matrix
// that the rest of the layer leaves alone.
static void keep_wanted(const struct model *model, const struct step *step, struct mat *h,
                        struct mat *attended, struct mat *x) {
    struct block_model *b = model->impl;
    struct mat from[3] = {*h, *attended, *x};
    struct mat to[3] = {model->hidden, b->wanted, b->branch};
    to[1].n_cols = attended->n_cols;
    struct mat *out[3] = {h, attended, x};
    int n_moved = model->family->block->norm_place == NORM_SHARED ? 3 : 2;
    for (int i = 0; i < n_moved; i++) {
        *out[i] = mat_first(to[i], step->n_logits);
        model->be->ops->gather(model->be, from[i], NULL, *out[i]);
    }
    *x = mat_first(*x, step->n_logits);
}

void block_forward(struct model *model, const struct step *step) {
    struct block_model *b = model->impl;
    const struct backend_ops *ops = model->be->ops;
    const enum norm_place place = model->family->block->norm_place;
    const uint32_t n_layers = model->config->n_layers;
    struct mat h = mat_first(b->h, step->n_tokens), x = mat_first(b->x, step->n_tokens);
    bool narrow = !model->tap && !model->is_encoder && step->n_logits < step->n_tokens;
    ops->embed(model->be, model->embed, NULL, b->embed_scale, h);
    model_tap(model, -1, h);
    for (uint32_t l = 0; l < n_layers; l++) {
        const struct block_layer *layer = &b->layers[l];
        if (place != NORMS_AFTER)
            norm_into(model, &layer->attention_in, h, x);
        struct mat mixer_in = place == NORMS_AFTER ? h : x;
        struct mat attended =
            layer->delta ? delta_net_forward(model, layer->delta, &b->delta_scratch, mixer_in)
            : layer->mla ? mla_forward(model, layer->mla, mixer_in)
            : layer->conv ? short_conv_forward(model, layer->conv, b->conv_scratch, mixer_in)
                         : attention(model, layer, mixer_in);
        if (narrow && l + 1 == n_layers) {
            if (step->n_logits == 0)
                return;
            keep_wanted(model, step, &h, &attended, &x);
        }
        const struct weight *out = layer->delta ? delta_net_out_proj(layer->delta)
                                   : layer->mla ? mla_o_proj(layer->mla)
                                   : layer->conv ? short_conv_out_proj(layer->conv)
                                                : layer->o;
        const float *out_bias = layer->conv ? short_conv_out_bias(layer->conv) : layer->o_bias;
        add_branch(model, out, out_bias, &layer->attention_out, attended, h);
        if (place == NORMS_BEFORE || place == NORMS_BOTH)
            norm_into(model, &layer->mlp_in, h, x);
        feed_forward(model, layer, place == NORMS_AFTER ? h : x, h);
        model_tap(model, (int)l, h);
    }
    struct mat hidden = mat_first(model->hidden, step->n_logits);
    if (step->n_logits == 0)
        return;
    if (model->is_encoder) {
        norm_into(model, &b->norm, h, mat_first(model->states_out, step->n_tokens));
        ops->gather(model->be, mat_first(model->states_out, step->n_tokens), NULL, hidden);
        return;
    }
    if (model->tap) {
        ops->gather(model->be, h, NULL, hidden);
        h = hidden;
    }
    norm_into(model, &b->norm, h, hidden);
}
