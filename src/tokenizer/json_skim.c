#include "tokenizer/json_skim.h"

#include "base/utf8.h"

struct cursor {
    const char *p, *end;
};

static void skip_space(struct cursor *c) {
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t'))
        c->p++;
}

static bool take(struct cursor *c, char want) {
    skip_space(c);
    if (c->p == c->end || *c->p != want)
        return false;
    c->p++;
    return true;
}

// A string's raw text between its quotes.
static bool raw_string(struct cursor *c, struct str *out, bool *has_escape) {
    *has_escape = false;
    if (!take(c, '"'))
        return false;
    const char *from = c->p;
    for (; c->p < c->end && *c->p != '"'; c->p++) {
        if ((uint8_t)*c->p < 0x20)
            return false;
        if (*c->p == '\\') {
            *has_escape = true;
            if (++c->p == c->end)
                return false;
        }
    }
    if (c->p == c->end)
        return false;
    *out = (struct str){from, (size_t)(c->p - from)};
    c->p++;
    return true;
}

// Pass over any value; brackets need only balance here, because jansson or the readers below see
// every byte again.
static bool skip_value(struct cursor *c) {
    size_t depth = 0;
    do {
        skip_space(c);
        if (c->p == c->end)
            return false;
        struct str ignored;
        bool escape;
        switch (*c->p) {
        case '{':
        case '[':
            depth++;
            c->p++;
            break;
        case '}':
        case ']':
            if (depth == 0)
                return false;
            depth--;
            c->p++;
            break;
        case '"':
            if (!raw_string(c, &ignored, &escape))
                return false;
            break;
        default:
            c->p++;
            break;
        }
        // At depth 0 a scalar ends where its member does.
    } while (depth > 0 || (c->p < c->end && *c->p != ',' && *c->p != '}' && *c->p != ']' &&
                           *c->p != ' ' && *c->p != '\n' && *c->p != '\r' && *c->p != '\t'));
    return true;
}

typedef bool member_fn(struct cursor *c, struct str key, void *user);

static bool each_member(struct cursor *c, member_fn *fn, void *user) {
    if (!take(c, '{'))
        return false;
    if (take(c, '}'))
        return true;
    do {
        struct str key;
        bool escape;
        if (!raw_string(c, &key, &escape) || !take(c, ':') || !fn(c, key, user))
            return false;
    } while (take(c, ','));
    return take(c, '}');
}

static bool model_member(struct cursor *c, struct str key, void *user) {
    struct json_skim *skim = user;
    struct str *value = str_eq_c(key, "vocab") ? &skim->vocab
                        : str_eq_c(key, "merges") ? &skim->merges
                                                  : NULL;
    skip_space(c);
    const char *from = c->p;
    if (!skip_value(c) || (value && value->data))
        return false;
    if (value)
        *value = (struct str){from, (size_t)(c->p - from)};
    return true;
}

static bool top_member(struct cursor *c, struct str key, void *user) {
    struct json_skim *skim = user;
    if (!str_eq_c(key, "model"))
        return skip_value(c);
    if (skim->vocab.data || skim->merges.data)
        return false;
    return each_member(c, model_member, user);
}

bool json_skim_find(struct str text, struct json_skim *skim) {
    struct cursor c = {text.data, text.data + text.n};
    *skim = (struct json_skim){0};
    if (text.n == 0 || !each_member(&c, top_member, skim))
        return false;
    skip_space(&c);
    return c.p == c.end && skim->vocab.data;
}

// ---- Strings ----------------------------------------------------------------------------------

