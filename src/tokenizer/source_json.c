// tokenizer.json: https://github.com/huggingface/tokenizers, the serialized form of its Tokenizer.

#include "base/hash.h"
#include "tokenizer/json_skim.h"
#include "tokenizer/source_tables.h"

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "tokenizer.json: out of memory");
}

// What a file that names no model type must be, as HF guesses it.
static bool read_kind(struct source *source, const json_t *model, struct err *err) {
    static const char *const NAMES[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    struct str type = json_str(json_object_get(model, "type"));
    for (int i = 0; type.data && i < 4; i++)
        if (str_eq_c(type, NAMES[i])) {
            source->model = (enum model_kind)i;
            return true;
        }
    if (type.data)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer.json: model \"%.*s\" is unknown; loam knows BPE, Unigram, WordPiece "
                       "and WordLevel",
                       (int)type.n, type.data);
    if (json_object_get(model, "merges"))
        source->model = MODEL_BPE;
    else if (json_is_array(json_object_get(model, "vocab")))
        source->model = MODEL_UNIGRAM;
    else if (json_object_get(model, "continuing_subword_prefix"))
        source->model = MODEL_WORD_PIECE;
    else
        source->model = MODEL_WORD_LEVEL;
    return true;
}

static bool add_token(struct source *source, struct str text, json_int_t id, double score,
                      struct err *err) {
    if (id < 0 || id >= SOURCE_TOKENS_MAX)
        return err_set(err, ERR_FORMAT,
                       "tokenizer.json: token \"%.*s\" has id %lld, allowed are 0 to %d",
                       (int)(text.n < 100 ? text.n : 100), text.data, (long long)id,
                       SOURCE_TOKENS_MAX - 1);
    struct source_token *token = &source->tokens[source->n_tokens++];
    token->id = (token_id)id;
    token->score = score;
    return arena_copy(&source->arena, text, &token->text) || no_memory(err);
}

static bool begin_tokens(struct source *source, size_t n, struct err *err) {
    if (n > SOURCE_TOKENS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: %zu tokens, the limit is %d", n,
                       SOURCE_TOKENS_MAX);
    source->tokens = arena_array(&source->arena, struct source_token, n);
    return source->tokens || no_memory(err);
}

static bool read_vocab_object(struct source *source, json_t *vocab, struct err *err) {
    if (!json_is_object(vocab))
        return err_set(err, ERR_FORMAT, "tokenizer.json: \"vocab\" of the model must be an object");
    if (!begin_tokens(source, json_object_size(vocab), err))
        return false;
    for (void *it = json_object_iter(vocab); it; it = json_object_iter_next(vocab, it)) {
        const json_t *id = json_object_iter_value(it);
        struct str text = {json_object_iter_key(it), json_object_iter_key_len(it)};
        if (!json_is_integer(id))
            return err_set(err, ERR_FORMAT,
                           "tokenizer.json: the id of token \"%.*s\" must be an integer",
                           (int)(text.n < 100 ? text.n : 100), text.data);
        if (!add_token(source, text, json_integer_value(id), 0, err))
            return false;
    }
    return true;
}

static bool read_vocab_list(struct source *source, const json_t *vocab, struct err *err) {
    if (!json_is_array(vocab))
        return err_set(err, ERR_FORMAT, "tokenizer.json: \"vocab\" of a Unigram model must be an array");
    if (!begin_tokens(source, json_array_size(vocab), err))
        return false;
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        const json_t *pair = json_array_get(vocab, i);
        const json_t *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        if (!json_is_string(text) || !json_is_number(score))
            return err_set(err, ERR_FORMAT, "tokenizer.json: vocab entry %zu must be [text, score]",
                           i);
        if (!add_token(source, json_str(text), (json_int_t)i, json_number_value(score), err))
            return false;
    }
    return true;
}

// "a b", or ["a", "b"] for tokens that hold a space.
static bool read_merge(struct source *source, const json_t *value, size_t nth, struct err *err) {
    struct str a, b, line = json_str(value);
    if (line.data) {
        size_t space = str_find(line, STR(" "), 0);
        if (space == SIZE_MAX || str_find(line, STR(" "), space + 1) != SIZE_MAX)
            return err_set(err, ERR_FORMAT,
                           "tokenizer.json: merge %zu, \"%.*s\", is not two tokens and a space", nth,
                           (int)(line.n < 100 ? line.n : 100), line.data);
        a = str_slice(line, 0, space);
        b = str_slice(line, space + 1, line.n);
    } else if (json_array_size(value) == 2 && json_is_string(json_array_get(value, 0)) &&
               json_is_string(json_array_get(value, 1))) {
        a = json_str(json_array_get(value, 0));
        b = json_str(json_array_get(value, 1));
    } else {
        return err_set(err, ERR_FORMAT, "tokenizer.json: merge %zu is not a pair of tokens", nth);
    }
    struct source_merge *merge = &source->merges[source->n_merges++];
    return (arena_copy(&source->arena, a, &merge->a) &&
            arena_copy(&source->arena, b, &merge->b)) ||
           no_memory(err);
}

