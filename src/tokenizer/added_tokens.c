#include "tokenizer/added_tokens.h"

#include "base/utf8.h"
#include "tokenizer/characters.h"

static void index_group(struct added_group *group, const char *text) {
    uint32_t i = 0;
    for (uint32_t b = 0; b < 256; b++) {
        group->from[b] = i;
        while (i < group->n && (uint8_t)text[group->tokens[i].off] == b)
            i++;
    }
    group->from[256] = group->n;
    group->only_byte = -1;
    if (group->n && text[group->tokens[0].off] == text[group->tokens[group->n - 1].off])
        group->only_byte = (uint8_t)text[group->tokens[0].off];
}

bool added_tokens_read(struct added_tokens *added, const struct image *image, uint32_t n_ids,
                       struct err *err) {
    struct bytes t = image->section[IMAGE_ADDED], text = image->section[IMAGE_ADDED_TEXT];
    const struct added_token *tokens = (const struct added_token *)(const void *)t.data;
    uint32_t n = (uint32_t)(t.n / sizeof *tokens), n_raw = 0;
    added->text = (const char *)text.data;
    for (uint32_t i = 0; i < n; i++) {
        bool is_raw = !(tokens[i].flags & ADDED_NORMALIZED);
        if (tokens[i].off > text.n || tokens[i].n > text.n - tokens[i].off || tokens[i].n == 0 ||
            tokens[i].id < 0 || (uint32_t)tokens[i].id >= n_ids || (is_raw && n_raw != i))
            return err_set(err, ERR_FORMAT, "compiled tokenizer: added token %u does not fit", i);
        n_raw += is_raw;
    }
    added->raw = (struct added_group){.tokens = tokens, .n = n_raw};
    added->normalized = (struct added_group){.tokens = tokens + n_raw, .n = n - n_raw};
    index_group(&added->raw, added->text);
    index_group(&added->normalized, added->text);
    return true;
}

// The first position at or after `at` where some token may begin.
static size_t next_candidate(const struct added_group *group, struct str text, size_t at) {
    if (group->only_byte >= 0) {
        const char *found = at < text.n ? memchr(text.data + at, group->only_byte, text.n - at) : 0;
        return found ? (size_t)(found - text.data) : text.n;
    }
    while (at < text.n && group->from[(uint8_t)text.data[at]] ==
                              group->from[(uint8_t)text.data[at] + 1])
        at++;
    return at;
}

// The longest token that text has at `at`, or NULL: narrow the sorted range byte by byte.
static const struct added_token *longest_at(const struct added_tokens *added,
                                            const struct added_group *group, struct str text,
                                            size_t at) {
    uint32_t low = group->from[(uint8_t)text.data[at]];
    uint32_t high = group->from[(uint8_t)text.data[at] + 1];
    const struct added_token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (group->tokens[low].n == depth) { // sorts before those it is a prefix of
            best = &group->tokens[low];
            while (low < high && group->tokens[low].n == depth)
                low++;
        }
        if (at + depth >= text.n)
            break;
        uint8_t want = (uint8_t)text.data[at + depth];
        uint32_t from = low, to = high;
        while (from < to) { // first with a byte >= want
            uint32_t mid = from + (to - from) / 2;
            if ((uint8_t)added->text[group->tokens[mid].off + depth] < want)
                from = mid + 1;
            else
                to = mid;
        }
        low = from;
        for (to = high; from < to;) { // first with a byte > want
            uint32_t mid = from + (to - from) / 2;
            if ((uint8_t)added->text[group->tokens[mid].off + depth] <= want)
                from = mid + 1;
            else
                to = mid;
        }
        high = from;
    }
    return best;
}

static bool word_before(struct str text, size_t at) {
    if (at == 0)
        return false;
    size_t from = at - 1;
    while (from > 0 && ((uint8_t)text.data[from] & 0xC0) == 0x80)
        from--;
    return char_has(utf8_next(text, &from), CHAR_WORD);
}

static bool word_at(struct str text, size_t at) {
    return at < text.n && char_has(utf8_next(text, &at), CHAR_WORD);
}

static size_t spaces_before(struct str text, size_t at) {
    while (at > 0) {
        size_t from = at - 1;
        while (from > 0 && ((uint8_t)text.data[from] & 0xC0) == 0x80)
            from--;
        size_t next = from;
        if (!char_is_space(utf8_next(text, &next)))
            break;
        at = from;
    }
    return at;
}

static size_t spaces_behind(struct str text, size_t at) {
    while (at < text.n) {
        size_t next = at;
        if (!char_is_space(utf8_next(text, &next)))
            break;
        at = next;
    }
    return at;
}

bool added_next(struct added_cutter *c, struct added_part *out) {
    if (c->has_token) {
        *out = c->token;
        c->has_token = false;
        return true;
    }
    while ((c->search_from = next_candidate(c->group, c->text, c->search_from)) < c->text.n) {
        size_t from = c->search_from;
        const struct added_token *token = longest_at(c->added, c->group, c->text, from);
        if (!token) {
            c->search_from++;
            continue;
        }
        size_t to = from + token->n;
        c->search_from = to; // also where a match is refused: matches never overlap
        if (c->skip_special && token->flags & ADDED_SPECIAL)
            continue;
        if (token->flags & ADDED_SINGLE_WORD && (word_before(c->text, from) || word_at(c->text, to)))
            continue;
        if (token->flags & ADDED_LSTRIP) {
            size_t earlier = spaces_before(c->text, from);
            from = earlier > c->done ? earlier : c->done;
        }
        if (token->flags & ADDED_RSTRIP)
            to = spaces_behind(c->text, to);
        c->token = (struct added_part){{c->text.data + from, to - from}, from, token->id};
        bool text_first = c->done < from;
        if (text_first)
            *out = (struct added_part){str_slice(c->text, c->done, from), c->done, TOKEN_NONE};
        else
            *out = c->token;
        c->has_token = text_first;
        c->done = to;
        return true;
    }
    if (c->done >= c->text.n)
        return false;
    *out = (struct added_part){str_slice(c->text, c->done, c->text.n), c->done, TOKEN_NONE};
    c->done = c->text.n;
    return true;
}
