#include "model/model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "base/log.h"
#include "model/family.h"

uint32_t model_group(struct model *model, uint32_t window, struct err *err) {
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->group_window[g] == window)
            return g;
    if (model->n_groups == KV_GROUPS_MAX) {
        err_set(err, ERR_UNSUPPORTED, "the model has more than %d different attention windows",
                KV_GROUPS_MAX);
        return UINT32_MAX;
    }
    model->group_window[model->n_groups] = window;
    return model->n_groups++;
}

uint32_t model_add_kv(struct model *model, uint32_t layer_idx, struct kv_layer_desc desc) {
    assert(model->n_kv_layers < MODEL_KV_LAYERS_MAX);
    const int8_t *by_layer = model->options.kv_by_layer;
    desc.kind = by_layer && by_layer[layer_idx] >= 0 ? (enum kv_kind)by_layer[layer_idx]
                                                     : model->options.kv;
    model->kv_layers[model->n_kv_layers] = desc;
    return model->n_kv_layers++;
}

uint32_t model_add_state(struct model *model, size_t n_floats) {
    assert(model->n_states < MODEL_STATES_MAX);
    model->state_floats[model->n_states] = n_floats;
    return model->n_states++;
}

// Rows are padded to whole cache lines, so that threads that own different rows share none.
static uint32_t mat_stride(const struct model *model, uint32_t n_cols) {
    uint32_t per_line = 64 / model->be->act_bytes;
    return (n_cols + per_line - 1) / per_line * per_line;
}

uint64_t model_mat_bytes(const struct model *model, uint32_t n_rows, uint32_t n_cols) {
    return (uint64_t)n_rows * mat_stride(model, n_cols) * model->be->act_bytes;
}

bool model_new_mat(struct model *model, uint32_t n_rows, uint32_t n_cols, struct mat *out,
                   struct err *err) {
    void *data = model_store_alloc(&model->store, model_mat_bytes(model, n_rows, n_cols), err);
    *out = (struct mat){data, n_rows, n_cols, mat_stride(model, n_cols)};
    return data != NULL;
}

// Keys that change what a decoder computes and that no family here implements, whatever its type. A key that is absent,
// null or `harmless` (a JSON text) says nothing new; a family that has such a feature takes its key out of here.
static const struct refused_key {
    const char *key, *harmless;
} REFUSED_KEYS[] = {
    {"is_causal", "true"},                         // decoders turned encoders
    {"clip_qkv", NULL},                            // OLMo, OLMoE: queries, keys and values are clamped
    {"is_encoder_decoder", NULL},
    {"add_cross_attention", NULL},
    {"alibi", NULL},
    {"attn_output_gate", "true"}, // Qwen3.5: written out and always on
};
// EmbeddingGemma's, of the family that has it; "vision" only concerns images.
static const struct refused_key BIDIRECTIONAL_KEY = {"use_bidirectional_attention", "\"vision\""};
// Keys of the families that have softcaps; another that sets one is not what its type says.
static const struct refused_key SOFTCAP_KEYS[] = {{"attn_logit_softcapping", NULL},
                                                  {"final_logit_softcapping", NULL}};

static bool refuse_key(const struct model *model, const struct refused_key *refused, struct err *err) {
    const json_t *value = json_object_get(model->config->text, refused->key);
    bool harmless = !value || json_is_null(value);
    if (refused->harmless && value) {
        json_t *known = json_loads(refused->harmless, JSON_DECODE_ANY, NULL);
        if (!known)
            return err_set(err, ERR_NOMEM, "out of memory for the model");
        harmless = harmless || json_equal(value, known);
        json_decref(known);
    }
    if (!refused->harmless || strcmp(refused->harmless, "true") != 0) // else false is what changes things
        harmless = harmless || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
    return harmless || err_set(err, ERR_UNSUPPORTED, "config.json: \"%s\" changes what the model computes in a way that "
                               "loam does not implement for model type %.*s", refused->key,
                               (int)model->config->model_type.n, model->config->model_type.data);
}