static int hex4(const char *p, const char *end) {
    int value = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char d = p[i];
        int digit = d >= '0' && d <= '9'   ? d - '0'
                    : d >= 'a' && d <= 'f' ? d - 'a' + 10
                    : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static bool unescape(struct str raw, struct strbuf *out) {
    const char *p = raw.data, *end = raw.data + raw.n;
    while (p < end) {
        if (*p != '\\') {
            strbuf_char(out, *p++);
            continue;
        }
        p++; // an escape never ends the raw text
        char e = *p++;
        static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
        const char *name = e ? strchr(NAMES, e) : NULL;
        if (name) {
            strbuf_char(out, VALUES[name - NAMES]);
            continue;
        }
        int high = e == 'u' ? hex4(p, end) : -1;
        if (high < 0)
            return false;
        p += 4;
        uint32_t c = (uint32_t)high;
        if (c >= 0xD800 && c <= 0xDFFF) {
            int low = c < 0xDC00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u' ? hex4(p + 2, end) : -1;
            if (low < 0xDC00 || low > 0xDFFF)
                return false;
            c = 0x10000 + (c - 0xD800) * 0x400 + ((uint32_t)low - 0xDC00);
            p += 6;
        }
        strbuf_code_point(out, c);
    }
    return !out->failed;
}

static bool read_string(struct cursor *c, struct source *source, struct str *out) {
    bool has_escape;
    if (!raw_string(c, out, &has_escape))
        return false;
    if (!has_escape)
        return true;
    struct strbuf text = {0};
    bool ok = unescape(*out, &text) && arena_copy(&source->arena, strbuf_str(&text), out);
    strbuf_deinit(&text);
    return ok;
}

// At least this many values are in a list; an upper bound, from its commas.
static size_t count_commas(struct str text) {
    size_t n = 1;
    for (const char *p = text.data, *end = p + text.n; (p = memchr(p, ',', (size_t)(end - p))); p++)
        n++;
    return n;
}

bool json_skim_vocab(struct source *source, struct str vocab) {
    struct cursor c = {vocab.data, vocab.data + vocab.n};
    size_t n = count_commas(vocab);
    if (!utf8_valid(vocab) || n > SOURCE_TOKENS_MAX || !take(&c, '{'))
        return false;
    source->tokens = arena_array(&source->arena, struct source_token, n);
    if (!source->tokens)
        return false;
    source->n_tokens = 0;
    if (take(&c, '}'))
        return true;
    do {
        struct source_token *token = &source->tokens[source->n_tokens++];
        if (!read_string(&c, source, &token->text) || !take(&c, ':'))
            return false;
        skip_space(&c);
        const char *from = c.p;
        int32_t id = 0;
        for (; c.p < c.end && *c.p >= '0' && *c.p <= '9'; c.p++) {
            id = id * 10 + (*c.p - '0');
            if (id >= SOURCE_TOKENS_MAX)
                return false;
        }
        if (c.p == from)
            return false;
        token->id = id;
    } while (take(&c, ','));
    return take(&c, '}') && c.p == c.end;
}

bool json_skim_merges(struct source *source, struct str merges) {
    struct cursor c = {merges.data, merges.data + merges.n};
    size_t n = count_commas(merges);
    if (!utf8_valid(merges) || n > 2 * (size_t)SOURCE_TOKENS_MAX || !take(&c, '['))
        return false;
    source->merges = arena_array(&source->arena, struct source_merge, n);
    if (!source->merges)
        return false;
    source->n_merges = 0;
    if (take(&c, ']'))
        return true;
    do {
        struct source_merge *merge = &source->merges[source->n_merges++];
        if (take(&c, '[')) {
            if (!read_string(&c, source, &merge->a) || !take(&c, ',') ||
                !read_string(&c, source, &merge->b) || !take(&c, ']'))
                return false;
            continue;
        }
        struct str line;
        if (!read_string(&c, source, &line))
            return false;
        size_t space = str_find(line, STR(" "), 0);
        if (space == SIZE_MAX || str_find(line, STR(" "), space + 1) != SIZE_MAX ||
            str_starts(line, STR("#version")))
            return false;
        merge->a = str_slice(line, 0, space);
        merge->b = str_slice(line, space + 1, line.n);
    } while (take(&c, ','));
    return take(&c, ']') && c.p == c.end;
}
