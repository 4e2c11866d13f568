#include "grammar/tag.h"

#include <stdlib.h>

#include "base/json.h"
#include "grammar/charset.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"

enum { TAG_PARTS_MAX = 512, TAG_DEPTH_MAX = 32 };

struct tag {
    struct exprs *x;
    const struct grammar_vocab *vocab;
    const struct schema_options *options;
    struct err *err;
    struct schema *schemas[TAG_PARTS_MAX];
    uint32_t n_schemas;
    struct ebnf *ebnfs[TAG_PARTS_MAX];
    uint32_t n_ebnfs;
    expr_id any; // one character
    expr_id root;
};

static expr_id bad(struct tag *t, const char *path, const char *what) {
    if (t->err->code == ERR_OK)
        err_set(t->err, ERR_INVALID, "structural tag: at %s: %s", path, what);
    return EXPR_NONE;
}

// What is wrong inside a part: where the part is, or what its "label" calls it.
static void wrap(struct tag *t, const char *path) {
    if (path[0] == '$')
        err_wrap(t->err, "structural tag: at %s", path);
    else
        err_wrap(t->err, "%s", path);
}

// A fixed text; where it spells special tokens, those tokens may stand for their spelling.
static expr_id literal(struct tag *t, struct str text) {
    struct exprs *x = t->x;
    expr_id plain = expr_text(x, text);
    struct strbuf marked = {0};
    bool any = false;
    for (size_t i = 0; i < text.n;) {
        struct str special = vocab_special_at(t->vocab, str_slice(text, i, text.n));
        if (special.n) {
            strbuf_char(&marked, (char)VOCAB_SPECIAL_MARK);
            strbuf_append(&marked, special);
            i += special.n;
            any = true;
        } else {
            strbuf_char(&marked, text.data[i++]);
        }
    }
    expr_id e = any ? expr_or2(x, plain, expr_text(x, strbuf_str(&marked))) : plain;
    if (marked.failed)
        exprs_fail(x, "memory");
    strbuf_deinit(&marked);
    return e;
}

static expr_id any_text(struct tag *t) {
    return expr_rep(t->x, t->any, 0, EXPR_INF);
}

// Text that holds none of the stops.
static expr_id text_without(struct tag *t, expr_id stops) {
    if (stops == EXPR_NONE)
        return any_text(t);
    struct exprs *x = t->x;
    expr_id with = expr_cat(x, any_text(t), expr_cat(x, stops, any_text(t)));
    return expr_and2(x, any_text(t), expr_not(x, with));
}

static expr_id format_of(struct tag *t, const json_t *format, const char *path, struct str until,
                         uint32_t depth);

static const char *path_in(char *out, size_t n, const char *path, const char *part, size_t i) {
    if (i == SIZE_MAX)
        snprintf(out, n, "%s.%s", path, part);
    else
        snprintf(out, n, "%s.%s[%zu]", path, part, i);
    return out;
}

static expr_id schema_of(struct tag *t, json_t *json, const char *path) {
    if (t->n_schemas == TAG_PARTS_MAX)
        return bad(t, path, "too many schemas");
    struct schema *s = schema_create(t->x, json, t->options, t->err);
    if (!s) {
        wrap(t, path);
        return EXPR_NONE;
    }
    t->schemas[t->n_schemas++] = s;
    return schema_root(s);
}

static bool text_of(struct tag *t, const json_t *object, const char *key, const char *path,
                    struct str *out) {
    const json_t *v = json_object_get(object, key);
    char where[256];
    if (!json_is_string(v))
        return bad(t, path_in(where, sizeof where, path, key, SIZE_MAX), "must be a string"), false;
    *out = json_str(v);
    return true;
}

