#include "tokenizer/postprocessor.h"

enum { DEPTH_MAX = 16, ITEMS_MAX = 4096 };

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
}

static bool append_id(struct token_list *out, const json_t *id, uint32_t n_ids, struct err *err) {
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value >= n_ids)
        return err_set(err, ERR_FORMAT,
                       "tokenizer.json: post_processor names an id that is no token's");
    token_list_append(out, (token_id)value);
    return true;
}

// TemplateProcessing's "single": the pieces around sequence A.
static bool read_template(struct token_list *out, const json_t *value, uint32_t n_ids,
                          struct err *err) {
    const json_t *single = json_object_get(value, "single");
    const json_t *tokens = json_object_get(value, "special_tokens");
    if (!json_is_array(single))
        return err_set(err, ERR_FORMAT,
                       "tokenizer.json: post_processor TemplateProcessing needs the array "
                       "\"single\"");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        if (json_object_get(piece, "Sequence")) {
            token_list_append(out, POST_TEXT);
            continue;
        }
        const json_t *special = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (!json_is_array(ids))
            return err_set(err, ERR_FORMAT,
                           "tokenizer.json: post_processor TemplateProcessing: piece %zu is neither "
                           "a Sequence nor one of its \"special_tokens\"",
                           i);
        for (size_t k = 0; k < json_array_size(ids); k++)
            if (!append_id(out, json_array_get(ids, k), n_ids, err))
                return false;
    }
    return true;
}

// Bert and Roberta: ["[CLS]", id] text ["[SEP]", id].
static bool read_pair(struct token_list *out, const json_t *value, const char *key, uint32_t n_ids,
                      struct err *err) {
    const json_t *pair = json_object_get(value, key);
    if (!json_is_array(pair) || json_array_size(pair) != 2)
        return err_set(err, ERR_FORMAT,
                       "tokenizer.json: post_processor: \"%s\" must be [text, id]", key);
    return append_id(out, json_array_get(pair, 1), n_ids, err);
}

// Put `around`, whose POST_TEXT is the text, in place of the text alone.
static bool wrap(struct token_list *list, struct token_list *around, struct err *err) {
    if (list->n != 1 || list->ids[0] != POST_TEXT)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: post_processor Sequence has more than one step that adds "
                       "tokens; loam knows one");
    if (around->n > ITEMS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: post_processor adds more than %d tokens",
                       ITEMS_MAX);
    struct token_list old = *list;
    *list = *around;
    *around = old;
    return true;
}

static bool read_one(struct token_list *list, const json_t *value, uint32_t n_ids, int depth,
                     struct err *err) {
    struct str type = json_str(json_object_get(value, "type"));
    if (depth > DEPTH_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: post_processors nest more than %d deep",
                       DEPTH_MAX);
    if (type.data && str_eq_c(type, "ByteLevel")) // moves offsets only
        return true;
    if (type.data && str_eq_c(type, "Sequence")) {
        const json_t *processors = json_object_get(value, "processors");
        if (!json_is_array(processors))
            return err_set(err, ERR_FORMAT, "tokenizer.json: post_processor Sequence needs the array "
                                            "\"processors\"");
        for (size_t i = 0; i < json_array_size(processors); i++)
            if (!read_one(list, json_array_get(processors, i), n_ids, depth + 1, err))
                return false;
        return true;
    }
    struct token_list around = {0};
    bool ok;
    if (type.data && str_eq_c(type, "TemplateProcessing")) {
        ok = read_template(&around, value, n_ids, err);
    } else if (type.data &&
               (str_eq_c(type, "BertProcessing") || str_eq_c(type, "RobertaProcessing"))) {
        ok = read_pair(&around, value, "cls", n_ids, err);
        token_list_append(&around, POST_TEXT);
        ok = ok && read_pair(&around, value, "sep", n_ids, err);
    } else {
        ok = err_set(err, ERR_UNSUPPORTED,
                     "tokenizer.json: post_processor \"%.*s\" is unknown; loam knows "
                     "TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing and Sequence",
                     (int)type.n, type.data ? type.data : "");
    }
    if (ok)
        ok = around.failed ? no_memory(err) : wrap(list, &around, err);
    token_list_deinit(&around);
    return ok;
}

bool postprocessor_init(struct postprocessor *post, const json_t *value, uint32_t n_ids,
                        struct err *err) {
    *post = (struct postprocessor){0};
    token_list_append(&post->items, POST_TEXT);
    bool ok = !post->items.failed || no_memory(err);
    if (ok && value && !json_is_null(value))
        ok = read_one(&post->items, value, n_ids, 0, err);
    if (!ok)
        postprocessor_deinit(post);
    return ok;
}

bool postprocessor_begin_with(struct postprocessor *post, token_id first, bool wanted,
                              struct err *err) {
    struct token_list *items = &post->items;
    bool there = items->n && items->ids[0] == first;
    if (there == wanted)
        return true;
    if (wanted) {
        token_list_append(items, first);
        if (items->failed)
            return no_memory(err);
        memmove(items->ids + 1, items->ids, (items->n - 1) * sizeof *items->ids);
        items->ids[0] = first;
    } else {
        memmove(items->ids, items->ids + 1, --items->n * sizeof *items->ids);
    }
    return true;
}

bool postprocessor_end_with(struct postprocessor *post, token_id last, bool wanted,
                            struct err *err) {
    struct token_list *items = &post->items;
    bool there = items->n && items->ids[items->n - 1] == last;
    if (wanted && !there)
        token_list_append(items, last);
    else if (!wanted && there)
        items->n--;
    return !items->failed || no_memory(err);
}

void postprocessor_deinit(struct postprocessor *post) {
    token_list_deinit(&post->items);
}