static bool refuse_keys(const struct model *model, struct err *err) {
    for (size_t i = 0; i < sizeof REFUSED_KEYS / sizeof *REFUSED_KEYS; i++)
        if (!refuse_key(model, &REFUSED_KEYS[i], err))
            return false;
    const struct block_traits *block = model->family->block;
    bool may_be_encoder = block && block->bidirectional_key;
    if (!(may_be_encoder && json_is_true(json_object_get(model->config->text, BIDIRECTIONAL_KEY.key))) &&
        !refuse_key(model, &BIDIRECTIONAL_KEY, err))
        return false;
    for (size_t i = 0; block && !block->softcaps && i < sizeof SOFTCAP_KEYS / sizeof *SOFTCAP_KEYS; i++)
        if (!refuse_key(model, &SOFTCAP_KEYS[i], err))
            return false;
    for (size_t i = 0; block && i < sizeof block->refused / sizeof *block->refused; i++)
        if (block->refused[i] && !refuse_key(model, &(struct refused_key){block->refused[i], NULL}, err))
            return false;
    return true;
}

void model_ignore(struct model *model, const char *prefix) {
    for (size_t i = 0; i < weights_n_tensors(model->weights); i++) {
        const struct tensor *tensor = weights_tensor(model->weights, i);
        if (str_starts(tensor->name, str_from(prefix)))
            weights_ignore(model->weights, tensor);
    }
}

static bool bind_model(struct model *model, struct err *err) {
    struct model_config *config = model->config;
    model->kv_layers = arena_array(&model->arena, struct kv_layer_desc, MODEL_KV_LAYERS_MAX);
    model->state_floats = arena_array(&model->arena, size_t, MODEL_STATES_MAX);
    if (!model->kv_layers || !model->state_floats)
        return err_set(err, ERR_NOMEM, "out of memory for the model");
    model->family = family_find(config->model_type);
    if (!model->family)
        return err_set(err, ERR_UNSUPPORTED, "model type \"%.*s\" is not supported; loam runs %s",
                       (int)config->model_type.n, config->model_type.data, model_supported_types());
    if (!refuse_keys(model, err))
        return false;
    if (config->n_layers > MODEL_STATES_MAX / 2)
        return err_set(err, ERR_UNSUPPORTED, "config.json: %u layers; loam runs at most %d",
                       config->n_layers, MODEL_STATES_MAX / 2);
    model->logit_scale = 1;
    struct binder binder;
    binder_init(&binder, &model->store, model->weights, config, "embed_tokens.weight");
    if (!model->family->bind(model, &binder, err))
        return false;
    for (const char *const *prefix = model->family->ignore; prefix && *prefix; prefix++)
        model_ignore(model, *prefix); // towers and draft heads
    return weights_audit(model->weights, model->family->model_type, err) &&
           model->be->ops->weights_ready(model->be, err);
}

struct model *model_create(struct model_config *config, struct weights *weights, struct backend *be,
                           const struct model_options *options, struct err *err) {
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        err_set(err, ERR_NOMEM, "out of memory for the model");
        model_config_destroy(config);
        weights_close(weights);
        return NULL;
    }
    *model = (struct model){.config = config, .weights = weights, .be = be, .options = *options};
    model->store.be = be;
    if (bind_model(model, err)) {
        model->options.kv_by_layer = NULL; // borrowed for the call only
        return model;
    }
    model_destroy(model);
    return NULL;
}

struct model *model_open(const char *folder, struct backend *be, const struct model_options *options,
                         struct err *err) {
    struct model_config *config = model_config_open(folder, err);
    if (!config)
        return NULL;
    // Say that the type is unknown before complaining about its files.
    if (!family_find(config->model_type)) {
        err_set(err, ERR_UNSUPPORTED, "%s: model type \"%.*s\" is not supported; loam runs %s", folder,
                (int)config->model_type.n, config->model_type.data, model_supported_types());
        model_config_destroy(config);
        return NULL;
    }
    struct weights *weights = weights_open(folder, err);
    if (!weights) {
        model_config_destroy(config);
        return NULL;
    }
    struct model *model = model_create(config, weights, be, options, err);
    if (!model)
        err_wrap(err, "%s", folder);
    return model;
}

bool model_lock_weights(const struct model *model, struct err *err) { return weights_lock(model->weights, err); }

