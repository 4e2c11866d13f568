// engine/direct.h - one sequence on a model without the scheduler: for measuring and for tests.
// Runs the same steps as the engine. One owner thread.
#ifndef LOAM_ENGINE_DIRECT_H
#define LOAM_ENGINE_DIRECT_H
#include "cache/kv_cache.h"
#include "model/model.h"

struct direct;

// Sequences of up to ctx_len tokens, n_rows of them, fed at most chunk tokens a step (per row) and with
// logits of up to n_logits tokens a step. Prepares the model: one direct (or engine) a model.
struct direct *direct_create(struct model *model, uint32_t n_rows, uint32_t ctx_len, uint32_t chunk,
                             uint32_t n_logits, struct err *err);
void direct_destroy(struct direct *direct); // the model stays

// Forget row's tokens.
void direct_reset(struct direct *direct, uint32_t row);
uint32_t direct_n_tokens(const struct direct *direct, uint32_t row);
// Keep the first n tokens of a row (n at most what it has). Models with recurrent state only allow 0.
bool direct_truncate(struct direct *direct, uint32_t row, uint32_t n);

struct direct_feed {
    uint32_t row;
    const int32_t *ids;
    uint32_t n_ids;
    bool all_logits; // else the last token's only
};
// One step with each feed's tokens (n_ids at most chunk in sum). *logits: the wanted rows in order of the
// feeds. A feed without logits is not possible: pass no_logits for a whole step without any.
bool direct_step(struct direct *direct, const struct direct_feed *feeds, uint32_t n_feeds, bool no_logits,
                 const float **logits, struct err *err);

// Feed a prompt in chunks; the last token's logits.
bool direct_prefill(struct direct *direct, uint32_t row, const int32_t *ids, uint32_t n_ids,
                    const float **logits, struct err *err);
#endif
