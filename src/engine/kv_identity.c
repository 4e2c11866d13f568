#include "engine/kv_identity.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/hash.h"

// The instruction set and the like: what `describe` says last. What it says before (the machine's name, how many
// threads) changes no bits.
static const char *level_of(struct backend *be, char *text, size_t n) {
    be->ops->describe(be, text, n);
    const char *comma = strrchr(text, ',');
    return comma ? comma + 1 : text;
}

static bool read_probe(struct model *model, struct kv_seq *seq, struct kv_cache *kv, struct step_builder *step,
                       struct err *err) {
    uint32_t n = min_u32(KV_PAGE_TOKENS, kv_cache_n_tokens_max(kv)), n_vocab = model_config_of(model)->n_vocab;
    int32_t ids[KV_PAGE_TOKENS];
    struct state_pool *states = model_state_pool(model);
    struct backend *be = model_backend(model);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 7919 + 1) % n_vocab);
    if (!kv_seq_reserve(kv, seq, 0, n))
        return err_set(err, ERR_NOMEM, "the KV pool has no page for the disk cache's probe");
    if (states)
        be->ops->state_clear(be, states, 0);
    for (uint32_t done = 0; done < n;) {
        uint32_t n_now = min_u32(n - done, step->n_tokens_max);
        const float *logits;
        step_builder_clear(step);
        step_builder_add(step, seq, states ? 0 : UINT32_MAX, done, 0, ids + done, n_now, STEP_LOGITS_NONE);
        if (!model_step(model, &step->step, &logits, err))
            return false;
        done += n_now;
    }
    return true;
}

static bool add_digest(struct strbuf *text, const void *data, size_t n) {
    char hex[65];
    hash_sha256_hex((struct bytes){data, n}, hex);
    strbuf_printf(text, " %s", hex);
    return !text->failed;
}

bool kv_identity(struct model *model, struct kv_cache *kv, struct step_builder *step, const char *files, char out[65],
                 struct err *err) {
    struct backend *be = model_backend(model);
    struct model_memory memory;
    struct kv_seq seq;
    struct strbuf text = {0};
    char level[256];
    model_memory(model, &memory);
    if (!kv_seq_init(kv, &seq, err))
        return false;
    size_t n_most = memory.state_slot_bytes;
    for (uint32_t g = 0; g < memory.n_groups; g++)
        n_most = max_size(n_most, memory.group_page_bytes[g]);
    void *data = malloc(max_size(n_most, 1));
    bool ok = read_probe(model, &seq, kv, step, err);
    strbuf_printf(&text, LOAM_VERSION " %s%s %s", be->ops->name, level_of(be, level, sizeof level), files);
    bool has_memory = data && !text.failed;
    for (uint32_t g = 0; ok && has_memory && g < memory.n_groups; g++) {
        be->ops->kv_read_page(be, model_kv_pool(model), g, seq.table[g][0], data);
        has_memory = add_digest(&text, data, memory.group_page_bytes[g]);
    }
    if (ok && has_memory && model_state_pool(model)) {
        be->ops->state_read(be, model_state_pool(model), 0, data);
        has_memory = add_digest(&text, data, be->ops->state_slot_bytes(model_state_pool(model)));
    }
    if (ok && !has_memory)
        ok = err_set(err, ERR_NOMEM, "out of memory for the disk cache's identity");
    if (ok)
        hash_sha256_hex(bytes_of(strbuf_str(&text)), out);
    free(data);
    strbuf_deinit(&text);
    kv_seq_deinit(kv, &seq);
    return ok;
}
