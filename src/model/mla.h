// model/mla.h - multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1), in its absorbed
// form: the cache holds one latent row and one rotated key a token, and queries are brought into the latent
// space. With the sparse indexer of DeepSeek V3.2 and GLM-5 where the model has one (transformers
// modeling_deepseek_v3.py, modeling_glm_moe_dsa.py).
#ifndef LOAM_MODEL_MLA_H
#define LOAM_MODEL_MLA_H
#include "model/family.h"

struct mla_traits {
    bool indexer;              // the config's index_topk keys are chosen for each query
    bool index_interleaved;    // the indexer's rope pairs (2j, 2j + 1), unless indexer_rope_interleave says otherwise
    const char *interleave_key; // in config.json: rope pairs (2j, 2j + 1); absent = true
};

struct mla;      // one layer's weights
struct mla_dims; // what all layers share

// The dimensions and rope of the model, checked. NULL with the error. Before the layers.
struct mla_dims *mla_dims_bind(struct model *model, const struct mla_traits *traits, struct err *err);
// Bind layer l's module "self_attn" and declare its KV. NULL with the error.
struct mla *mla_bind(struct model *model, struct binder *binder, const struct mla_dims *dims, uint32_t l,
                     struct err *err);

bool mla_prepare(struct model *model, struct mla_dims *dims, uint32_t n_tokens, struct err *err);
uint64_t mla_workspace_bytes(const struct model *model, const struct mla_dims *dims, uint32_t n_tokens);

// Attention of the normed input, [x.n_rows, n_heads * v_head_dim], before o_proj.
struct mat mla_forward(const struct model *model, const struct mla *mla, struct mat x);
const struct weight *mla_o_proj(const struct mla *mla);
uint32_t mla_out_width(const struct mla_dims *dims);
#endif
