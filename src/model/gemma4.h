// model/gemma4.h - Gemma 4's text model (transformers modeling_gemma4.py): sliding and full layers with head
// dimensions and ropes of their own, per-layer input embeddings, later layers that reuse the KV of earlier
// ones, and in the 26B an MLP and experts side by side.
#ifndef LOAM_MODEL_GEMMA4_H
#define LOAM_MODEL_GEMMA4_H
#include "model/family.h"

bool gemma4_bind(struct model *model, struct binder *binder, struct err *err);
bool gemma4_prepare(struct model *model, const struct model_limits *limits, struct err *err);
uint64_t gemma4_workspace_bytes(const struct model *model, const struct model_limits *limits);
void gemma4_forward(struct model *model, const struct step *step);
#endif
