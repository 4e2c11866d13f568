#include "engine/direct.h"

#include <stdlib.h>

#include "base/checked.h"
#include "engine/step_builder.h"

struct direct {
    struct model *model;
    struct kv_cache *kv;
    uint32_t n_rows, chunk;
    struct kv_seq *seqs;  // [n_rows]
    uint32_t *n_tokens;   // [n_rows]
    struct step_builder step;
};

static void copy_page(void *user, uint32_t group, uint32_t from, uint32_t to) {
    struct direct *direct = user;
    struct backend *be = model_backend(direct->model);
    be->ops->kv_copy_page(be, model_kv_pool(direct->model), group, from, to);
}

struct direct *direct_create(struct model *model, uint32_t n_rows, uint32_t ctx_len, uint32_t chunk,
                             uint32_t n_logits, struct err *err) {
    struct direct *direct = calloc(1, sizeof *direct);
    if (!direct)
        goto nomem;
    direct->model = model;
    direct->chunk = chunk;
    struct model_memory memory;
    model_memory(model, &memory);
    uint32_t pages = (ctx_len + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    struct model_limits limits = {.n_tokens = max_u32(chunk, n_rows), .n_rows = n_rows,
                                  .n_logits = max_u32(n_logits, n_rows), .ctx_len = ctx_len,
                                  .n_state_slots = n_rows};
    struct kv_cache_options options = {.n_groups = memory.n_groups, .ctx_len = ctx_len, .copy = copy_page,
                                       .user = direct};
    for (uint32_t g = 0; g < memory.n_groups; g++) {
        limits.n_pages[g] = options.n_pages[g] = pages * n_rows;
        options.group_window[g] = memory.group_window[g];
    }
    direct->kv = kv_cache_create(&options, err);
    if (!direct->kv || !model_prepare(model, &limits, err) ||
        !step_builder_init(&direct->step, limits.n_tokens, n_rows, limits.n_logits, err))
        goto failed;
    direct->seqs = calloc(n_rows, sizeof *direct->seqs);
    direct->n_tokens = calloc(n_rows, sizeof *direct->n_tokens);
    if (!direct->seqs || !direct->n_tokens)
        goto nomem;
    for (; direct->n_rows < n_rows; direct->n_rows++)
        if (!kv_seq_init(direct->kv, &direct->seqs[direct->n_rows], err))
            goto failed;
    return direct;
nomem:
    err_set(err, ERR_NOMEM, "out of memory for %u sequences", n_rows);
failed:
    direct_destroy(direct);
    return NULL;
}

void direct_destroy(struct direct *direct) {
    if (!direct)
        return;
    for (uint32_t i = 0; i < direct->n_rows; i++)
        kv_seq_deinit(direct->kv, &direct->seqs[i]);
    kv_cache_destroy(direct->kv);
    step_builder_deinit(&direct->step);
    free(direct->seqs);
    free(direct->n_tokens);
    free(direct);
}

void direct_reset(struct direct *direct, uint32_t row) {
    direct_truncate(direct, row, 0);
}

uint32_t direct_n_tokens(const struct direct *direct, uint32_t row) {
    return direct->n_tokens[row];
}

bool direct_truncate(struct direct *direct, uint32_t row, uint32_t n) {
    struct state_pool *states = model_state_pool(direct->model);
    if (states && n != 0)
        return n == direct->n_tokens[row];
    if (states) {
        struct backend *be = model_backend(direct->model);
        be->ops->state_clear(be, states, row);
    }
    if (n == 0)
        kv_seq_clear(direct->kv, &direct->seqs[row]);
    else
        kv_seq_truncate(direct->kv, &direct->seqs[row], n);
    direct->n_tokens[row] = n;
    return true;
}

bool direct_step(struct direct *direct, const struct direct_feed *feeds, uint32_t n_feeds, bool no_logits,
                 const float **logits, struct err *err) {
    step_builder_clear(&direct->step);
    for (uint32_t i = 0; i < n_feeds; i++) {
        const struct direct_feed *feed = &feeds[i];
        uint32_t pos0 = direct->n_tokens[feed->row];
        struct kv_seq *seq = &direct->seqs[feed->row];
        if (!kv_seq_reserve(direct->kv, seq, pos0, pos0 + feed->n_ids))
            return err_set(err, ERR_INVALID, "the sequence would have %u tokens, more than the context",
                           pos0 + feed->n_ids);
        enum step_logits want = no_logits ? STEP_LOGITS_NONE
                                          : (feed->all_logits ? STEP_LOGITS_ALL : STEP_LOGITS_LAST);
        if (!step_builder_add(&direct->step, seq, feed->row, pos0, 0, feed->ids, feed->n_ids, want))
            return err_set(err, ERR_INVALID, "a step of more tokens than the chunk of %u", direct->chunk);
    }
    const float *unwanted;
    if (!model_step(direct->model, &direct->step.step, logits ? logits : &unwanted, err))
        return false;
    for (uint32_t i = 0; i < n_feeds; i++) {
        direct->n_tokens[feeds[i].row] += feeds[i].n_ids;
        kv_seq_slide(direct->kv, &direct->seqs[feeds[i].row], direct->n_tokens[feeds[i].row]);
    }
    return true;
}

bool direct_prefill(struct direct *direct, uint32_t row, const int32_t *ids, uint32_t n_ids,
                    const float **logits, struct err *err) {
    for (uint32_t done = 0; done < n_ids;) {
        uint32_t n = min_u32(direct->chunk, n_ids - done);
        struct direct_feed feed = {.row = row, .ids = ids + done, .n_ids = n};
        done += n;
        if (!direct_step(direct, &feed, 1, done < n_ids, logits, err))
            return false;
    }
    return true;
}
