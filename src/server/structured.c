#include "server/structured.h"

#include <stdio.h>

#include "base/log.h"

enum { GRAMMARS_MAX = 64, GRAMMAR_BYTES_MAX = 256 << 20 };

void structured_deinit(struct structured *s) {
    strbuf_deinit(&s->text);
    *s = (struct structured){0};
}

// ---- Reading ---------------------------------------------------------------------------------------
static bool set(struct structured *out, enum grammar_kind kind, const char *param, struct request_error *error) {
    if (out->given) {
        error->param = param;
        return err_set(&error->err, ERR_INVALID, "'%s' and '%s' both say what the answer must look like; leave "
                       "one out", out->param, param);
    }
    out->given = true;
    out->kind = kind;
    out->param = param;
    return true;
}

static bool done(struct structured *out, struct request_error *error) {
    return !out->text.failed || err_set(&error->err, ERR_NOMEM, "out of memory for '%s'", out->param);
}

static bool set_json(struct structured *out, enum grammar_kind kind, const json_t *value, const char *param,
                     struct request_error *error) {
    if (!set(out, kind, param, error))
        return false;
    strbuf_json(&out->text, value);
    return done(out, error);
}

static bool set_text(struct structured *out, enum grammar_kind kind, struct str text, const char *param,
                     struct request_error *error) {
    if (!set(out, kind, param, error))
        return false;
    strbuf_append(&out->text, text);
    return done(out, error);
}

// A schema, or its text.
static bool set_schema(struct structured *out, const json_t *schema, const char *param,
                       struct request_error *error) {
    if (json_is_string(schema))
        return set_text(out, GRAMMAR_JSON_SCHEMA, json_str(schema), param, error);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return request_wrong(error, param, "a JSON Schema");
    return set_json(out, GRAMMAR_JSON_SCHEMA, schema, param, error);
}

// Fields that each hold one kind of constraint: at the top of the body, and vLLM's inside structured_outputs.
struct field {
    const char *name, *param;
    enum grammar_kind kind;
};
static const struct field TOP[] = {
    {"guided_json", "guided_json", GRAMMAR_JSON_SCHEMA},   {"guided_regex", "guided_regex", GRAMMAR_REGEX},
    {"guided_grammar", "guided_grammar", GRAMMAR_EBNF},    {"guided_choice", "guided_choice", GRAMMAR_CHOICE},
    {"grammar", "grammar", GRAMMAR_EBNF},
};
static const struct field INSIDE[] = {
    {"json", "structured_outputs.json", GRAMMAR_JSON_SCHEMA},
    {"regex", "structured_outputs.regex", GRAMMAR_REGEX},
    {"choice", "structured_outputs.choice", GRAMMAR_CHOICE},
    {"grammar", "structured_outputs.grammar", GRAMMAR_EBNF},
    {"structural_tag", "structured_outputs.structural_tag", GRAMMAR_TAG},
};

static bool read_fields(const json_t *object, const struct field *fields, size_t n, struct structured *out,
                        struct request_error *error) {
    for (size_t i = 0; i < n; i++) {
        const struct field *f = &fields[i];
        const json_t *value = request_given(object, f->name);
        if (!value)
            continue;
        bool is_text = json_is_string(value);
        bool ok;
        if (f->kind == GRAMMAR_JSON_SCHEMA)
            ok = set_schema(out, value, f->param, error);
        else if (f->kind == GRAMMAR_CHOICE)
            ok = json_is_array(value) ? set_json(out, f->kind, value, f->param, error)
                                      : request_wrong(error, f->param, "an array of strings");
        else if (f->kind == GRAMMAR_TAG && json_is_object(value))
            ok = set_json(out, f->kind, value, f->param, error);
        else
            ok = is_text ? set_text(out, f->kind, json_str(value), f->param, error)
                         : request_wrong(error, f->param, "a string");
        if (!ok)
            return false;
    }
    return true;
}

static bool read_format(const json_t *format, struct structured *out, struct request_error *error) {
    static const char PARAM[] = "response_format";
    const json_t *type = json_object_get(format, "type");
    const char *name = json_is_string(type) ? json_string_value(type) : "";
    if (strcmp(name, "text") == 0)
        return true;
    if (strcmp(name, "json_object") == 0)
        return set(out, GRAMMAR_JSON_OBJECT, PARAM, error);
    if (strcmp(name, "structural_tag") == 0)
        return set_json(out, GRAMMAR_TAG, format, PARAM, error);
    // Chat completions put the schema one level deeper than responses.
    const json_t *inner = json_object_get(format, "json_schema"), *holder = inner ? inner : format;
    const json_t *schema = json_object_get(holder, "schema");
    if (strcmp(name, "json_schema") != 0 || !(json_is_object(schema) || json_is_boolean(schema)))
        return request_wrong(error, PARAM, "of type text, json_object, structural_tag, or json_schema with a "
                             "schema");
    const json_t *strict = request_given(holder, "strict");
    if (strict && !json_is_boolean(strict))
        return request_wrong(error, PARAM, "a format whose strict is true or false");
    out->strict = json_is_true(strict);
    return set_json(out, GRAMMAR_JSON_SCHEMA, schema, PARAM, error);
}

