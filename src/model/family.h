// model/family.h - what makes one family of models differ from the next: one row a model type.
// A family whose layers are the common block (block.h) is data; one that is not brings its own functions.
#ifndef LOAM_MODEL_FAMILY_H
#define LOAM_MODEL_FAMILY_H
#include "model/binding.h"
#include "model/model.h"

enum norm_place {
    NORMS_BEFORE, // x + f(norm(x)): Llama and most
    NORMS_AFTER,  // x + norm(f(x)): OLMo 2
    NORMS_BOTH,   // x + norm(f(norm(x))): Gemma 2 and 3, GLM 4
    NORM_SHARED,  // x + attention(norm(x)) + mlp(norm(x)): Cohere
};
enum head_norm { HEAD_NORM_NONE, HEAD_NORM_HEAD, HEAD_NORM_WHOLE, HEAD_NORM_KEY }; // key: HEAD if use_qk_norm
enum bias_rule {
    BIAS_NONE,
    BIAS_ALWAYS,
    BIAS_ATTENTION_KEY,     // attention_bias
    BIAS_ATTENTION_OUT_KEY, // attention_out_bias
    BIAS_MLP_KEY,           // mlp_bias
    BIAS_QKV_KEY,           // qkv_bias, on unless it says otherwise
    BIAS_USE_KEY,           // use_bias, likewise
    BIAS_USE_KEY_OFF,       // use_bias, off unless it says otherwise
    BIAS_USE_QKV_KEY,       // use_qkv_bias, off unless it says otherwise
};
enum rope_layers {
    ROPE_ALL,
    ROPE_SLIDING,       // full-attention layers have none (Cohere 2)
    ROPE_SLIDING_MIXED, // likewise, if the model has a window at all (EXAONE 4)
};
enum mlp_kind { MLP_GLU, MLP_GLU_FUSED, MLP_PLAIN };

struct moe_traits; // model/moe.h
struct mla_traits; // model/mla.h

// The common block's switches. Zero is Llama's choice everywhere.
struct block_traits {
    enum norm_kind norm;
    enum norm_place norm_place;
    bool norm_bias;          // NORM_LAYER with a bias
    float norm_add;          // 1: weights are stored as w - 1 (Gemma)
    enum head_norm head_norm;
    bool head_norm_after_rope;       // Hunyuan
    const char *head_norm_names[2];  // of queries, of keys; NULL = q_norm, k_norm
    enum bias_rule qkv_bias, o_bias, mlp_bias;
    bool qkv_fused;          // one qkv_proj: q, then k, then v
    enum mlp_kind mlp;
    const char *mlp_module;   // NULL = mlp
    const char *mlp_names[3]; // gate, up, down; NULL = gate_proj, up_proj, down_proj
    const char *o_name;       // NULL = o_proj
    const char *final_norm;   // NULL = norm
    // Names of the norms: before attention, after it, before the MLP, after it (those that exist).
    const char *norm_names[4];
    bool embed_sqrt_d;       // embeddings are multiplied by sqrt(d_model), rounded to bf16 (Gemma)
    bool rope_interleaved;
    enum rope_layers rope_layers;
    bool no_rope_layers;     // the config lists layers without rope (SmolLM 3)
    bool sliding_all;        // sliding_window applies to every layer where it is set
    bool multipliers;        // Granite: embedding_, attention_, residual_multiplier, logits_scaling
    bool query_scale;        // query_pre_attn_scalar (Gemma 2, 3)
    bool query_beta;         // llama_4_scaling_beta: queries grow with the position (Ministral 3)
    bool logit_scale;        // Cohere: logit_scale multiplies the logits
    bool softcaps;           // attn_logit_softcapping, final_logit_softcapping (Gemma 2)
    float softcap_defaults[2]; // of those two, where the config is silent
    bool norm_add_in_hub;    // norm weights are w - 1 in Hugging Face's layout, w in MLX's (Qwen3.5)
    bool short_conv;         // LAYER_CONV layers (LFM2)
    bool attention_gate;     // q_proj yields q and an output gate a head (Qwen3.5)
    const struct mla_traits *mla; // latent attention instead of the plain one
    bool extra_layers;       // layers beyond num_hidden_layers are draft heads, left alone
    bool bidirectional_key;  // use_bidirectional_attention makes it an encoder (EmbeddingGemma)
    bool sinks;              // a learned virtual key a head (gpt-oss)
    const char *refused[2]; // keys of the config that, if set, mean a computation that loam lacks in this family
    const struct moe_traits *moe; // experts instead of the MLP, in the layers that have them
};

struct family {
    const char *model_type;
    const struct block_traits *block;
    // Beginnings of tensor names that are recognised and left alone ("mtp."); ends with NULL, or NULL.
    const char *const *ignore;
    // Bind the family's weights into model->impl, declare KV layers and states. Sets model->impl.
    bool (*bind)(struct model *model, struct binder *binder, struct err *err);
    // Scratch for steps of these limits; called once, before the first step.
    bool (*prepare)(struct model *model, const struct model_limits *limits, struct err *err);
    uint64_t (*workspace_bytes)(const struct model *model, const struct model_limits *limits);
    // Walk the layers and leave the residual stream of the tokens whose logits are wanted, normed, in
    // model->hidden [n_logits, d_model].
    void (*forward)(struct model *model, const struct step *step);
};

