// engine/step_builder.h - the arrays of one step, sized once, filled row by row.
#ifndef LOAM_ENGINE_STEP_BUILDER_H
#define LOAM_ENGINE_STEP_BUILDER_H
#include "cache/kv_cache.h"

enum step_logits { STEP_LOGITS_NONE, STEP_LOGITS_LAST, STEP_LOGITS_ALL };

struct step_builder {
    struct step step; // points into the arrays below
    uint32_t n_tokens_max, n_rows_max, n_logits_max;
    int32_t *token_ids;
    uint32_t *positions, *token_row, *logit_tokens;
    struct step_row *rows;
};
bool step_builder_init(struct step_builder *builder, uint32_t n_tokens_max, uint32_t n_rows_max,
                       uint32_t n_logits_max, struct err *err);
void step_builder_deinit(struct step_builder *builder);
void step_builder_clear(struct step_builder *builder);
// Append a row whose pages are reserved. False if it does not fit (nothing is added).
bool step_builder_add(struct step_builder *builder, const struct kv_seq *seq, uint32_t state_slot,
                      uint32_t pos0, uint32_t rope_variant, const int32_t *ids, uint32_t n_ids,
                      enum step_logits want);
#endif
