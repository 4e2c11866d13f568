#include "engine/pooled.h"

#include <math.h>

bool pooled_embed_prompt(const struct bundle *bundle, struct str text, struct token_list *ids, struct err *err) {
    const struct sentence *s = &bundle->sentence;
    if (s->lacking)
        return err_set(err, ERR_UNSUPPORTED, "%s: its embeddings are made by \"%s\", which loam does not implement for it",
                       bundle->name, s->lacking);
    if (!bundle->tokenizer)
        return err_set(err, ERR_INVALID, "embeddings of text need a tokenizer");
    if (s->prompt.n == 0)
        return tokenizer_encode(bundle->tokenizer, text, TOKENIZER_ADD_SPECIAL, ids, err);
    struct strbuf prompted = {0};
    strbuf_append(&prompted, s->prompt);
    strbuf_append(&prompted, text);
    bool ok = prompted.failed ? err_set(err, ERR_NOMEM, "out of memory for a prompt")
                              : tokenizer_encode(bundle->tokenizer, strbuf_str(&prompted), TOKENIZER_ADD_SPECIAL, ids, err);
    strbuf_deinit(&prompted);
    return ok;
}

uint32_t pooled_embedding(const struct bundle *bundle, float *values, uint32_t n, uint32_t n_dimensions, struct err *err) {
    if (n_dimensions > n) {
        err_set(err, ERR_INVALID, "the model's embeddings have %u dimensions, not %u", n, n_dimensions);
        return 0;
    }
    if (!sentence_apply(&bundle->sentence, values, n, err))
        return 0;
    n = n_dimensions ? n_dimensions : n;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)values[i] * (double)values[i];
    if (!isfinite(sum)) {
        err_set(err, ERR_INTERNAL, "the model's hidden state is not numbers");
        return 0;
    }
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (uint32_t i = 0; i < n; i++)
        values[i] = (float)((double)values[i] * scale);
    return n;
}

bool pooled_rerank_prompt(const struct bundle *bundle, const struct rerank_query *q, struct token_list *ids,
                          struct err *err) {
    static const char *const NEEDED[] = {"yes", "no", "<|im_start|>", "<|im_end|>"};
    if (!bundle->tokenizer)
        return err_set(err, ERR_INVALID, "reranking needs a tokenizer");
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++) {
        token_id id = tokenizer_id(bundle->tokenizer, str_from(NEEDED[i]));
        if (id == TOKEN_NONE || (uint32_t)id >= model_config_of(bundle->model)->n_vocab)
            return err_set(err, ERR_UNSUPPORTED, "%s is no reranker that loam knows: its vocabulary has no token \"%s\"",
                           bundle->name, NEEDED[i]);
    }
    struct str instruction = q->instruction.n ? q->instruction : STR(POOLED_RERANK_INSTRUCTION);
    const struct str parts[] = {
        STR("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
            "Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
            "<Instruct>: "),
        instruction,
        STR("\n<Query>: "),
        q->query,
        STR("\n<Document>: "),
        q->document,
        STR("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    };
    struct strbuf text = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        strbuf_append(&text, parts[i]);
    bool ok = text.failed ? err_set(err, ERR_NOMEM, "out of memory for a prompt")
                          : tokenizer_encode(bundle->tokenizer, strbuf_str(&text), 0, ids, err);
    strbuf_deinit(&text);
    return ok;
}

double pooled_rerank_score(const struct bundle *bundle, const float *logits) {
    double yes = (double)logits[tokenizer_id(bundle->tokenizer, STR("yes"))];
    double no = (double)logits[tokenizer_id(bundle->tokenizer, STR("no"))];
    return 1 / (1 + exp(no - yes));
}
