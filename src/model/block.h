// model/block.h - the common transformer block, driven by the switches of a family's row: attention and
// a feed-forward part, with norms, biases, multipliers and windows wherever the family wants them.
#ifndef LOAM_MODEL_BLOCK_H
#define LOAM_MODEL_BLOCK_H
#include "model/family.h"

bool block_bind(struct model *model, struct binder *binder, struct err *err);
bool block_prepare(struct model *model, const struct model_limits *limits, struct err *err);
uint64_t block_workspace_bytes(const struct model *model, const struct model_limits *limits);
void block_forward(struct model *model, const struct step *step);

// Bind embed_tokens and the head, tied or not (for families with layers of their own).
bool block_bind_embeddings(struct model *model, struct binder *binder, struct err *err);

// The GLU that goes with a config's activation.
bool glu_of_activation(enum activation activation, enum glu_kind *out);
// The elementwise function likewise.
enum unary_kind unary_of_activation(enum activation activation);
#endif
