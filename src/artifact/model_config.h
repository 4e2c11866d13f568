// artifact/model_config.h - config.json and its neighbours as one normalized description.
// Immutable once open. What only one family knows is read by that family from `text`.
#ifndef LOAM_ARTIFACT_MODEL_CONFIG_H
#define LOAM_ARTIFACT_MODEL_CONFIG_H
#include "base/arena.h"
#include "base/json.h"

enum layer_type {
    LAYER_FULL,    // full attention
    LAYER_SLIDING, // sliding-window attention ("sliding_attention"; chunked is refused)
    LAYER_LINEAR,  // recurrent ("linear_attention")
    LAYER_CONV,    // a gated short convolution ("conv")
};

enum activation { ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_RELU, ACT_RELU2, ACT_XIELU };

// Source of every kind's formula: transformers modeling_rope_utils.py.
enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_PROPORTIONAL,
};

struct rope_config {
    enum rope_kind kind;
    double theta;
    double partial;           // rotated share of the head, 1 unless given (partial_rotary_factor)
    double factor;            // 1 unless given
    uint32_t ctx_original;    // original_max_position_embeddings; 0 if not given
    double low_freq_factor, high_freq_factor;   // llama3
    double beta_fast, beta_slow;                // yarn, default 32 and 1
    double mscale, mscale_all_dim;              // yarn, 0 if not given
    bool truncate;                              // yarn, default true
    double attention_factor;                    // 0 if not given
    double query_beta; // llama_4_scaling_beta: queries grow with the position; 0 = none
    const double *short_factor, *long_factor;   // longrope [n_factors], NULL if not given
    uint32_t n_factors;
};

enum quant_mode { QUANT_NONE, QUANT_AFFINE, QUANT_MXFP4, QUANT_MXFP8, QUANT_NVFP4 };
struct quant_spec {
    enum quant_mode mode;
    uint32_t bits, group; // group: weights that share a scale, along the input axis
};

struct generation_defaults { // generation_config.json; -1 where it is silent
    float temperature, top_p, min_p, typical_p, repetition_penalty;
    int32_t top_k, max_new_tokens, min_new_tokens;
    bool do_sample, do_sample_given;
};

enum { MODEL_EOS_MAX = 16 };

struct model_config {
    struct arena arena; // owns the arrays below
    json_t *root;       // config.json
    const json_t *text; // its text_config, or root itself
    struct str model_type;      // of the text model: what selects the family
    struct str root_model_type; // of config.json itself
    struct str architecture;    // architectures[0], may be empty

    uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, n_vocab, ctx_len_max;
    float norm_eps; // rms_norm_eps, layer_norm_eps, norm_epsilon ...
    enum activation activation;
    bool tie_embeddings;

    struct rope_config rope;         // of full layers, and of all where there is one kind
    struct rope_config rope_sliding; // of sliding layers; equals `rope` unless the config differs
    enum layer_type *layer_types;    // [n_layers]: layer_types, or what sliding_window(_pattern) imply
    uint32_t sliding_window;         // 0 = none

    int32_t bos, pad;           // -1 = not given
    int32_t eos[MODEL_EOS_MAX]; // config.json's and generation_config.json's, united
    uint32_t n_eos;
    struct generation_defaults generation;

    struct quant_spec quant;       // the default; mode QUANT_NONE if the folder is not quantized
    const json_t *quant_overrides; // the quantization object: module path -> false or a spec
};

// Read config.json and generation_config.json of a model folder. NULL with ERR_NOT_FOUND ("<folder>
// has no config.json ..."), ERR_FORMAT, ERR_UNSUPPORTED (a rope kind, layer type, activation or
// quantization mode that loam does not know, by name), ERR_IO, ERR_NOMEM.
// Which model types exist is the model room's business, not checked here.
struct model_config *model_config_open(const char *folder, struct err *err);
// The same from bytes, not trusted and not kept; generation may be empty.
struct model_config *model_config_create(struct str config_json, struct str generation_json,
                                         struct err *err);
void model_config_destroy(struct model_config *config); // NULL is allowed

// How the module at `path` ("model.layers.0.mlp.down_proj") is quantized if it has scales: an override
// for the path (tried also without and with the prefixes "model.", "language_model.model.",
// "language_model."), else the default. An override without mode is affine; `false` is QUANT_NONE.
bool model_config_quant(const struct model_config *config, const char *path, struct quant_spec *out,
                        struct err *err);
#endif
