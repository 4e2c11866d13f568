#include "grammar/vocab.h"

#include <stdlib.h>

#include "grammar/charset.h"

struct item {
    struct bytes text;
    token_id token;
    uint16_t lead;
};
struct items {
    struct item *items;
    size_t n, capacity;
    bool failed;
};

static void add_item(struct items *list, struct item item) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 1024;
        struct item *items = realloc(list->items, capacity * sizeof *items);
        if (!items) {
            list->failed = true;
            return;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
}

static int by_text(const void *a, const void *b) {
    const struct item *s = a, *t = b;
    size_t n = s->text.n < t->text.n ? s->text.n : t->text.n;
    int order = n ? memcmp(s->text.data, t->text.data, n) : 0;
    if (order == 0)
        order = (s->text.n > t->text.n) - (s->text.n < t->text.n);
    return order ? order : (s->lead > t->lead) - (s->lead < t->lead);
}

static size_t common_prefix(struct bytes a, struct bytes b) {
    size_t n = a.n < b.n ? a.n : b.n, i = 0;
    while (i < n && a.data[i] == b.data[i])
        i++;
    return i;
}

// Build a trie of the items (sorted here) and empty the list.
static bool build_trie(struct items *list, struct trie *trie) {
    bool ok = !list->failed;
    if (ok && list->n)
        qsort(list->items, list->n, sizeof *list->items, by_text);
    size_t n_nodes = 1, depth_max = 0;
    for (size_t i = 0; ok && i < list->n; i++) {
        size_t shared = i ? common_prefix(list->items[i - 1].text, list->items[i].text) : 0;
        n_nodes += list->items[i].text.n - shared;
        depth_max = list->items[i].text.n > depth_max ? list->items[i].text.n : depth_max;
    }
    ok = ok && n_nodes < UINT32_MAX;
    uint32_t *path = NULL;
    if (ok) {
        trie->nodes = calloc(n_nodes + 1, sizeof *trie->nodes);
        trie->entries = calloc(list->n + 1, sizeof *trie->entries);
        path = calloc(depth_max + 1, sizeof *path);
        ok = trie->nodes && trie->entries && path;
    }
    if (ok) {
        uint32_t n = 1;
        size_t depth = 0;
        for (size_t i = 0; i < list->n; i++) {
            struct bytes text = list->items[i].text;
            size_t shared = i ? common_prefix(list->items[i - 1].text, text) : 0;
            for (; depth > shared; depth--)
                trie->nodes[path[depth]].skip = n;
            for (; depth < text.n; n++) {
                trie->nodes[n].byte = text.data[depth++];
                trie->nodes[n].depth = (uint16_t)depth;
                trie->nodes[n].entries = (uint32_t)i;
                path[depth] = n;
            }
            trie->entries[i] =
                (struct trie_entry){list->items[i].token, list->items[i].lead};
        }
        for (; depth > 0; depth--)
            trie->nodes[path[depth]].skip = n;
        trie->nodes[0].skip = n;
        trie->nodes[n].entries = (uint32_t)list->n;
        trie->n = n;
        // A node's entries are those whose text ends there: with the texts sorted, they come right
        // before the node's first child's.
    }
    free(path);
    free(list->items);
    *list = (struct items){0};
    return ok;
}

static void trie_deinit(struct trie *trie) {
    free(trie->nodes);
    free(trie->entries);
}

uint32_t vocab_string_tail(struct exprs *x, bool loose) {
    expr_id any = loose ? char_any_json_loose(x) : char_any(x, SPELL_JSON);
    return expr_cat(x, expr_rep(x, any, 0, EXPR_INF), expr_byte(x, '"'));
}