// begin, content, end. `end` may be one string or a list of them (any closes the tag).
static expr_id tag_of(struct tag *t, const json_t *tag, const char *path, uint32_t depth) {
    struct exprs *x = t->x;
    struct str begin, stop = {0};
    char where[256];
    const json_t *end = json_object_get(tag, "end"), *content = json_object_get(tag, "content");
    if (!text_of(t, tag, "begin", path, &begin))
        return EXPR_NONE;
    expr_id closing = EXPR_NONE;
    size_t n = json_is_array(end) ? json_array_size(end) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(end) ? json_array_get(end, i) : end;
        if (!json_is_string(one))
            return bad(t, path_in(where, sizeof where, path, "end", SIZE_MAX),
                       "must be a string or a list of strings");
        closing = expr_or2(x, closing, literal(t, json_str(one)));
        if (i == 0)
            stop = json_str(one);
    }
    if (n == 0)
        closing = EXPR_EPS;
    expr_id inside;
    if (content) {
        path_in(where, sizeof where, path, "content", SIZE_MAX);
        inside = format_of(t, content, where, stop, depth + 1);
    } else if (json_object_get(tag, "schema")) { // the older form
        path_in(where, sizeof where, path, "schema", SIZE_MAX);
        inside = schema_of(t, json_object_get(tag, "schema"), where);
    } else {
        return bad(t, path, "has no \"content\"");
    }
    return expr_cat(x, expr_term(x, literal(t, begin)),
                    expr_cat(x, inside, expr_term(x, closing)));
}

static expr_id tags_of(struct tag *t, const json_t *object, const char *key, const char *path,
                       uint32_t depth) {
    const json_t *list = json_object_get(object, key);
    char where[256];
    if (!json_is_array(list) || json_array_size(list) == 0)
        return bad(t, path_in(where, sizeof where, path, key, SIZE_MAX),
                   "must be a non-empty list of tags");
    expr_id all = EXPR_NONE;
    for (size_t i = 0; i < json_array_size(list); i++)
        all = expr_or2(t->x, all,
                       tag_of(t, json_array_get(list, i),
                              path_in(where, sizeof where, path, key, i), depth));
    return all;
}

// Free text until a trigger, which then must go on as one of the tags.
static expr_id triggered_of(struct tag *t, const json_t *object, const char *tags_key,
                            const char *path, struct str until, uint32_t depth) {
    struct exprs *x = t->x;
    const json_t *triggers = json_object_get(object, "triggers");
    const json_t *tags = json_object_get(object, tags_key);
    char where[256];
    if (!json_is_array(triggers) || json_array_size(triggers) == 0)
        return bad(t, path_in(where, sizeof where, path, "triggers", SIZE_MAX),
                   "must be a non-empty list of strings");
    expr_id stops = until.n ? expr_text(x, until) : EXPR_NONE;
    for (size_t i = 0; i < json_array_size(triggers); i++) {
        const json_t *trigger = json_array_get(triggers, i);
        if (!json_is_string(trigger) || json_string_length(trigger) == 0)
            return bad(t, path_in(where, sizeof where, path, "triggers", i),
                       "must be a non-empty string");
        stops = expr_or2(x, stops, expr_text(x, json_str(trigger)));
    }
    for (size_t i = 0; i < json_array_size(tags); i++) {
        struct str begin = json_str(json_object_get(json_array_get(tags, i), "begin"));
        bool found = false;
        for (size_t k = 0; k < json_array_size(triggers) && begin.data; k++)
            found |= str_starts(begin, json_str(json_array_get(triggers, k)));
        if (begin.data && !found)
            return bad(t, path_in(where, sizeof where, path, tags_key, i),
                       "\"begin\" starts with none of the triggers");
    }
    expr_id tag = tags_of(t, object, tags_key, path, depth);
    expr_id text = expr_term(x, text_without(t, stops));
    if (t->err->code != ERR_OK)
        return EXPR_NONE;
    bool at_least_one = json_is_true(json_object_get(object, "at_least_one"));
    bool stop_after_first = json_is_true(json_object_get(object, "stop_after_first"));
    if (stop_after_first) {
        expr_id first = expr_cat(x, text, tag);
        return at_least_one ? first : expr_or2(x, first, text);
    }
    return expr_cat(x, text,
                    expr_rep(x, expr_cat(x, tag, text), at_least_one ? 1 : 0, EXPR_INF));
}

static expr_id separated_of(struct tag *t, const json_t *object, const char *path,
                            uint32_t depth) {
    struct exprs *x = t->x;
    struct str separator = {"", 0};
    if (json_object_get(object, "separator") && !text_of(t, object, "separator", path, &separator))
        return EXPR_NONE;
    expr_id tag = tags_of(t, object, "tags", path, depth);
    expr_id all = tag;
    if (!json_is_true(json_object_get(object, "stop_after_first")))
        all = expr_cat(x, tag,
                       expr_rep(x, expr_cat(x, expr_term(x, literal(t, separator)), tag), 0,
                                EXPR_INF));
    return json_is_true(json_object_get(object, "at_least_one")) ? all : expr_opt(x, all);
}