void model_destroy(struct model *model) {
    if (!model)
        return;
    if (model->kv)
        model->be->ops->kv_destroy(model->be, model->kv);
    if (model->states)
        model->be->ops->state_destroy(model->be, model->states);
    model_store_deinit(&model->store);
    arena_deinit(&model->arena);
    weights_close(model->weights);
    model_config_destroy(model->config);
    free(model);
}

bool model_has_head(const struct model *model) { return model->head != NULL; }
const struct model_config *model_config_of(const struct model *model) { return model->config; }
struct backend *model_backend(const struct model *model) { return model->be; }
struct kv_pool *model_kv_pool(const struct model *model) { return model->kv; }
struct state_pool *model_state_pool(const struct model *model) { return model->states; }
uint32_t model_rope_variant_from(const struct model *model) { return model->rope_variant_from; }

// Bytes that one position takes in one layer: the backend's own layout may pad, so the truth comes from
// kv_page_bytes once a pool exists; this is the same sum beforehand.
static uint64_t kv_row_bytes(enum kv_kind kind, uint64_t n_heads, uint32_t dim) {
    uint64_t groups = (dim + 63) / 64;
    switch (kind) {
    case KV_F32:
        return n_heads * dim * 4;
    case KV_F16:
    case KV_BF16:
        return n_heads * dim * 2;
    case KV_Q8:
        return n_heads * (dim + groups * 4);
    case KV_Q4:
        return n_heads * ((dim + 1) / 2 + groups * 4);
    }
    return 0;
}

void model_memory(const struct model *model, struct model_memory *out) {
    *out = (struct model_memory){.weight_bytes = model->store.weight_bytes, .n_groups = model->n_groups};
    for (uint32_t g = 0; g < model->n_groups; g++)
        out->group_window[g] = model->group_window[g];
    for (uint32_t i = 0; i < model->n_kv_layers; i++) {
        const struct kv_layer_desc *layer = &model->kv_layers[i];
        out->group_page_bytes[layer->group] +=
            KV_PAGE_TOKENS * (kv_row_bytes(layer->kind, layer->n_heads, layer->k_dim) +
                              (layer->v_in_k ? 0 : kv_row_bytes(layer->kind, layer->n_heads, layer->v_dim)));
    }
    for (uint32_t g = 0; model->kv && g < model->n_groups; g++)
        out->group_page_bytes[g] = model->be->ops->kv_page_bytes(model->kv, g);
    for (uint32_t i = 0; i < model->n_states; i++)
        out->state_slot_bytes += model->state_floats[i] * sizeof(float);
}

static struct backend_limits limits_for_backend(const struct model *model, const struct model_limits *limits) {
    return (struct backend_limits){
        .n_tokens = limits->n_tokens,
        .n_rows = limits->n_rows,
        .n_logits = limits->n_logits,
        .ctx_len = limits->ctx_len,
        .n_cols_max = model->n_cols_max,
        .n_vocab = model->is_encoder ? 1 : model->config->n_vocab, // they have no logits
        .n_heads = model->n_heads_max,
        .head_dim = model->head_dim_max,
        .n_experts = model->n_experts,
        .n_experts_used = model->n_experts_used,
        .d_expert = model->d_expert,
    };
}

static size_t query_scale_bytes(const struct model *model, uint32_t n_tokens) {
    return model->query_beta > 0 ? (size_t)n_tokens * model->be->act_bytes : 0;
}

// Of the states of all tokens, twice.
static uint64_t encoder_bytes(const struct model *model, const struct model_limits *limits) {
    return model->is_encoder ? 2 * model_mat_bytes(model, limits->n_tokens, model->config->d_model) : 0;
}

uint64_t model_workspace_bytes(const struct model *model, const struct model_limits *limits) {
    struct backend_limits for_backend = limits_for_backend(model, limits);
    uint64_t scratch = model->be->ops->scratch_bytes
                           ? model->be->ops->scratch_bytes(model->be, &for_backend)
                           : (uint64_t)limits->n_logits * model->config->n_vocab * sizeof(float);
    return model->family->workspace_bytes(model, limits) +
           model_mat_bytes(model, limits->n_logits, model->config->d_model) + encoder_bytes(model, limits) +
           query_scale_bytes(model, limits->n_tokens) + scratch;
}

