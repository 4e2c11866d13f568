#include "tokenizer/source_tables.h"

#include <stdlib.h>

#include "tokenizer/characters.h"
#include "tokenizer/token_hash.h"
#include "tokenizer/vocab.h"

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
}

bool token_index_init(struct token_index *index, const struct source *source, struct err *err) {
    uint32_t n = vocab_n_slots(source->n_tokens);
    *index = (struct token_index){calloc(n, sizeof(uint32_t)), n - 1, source->tokens};
    if (!index->slots)
        return no_memory(err);
    for (uint32_t i = 0; i < source->n_tokens; i++) {
        uint32_t at = (uint32_t)token_hash(source->tokens[i].text);
        while (index->slots[at & index->mask])
            at++;
        index->slots[at & index->mask] = i + 1;
    }
    return true;
}

void token_index_deinit(struct token_index *index) {
    free(index->slots);
    *index = (struct token_index){0};
}

uint32_t token_index_find(const struct token_index *index, struct str text) {
    for (uint32_t at = (uint32_t)token_hash(text);; at++) {
        uint32_t i = index->slots[at & index->mask];
        if (!i)
            return UINT32_MAX;
        if (str_eq(index->tokens[i - 1].text, text))
            return i - 1;
    }
}

// ---- Merges -----------------------------------------------------------------------------------

struct derived {
    struct source_merge merge;
    double score;
    uint32_t n_left, n_right; // characters
    token_id left, right;     // ids: the order among a token's own merges
    uint32_t nth_token;
};

static int by_score(const struct derived *x, const struct derived *y) {
    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    if (x->n_left != y->n_left)
        return x->n_left < y->n_left ? -1 : 1;
    return x->n_right < y->n_right ? -1 : x->n_right > y->n_right;
}
// What a stable sort leaves as it was: by token, and within a token by the parts' ids.
static int by_place(const struct derived *x, const struct derived *y) {
    if (x->nth_token != y->nth_token)
        return x->nth_token < y->nth_token ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}
static int ascending_order(const void *a, const void *b) {
    int order = by_score(a, b);
    return order ? order : by_place(a, b);
}
static int descending_order(const void *a, const void *b) {
    int order = by_score(b, a);
    return order ? order : by_place(a, b);
}

struct derivation {
    struct derived *items; // owned
    size_t n, capacity;
};

static bool add_derived(struct derivation *d, struct derived item) {
    if (d->n == d->capacity) {
        size_t want = d->capacity ? 2 * d->capacity : 1024;
        struct derived *grown = realloc(d->items, want * sizeof *grown);
        if (!grown)
            return false;
        d->items = grown;
        d->capacity = want;
    }
    d->items[d->n++] = item;
    return true;
}

static uint32_t n_characters(struct str text) {
    uint32_t n_chars = 0;
    for (size_t i = 0, n; i < text.n; i += n, n_chars++)
        char_at(text.data + i, &n);
    return n_chars;
}

static bool derive(const struct source *source, const struct token_index *index,
                   struct derivation *d, struct err *err) {
    for (uint32_t i = 0; i < source->n_tokens; i++) {
        struct str whole = source->tokens[i].text;
        for (size_t at = 0, n; at < whole.n;) {
            char_at(whole.data + at, &n);
            at += n;
            if (at >= whole.n)
                break;
            struct source_merge merge = {str_slice(whole, 0, at), str_slice(whole, at, whole.n)};
            uint32_t left = token_index_find(index, merge.a);
            uint32_t right = left == UINT32_MAX ? UINT32_MAX : token_index_find(index, merge.b);
            if (right == UINT32_MAX)
                continue;
            struct derived item = {merge, source->tokens[i].score, n_characters(merge.a),
                                   n_characters(merge.b), source->tokens[left].id,
                                   source->tokens[right].id, i};
            if (d->n >= SOURCE_TOKENS_MAX)
                return err_set(err, ERR_FORMAT, "more than %d merges", SOURCE_TOKENS_MAX);
            if (!add_derived(d, item))
                return no_memory(err);
        }
    }
    return true;
}

bool source_derive_merges(struct source *source, bool ascending, struct err *err) {
    struct token_index index;
    struct derivation d = {0};
    if (!token_index_init(&index, source, err))
        return false;
    bool ok = derive(source, &index, &d, err);
    if (ok) {
        if (d.n)
            qsort(d.items, d.n, sizeof *d.items, ascending ? ascending_order : descending_order);
        source->merges = arena_array(&source->arena, struct source_merge, d.n);
        ok = source->merges || no_memory(err);
    }
    for (size_t i = 0; ok && i < d.n; i++)
        source->merges[i] = d.items[i].merge;
    source->n_merges = ok ? (uint32_t)d.n : 0;
    free(d.items);
    token_index_deinit(&index);
    return ok;
}

// ---- tokenizer_config.json --------------------------------------------------------------------

bool source_read_config(struct source *source, struct bytes config, struct err *err) {
    if (config.n == 0)
        return true;
    source->config = json_parse(str_of(config), "tokenizer_config.json", err);
    return source->config != NULL;
}

struct config_token {
    json_int_t id;
    const json_t *value;
};

static int compare_ids(const void *a, const void *b) {
    const struct config_token *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

bool source_add_config_tokens(struct source *source, struct err *err) {
    json_t *decoder = json_object_get(source->config, "added_tokens_decoder");
    size_t n = json_object_size(decoder), i = 0;
    json_t *list = json_object_get(source->spec, "added_tokens");
    json_t *known = json_object();
    struct config_token *tokens = calloc(n + 1, sizeof *tokens);
    bool ok = tokens && known;
    if (ok && !json_is_array(list)) {
        list = json_array();
        ok = json_object_set_new(source->spec, "added_tokens", list) == 0;
    }
    ok = ok || no_memory(err);
    for (size_t k = 0; ok && k < json_array_size(list); k++) {
        struct str content = json_str(json_object_get(json_array_get(list, k), "content"));
        if (content.data &&
            json_object_setn_new_nocheck(known, content.data, content.n, json_true()) != 0)
            ok = no_memory(err);
    }
    for (void *it = json_object_iter(decoder); ok && it; it = json_object_iter_next(decoder, it)) {
        char *end;
        const char *key = json_object_iter_key(it);
        long long id = strtoll(key, &end, 10);
        struct str content = json_str(json_object_get(json_object_iter_value(it), "content"));
        if (*key == '\0' || *end != '\0' || id < 0 || !content.data)
            ok = err_set(err, ERR_FORMAT,
                         "tokenizer_config.json: \"added_tokens_decoder\" must map ids to tokens");
        else if (!json_object_getn(known, content.data, content.n))
            tokens[i++] = (struct config_token){id, json_object_iter_value(it)};
    }
    if (ok && i)
        qsort(tokens, i, sizeof *tokens, compare_ids);
    for (size_t k = 0; ok && k < i; k++) {
        json_t *token = json_copy((json_t *)tokens[k].value);
        bool numbered = json_object_set_new(token, "id", json_integer(tokens[k].id)) == 0;
        // Appending takes the token over in any case.
        ok = (json_array_append_new(list, token) == 0 && numbered) || no_memory(err);
    }
    json_decref(known);
    free(tokens);
    return ok;
}
