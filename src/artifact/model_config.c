#include "artifact/model_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/file_map.h"

#define CONFIG "config.json"
#define GENERATION "generation_config.json"

enum {
    CONFIG_BYTES_MAX = 64 * 1024 * 1024, // MLX folders list an override for every module
    LAYERS_MAX = 4096,
    D_MODEL_MAX = 1 << 20,
    D_FF_MAX = 1 << 24,
    HEADS_MAX = 1 << 13,
    HEAD_DIM_MAX = 1 << 13,
    VOCAB_MAX = 1 << 26,
    CTX_MAX = 1 << 30,
    PATH_BYTES_MAX = 1024, // of a module
};

// ---- Families -----------------------------------------------------------------------------------

// Which layers slide (or are recurrent) when the config has no layer_types.
enum layer_rule {
    RULE_NONE,       // none
    RULE_ALL,        // every layer, if there is a window
    RULE_FLAG,       // every layer, if use_sliding_window
    RULE_UPPER,      // layers from max_window_layers on, if use_sliding_window
    RULE_EVEN_LOWER, // even layers below max_window_layers, if use_sliding_window
    RULE_NO_ROPE,    // layers without rope, if use_sliding_window
    RULE_LAST_FULL,  // all but the last of every `cycle` layers
    RULE_FIRST_FULL, // all but the first of every `cycle` layers
    RULE_LINEAR,     // recurrent: all but the last of every `cycle` layers
};

// What a family's configs may leave out, after transformers' configuration classes (5.x). 0 = no default
// of its own: n_kv_heads = n_heads, head_dim = d_model / n_heads, no window, theta 10000, eps 1e-6.
struct family_defaults {
    const char *model_type;
    enum layer_rule rule;
    uint32_t cycle, window;
    bool tied;
    enum activation activation;
    double eps, theta, partial;
    // Sliding layers rotate on their own: unscaled, with this theta (0 = the full layers').
    bool sliding_rope;
    double theta_sliding;
    const char *rope; // rope parameters, where leaving them out does not mean plain ones
    uint32_t n_kv_heads, head_dim, ctx_len_max;
    uint32_t ctx_original; // of longrope
    uint32_t n_layers, d_model, d_ff, n_heads, n_vocab; // where the published text_config omits them
};

