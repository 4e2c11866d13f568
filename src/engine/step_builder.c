#include "engine/step_builder.h"

#include <stdlib.h>
#include <string.h>

bool step_builder_init(struct step_builder *b, uint32_t n_tokens_max, uint32_t n_rows_max,
                       uint32_t n_logits_max, struct err *err) {
    *b = (struct step_builder){.n_tokens_max = n_tokens_max, .n_rows_max = n_rows_max,
                               .n_logits_max = n_logits_max};
    b->token_ids = calloc(n_tokens_max, sizeof *b->token_ids);
    b->positions = calloc(n_tokens_max, sizeof *b->positions);
    b->token_row = calloc(n_tokens_max, sizeof *b->token_row);
    b->logit_tokens = calloc(n_logits_max, sizeof *b->logit_tokens);
    b->rows = calloc(n_rows_max, sizeof *b->rows);
    if (!b->token_ids || !b->positions || !b->token_row || !b->logit_tokens || !b->rows) {
        step_builder_deinit(b);
        return err_set(err, ERR_NOMEM, "out of memory for a step of %u tokens", n_tokens_max);
    }
    step_builder_clear(b);
    return true;
}

void step_builder_deinit(struct step_builder *b) {
    free(b->token_ids);
    free(b->positions);
    free(b->token_row);
    free(b->logit_tokens);
    free(b->rows);
    *b = (struct step_builder){0};
}

void step_builder_clear(struct step_builder *b) {
    b->step = (struct step){.token_ids = b->token_ids, .positions = b->positions,
                            .token_row = b->token_row, .rows = b->rows,
                            .logit_tokens = b->logit_tokens};
}

bool step_builder_add(struct step_builder *b, const struct kv_seq *seq, uint32_t state_slot,
                      uint32_t pos0, uint32_t rope_variant, const int32_t *ids, uint32_t n_ids,
                      enum step_logits want) {
    struct step *step = &b->step;
    uint32_t n_logits = want == STEP_LOGITS_ALL ? n_ids : want == STEP_LOGITS_LAST;
    if (n_ids == 0 || step->n_rows == b->n_rows_max || n_ids > b->n_tokens_max - step->n_tokens ||
        n_logits > b->n_logits_max - step->n_logits)
        return false;
    struct step_row *row = &b->rows[step->n_rows];
    *row = (struct step_row){.token_off = step->n_tokens, .n_tokens = n_ids, .pos0 = pos0,
                             .state_slot = state_slot, .rope_variant = rope_variant,
                             .n_blocks = seq->n_blocks};
    for (uint32_t g = 0; g < KV_GROUPS_MAX; g++)
        row->block_table[g] = seq->table[g];
    memcpy(b->token_ids + step->n_tokens, ids, n_ids * sizeof *ids);
    for (uint32_t i = 0; i < n_ids; i++) {
        b->positions[step->n_tokens + i] = pos0 + i;
        b->token_row[step->n_tokens + i] = step->n_rows;
    }
    for (uint32_t i = 0; i < n_logits; i++)
        b->logit_tokens[step->n_logits + i] = step->n_tokens + n_ids - n_logits + i;
    step->n_logits += n_logits;
    step->n_tokens += n_ids;
    step->n_rows++;
    return true;
}
