// model/rope.h - rope tables from a normalized rope config.
#ifndef LOAM_MODEL_ROPE_H
#define LOAM_MODEL_ROPE_H
#include "artifact/model_config.h"
#include "backend/backend.h"
#include "model/binding.h"

// The table of one kind of layer: frequencies of every pair of rotated dimensions, in float32 as Hugging
// Face computes them. Source of each kind: transformers modeling_rope_utils.py; YaRN: Peng et al. 2023;
// LongRoPE: Ding et al. 2024; Llama 3: the model's reference code.
// longrope has two variants: 0 up to the original context, 1 beyond it (step_row.rope_variant).
// ERR_UNSUPPORTED for a combination that no known model has; ERR_NOMEM.
bool rope_table_init(struct rope_table *table, const struct rope_config *config, uint32_t head_dim,
                     uint32_t ctx_len_max, bool interleaved, struct model_store *store, struct err *err);

// YaRN's factor on cos and sin: 0.1 * mscale * ln(factor) + 1 (1 when factor <= 1).
double rope_yarn_mscale(double factor, double mscale);
#endif