static const struct family_defaults FAMILIES[] = {
    {"apertus", .eps = 1e-5, .theta = 12e6, .activation = ACT_XIELU, .ctx_len_max = 65536,
     .rope = "{\"rope_type\":\"llama3\",\"rope_theta\":12e6,\"factor\":8,\"low_freq_factor\":1,"
             "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"},
    {"arcee", .eps = 1e-5, .activation = ACT_RELU2, .ctx_len_max = 4096},
    {"bert", .eps = 1e-12, .tied = true, .activation = ACT_GELU, .ctx_len_max = 512},
    {"cohere", .eps = 1e-5, .theta = 5e5, .tied = true, .ctx_len_max = 8192},
    {"cohere2", RULE_LAST_FULL, .cycle = 4, .window = 4096, .eps = 1e-5, .tied = true,
     .ctx_len_max = 8192},
    {"deepseek_v2", .ctx_len_max = 2048},
    {"deepseek_v3", .ctx_len_max = 4096},
    {"dots1", .n_kv_heads = 32, .ctx_len_max = 2048},
    {"ernie4_5", .eps = 1e-5, .tied = true, .theta = 5e5, .n_kv_heads = 2, .head_dim = 128,
     .ctx_len_max = 131072},
    {"ernie4_5_moe", .eps = 1e-5, .tied = true, .theta = 5e5, .n_kv_heads = 4, .ctx_len_max = 131072},
    {"exaone4", RULE_LAST_FULL, .cycle = 4, .window = 4096, .eps = 1e-5, .n_kv_heads = 32,
     .ctx_len_max = 2048},
    {"gemma", .tied = true, .activation = ACT_GELU_TANH, .n_kv_heads = 16, .head_dim = 256,
     .ctx_len_max = 8192},
    {"gemma2", RULE_LAST_FULL, .cycle = 2, .window = 4096, .tied = true, .activation = ACT_GELU_TANH,
     .n_kv_heads = 4, .head_dim = 256, .ctx_len_max = 8192},
    {"gemma3_text", RULE_LAST_FULL, .cycle = 6, .window = 4096, .tied = true,
     .activation = ACT_GELU_TANH, .theta = 1e6, .sliding_rope = true, .theta_sliding = 1e4,
     .n_kv_heads = 4, .head_dim = 256, .ctx_len_max = 131072, .n_layers = 26, .d_model = 2304,
     .d_ff = 9216, .n_heads = 8, .n_vocab = 262208},
#define GEMMA4                                                                                     \
    .rule = RULE_LAST_FULL, .cycle = 6, .window = 512, .tied = true, .activation = ACT_GELU_TANH,  \
    .sliding_rope = true, .n_kv_heads = 4, .head_dim = 256, .ctx_len_max = 131072, .n_layers = 30, \
    .d_model = 2304, .d_ff = 9216, .n_heads = 8, .n_vocab = 262144,                                \
    .rope = "{\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,"        \
            "\"rope_theta\":1e6},\"sliding_attention\":{\"rope_theta\":1e4}}"
    {"gemma4_text", GEMMA4},
    {"gemma4_unified_text", GEMMA4},
#undef GEMMA4
    {"glm", .eps = 1.5625e-7, .partial = 0.5, .n_kv_heads = 2, .head_dim = 128, .ctx_len_max = 131072},
    {"glm4", .eps = 1.5625e-7, .partial = 0.5, .n_kv_heads = 2, .head_dim = 128,
     .ctx_len_max = 131072},
    {"glm4_moe", .eps = 1e-5, .partial = 0.5, .n_kv_heads = 8, .ctx_len_max = 131072},
    {"glm4_moe_lite", .eps = 1e-5, .theta = 1e6, .ctx_len_max = 202752},
    {"glm_moe_dsa", .eps = 1e-5, .ctx_len_max = 202752},
    {"gpt_oss", RULE_LAST_FULL, .cycle = 2, .window = 128, .eps = 1e-5, .theta = 15e4,
     .n_kv_heads = 8, .head_dim = 64, .ctx_len_max = 131072,
     .rope = "{\"rope_type\":\"yarn\",\"factor\":32,\"beta_fast\":32,\"beta_slow\":1,"
             "\"truncate\":false,\"original_max_position_embeddings\":4096}"},
    {"granite", .ctx_len_max = 2048},
    {"granitemoeshared", .ctx_len_max = 2048},
    {"granitemoe", .ctx_len_max = 2048},
    {"hunyuan_v1_dense", .eps = 1e-5, .ctx_len_max = 2048},
    {"lfm2", .eps = 1e-5, .theta = 1e6, .tied = true, .n_kv_heads = 8, .ctx_len_max = 128000},
    {"llama", .ctx_len_max = 2048},
    {"minimax_m2", .theta = 5e6, .n_kv_heads = 8, .head_dim = 128, .ctx_len_max = 196608},
    {"ministral", RULE_ALL, .window = 4096, .n_kv_heads = 8, .ctx_len_max = 131072},
    {"ministral3", RULE_ALL, .eps = 1e-5, .n_kv_heads = 8, .head_dim = 128, .ctx_len_max = 262144,
     .rope = "{\"rope_type\":\"yarn\",\"rope_theta\":1e6,\"factor\":16,\"mscale\":1,"
             "\"mscale_all_dim\":1,\"original_max_position_embeddings\":16384,\"llama_4_scaling_beta\":0.1}"},
    {"mistral", RULE_ALL, .window = 4096, .n_kv_heads = 8, .ctx_len_max = 131072},
    {"mixtral", RULE_ALL, .eps = 1e-5, .theta = 1e6, .n_kv_heads = 8, .ctx_len_max = 131072},
    {"modernbert", RULE_FIRST_FULL, .cycle = 3, .window = 128, .eps = 1e-5, .tied = true,
     .activation = ACT_GELU, .theta = 16e4, .sliding_rope = true, .theta_sliding = 1e4,
     .ctx_len_max = 8192},
    {"nemotron", .eps = 1e-5, .partial = 0.5, .activation = ACT_RELU2, .ctx_len_max = 4096},
    {"nomic_bert", .eps = 1e-12, .theta = 1000, .tied = true, .ctx_len_max = 2048},
    {"olmo2", .eps = 1e-5, .ctx_len_max = 2048},
    {"olmo3", RULE_LAST_FULL, .cycle = 4, .window = 4096, .eps = 1e-5, .theta = 5e5,
     .sliding_rope = true, .ctx_len_max = 2048},
    {"olmoe", .eps = 1e-5, .ctx_len_max = 4096},
    {"phi3", RULE_ALL, .eps = 1e-5, .ctx_len_max = 4096, .ctx_original = 4096},
    {"qwen2", RULE_UPPER, .window = 4096, .n_kv_heads = 32, .ctx_len_max = 32768},
    {"qwen2_moe", RULE_EVEN_LOWER, .window = 4096, .n_kv_heads = 16, .ctx_len_max = 32768},
    {"qwen3", RULE_UPPER, .window = 4096, .n_kv_heads = 32, .head_dim = 128, .ctx_len_max = 32768},
    {"qwen3_moe", RULE_FLAG, .window = 4096, .n_kv_heads = 4, .ctx_len_max = 32768},
    {"qwen3_next", RULE_LINEAR, .cycle = 4, .partial = 0.25, .n_kv_heads = 2, .head_dim = 256,
     .ctx_len_max = 32768},
    {"qwen3_5_text", RULE_LINEAR, .cycle = 4, .partial = 0.25, .n_kv_heads = 4, .head_dim = 256,
     .ctx_len_max = 32768},
    {"qwen3_5_moe_text", RULE_LINEAR, .cycle = 4, .partial = 0.25, .n_kv_heads = 2, .head_dim = 256,
     .ctx_len_max = 32768},
    {"qwen3_vl_text", .theta = 5e5, .n_kv_heads = 32, .head_dim = 128, .ctx_len_max = 128000},
    {"roberta", .eps = 1e-12, .tied = true, .activation = ACT_GELU, .ctx_len_max = 512},
    {"seed_oss", .n_kv_heads = 8, .head_dim = 128, .ctx_len_max = 524288},
    {"smollm3", RULE_NO_ROPE, .tied = true, .theta = 2e6, .n_kv_heads = 4, .ctx_len_max = 32768},
    {"stablelm", .eps = 1e-5, .partial = 0.25, .n_kv_heads = 32, .ctx_len_max = 4096},
    {"starcoder2", RULE_ALL, .eps = 1e-5, .tied = true, .activation = ACT_GELU_TANH, .n_kv_heads = 2,
     .ctx_len_max = 4096},
    {"xlm-roberta", .eps = 1e-12, .tied = true, .activation = ACT_GELU, .ctx_len_max = 512},
};
// Of a type that is not in the table, only what its config says counts.
static const struct family_defaults ANY_FAMILY = {.rule = RULE_ALL};

static const struct family_defaults *find_family(struct str model_type) {
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++)
        if (str_eq_c(model_type, FAMILIES[i].model_type))
            return &FAMILIES[i];
    return &ANY_FAMILY;
}

// ---- Members ------------------------------------------------------------------------------------

// The first of `keys` (ended by NULL) that the object has and that is not null; NULL if none.
static const char *present(const json_t *object, const char *const *keys) {
    for (; *keys; keys++) {
        const json_t *value = json_object_get(object, *keys);
        if (value && !json_is_null(value))
            return *keys;
    }
    return NULL;
}