uint32_t vocab_plain_content(struct exprs *x) {
    struct char_range ranges[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    struct char_set set = {.ranges = ranges, .n = 3};
    return expr_rep(x, char_set_expr(x, &set, SPELL_PLAIN), 0, EXPR_INF);
}

static void mask_add(uint32_t *mask, token_id token) {
    mask[token >> 5] |= 1u << (token & 31);
}

static bool is_space(uint8_t b) {
    return b == ' ' || b == '\t' || b == '\n' || b == '\r';
}

bool vocab_slice_has(uint32_t i, uint8_t b) {
    bool lower = (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9');
    switch (i) {
    case 1:
        return b >= 0x20 && b < 0x7F && b != '"' && b != '\\';
    case 2:
        return lower || (b >= 'A' && b <= 'Z') || b == '_' || b == '-';
    default:
        return lower;
    }
}

static bool build(struct grammar_vocab *v, struct exprs *x) {
    struct items all = {0}, rest = {0}, others[VOCAB_SLICES] = {0}, suffix[2] = {{0}, {0}};
    expr_id tail[2] = {vocab_string_tail(x, false), vocab_string_tail(x, true)};
    struct vocab_string *strings[2] = {&v->strict, &v->loose};
    expr_id content = vocab_plain_content(x);
    for (uint32_t t = 0; t < v->n_tokens; t++) {
        struct bytes b = v->token_bytes[t];
        if (b.n == 0)
            continue;
        token_id id = (token_id)t;
        add_item(&all, (struct item){b, id, 0});
        size_t lead = 0;
        while (lead < b.n && is_space(b.data[lead]))
            lead++;
        add_item(&rest, (struct item){{b.data + lead, b.n - lead}, id, (uint16_t)lead});
        expr_id at = content;
        uint32_t n_chars = 0;
        for (size_t i = 0; i < b.n && at != EXPR_NONE; i++) {
            at = expr_step(x, at, b.data[i]);
            n_chars += (b.data[i] & 0xC0) != 0x80;
        }
        bool plain = at != EXPR_NONE && n_chars <= VOCAB_CHARS_MAX;
        if (plain)
            mask_add(v->content[n_chars], id); // made cumulative below
        for (uint32_t k = 0; k < VOCAB_SLICES; k++) {
            bool in = k == 0 ? plain : b.n <= VOCAB_CHARS_MAX;
            for (size_t i = 0; k > 0 && i < b.n && in; i++)
                in = vocab_slice_has(k, b.data[i]);
            if (in)
                mask_add(v->slices[k].mask, id);
            else
                add_item(&others[k], (struct item){b, id, 0});
        }
        for (int k = 0; k < 2; k++) {
            expr_id e = tail[k];
            for (size_t i = 0; i < b.n; i++) {
                e = expr_step(x, e, b.data[i]);
                if (e == EXPR_EPS) {
                    struct bytes after = {b.data + i + 1, b.n - i - 1};
                    add_item(&suffix[k], (struct item){after, id, 0});
                    break;
                }
                if (e == EXPR_NONE)
                    break;
            }
            if (e > EXPR_EPS)
                mask_add(strings[k]->inside, id);
        }
    }
    for (uint32_t n = 2; n <= VOCAB_CHARS_MAX; n++)
        for (uint32_t w = 0; w < v->n_words; w++)
            v->content[n][w] |= v->content[n - 1][w];
    bool ok = build_trie(&all, &v->all);
    ok = build_trie(&rest, &v->rest) && ok;
    for (int k = 0; k < VOCAB_SLICES; k++)
        ok = build_trie(&others[k], &v->slices[k].others) && ok;
    ok = build_trie(&suffix[0], &v->strict.suffix) && ok;
    ok = build_trie(&suffix[1], &v->loose.suffix) && ok;
    return ok && !exprs_failed(x);
}

static bool copy_tokens(struct grammar_vocab *v, const struct grammar_vocab_desc *desc) {
    size_t total = 0;
    for (uint32_t t = 0; t < desc->n_tokens; t++)
        total += desc->token_bytes[t].n + 1;
    v->token_bytes = calloc(desc->n_tokens ? desc->n_tokens : 1, sizeof *v->token_bytes);
    v->bytes_storage = malloc(total ? total : 1);
    v->eos = calloc(desc->n_eos ? desc->n_eos : 1, sizeof *v->eos);
    if (!v->token_bytes || !v->bytes_storage || !v->eos)
        return false;
    uint8_t *at = v->bytes_storage;
    for (uint32_t t = 0; t < desc->n_tokens; t++) {
        struct bytes b = desc->token_bytes[t];
        // A token beyond 64 kB cannot be generated by any sane model; depth has 16 bits.
        if (b.n == 0 || b.n > UINT16_MAX - 2)
            continue;
        bool special = desc->special && desc->special[t];
        v->token_bytes[t] = (struct bytes){at, b.n + special};
        if (special)
            *at++ = VOCAB_SPECIAL_MARK;
        memcpy(at, b.data, b.n);
        at += b.n;
        v->depth_max = b.n + special > v->depth_max ? (uint32_t)b.n + special : v->depth_max;
    }
    for (uint32_t i = 0; i < desc->n_eos; i++) {
        token_id id = desc->eos[i];
        if (id < 0 || (uint32_t)id >= desc->n_tokens)
            continue;
        v->eos[v->n_eos++] = id;
        v->token_bytes[id] = (struct bytes){0};
    }
    return true;
}

struct grammar_vocab *grammar_vocab_create(const struct grammar_vocab_desc *desc,
                                           struct err *err) {
    struct grammar_vocab *v = calloc(1, sizeof *v);
    struct exprs *x = exprs_create(1 << 16);
    bool ok = v && x && desc->n_tokens <= INT32_MAX / 2;
    if (ok) {
        v->n_tokens = desc->n_tokens;
        v->n_words = (desc->n_tokens + 31) / 32;
        for (int i = 0; i <= VOCAB_CHARS_MAX && ok; i++)
            ok = (v->content[i] = calloc(v->n_words + 1, sizeof(uint32_t))) != NULL;
        for (int i = 0; i < VOCAB_SLICES && ok; i++)
            ok = (v->slices[i].mask = calloc(v->n_words + 1, sizeof(uint32_t))) != NULL;
        v->strict.inside = calloc(v->n_words + 1, sizeof(uint32_t));
        v->loose.inside = calloc(v->n_words + 1, sizeof(uint32_t));
        ok = ok && v->strict.inside && v->loose.inside && copy_tokens(v, desc) && build(v, x);
    }
    exprs_destroy(x);
    if (ok)
        return v;
    grammar_vocab_destroy(v);
    err_set(err, ERR_NOMEM, "grammar: out of memory for a vocabulary of %u tokens",
            desc->n_tokens);
    return NULL;
}

void grammar_vocab_destroy(struct grammar_vocab *v) {
    if (!v)
        return;
    for (int i = 0; i <= VOCAB_CHARS_MAX; i++)
        free(v->content[i]);
    for (int i = 0; i < VOCAB_SLICES; i++) {
        free(v->slices[i].mask);
        trie_deinit(&v->slices[i].others);
    }
    free(v->strict.inside);
    free(v->loose.inside);
    trie_deinit(&v->all);
    trie_deinit(&v->rest);
    trie_deinit(&v->strict.suffix);
    trie_deinit(&v->loose.suffix);
    free(v->token_bytes);
    free(v->bytes_storage);
    free(v->eos);
    free(v);
}

struct str vocab_special_at(const struct grammar_vocab *v, struct str text) {
    struct str best = {0};
    // Special tokens share their first byte: they lie together in the trie.
    for (uint32_t i = 1; i < v->all.n; i = v->all.nodes[i].skip) {
        if (v->all.nodes[i].byte != VOCAB_SPECIAL_MARK)
            continue;
        uint32_t end = v->all.nodes[v->all.nodes[i].skip].entries;
        for (uint32_t k = v->all.nodes[i].entries; k < end; k++) {
            struct bytes b = v->token_bytes[v->all.entries[k].token];
            struct str spelling = {(const char *)b.data + 1, b.n - 1};
            if (spelling.n > best.n && str_starts(text, spelling))
                best = spelling;
        }
    }
    return best;
}

uint32_t grammar_vocab_n(const struct grammar_vocab *v) {
    return v->n_tokens;
}
uint32_t grammar_vocab_mask_words(const struct grammar_vocab *v) {
    return v->n_words;
}

static size_t trie_bytes(const struct trie *trie) {
    return (trie->n + 1) * sizeof *trie->nodes +
           trie->nodes[trie->n].entries * sizeof *trie->entries;
}

size_t grammar_vocab_bytes(const struct grammar_vocab *v) {
    size_t total = sizeof *v + v->n_tokens * sizeof *v->token_bytes;
    total += (VOCAB_CHARS_MAX + 3 + VOCAB_SLICES) * (size_t)(v->n_words + 1) * sizeof(uint32_t);
    for (uint32_t t = 0; t < v->n_tokens; t++)
        total += v->token_bytes[t].n;
    total += trie_bytes(&v->all) + trie_bytes(&v->rest) + trie_bytes(&v->strict.suffix) +
             trie_bytes(&v->loose.suffix);
    for (int i = 0; i < VOCAB_SLICES; i++)
        total += trie_bytes(&v->slices[i].others);
    return total;
}

struct grammar_vocab *grammar_vocab_of_tokenizer(const struct tokenizer *tokenizer,
                                                 uint32_t n_tokens, const token_id *eos,
                                                 uint32_t n_eos, struct err *err) {
    uint32_t n_known = tokenizer_n_vocab(tokenizer), n = n_tokens ? n_tokens : n_known;
    struct bytes *bytes = calloc(n ? n : 1, sizeof *bytes);
    uint8_t *special = calloc(n ? n : 1, 1);
    token_id *ends = calloc(n_eos + 1, sizeof *ends);
    struct grammar_vocab *v = NULL;
    if (bytes && special && ends) {
        for (uint32_t t = 0; t < n && t < n_known; t++) {
            bytes[t] = tokenizer_token_bytes(tokenizer, (token_id)t);
            special[t] = tokenizer_is_special(tokenizer, (token_id)t);
            if (special[t] && bytes[t].n == 0)
                bytes[t] = bytes_of(tokenizer_token(tokenizer, (token_id)t));
        }
        if (n_eos)
            memcpy(ends, eos, n_eos * sizeof *ends);
        ends[n_eos] = tokenizer_eos(tokenizer);
        v = grammar_vocab_create(&(struct grammar_vocab_desc){.n_tokens = n,
                                                              .token_bytes = bytes,
                                                              .special = special,
                                                              .eos = ends,
                                                              .n_eos = n_eos + 1},
                                 err);
    } else {
        err_set(err, ERR_NOMEM, "grammar: out of memory for a vocabulary of %u tokens", n);
    }
    free(bytes);
    free(special);
    free(ends);
    return v;
}
