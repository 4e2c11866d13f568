// model/short_conv.h - the gated short convolution of LFM2: in_proj yields B, C and x; a causal depthwise convolution of B x,
// times C, goes to out_proj. Source: transformers modeling_lfm2.py.
#ifndef LOAM_MODEL_SHORT_CONV_H
#define LOAM_MODEL_SHORT_CONV_H
#include "model/family.h"

struct short_conv;

// Bind layer l's module "conv" and declare its state. NULL with the error.
struct short_conv *short_conv_bind(struct model *model, struct binder *binder, uint32_t l, struct err *err);

bool short_conv_prepare(struct model *model, uint32_t n_tokens, struct mat *scratch, struct err *err);
uint64_t short_conv_workspace_bytes(const struct model *model, uint32_t n_tokens);

// The mixed sequence before the output projection, [x.n_rows, d_model], in scratch.
struct mat short_conv_forward(const struct model *model, const struct short_conv *conv, struct mat scratch, struct mat x);
const struct weight *short_conv_out_proj(const struct short_conv *conv);
const float *short_conv_out_bias(const struct short_conv *conv); // or NULL
#endif