// Read a count within [0 or 1, max] under any of its names. *out keeps the default, which is 0 for a
// field that must be given.
static bool read_count(const struct model_config *c, const char *const *keys, uint32_t max, bool needed,
                       uint32_t *out, struct err *err) {
    const char *key = present(c->text, keys);
    if (!key && needed && *out == 0)
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" is missing", keys[0]);
    if (key && !json_get_u32(c->text, key, out, CONFIG, err))
        return false;
    if ((needed && *out == 0) || *out > max)
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" is %" PRIu32 ", expected %d to %" PRIu32,
                       key ? key : keys[0], *out, needed ? 1 : 0, max);
    return true;
}

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

// A finite number above zero.
static bool read_positive(const json_t *object, const char *key, double *out, struct err *err) {
    if (!json_get_f64(object, key, out, CONFIG, err))
        return false;
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !(*out > 0 && isfinite(*out)))
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" must be above 0", key);
    return true;
}

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, CONFIG ": out of memory");
}

// ---- Shape --------------------------------------------------------------------------------------

static bool read_activation(struct model_config *c, const struct family_defaults *family, struct err *err) {
    static const struct {
        const char *name;
        enum activation activation;
    } NAMES[] = {
        {"silu", ACT_SILU},
        {"swish", ACT_SILU},
        {"swiglu", ACT_SILU}, // nomic_bert names the gated form
        {"gelu", ACT_GELU},
        {"gelu_python", ACT_GELU},
        {"geglu", ACT_GELU},
        {"gelu_new", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH},
        {"gelu_accurate", ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu_tanh", ACT_GELU_TANH},
        {"relu", ACT_RELU},
        {"relu2", ACT_RELU2},
        {"xielu", ACT_XIELU},
    };
    c->activation = family->activation;
    const char *key = present(c->text, KEYS("hidden_activation", "hidden_act", "activation_function"));
    struct str name = {0};
    if (!key)
        return true;
    if (!json_get_str(c->text, key, &name, CONFIG, err))
        return false;
    // Gemma 1 configs say "gelu" and mean the tanh form, which the weights were trained with.
    if (str_eq_c(c->model_type, "gemma") && str_eq_c(name, "gelu"))
        return true;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (str_eq_c(name, NAMES[i].name)) {
            c->activation = NAMES[i].activation;
            return true;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, CONFIG ": \"%s\" is %.64s, an activation that loam does not know",
                   key, name.data);
}

static bool read_shape(struct model_config *c, const struct family_defaults *family, struct err *err) {
    c->n_layers = family->n_layers;
    c->d_model = family->d_model;
    c->d_ff = family->d_ff;
    c->n_heads = family->n_heads;
    c->n_vocab = family->n_vocab;
    c->ctx_len_max = family->ctx_len_max;
    if (!read_count(c, KEYS("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS_MAX, true,
                    &c->n_layers, err) ||
        !read_count(c, KEYS("hidden_size", "n_embd", "d_model", "dim"), D_MODEL_MAX, true, &c->d_model,
                    err) ||
        !read_count(c, KEYS("intermediate_size", "block_ff_dim", "n_inner", "ffn_dim"), D_FF_MAX, false, &c->d_ff, err) ||
        !read_count(c, KEYS("num_attention_heads", "n_head", "n_heads"), HEADS_MAX, true, &c->n_heads,
                    err) ||
        !read_count(c, KEYS("vocab_size", "n_vocab"), VOCAB_MAX, true, &c->n_vocab, err) ||
        !read_count(c, KEYS("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), CTX_MAX,
                    true, &c->ctx_len_max, err))
        return false;

    // Absent means the family's default, but null means one KV head for each head.
    const json_t *given = json_object_get(c->text, "num_key_value_heads");
    c->n_kv_heads = family->n_kv_heads && !json_is_null(given) ? family->n_kv_heads : c->n_heads;
    if (!read_count(c, KEYS("num_key_value_heads", "num_kv_heads", "n_kv_heads"), HEADS_MAX, true,
                    &c->n_kv_heads, err))
        return false;
    if (c->n_heads % c->n_kv_heads != 0)
        return err_set(err, ERR_FORMAT,
                       CONFIG ": \"num_attention_heads\" (%" PRIu32
                              ") is no multiple of \"num_key_value_heads\" (%" PRIu32 ")",
                       c->n_heads, c->n_kv_heads);

    // Latent attention: what a query head multiplies is a part without and a part with rotation.
    uint32_t rope_dim = 0, nope_dim = 0;
    if (!read_count(c, KEYS("qk_rope_head_dim"), HEAD_DIM_MAX, false, &rope_dim, err) ||
        !read_count(c, KEYS("qk_nope_head_dim"), HEAD_DIM_MAX, false, &nope_dim, err))
        return false;
    if (rope_dim + nope_dim > 0) {
        c->head_dim = rope_dim + nope_dim;
        return true;
    }
    c->head_dim = family->head_dim;
    if (!read_count(c, KEYS("head_dim", "attention_head_dim", "kv_channels"), HEAD_DIM_MAX, false,
                    &c->head_dim, err))
        return false;
    if (c->head_dim)
        return true;
    if (c->d_model % c->n_heads != 0)
        return err_set(err, ERR_FORMAT,
                       CONFIG ": \"hidden_size\" (%" PRIu32
                              ") is no multiple of \"num_attention_heads\" (%" PRIu32
                              ") and there is no \"head_dim\"",
                       c->d_model, c->n_heads);
    c->head_dim = c->d_model / c->n_heads;
    if (c->head_dim > HEAD_DIM_MAX)
        return err_set(err, ERR_FORMAT, CONFIG ": heads of %" PRIu32 " dimensions, limit %d",
                       c->head_dim, HEAD_DIM_MAX);
    return true;
}

static bool read_norm(struct model_config *c, const struct family_defaults *family, struct err *err) {
    // StarCoder 2's files hold rms_norm_eps too, which nothing reads: the norms are LayerNorms.
    const char *key = present(c->text, str_eq_c(c->model_type, "starcoder2")
                                           ? KEYS("norm_epsilon")
                                           : KEYS("rms_norm_eps", "layer_norm_eps", "norm_epsilon",
                                                  "layer_norm_epsilon", "norm_eps"));
    double eps = family->eps > 0 ? family->eps : 1e-6;
    if (key && !json_get_f64(c->text, key, &eps, CONFIG, err))
        return false;
    if (!(eps >= 0 && eps < 1))
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" must be from 0 to 1", key);
    c->norm_eps = (float)eps;
    return true;
}

// ---- Layer types --------------------------------------------------------------------------------

static bool read_layer_types(struct model_config *c, const json_t *types, struct err *err) {
    static const struct {
        const char *name;
        enum layer_type type;
    } NAMES[] = {
        {"full_attention", LAYER_FULL},
        {"sliding_attention", LAYER_SLIDING},
        {"linear_attention", LAYER_LINEAR},
        {"conv", LAYER_CONV},
        {"attention", LAYER_FULL},                 // older names and kinds of full attention whose
        {"deepseek_sparse_attention", LAYER_FULL}, // sparsity the family knows
        {"indexed_attention", LAYER_FULL},
    };
    if (!json_is_array(types))
        return err_set(err, ERR_FORMAT, CONFIG ": \"layer_types\" must be an array");
    if (json_array_size(types) != c->n_layers)
        return err_set(err, ERR_FORMAT,
                       CONFIG ": \"layer_types\" has %zu entries for %" PRIu32 " layers",
                       json_array_size(types), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *value = json_array_get(types, i);
        size_t k = 0, n = sizeof NAMES / sizeof *NAMES;
        while (k < n && !str_eq_c(json_str(value), NAMES[k].name))
            k++;
        if (k == n)
            return err_set(err, ERR_UNSUPPORTED,
                           CONFIG ": layer %" PRIu32 " is of type \"%.64s\", which loam does not know", i,
                           json_is_string(value) ? json_string_value(value) : "");
        c->layer_types[i] = NAMES[k].type;
    }
    return true;
}

// EXAONE 4 spells the pattern "LLLG": local or global, over and over.
static bool apply_text_pattern(struct model_config *c, struct str pattern, struct err *err) {
    for (size_t i = 0; i < pattern.n; i++)
        if (pattern.data[i] != 'L' && pattern.data[i] != 'G')
            return err_set(err, ERR_UNSUPPORTED,
                           CONFIG ": \"sliding_window_pattern\" is \"%.64s\", expected letters L and G",
                           pattern.data);
    for (uint32_t i = 0; pattern.n && i < c->n_layers; i++)
        c->layer_types[i] = pattern.data[i % pattern.n] == 'L' ? LAYER_SLIDING : LAYER_FULL;
    return true;
}

// SmolLM3: no_rope_layers[layer_idx] is 1 where there is rope.
static bool layer_has_rope(const struct model_config *c, uint32_t layer_idx, uint32_t interval) {
    const json_t *flags = json_object_get(c->text, "no_rope_layers");
    if (json_is_array(flags))
        return json_integer_value(json_array_get(flags, layer_idx)) != 0;
    return interval == 0 || (layer_idx + 1) % interval != 0;
}

static bool imply_layer_types(struct model_config *c, const struct family_defaults *family, struct err *err) {
    uint32_t cycle = family->cycle, edge = 28, no_rope_interval = 4; // Qwen's and SmolLM's defaults
    const char *key = present(c->text, KEYS("sliding_window_pattern", "_sliding_window_pattern",
                                            "full_attention_interval", "global_attn_every_n_layers"));
    bool windowed = c->sliding_window > 0;
    if (family->rule == RULE_LAST_FULL && key && json_is_string(json_object_get(c->text, key)))
        return !windowed || apply_text_pattern(c, json_str(json_object_get(c->text, key)), err);
    if ((cycle && key && !json_get_u32(c->text, key, &cycle, CONFIG, err)) ||
        !json_get_u32(c->text, "max_window_layers", &edge, CONFIG, err) ||
        !json_get_u32(c->text, "no_rope_layer_interval", &no_rope_interval, CONFIG, err))
        return false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bool sliding = false;
        switch (family->rule) {
        case RULE_NONE:
            break;
        case RULE_ALL:
        case RULE_FLAG:
            sliding = true;
            break;
        case RULE_UPPER:
            sliding = i >= edge;
            break;
        case RULE_EVEN_LOWER:
            sliding = i < edge && i % 2 == 0;
            break;
        case RULE_NO_ROPE:
            sliding = !layer_has_rope(c, i, no_rope_interval);
            break;
        case RULE_LAST_FULL:
            sliding = cycle && (i + 1) % cycle != 0;
            break;
        case RULE_FIRST_FULL:
            sliding = cycle && i % cycle != 0;
            break;
        case RULE_LINEAR:
            if (cycle && (i + 1) % cycle != 0)
                c->layer_types[i] = LAYER_LINEAR;
            break;
        }
        if (sliding && windowed)
            c->layer_types[i] = LAYER_SLIDING;
    }
    return true;
}

static bool read_window(struct model_config *c, const struct family_defaults *family, struct err *err) {
    bool use = family->rule != RULE_FLAG && family->rule != RULE_UPPER &&
               family->rule != RULE_EVEN_LOWER && family->rule != RULE_NO_ROPE;
    // Absent means the family's default, but null means no window.
    const char *key = family->rule == RULE_FIRST_FULL ? "local_attention" : "sliding_window";
    c->sliding_window = json_object_get(c->text, key) ? 0 : family->window;
    if (!json_get_bool(c->text, "use_sliding_window", &use, CONFIG, err) ||
        !json_get_u32(c->text, key, &c->sliding_window, CONFIG, err))
        return false;
    if (c->sliding_window > CTX_MAX)
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" is %" PRIu32 ", limit %d", key,
                       c->sliding_window, CTX_MAX);
    if (!use)
        c->sliding_window = 0;
    return true;
}

