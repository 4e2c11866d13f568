// model/moe.h - a mixture-of-experts feed-forward part: router, experts, shared expert. Whoever needs an
// expert's weights asks here; where they live (resident now, streamed later) is nobody else's business.
#ifndef LOAM_MODEL_MOE_H
#define LOAM_MODEL_MOE_H
#include "model/family.h"

enum moe_layout {
    MOE_SEPARATE,    // experts.N.gate_proj ..., or stacked [n_experts, ...] under `stacked` (MLX)
    MOE_FUSED,       // one [n_experts, 2 * d_expert, d] (gate rows, then up rows) and one down
    MOE_GPT_OSS,     // [n_experts, d, 2 * d_expert] with gate and up interleaved, or its MXFP4 blocks
};
// By norm_topk_prob, which if absent means off, on, or that the config is not whole.
enum moe_normalize {
    MOE_NORMALIZE_KEY,
    MOE_NORMALIZE_KEY_ON,
    MOE_NORMALIZE_KEY_NEEDED,
    MOE_NORMALIZE_ALWAYS,
    MOE_NORMALIZE_NEVER,
};

// A family's mixture of experts. Names are modules below the layer ("mlp.gate").
struct moe_traits {
    const char *router, *experts, *stacked;
    const char *names[3];             // per expert: gate, up, down; NULL = gate_proj, up_proj, down_proj
    enum moe_layout layout;
    const char *fused_up, *fused_down; // MOE_FUSED: the two stacked parameters
    enum route_kind route;
    enum moe_normalize normalize;
    const char *n_experts_key, *ff_key; // in config.json
    const char *n_used_key;           // NULL = num_experts_per_tok
    bool router_bias;
    const char *correction;           // vector added to the scores for the choice
    const char *expert_scale;         // vector that multiplies the weights of the chosen, or NULL
    bool groups;                      // n_group, topk_group; sigmoid routing cannot do without
    bool scaling;                     // routed_scaling_factor, likewise
    const char *shared;               // shared expert's module
    const char *shared_gate;          // its gate [1, d], or NULL
    const char *shared_ff_key;        // its width; NULL: n_shared_experts * d_expert
    const char *shared_names[2];      // its matrices where gate and up are one: that, and down; NULL: three apart
    const char *n_shared_key;         // NULL = n_shared_experts
    enum glu_kind glu;                // GLU_SILU, or gpt-oss's
    const char *first_dense_key;      // layers below this number are dense (first_k_dense_replace)
    const char *last_key, *every_key; // as are those beyond this one (-1: none), and all but each so-manieth
};

struct moe;

// True if layer l has experts by the family's rule (mlp_layer_types, mlp_only_layers, decoder_sparse_step,
// first_k_dense_replace and its like).
bool moe_layer_is_sparse(const struct model *model, const struct moe_traits *traits, uint32_t l, bool *out,
                         struct err *err);
// Bind layer l's experts. NULL with the error. Lives in the model's arena and store.
struct moe *moe_bind(struct model *model, struct binder *binder, const struct moe_traits *traits, uint32_t l,
                     struct err *err);

// Scratch that all layers share.
struct moe_scratch {
    struct mat logits, shared, shared_out, shared_gate;
    uint32_t *experts;
    float *weights;
};
bool moe_prepare(struct model *model, const struct moe *moe, uint32_t n_tokens,
                 struct moe_scratch *scratch, struct err *err);
uint64_t moe_workspace_bytes(const struct model *model, const struct moe *moe, uint32_t n_tokens);

// The two halves of moe_forward for families whose router has an input of its own: choose, then compute with
// the choice. The shared expert is part of the second.
void moe_route(const struct model *model, const struct moe *moe, const struct moe_scratch *scratch,
               struct mat x);
void moe_experts(const struct model *model, const struct moe *moe, const struct moe_scratch *scratch,
                 struct mat x, struct mat y, enum linear_store store, float scale);

// y (stored, or added to) = scale * (sum of the chosen experts of x + shared expert of x).
void moe_forward(const struct model *model, const struct moe *moe, const struct moe_scratch *scratch,
                 struct mat x, struct mat y, enum linear_store store, float scale);
#endif