// `until`: what ends the surrounding tag, so that free text stops before it.
static expr_id format_of(struct tag *t, const json_t *format, const char *path, struct str until,
                         uint32_t depth) {
    struct exprs *x = t->x;
    struct str text;
    const char *type = json_string_value(json_object_get(format, "type"));
    char where[256];
    if (t->err->code != ERR_OK) // what was wrong first is told
        return EXPR_NONE;
    if (depth > TAG_DEPTH_MAX)
        return bad(t, path, "nested too deeply");
    if (!type)
        return bad(t, path, "has no \"type\"");
    if (!strcmp(type, "const_string"))
        return text_of(t, format, "value", path, &text) ? expr_term(x, literal(t, text))
                                                        : EXPR_NONE;
    const char *label = json_string_value(json_object_get(format, "label"));
    if (!strcmp(type, "json_schema")) {
        json_t *json = json_object_get(format, "json_schema");
        path_in(where, sizeof where, path, "json_schema", SIZE_MAX);
        if (label)
            snprintf(where, sizeof where, "%s", label);
        return json ? schema_of(t, json, where) : bad(t, where, "is missing");
    }
    if (!strcmp(type, "any_text")) {
        expr_id stops = until.n ? expr_text(x, until) : EXPR_NONE;
        const json_t *excludes = json_object_get(format, "excludes");
        for (size_t i = 0; i < json_array_size(excludes); i++) {
            const json_t *one = json_array_get(excludes, i);
            if (!json_is_string(one) || json_string_length(one) == 0)
                return bad(t, path_in(where, sizeof where, path, "excludes", i),
                           "must be a non-empty string");
            stops = expr_or2(x, stops, expr_text(x, json_str(one)));
        }
        expr_id free_text = text_without(t, stops);
        struct str first = json_str(json_object_get(format, "first_not"));
        if (first.n) { // the first character that is no white space is none of these
            struct byte_set spaces = {{1ull << ' ' | 1ull << '\t' | 1ull << '\n' | 1ull << '\r'}}, set = {0};
            for (size_t i = 0; i < first.n; i++)
                byte_set_add(&set, (uint8_t)first.data[i]);
            expr_id begins = expr_cat(x, expr_rep(x, expr_bytes(x, &spaces), 0, EXPR_INF),
                                      expr_cat(x, expr_bytes(x, &set), any_text(t)));
            free_text = expr_and2(x, free_text, expr_not(x, begins));
        }
        return expr_term(x, free_text);
    }
    if (!strcmp(type, "repeat")) { // none, one or more
        path_in(where, sizeof where, path, "content", SIZE_MAX);
        return expr_rep(x, format_of(t, json_object_get(format, "content"), where, until, depth + 1), 0,
                        EXPR_INF);
    }
    if (!strcmp(type, "choice")) {
        const json_t *choices = json_object_get(format, "choices");
        expr_id all = EXPR_NONE;
        for (size_t i = 0; i < json_array_size(choices); i++) {
            if (!json_is_string(json_array_get(choices, i)))
                return bad(t, path_in(where, sizeof where, path, "choices", i), "must be a string");
            all = expr_or2(x, all, expr_text(x, json_str(json_array_get(choices, i))));
        }
        return expr_term(x, all);
    }
    if (!strcmp(type, "structural_tag")) {
        const json_t *inner = json_object_get(format, "format");
        if (json_object_get(format, "structures"))
            return triggered_of(t, format, "structures", path, until, depth);
        path_in(where, sizeof where, path, "format", SIZE_MAX);
        return format_of(t, inner, where, until, depth + 1);
    }
    if (!strcmp(type, "regex")) {
        if (!text_of(t, format, "pattern", path, &text))
            return EXPR_NONE;
        expr_id e = regex_expr(x, text, SPELL_PLAIN, REGEX_WHOLE, t->err);
        if (t->err->code != ERR_OK)
            wrap(t, path);
        return expr_term(x, e);
    }
    if (!strcmp(type, "grammar")) {
        if (!text_of(t, format, "grammar", path, &text))
            return EXPR_NONE;
        if (t->n_ebnfs == TAG_PARTS_MAX)
            return bad(t, path, "too many grammars");
        struct ebnf *g = ebnf_create(x, text, t->err);
        if (!g) {
            wrap(t, path);
            return EXPR_NONE;
        }
        t->ebnfs[t->n_ebnfs++] = g;
        return ebnf_root(g);
    }
    if (!strcmp(type, "sequence") || !strcmp(type, "or")) {
        const json_t *list = json_object_get(format, "elements");
        if (!json_is_array(list) || json_array_size(list) == 0)
            return bad(t, path_in(where, sizeof where, path, "elements", SIZE_MAX),
                       "must be a non-empty list");
        bool either = type[0] == 'o';
        expr_id all = either ? EXPR_NONE : EXPR_EPS;
        for (size_t i = json_array_size(list); i-- > 0;) {
            path_in(where, sizeof where, path, "elements", i);
            // Text that something fixed follows ends before it.
            const json_t *next = json_array_get(list, i + 1);
            struct str stop = until;
            if (!either && next) {
                const json_t *fixed = json_object_get(next, "value");
                if (!fixed)
                    fixed = json_object_get(next, "begin");
                stop = json_is_string(fixed) ? json_str(fixed) : (struct str){0};
            }
            expr_id e = format_of(t, json_array_get(list, i), where, stop, depth + 1);
            all = either ? expr_or2(x, e, all) : expr_cat(x, e, all);
        }
        return all;
    }
    if (!strcmp(type, "tag"))
        return tag_of(t, format, path, depth);
    if (!strcmp(type, "triggered_tags"))
        return triggered_of(t, format, "tags", path, until, depth);
    if (!strcmp(type, "tags_with_separator"))
        return separated_of(t, format, path, depth);
    return bad(t, path, "this \"type\" is unknown");
}