static bool read_layers(struct model_config *c, const struct family_defaults *family, struct err *err) {
    c->layer_types = arena_array(&c->arena, enum layer_type, c->n_layers); // all LAYER_FULL
    if (!c->layer_types)
        return no_memory(err);
    if (!read_window(c, family, err))
        return false;
    const json_t *types = json_object_get(c->text, "layer_types");
    bool given = types && !json_is_null(types);
    if (!(given ? read_layer_types(c, types, err) : imply_layer_types(c, family, err)))
        return false;
    // Gemma 4's last layer always sees everything.
    if (str_starts(c->model_type, STR("gemma4")))
        c->layer_types[c->n_layers - 1] = LAYER_FULL;
    bool slides = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        slides = slides || c->layer_types[i] == LAYER_SLIDING;
    if (slides && c->sliding_window == 0)
        return err_set(err, ERR_FORMAT, CONFIG ": there are sliding layers but no \"sliding_window\"");
    if (!slides)
        c->sliding_window = 0;
    return true;
}

// ---- Rope ---------------------------------------------------------------------------------------

static bool read_rope_kind(const json_t *object, enum rope_kind *out, struct err *err) {
    static const struct {
        const char *name;
        enum rope_kind kind;
    } NAMES[] = {
        {"default", ROPE_DEFAULT},
        {"mrope", ROPE_DEFAULT}, // Qwen-VL: several axes, which are one for text
        {"linear", ROPE_LINEAR},
        {"dynamic", ROPE_DYNAMIC},
        {"llama3", ROPE_LLAMA3},
        {"yarn", ROPE_YARN},
        {"deepseek_yarn", ROPE_YARN},
        {"longrope", ROPE_LONGROPE},
        {"su", ROPE_LONGROPE}, // its name in early Phi 3 files
        {"proportional", ROPE_PROPORTIONAL},
    };
    struct str name = {0};
    const char *key = present(object, KEYS("rope_type", "type"));
    if (!key)
        return true;
    if (!json_get_str(object, key, &name, CONFIG, err))
        return false;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (str_eq_c(name, NAMES[i].name)) {
            *out = NAMES[i].kind;
            return true;
        }
    }
    return err_set(err, ERR_UNSUPPORTED, CONFIG ": rope type \"%.64s\" is not one that loam knows",
                   name.data);
}