bool model_prepare(struct model *model, const struct model_limits *limits, struct err *err) {
    const struct backend_ops *ops = model->be->ops;
    const struct model_config *c = model->config;
    // Beyond the trained context the reference's frequencies, and with them the keys in the cache, would change with
    // every token.
    if (c->rope.kind == ROPE_DYNAMIC && limits->ctx_len > c->ctx_len_max)
        return err_set(err, ERR_UNSUPPORTED, "config.json: with rope type \"dynamic\" loam runs this model up to its "
                       "%u positions, not %u: ask for a context of at most %u", c->ctx_len_max, limits->ctx_len,
                       c->ctx_len_max);
    if (model->is_encoder && limits->ctx_len > c->ctx_len_max)
        return err_set(err, ERR_UNSUPPORTED, "this model reads texts of up to %u tokens, not %u: ask for a context of at "
                       "most that", c->ctx_len_max, limits->ctx_len);
    struct backend_limits for_backend = limits_for_backend(model, limits);
    if (!ops->reserve(model->be, &for_backend, err))
        return false;
    if (model->n_kv_layers) {
        model->kv = ops->kv_create(model->be, model->kv_layers, model->n_kv_layers, limits->n_pages,
                                   model->n_groups, err);
        if (!model->kv)
            return false;
    }
    if (model->n_states) {
        model->states = ops->state_create(model->be, model->state_floats, model->n_states,
                                          limits->n_state_slots, err);
        if (!model->states)
            return false;
    }
    if (model->n_placeholders) {
        model->ids = model_store_host(&model->store, limits->n_tokens * sizeof *model->ids, err);
        if (!model->ids)
            return false;
    }
    if (model->query_beta > 0) {
        model->query_scale_f32 =
            model_store_host(&model->store, limits->n_tokens * sizeof *model->query_scale_f32, err);
        if (!model->query_scale_f32)
            return false;
        model->query_scale = model_store_alloc(&model->store, query_scale_bytes(model, limits->n_tokens), err);
        if (!model->query_scale)
            return false;
    }
    if (model->is_encoder) {
        model->pooled = model_store_host(&model->store, limits->n_logits * sizeof *model->pooled, err);
        model->sums = model->pooled ? model_store_host(&model->store, c->d_model * sizeof *model->sums, err) : NULL;
        model->states_host = model->sums ? model_store_host(&model->store,
                                                            model_mat_bytes(model, limits->n_tokens, c->d_model), err)
                                         : NULL;
        if (!model->states_host || !model_new_mat(model, limits->n_tokens, c->d_model, &model->states_out, err))
            return false;
    }
    return model_new_mat(model, limits->n_logits, c->d_model, &model->hidden, err) &&
           model->family->prepare(model, limits, err);
}

// A recorded decode step can be replayed when only data changes: same rows, one token each.
static uint64_t replay_key(const struct model *model, const struct step *step) {
    bool decode = step->n_tokens == step->n_rows && step->n_logits == step->n_rows && !model->tap;
    return decode ? step->n_rows : 0;
}

// The ids as the embedding table wants them.
static const int32_t *replace_placeholders(struct model *model, const struct step *step) {
    for (uint32_t i = 0; i < step->n_tokens; i++) {
        model->ids[i] = step->token_ids[i];
        for (uint32_t p = 0; p < model->n_placeholders; p++)
            if (step->token_ids[i] == model->placeholders[p])
                model->ids[i] = model->placeholder_as;
    }
    return model->ids;
}

// Source: transformers modeling_ministral3.py, after Llama 4.
static void upload_query_scale(struct model *model, const struct step *step) {
    float *scale = model->query_scale_f32;
    for (uint32_t i = 0; i < step->n_tokens; i++)
        scale[i] = (float)(1 + model->query_beta * log(1.0 + step->positions[i] / model->query_ctx));
    if (model->be->act_bytes == 2) { // in place: entry i of the narrow ones lies before entry i of the wide
        for (uint32_t i = 0; i < step->n_tokens; i++) {
            uint16_t narrow = bf16_from_f32(scale[i]);
            memcpy((char *)scale + 2 * (size_t)i, &narrow, sizeof narrow);
        }
    }
    model->be->ops->upload(model->be, model->query_scale, scale, query_scale_bytes(model, step->n_tokens));
}