struct tag *tag_create(struct exprs *x, struct str text, const struct grammar_vocab *vocab,
                       const struct schema_options *options, struct err *err) {
    err_clear(err);
    json_t *json = json_parse(text, "structural tag", err);
    if (!json) {
        err->code = err->code == ERR_FORMAT ? ERR_INVALID : err->code;
        return NULL;
    }
    struct tag *t = calloc(1, sizeof *t);
    if (t) {
        t->x = x;
        t->vocab = vocab;
        t->options = options;
        t->err = err;
        t->any = char_any(x, SPELL_PLAIN);
        const json_t *format = json_object_get(json, "format");
        if (json_object_get(json, "structures"))
            t->root = triggered_of(t, json, "structures", "$", (struct str){0}, 0);
        else
            t->root = format_of(t, format ? format : json, format ? "$.format" : "$",
                                (struct str){0}, 0);
        if (err->code == ERR_OK && t->root == EXPR_NONE && !exprs_failed(x))
            err_set(err, ERR_INVALID, "structural tag: nothing matches it");
        t->options = NULL;
        t->err = NULL;
    } else {
        err_set(err, ERR_NOMEM, "structural tag: out of memory");
    }
    json_decref(json);
    if (err->code == ERR_OK)
        return t;
    tag_destroy(t);
    return NULL;
}

void tag_destroy(struct tag *t) {
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_schemas; i++)
        schema_destroy(t->schemas[i]);
    for (uint32_t i = 0; i < t->n_ebnfs; i++)
        ebnf_destroy(t->ebnfs[i]);
    free(t);
}

expr_id tag_root(const struct tag *t) {
    return t->root;
}

size_t tag_n_ignored(const struct tag *t) {
    size_t n = 0;
    for (uint32_t i = 0; i < t->n_schemas; i++)
        n += schema_n_ignored(t->schemas[i]);
    return n;
}

static const struct schema *schema_with(const struct tag *t, size_t *i) {
    uint32_t k = 0;
    for (; *i >= schema_n_ignored(t->schemas[k]); k++)
        *i -= schema_n_ignored(t->schemas[k]);
    return t->schemas[k];
}

const char *tag_ignored(const struct tag *t, size_t i) {
    const struct schema *s = schema_with(t, &i);
    return schema_ignored(s, i);
}

const char *tag_ignored_path(const struct tag *t, size_t i) {
    const struct schema *s = schema_with(t, &i);
    return schema_ignored_path(s, i);
}
