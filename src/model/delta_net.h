// model/delta_net.h - gated DeltaNet: the recurrent layer of Qwen3.5 and Qwen3-Next (Yang et al. 2024, "Gated
// Delta Networks"; transformers modeling_qwen3_next.py and modeling_qwen3_5.py).
#ifndef LOAM_MODEL_DELTA_NET_H
#define LOAM_MODEL_DELTA_NET_H
#include "model/family.h"

struct delta_net;

// True if the folder has Hugging Face's layout (conv1d.weight [C, 1, K]), false for MLX's [C, K, 1]. The
// two also differ in how norm weights are stored (w - 1 against w).
bool delta_net_is_hub_layout(const struct model *model, const struct binder *binder);

// Bind layer l's module "linear_attn" and declare its states. NULL with the error.
struct delta_net *delta_net_bind(struct model *model, struct binder *binder, uint32_t l, struct err *err);

// Scratch that all layers share.
struct delta_net_scratch {
    struct mat mixed, z, a, b, out; // [n_tokens, ...]
};
bool delta_net_prepare(struct model *model, const struct delta_net *net, uint32_t n_tokens,
                       struct delta_net_scratch *scratch, struct err *err);
uint64_t delta_net_workspace_bytes(const struct model *model, const struct delta_net *net,
                                   uint32_t n_tokens);

// The mixed sequence before the output projection, [x.n_rows, n_v_heads * v_dim], in scratch.
struct mat delta_net_forward(const struct model *model, const struct delta_net *net,
                             const struct delta_net_scratch *scratch, struct mat x);
const struct weight *delta_net_out_proj(const struct delta_net *net);
uint32_t delta_net_out_width(const struct delta_net *net);
#endif