static bool read_factors(struct model_config *c, const json_t *object, const char *key,
                         struct rope_config *rope, const double **out, struct err *err) {
    const json_t *array = json_object_get(object, key);
    size_t n = json_array_size(array);
    if (n == 0 || n > HEAD_DIM_MAX / 2)
        return err_set(err, ERR_FORMAT, CONFIG ": longrope needs \"%s\", an array of numbers", key);
    if (rope->n_factors && n != rope->n_factors)
        return err_set(err, ERR_FORMAT,
                       CONFIG ": \"short_factor\" and \"long_factor\" differ in length");
    double *factors = arena_array(&c->arena, double, n);
    if (!factors)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        factors[i] = json_number_value(json_array_get(array, i)); // 0 if it is no number
        if (!(factors[i] > 0))
            return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" entry %zu must be a number above 0", key, i);
    }
    rope->n_factors = (uint32_t)n;
    *out = factors;
    return true;
}

// Hunyuan's "dynamic" is a larger base, whatever the length. Source: transformers modeling_hunyuan_v1_dense.py.
static bool read_rope_alpha(const struct model_config *c, const json_t *object, struct rope_config *rope,
                            struct err *err) {
    double alpha = 0;
    if (!read_positive(object, "alpha", &alpha, err))
        return false;
    if (alpha > 0 && c->head_dim > 2)
        rope->theta *= pow(alpha, (double)c->head_dim / (c->head_dim - 2));
    return true;
}

// What only some kinds have, and what they cannot do without.
static bool read_rope_kind_fields(struct model_config *c, const json_t *object, struct rope_config *rope,
                                  struct err *err) {
    bool has_factor = present(object, KEYS("factor")) != NULL;
    switch (rope->kind) {
    case ROPE_DEFAULT:
    case ROPE_PROPORTIONAL:
        return true;
    case ROPE_LONGROPE:
        if (rope->ctx_original == 0)
            return err_set(err, ERR_FORMAT,
                           CONFIG ": longrope needs \"original_max_position_embeddings\"");
        if (!has_factor && c->ctx_len_max > rope->ctx_original)
            rope->factor = (double)c->ctx_len_max / (double)rope->ctx_original;
        return read_factors(c, object, "short_factor", rope, &rope->short_factor, err) &&
               read_factors(c, object, "long_factor", rope, &rope->long_factor, err);
    case ROPE_LLAMA3:
        if (!read_positive(object, "low_freq_factor", &rope->low_freq_factor, err) ||
            !read_positive(object, "high_freq_factor", &rope->high_freq_factor, err))
            return false;
        if (!(rope->low_freq_factor > 0) || !(rope->high_freq_factor > rope->low_freq_factor))
            return err_set(err, ERR_FORMAT,
                           CONFIG ": llama3 rope needs \"high_freq_factor\" above \"low_freq_factor\"");
        if (rope->ctx_original == 0)
            rope->ctx_original = c->ctx_len_max;
        break;
    case ROPE_YARN:
        if (!read_positive(object, "beta_fast", &rope->beta_fast, err) ||
            !read_positive(object, "beta_slow", &rope->beta_slow, err) ||
            !json_get_f64(object, "mscale", &rope->mscale, CONFIG, err) ||
            !json_get_f64(object, "mscale_all_dim", &rope->mscale_all_dim, CONFIG, err) ||
            !json_get_bool(object, "truncate", &rope->truncate, CONFIG, err))
            return false;
        if (rope->mscale < 0 || rope->mscale_all_dim < 0)
            return err_set(err, ERR_FORMAT, CONFIG ": \"mscale\" must not be negative");
        break;
    case ROPE_DYNAMIC:
        if (str_starts(c->model_type, STR("hunyuan")))
            return read_rope_alpha(c, object, rope, err);
        break;
    case ROPE_LINEAR:
        break;
    }
    if (!has_factor)
        return err_set(err, ERR_FORMAT, CONFIG ": this rope type needs \"factor\"");
    return true;
}