static bool read_merges(struct source *source, const json_t *merges, struct err *err) {
    size_t n = json_array_size(merges);
    if (!json_is_array(merges))
        return err_set(err, ERR_FORMAT, "tokenizer.json: \"merges\" of a BPE model must be an array");
    if (n > SOURCE_TOKENS_MAX)
        return err_set(err, ERR_FORMAT, "tokenizer.json: %zu merges, the limit is %d", n,
                       SOURCE_TOKENS_MAX);
    source->merges = arena_array(&source->arena, struct source_merge, n);
    if (!source->merges)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(merges, i);
        if (json_is_string(value) && str_starts(json_str(value), STR("#version")))
            continue;
        if (!read_merge(source, value, i, err))
            return false;
    }
    return true;
}

void source_fingerprint(struct bytes first, struct bytes second, char out[65]) {
    char parts[2 * 64 + 1];
    hash_sha256_hex(first, parts);
    hash_sha256_hex(second, parts + 64);
    hash_sha256_hex((struct bytes){(const uint8_t *)parts, 128}, out);
}

// The text with `null` in place of the tables that were read without jansson.
static json_t *parse_rest(struct str text, const struct json_skim *skim) {
    struct str first = skim->vocab, second = skim->merges;
    if (second.data && second.data < first.data) {
        first = skim->merges;
        second = skim->vocab;
    }
    struct strbuf rest = {0};
    const char *at = text.data;
    for (int i = 0; i < 2; i++) {
        struct str hole = i ? second : first;
        if (!hole.data)
            continue;
        strbuf_append(&rest, (struct str){at, (size_t)(hole.data - at)});
        strbuf_append_c(&rest, "null");
        at = hole.data + hole.n;
    }
    strbuf_append(&rest, (struct str){at, (size_t)(text.data + text.n - at)});
    json_t *value = rest.failed ? NULL : json_parse(strbuf_str(&rest), "tokenizer.json", NULL);
    strbuf_deinit(&rest);
    return value;
}

// The usual BPE, WordPiece or WordLevel file, without a JSON value for every token.
static bool read_skimming(struct source *source, struct str text) {
    struct json_skim skim;
    if (!json_skim_find(text, &skim) || skim.vocab.data[0] != '{' ||
        !(source->spec = parse_rest(text, &skim)))
        return false;
    if (!read_kind(source, json_object_get(source->spec, "model"), NULL) ||
        source->model == MODEL_UNIGRAM || !json_skim_vocab(source, skim.vocab))
        return false;
    return source->model != MODEL_BPE ||
           (skim.merges.data && json_skim_merges(source, skim.merges));
}

static bool read_all(struct source *source, struct str text, struct err *err) {
    source->spec = json_parse(text, "tokenizer.json", err);
    if (!source->spec)
        return false;
    json_t *model = json_object_get(source->spec, "model");
    if (!json_is_object(model))
        return err_set(err, ERR_FORMAT, "tokenizer.json: no object \"model\"");
    if (!read_kind(source, model, err))
        return false;
    if (source->model == MODEL_UNIGRAM ? !read_vocab_list(source, json_object_get(model, "vocab"), err)
                                       : !read_vocab_object(source, json_object_get(model, "vocab"), err))
        return false;
    if (source->model == MODEL_BPE && !read_merges(source, json_object_get(model, "merges"), err))
        return false;
    json_object_del(model, "vocab");
    json_object_del(model, "merges");
    return true;
}

bool source_from_json(struct source *source, struct bytes tokenizer_json,
                      struct bytes tokenizer_config_json, struct err *err) {
    *source = (struct source){0};
    bool ok = read_skimming(source, str_of(tokenizer_json));
    if (!ok) {
        source_deinit(source);
        ok = read_all(source, str_of(tokenizer_json), err);
    }
    ok = ok && source_read_config(source, tokenizer_config_json, err) &&
         source_add_config_tokens(source, err);
    if (ok)
        source_fingerprint(tokenizer_json, tokenizer_config_json, source->fingerprint);
    else
        source_deinit(source);
    return ok;
}