// The row of a model type, or NULL.
const struct family *family_find(struct str model_type);

enum { MODEL_STATES_MAX = 512, MODEL_KV_LAYERS_MAX = 1024 };

// The loaded model: what every family shares. Families fill the fields that they are told to.
struct model {
    struct model_config *config;
    struct weights *weights;
    struct backend *be;
    const struct family *family;
    struct model_options options;
    struct model_store store;
    void *impl; // the family's own, in arena
    struct arena arena;

    // Declared by bind().
    struct kv_layer_desc *kv_layers; // [n_kv_layers] in arena
    uint32_t n_kv_layers;
    uint32_t n_groups, group_window[KV_GROUPS_MAX];
    size_t *state_floats; // [n_states] in arena
    uint32_t n_states;
    uint32_t rope_variant_from; // see model_rope_variant_from()
    // Tokens that stand for media (images, audio) are read as the padding token: their real embeddings come
    // from elsewhere.
    int32_t placeholders[4], placeholder_as;
    uint32_t n_placeholders;
    double query_beta; // queries are multiplied by 1 + beta ln(1 + floor(position / ctx)); 0 = they are not
    uint32_t query_ctx;
    struct weight *embed, *head; // head may be embed; NULL: there is none (model_has_head())
    float *head_bias;            // or NULL
    float logit_scale, logit_softcap;
    // Every token of a row sees all of its tokens: see model_is_encoder(). There is no head then, and forward() leaves
    // the normed states of all tokens in `states_out`.
    bool is_encoder;
    enum model_pooling pooling;
    uint32_t n_heads_max, head_dim_max, n_cols_max; // for backend scratch
    uint32_t n_experts, n_experts_used, d_expert;

    // From prepare().
    struct kv_pool *kv;
    struct state_pool *states;
    int32_t *ids;        // [n_tokens] of the step, with placeholders replaced; NULL without any
    void *query_scale;   // [n_tokens] activations: that factor of each token of the step; NULL without one
    float *query_scale_f32; // [n_tokens] host memory, likewise
    struct mat hidden;   // [n_logits, d_model]
    struct mat states_out;     // [n_tokens, d_model] of the step, of encoders only
    struct step_row *pooled;   // [n_logits]: the rows whose values are wanted, likewise
    void *states_host;         // [n_tokens, stride] activations in host memory, likewise
    double *sums;              // [d_model], likewise
    const float *logits; // of the last step that had some

    model_tap_fn *tap;
    void *tap_user;
};

// The KV group with this window, created if it is new. UINT32_MAX with ERR_UNSUPPORTED when there are
// too many.
uint32_t model_group(struct model *model, uint32_t window, struct err *err);
// Append a KV layer (its kind from the options) and return its index.
uint32_t model_add_kv(struct model *model, uint32_t layer_idx, struct kv_layer_desc desc);
// Append a recurrent state tensor and return its index.
uint32_t model_add_state(struct model *model, size_t n_floats);
// The encoder's window on both sides that `sliding` positions in all mean: keys with |i - j| below it are seen.
static inline uint32_t model_window_each_side(uint32_t sliding) { return sliding / 2 + 1; }
// An activation matrix that lives with the model.
bool model_new_mat(struct model *model, uint32_t n_rows, uint32_t n_cols, struct mat *out,
                   struct err *err);
// Bytes that model_new_mat takes.
uint64_t model_mat_bytes(const struct model *model, uint32_t n_rows, uint32_t n_cols);
static inline struct mat mat_first(struct mat x, uint32_t n_rows) {
    x.n_rows = n_rows;
    return x;
}
// Rows of one head each, of a matrix whose rows are packed (stride = n_cols).
static inline struct mat mat_heads(struct mat x, uint32_t head_dim) {
    return (struct mat){x.data, x.n_rows * (x.n_cols / head_dim), head_dim, head_dim};
}
// y = W x.
static inline void model_linear(const struct model *model, const struct weight *weight, struct mat x,
                                struct mat y) {
    model->be->ops->linear(model->be, &(struct linear_args){.x = x, .n_outputs = 1, .scale = 1,
                                                            .outputs = {{weight, NULL, y}}});
}
// y = RMS norm of x's rows with this eps; weight NULL: ones. y may be x.
static inline void model_rms_norm(const struct model *model, float eps, const float *weight, struct mat x,
                                  struct mat y) {
    model->be->ops->norm(model->be, &(struct norm_args){.kind = NORM_RMS, .eps = eps, .weight = weight,
                                                        .width = x.n_cols, .x = x, .y = y});
}
static inline void model_tap(struct model *model, int layer, struct mat x) {
    if (model->tap)
        model->tap(model->tap_user, layer, x);
}
// The factors of the step's queries (query_beta) as one column, [n_tokens, 1].
static inline struct mat model_query_scale(const struct model *model, uint32_t n_tokens) {
    return (struct mat){model->query_scale, n_tokens, 1, 1};
}
// Mark every tensor whose name begins so as recognised and left alone.
void model_ignore(struct model *model, const char *prefix);
#endif