bool model_step(struct model *model, const struct step *given, const float **logits, struct err *err) {
    *logits = NULL;
    struct backend *be = model->be;
    struct step replaced = *given;
    const struct step *step = &replaced;
    if (model->n_placeholders)
        replaced.token_ids = replace_placeholders(model, given);
    if (!be->ops->step_begin(be, step, err))
        return false;
    if (model->query_scale)
        upload_query_scale(model, step); // before a replay, which reads what lies there
    for (uint32_t i = 0; model->is_encoder && i < step->n_logits; i++)
        model->pooled[i] = step->rows[step->token_row[step->logit_tokens[i]]];
    uint64_t key = replay_key(model, step);
    if (key && be->ops->step_replay && be->ops->step_replay(be, key)) {
        *logits = model->logits; // where the recorded step puts them
        return be->ops->step_end(be, err);
    }
    model->family->forward(model, step);
    if (step->n_logits) {
        struct mat hidden = mat_first(model->hidden, step->n_logits);
        model_tap(model, (int)model->config->n_layers, hidden);
        if (model->head)
            *logits = model->logits = be->ops->logits(be, hidden, model->head, model->head_bias,
                                                      model->logit_scale, model->logit_softcap);
    }
    return be->ops->step_end(be, err);
}

// n activations of the backend's type as float32, in place: bf16 lies in the upper half of the memory.
static void widen(const struct model *model, float *values, uint32_t n) {
    if (model->be->act_bytes == 4)
        return;
    const uint16_t *narrow = (const uint16_t *)values + n;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t bits = (uint32_t)narrow[j] << 16;
        memcpy(values + j, &bits, sizeof bits);
    }
}

static void download_row(const struct model *model, struct mat x, uint32_t row, float *out) {
    uint32_t act_bytes = model->be->act_bytes;
    char *to = (char *)out + (size_t)x.n_cols * (4 - act_bytes);
    model->be->ops->download(model->be, to, mat_rows(model->be, x, row, 1).data, (size_t)x.n_cols * act_bytes);
    widen(model, out, x.n_cols);
}

// The mean over a row's tokens, summed in their order.
static void mean_of_row(const struct model *model, const struct step_row *row, float *out) {
    uint32_t d = model->config->d_model, act_bytes = model->be->act_bytes;
    struct mat x = mat_rows(model->be, model->states_out, row->token_off, row->n_tokens);
    size_t stride = (size_t)x.stride * act_bytes;
    model->be->ops->download(model->be, model->states_host, x.data, (row->n_tokens - 1) * stride + (size_t)d * act_bytes);
    memset(model->sums, 0, d * sizeof *model->sums);
    for (uint32_t t = 0; t < row->n_tokens; t++) {
        memcpy((char *)out + (size_t)d * (4 - act_bytes), (char *)model->states_host + t * stride, (size_t)d * act_bytes);
        widen(model, out, d);
        for (uint32_t j = 0; j < d; j++)
            model->sums[j] += (double)out[j];
    }
    for (uint32_t j = 0; j < d; j++)
        out[j] = (float)(model->sums[j] / row->n_tokens);
}

void model_hidden(const struct model *model, uint32_t i, float *hidden) {
    if (!model->is_encoder)
        download_row(model, model->hidden, i, hidden);
    else if (model->pooling == MODEL_POOL_MEAN)
        mean_of_row(model, &model->pooled[i], hidden);
    else
        download_row(model, model->states_out,
                     model->pooled[i].token_off +
                         (model->pooling == MODEL_POOL_LAST ? model->pooled[i].n_tokens - 1 : 0),
                     hidden);
}

bool model_is_encoder(const struct model *model) { return model->is_encoder; }
void model_set_pooling(struct model *model, enum model_pooling pooling) { model->pooling = pooling; }

void model_set_tap(struct model *model, model_tap_fn *tap, void *user) {
    model->tap = tap;
    model->tap_user = user;
}