bool structured_read(const json_t *body, const json_t *format, struct structured *out,
                     struct request_error *error) {
    const json_t *outputs = request_given(body, "structured_outputs");
    if (outputs && !json_is_object(outputs))
        return request_wrong(error, "structured_outputs", "an object");
    if (!read_fields(body, TOP, sizeof TOP / sizeof *TOP, out, error) ||
        !read_fields(outputs, INSIDE, sizeof INSIDE / sizeof *INSIDE, out, error))
        return false;
    if (outputs && json_is_true(json_object_get(outputs, "json_object")) &&
        !set(out, GRAMMAR_JSON_OBJECT, "structured_outputs.json_object", error))
        return false;
    if (outputs && !out->given)
        return request_wrong(error, "structured_outputs", "an object with json, json_object, regex, choice, "
                             "grammar or structural_tag");
    if (!format)
        format = request_given(body, "response_format");
    return !format || read_format(format, out, error);
}

json_t *structured_format(const struct structured *s) {
    struct str text = strbuf_str(&s->text);
    struct err ignored = {0};
    json_t *inner = NULL, *format = NULL;
    switch (s->kind) {
    case GRAMMAR_JSON_OBJECT:
        return json_pack("{s:s, s:{s:s}}", "type", "json_schema", "json_schema", "type", "object");
    case GRAMMAR_EBNF:
        return json_pack("{s:s, s:s%}", "type", "grammar", "grammar", text.data, text.n);
    case GRAMMAR_REGEX:
        return json_pack("{s:s, s:s%}", "type", "regex", "pattern", text.data, text.n);
    case GRAMMAR_JSON_SCHEMA:
        inner = json_parse(text, "schema", &ignored);
        return inner ? json_pack("{s:s, s:o, s:s}", "type", "json_schema", "json_schema", inner, "label", s->param)
                     : NULL;
    case GRAMMAR_CHOICE:
        inner = json_parse(text, "choice", &ignored);
        return inner ? json_pack("{s:s, s:o}", "type", "choice", "choices", inner) : NULL;
    case GRAMMAR_TAG:
        inner = json_parse(text, "tag", &ignored);
        format = json_object_get(inner, "structures") ? json_incref(inner)
                 : json_object_get(inner, "format")   ? json_incref(json_object_get(inner, "format"))
                                                      : json_incref(inner);
        if (json_object_get(format, "structures"))
            json_object_set_new(format, "type", json_string("structural_tag"));
        json_decref(inner);
        return format;
    }
    return NULL;
}

// ---- Compiling -------------------------------------------------------------------------------------
// What the grammar leaves out, in one sentence.
static bool check_ignored(struct http_exchange *exchange, const struct grammar *grammar, bool strict,
                          const char *param, struct request_error *error) {
    size_t n = grammar_n_ignored(grammar);
    if (n == 0)
        return true;
    if (strict) {
        error->param = param;
        return err_set(&error->err, ERR_INVALID, "'%s' is strict, but '%s' at %.300s cannot be enforced; leave it "
                       "out or set strict to false", param, grammar_ignored(grammar, 0),
                       grammar_ignored_path(grammar, 0));
    }
    struct strbuf list = {0}, header = {0};
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&list, "%s%s", i ? ", " : "", grammar_ignored(grammar, i));
    strbuf_append_c(&header, "199 loam \"JSON Schema keywords that are not enforced: ");
    strbuf_append(&header, strbuf_str(&list));
    strbuf_char(&header, '"');
    if (exchange && !header.failed && !list.failed) {
        http_add_header(exchange, "Warning", header.data);
        log_warn("server: request=%s %s: JSON Schema keywords that are not enforced: %s",
                 http_request_id(exchange), param, list.data);
    }
    strbuf_deinit(&list);
    strbuf_deinit(&header);
    return true;
}

struct grammar *structured_compile(struct server *server, struct http_exchange *exchange,
                                   const struct grammar_spec *spec, bool strict, const char *param,
                                   struct request_error *error) {
    struct served *served = server->served;
    const struct model_config *config = model_config_of(served->bundle.model);
    if (!served->grammar_vocab) // built for the first that asks: starting must not wait for it
        served->grammar_vocab = grammar_vocab_of_tokenizer(served->bundle.tokenizer, config->n_vocab,
                                                           config->eos, config->n_eos, &error->err);
    if (served->grammar_vocab && !served->grammars)
        served->grammars = grammar_cache_create(served->grammar_vocab, GRAMMARS_MAX, GRAMMAR_BYTES_MAX,
                                                &error->err);
    struct grammar *grammar = NULL;
    if (served->grammars)
        grammar = grammar_cache_get(served->grammars, spec, &error->err);
    if (!grammar && (error->err.code == ERR_UNSUPPORTED || error->err.code == ERR_FORMAT))
        error->err.code = ERR_INVALID;
    if (!grammar)
        error->param = param;
    if (grammar && !check_ignored(exchange, grammar, strict, param, error)) {
        grammar_release(grammar);
        return NULL;
    }
    return grammar;
}

struct grammar *structured_grammar(struct server *server, struct http_exchange *exchange,
                                   const struct structured *s, struct request_error *error) {
    if (!s->given)
        return NULL;
    struct grammar_spec spec = {.kind = s->kind, .text = strbuf_str(&s->text)};
    return structured_compile(server, exchange, &spec, s->strict, s->param, error);
}