// One rope object over the defaults that *rope holds.
static bool read_rope_object(struct model_config *c, const json_t *object, struct rope_config *rope,
                             struct err *err) {
    if (!json_is_object(object))
        return err_set(err, ERR_FORMAT, CONFIG ": the rope parameters must be an object");
    if (!read_rope_kind(object, &rope->kind, err) ||
        !read_positive(object, "rope_theta", &rope->theta, err) ||
        !read_positive(object, "partial_rotary_factor", &rope->partial, err) ||
        !read_positive(object, "factor", &rope->factor, err) ||
        !read_positive(object, "attention_factor", &rope->attention_factor, err) ||
        !json_get_f64(object, "llama_4_scaling_beta", &rope->query_beta, CONFIG, err) ||
        !json_get_u32(object, "original_max_position_embeddings", &rope->ctx_original, CONFIG, err))
        return false;
    if (rope->ctx_original > CTX_MAX)
        return err_set(err, ERR_FORMAT,
                       CONFIG ": \"original_max_position_embeddings\" is %" PRIu32 ", limit %d",
                       rope->ctx_original, CTX_MAX);
    if (!read_rope_kind_fields(c, object, rope, err))
        return false;
    if (rope->partial > 1)
        return err_set(err, ERR_FORMAT, CONFIG ": \"partial_rotary_factor\" must not exceed 1");
    if (rope->query_beta < 0 || (rope->query_beta > 0 && rope->ctx_original == 0))
        return err_set(err, ERR_FORMAT, CONFIG ": \"llama_4_scaling_beta\" must not be negative, and needs "
                       "\"original_max_position_embeddings\"");
    return true;
}

// One object for all layers, or one a layer type.
static bool apply_rope(struct model_config *c, const json_t *object, const struct rope_config *base,
                       const struct rope_config *local, struct err *err) {
    const json_t *full = json_object_get(object, "full_attention"),
                 *sliding = json_object_get(object, "sliding_attention");
    c->rope = *base;
    if (!json_is_object(full) && !json_is_object(sliding)) {
        if (!read_rope_object(c, object, &c->rope, err))
            return false;
        c->rope_sliding = local ? *local : c->rope;
        return true;
    }
    c->rope_sliding = local ? *local : *base;
    return (!full || json_is_null(full) || read_rope_object(c, full, &c->rope, err)) &&
           (!sliding || json_is_null(sliding) ||
            read_rope_object(c, sliding, &c->rope_sliding, err));
}

static bool read_rope(struct model_config *c, const struct family_defaults *family, struct err *err) {
    struct rope_config base = {
        .kind = ROPE_DEFAULT,
        .theta = family->theta > 0 ? family->theta : 10000,
        .partial = family->partial > 0 ? family->partial : 1,
        .factor = 1,
        .ctx_original = family->ctx_original,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = true,
    };
    const char *theta = present(c->text, KEYS("rope_theta", "global_rope_theta", "rotary_emb_base"));
    const char *partial = present(c->text, KEYS("partial_rotary_factor", "rotary_emb_fraction"));
    if ((theta && !read_positive(c->text, theta, &base.theta, err)) ||
        (partial && !read_positive(c->text, partial, &base.partial, err)) ||
        !json_get_u32(c->text, "original_max_position_embeddings", &base.ctx_original, CONFIG, err))
        return false;
    uint32_t rotary_dim = 0; // MiniMax M2 counts the rotated dimensions
    if (!json_get_u32(c->text, "rotary_dim", &rotary_dim, CONFIG, err))
        return false;
    if (rotary_dim && !partial) {
        partial = "rotary_dim";
        base.partial = (double)rotary_dim / c->head_dim;
    }
    if (base.partial > 1)
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" must not exceed 1", partial);

    struct rope_config local = base;
    const char *theta_local = present(c->text, KEYS("rope_local_base_freq", "local_rope_theta"));
    if (family->theta_sliding > 0)
        local.theta = family->theta_sliding;
    if (theta_local && !read_positive(c->text, theta_local, &local.theta, err))
        return false;
    const struct rope_config *own = family->sliding_rope || theta_local ? &local : NULL;

    // The older rope_scaling counts, if there is anything in it; rope_parameters otherwise.
    const json_t *object = json_object_get(c->text, "rope_scaling");
    if (!object || json_is_null(object) || (json_is_object(object) && json_object_size(object) == 0))
        object = json_object_get(c->text, "rope_parameters");
    if (object && !json_is_null(object))
        return apply_rope(c, object, &base, own, err);
    c->rope = base;
    c->rope_sliding = own ? local : base;
    if (!family->rope)
        return true;
    json_t *implied = json_parse(str_from(family->rope), CONFIG, err);
    bool ok = implied && apply_rope(c, implied, &base, own, err);
    json_decref(implied);
    return ok;
}

// ---- Tokens -------------------------------------------------------------------------------------

static bool read_token(const json_t *object, const char *key, int32_t *out, const char *what,
                       struct err *err) {
    int64_t id = *out;
    if (!json_get_i64(object, key, &id, what, err))
        return false;
    if (id > INT32_MAX)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is too large", what, key);
    *out = id < 0 ? -1 : (int32_t)id; // -1 is written for "none"
    return true;
}

static bool add_eos(struct model_config *c, const json_t *value, const char *what, struct err *err) {
    if (!json_is_integer(value) || json_integer_value(value) > INT32_MAX)
        return err_set(err, ERR_FORMAT, "%s: \"eos_token_id\" must be a token id or a list of them",
                       what);
    int32_t id = (int32_t)json_integer_value(value);
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    if (json_integer_value(value) < 0)
        return true;
    if (c->n_eos == MODEL_EOS_MAX)
        return err_set(err, ERR_FORMAT, "%s: more than %d end tokens in \"eos_token_id\"", what,
                       MODEL_EOS_MAX);
    c->eos[c->n_eos++] = id;
    return true;
}

static bool read_eos(struct model_config *c, const json_t *object, const char *what, struct err *err) {
    const json_t *value = json_object_get(object, "eos_token_id");
    if (!value || json_is_null(value))
        return true;
    if (!json_is_array(value))
        return add_eos(c, value, what, err);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_eos(c, json_array_get(value, i), what, err))
            return false;
    return true;
}

static int32_t count_of(int64_t value) {
    return (int32_t)(value < 0 ? -1 : value > INT32_MAX ? INT32_MAX : value);
}

static bool read_generation(struct model_config *c, const json_t *object, struct err *err) {
    struct generation_defaults *g = &c->generation;
    int64_t top_k = -1, max_new_tokens = -1, min_new_tokens = -1;
    const json_t *do_sample = json_object_get(object, "do_sample");
    if (!json_get_f32(object, "temperature", &g->temperature, GENERATION, err) ||
        !json_get_f32(object, "top_p", &g->top_p, GENERATION, err) ||
        !json_get_f32(object, "min_p", &g->min_p, GENERATION, err) ||
        !json_get_f32(object, "typical_p", &g->typical_p, GENERATION, err) ||
        !json_get_f32(object, "repetition_penalty", &g->repetition_penalty, GENERATION, err) ||
        !json_get_i64(object, "top_k", &top_k, GENERATION, err) ||
        !json_get_i64(object, "max_new_tokens", &max_new_tokens, GENERATION, err) ||
        !json_get_i64(object, "min_new_tokens", &min_new_tokens, GENERATION, err) ||
        !json_get_bool(object, "do_sample", &g->do_sample, GENERATION, err) ||
        !read_token(object, "bos_token_id", &c->bos, GENERATION, err) ||
        !read_token(object, "pad_token_id", &c->pad, GENERATION, err))
        return false;
    const struct {
        const char *key;
        float value, min, max;
    } ranges[] = {
        {"temperature", g->temperature, 0, 100},
        {"top_p", g->top_p, 0, 1},
        {"min_p", g->min_p, 0, 1},
        {"typical_p", g->typical_p, 0, 1},
        {"repetition_penalty", g->repetition_penalty, 1e-3f, 1e3f},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (present(object, KEYS(ranges[i].key)) &&
            !(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return err_set(err, ERR_FORMAT, GENERATION ": \"%s\" must be from %g to %g", ranges[i].key,
                           (double)ranges[i].min, (double)ranges[i].max);
    g->top_k = count_of(top_k);
    g->max_new_tokens = count_of(max_new_tokens);
    g->min_new_tokens = count_of(min_new_tokens);
    g->do_sample_given = json_is_boolean(do_sample);
    return read_eos(c, object, GENERATION, err);
}

// ---- Quantization -------------------------------------------------------------------------------

static bool read_spec(const json_t *object, const char *path, struct quant_spec *out, struct err *err) {
    static const struct {
        const char *name;
        enum quant_mode mode;
        uint32_t bits, group;
    } MODES[] = {
        {"affine", QUANT_AFFINE, 4, 64},
        {"mxfp4", QUANT_MXFP4, 4, 32},
        {"mxfp8", QUANT_MXFP8, 8, 32},
        {"nvfp4", QUANT_NVFP4, 4, 16},
    };
    struct str name = STR("affine");
    if (!json_get_str(object, "mode", &name, path, err))
        return false;
    size_t i = 0, n = sizeof MODES / sizeof *MODES;
    while (i < n && !str_eq_c(name, MODES[i].name))
        i++;
    if (i == n)
        return err_set(err, ERR_UNSUPPORTED, "%s: quantization mode \"%.64s\" is not one that loam knows",
                       path, name.data);
    *out = (struct quant_spec){MODES[i].mode, MODES[i].bits, MODES[i].group};
    if (!json_get_u32(object, "bits", &out->bits, path, err) ||
        !json_get_u32(object, "group_size", &out->group, path, err))
        return false;
    bool known = out->bits == MODES[i].bits && out->group == MODES[i].group;
    if (out->mode == QUANT_AFFINE)
        known = out->bits >= 2 && out->bits <= 8 && out->bits != 7 &&
                (out->group == 32 || out->group == 64 || out->group == 128);
    if (!known)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: %s quantization with %" PRIu32 " bits in groups of %" PRIu32
                       " is not one that loam knows",
                       path, MODES[i].name, out->bits, out->group);
    return true;
}

static bool read_quantization(struct model_config *c, struct err *err) {
    const char *key = present(c->root, KEYS("quantization", "quantization_config"));
    if (!key)
        return true;
    const json_t *object = json_object_get(c->root, key);
    if (!json_is_object(object))
        return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" must be an object", key);
    struct str method = {0};
    if (!json_get_str(object, "quant_method", &method, CONFIG, err))
        return false;
    if (str_eq_c(method, "mxfp4")) { // the hub's gpt-oss: experts in _blocks and _scales
        c->quant = (struct quant_spec){QUANT_MXFP4, 4, 32};
        return true;
    }
    if (method.data)
        return err_set(err, ERR_UNSUPPORTED,
                       CONFIG ": quantization method \"%.64s\" is not supported: use the unquantized "
                              "model or an MLX conversion of it",
                       method.data);
    if (!read_spec(object, CONFIG ": \"quantization\"", &c->quant, err))
        return false;
    const char *path;
    const json_t *value;
    json_object_foreach((json_t *)object, path, value) {
        struct quant_spec spec;
        if (strlen(path) >= PATH_BYTES_MAX)
            return err_set(err, ERR_FORMAT, CONFIG ": \"%s\" has a module path of more than %d bytes",
                           key, PATH_BYTES_MAX);
        if (json_is_object(value) && !read_spec(value, path, &spec, err))
            return err_wrap(err, CONFIG ": \"%s\"", key);
    }
    c->quant_overrides = object;
    return true;
}

static const json_t *find_override(const json_t *overrides, const char *prefix, const char *path) {
    char key[2 * PATH_BYTES_MAX];
    int n = snprintf(key, sizeof key, "%s%s", prefix, path);
    const json_t *value = n < (int)sizeof key ? json_object_get(overrides, key) : NULL;
    return json_is_object(value) || json_is_boolean(value) ? value : NULL;
}

bool model_config_quant(const struct model_config *config, const char *path, struct quant_spec *out,
                        struct err *err) {
    // Longest first: the first that a path begins with is cut off.
    static const char *const PREFIXES[] = {"language_model.model.", "model.language_model.",
                                           "language_model.", "model.", ""};
    enum { N_PREFIXES = sizeof PREFIXES / sizeof *PREFIXES };
    *out = config->quant;
    const json_t *value = find_override(config->quant_overrides, "", path);
    const char *bare = path;
    for (int i = 0; bare == path && i < N_PREFIXES - 1; i++)
        if (strncmp(path, PREFIXES[i], strlen(PREFIXES[i])) == 0)
            bare += strlen(PREFIXES[i]);
    for (int i = 0; !value && i < N_PREFIXES; i++)
        value = find_override(config->quant_overrides, PREFIXES[i], bare);
    if (json_is_false(value))
        *out = (struct quant_spec){QUANT_NONE, 0, 0};
    return !json_is_object(value) || read_spec(value, path, out, err);
}

// ---- All of it ----------------------------------------------------------------------------------

static bool read_identity(struct model_config *c, struct err *err) {
    if (!json_is_object(c->root))
        return err_set(err, ERR_FORMAT, CONFIG " must be a JSON object");
    const json_t *text = json_object_get(c->root, "text_config");
    c->text = json_is_object(text) ? text : c->root;
    const json_t *architectures = json_object_get(c->root, "architectures");
    c->architecture = json_str(json_array_get(architectures, 0));
    if (!json_get_str(c->root, "model_type", &c->root_model_type, CONFIG, err))
        return false;
    c->model_type = c->root_model_type;
    if (!json_get_str(c->text, "model_type", &c->model_type, CONFIG, err))
        return false;
    if (c->model_type.n == 0)
        return err_set(err, ERR_FORMAT, CONFIG ": \"model_type\" is missing");
    return true;
}

static bool read_tokens(struct model_config *c, struct err *err) {
    const json_t *from[2] = {c->root, c->text}; // the text model's own count more
    for (int i = 0; i < (c->text == c->root ? 1 : 2); i++)
        if (!read_token(from[i], "bos_token_id", &c->bos, CONFIG, err) ||
            !read_token(from[i], "pad_token_id", &c->pad, CONFIG, err) ||
            !read_eos(c, from[i], CONFIG, err))
            return false;
    return true;
}

static bool read_all(struct model_config *c, const json_t *generation, struct err *err) {
    if (!read_identity(c, err))
        return false;
    const struct family_defaults *family = find_family(c->model_type);
    c->tie_embeddings = family->tied;
    bool ok = json_get_bool(c->root, "tie_word_embeddings", &c->tie_embeddings, CONFIG, err) &&
              json_get_bool(c->text, "tie_word_embeddings", &c->tie_embeddings, CONFIG, err) &&
              read_shape(c, family, err) && read_norm(c, family, err) &&
              read_activation(c, family, err) && read_layers(c, family, err) &&
              read_rope(c, family, err) && read_tokens(c, err) &&
              (!generation || read_generation(c, generation, err)) && read_quantization(c, err);
    // Of a stranger, the type says more than the member that is missing.
    if (!ok && family == &ANY_FAMILY)
        err_wrap(err, "model type %.64s", c->model_type.data);
    return ok;
}

struct model_config *model_config_create(struct str config_json, struct str generation_json,
                                         struct err *err) {
    struct model_config *config = calloc(1, sizeof *config);
    if (!config) {
        no_memory(err);
        return NULL;
    }
    config->bos = config->pad = -1;
    config->generation = (struct generation_defaults){-1, -1, -1, -1, -1, -1, -1, -1, false, false};
    json_t *generation = NULL;
    config->root = json_parse(config_json, CONFIG, err);
    bool ok = config->root != NULL;
    if (ok && generation_json.n) {
        generation = json_parse(generation_json, GENERATION, err);
        ok = generation != NULL;
        if (ok && !json_is_object(generation))
            ok = err_set(err, ERR_FORMAT, GENERATION " must be a JSON object");
    }
    ok = ok && read_all(config, generation, err);
    json_decref(generation);
    if (ok)
        return config;
    model_config_destroy(config);
    return NULL;
}

struct model_config *model_config_open(const char *folder, struct err *err) {
    struct arena paths = {0};
    struct strbuf config_json = {0}, generation_json = {0};
    const char *config_path = arena_printf(&paths, "%s/" CONFIG, folder);
    const char *generation_path = arena_printf(&paths, "%s/" GENERATION, folder);
    struct model_config *config = NULL;
    if (!config_path || !generation_path) {
        no_memory(err);
    } else if (!path_exists(config_path)) {
        err_set(err, ERR_NOT_FOUND,
                "%s has no " CONFIG ": a model folder as Hugging Face publishes it has one", folder);
    } else if (file_read(config_path, CONFIG_BYTES_MAX, &config_json, err) &&
               (!path_exists(generation_path) ||
                file_read(generation_path, CONFIG_BYTES_MAX, &generation_json, err))) {
        config = model_config_create(strbuf_str(&config_json), strbuf_str(&generation_json), err);
        if (!config)
            err_wrap(err, "%s", folder);
    }
    strbuf_deinit(&config_json);
    strbuf_deinit(&generation_json);
    arena_deinit(&paths);
    return config;
}

void model_config_destroy(struct model_config *config) {
    if (!config)
        return;
    json_decref(config->root);
    arena_deinit(&config->arena);
    free(config);
}
