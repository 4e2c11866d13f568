#include "server/call_grammar.h"

#include <ctype.h>
#include <stdio.h>

static json_t *const_string(struct str text) {
    return json_pack("{s:s, s:s%}", "type", "const_string", "value", text.n ? text.data : "", text.n);
}
static json_t *const_c(const char *text) {
    return const_string(text ? str_from(text) : STR(""));
}
static json_t *regex(const char *pattern) {
    return json_pack("{s:s, s:s}", "type", "regex", "pattern", pattern);
}
static json_t *list_of(const char *type, json_t *elements) {
    return json_pack("{s:s, s:o}", "type", type, "elements", elements);
}

// ---- A call ----------------------------------------------------------------------------------------
json_t *call_parameters(const json_t *tool) {
    const json_t *given = json_object_get(json_object_get(tool, "function"), "parameters");
    if (!json_is_object(given) || json_object_size(given) == 0)
        return json_pack("{s:s, s:{}, s:b}", "type", "object", "properties", "additionalProperties", 0);
    json_t *schema = json_copy((json_t *)(uintptr_t)given);
    // Arguments are an object, whatever else the schema allows.
    if (schema && json_object_set_new(schema, "type", json_string("object")) != 0) {
        json_decref(schema);
        schema = NULL;
    }
    return schema;
}

static bool is_plain_name(struct str name) {
    for (size_t i = 0; i < name.n; i++)
        if (!isalnum((unsigned char)name.data[i]) && !strchr("_-.", name.data[i]))
            return false;
    return name.n > 0;
}

static json_t *arguments_of(const struct call_grammar_options *o, const json_t *tool, size_t idx) {
    bool strict = o->all_strict || json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
    json_t *schema = strict ? call_parameters(tool) : json_pack("{s:s}", "type", "object");
    char label[64];
    snprintf(label, sizeof label, "tools[%zu].function.parameters", idx);
    return json_pack("{s:s, s:o, s:s}", "type", "json_schema", "json_schema", schema, "label", label);
}

// write_call with its marks filled in.
static json_t *call_of(const struct call_grammar_options *o, const json_t *tool, size_t idx) {
    json_t *parts = json_array();
    struct strbuf text = {0};
    for (const char *at = o->format->write_call; *at; at++) {
        if (at[0] != '$') {
            strbuf_char(&text, *at);
            continue;
        }
        at++;
        if (*at == 'n') {
            strbuf_append(&text, json_str(json_object_get(json_object_get(tool, "function"), "name")));
            continue;
        }
        if (text.n)
            json_array_append_new(parts, const_string(strbuf_str(&text)));
        strbuf_clear(&text);
        json_array_append_new(parts, *at == 'i' ? regex("[0-9]{1,3}") : arguments_of(o, tool, idx));
    }
    if (text.n)
        json_array_append_new(parts, const_string(strbuf_str(&text)));
    strbuf_deinit(&text);
    return list_of("sequence", parts);
}

bool call_grammar_can(const struct output_format *f) {
    return f->body != CALL_TAGGED && f->body != CALL_PYTHON && !f->string_mark;
}

// All calls of an answer.
static json_t *calls_of(const struct call_grammar_options *o, struct err *err) {
    const struct output_format *f = o->format;
    if (!call_grammar_can(f)) {
        err_set(err, ERR_INVALID, "calls in the syntax of the %s family cannot be constrained; use tool_choice "
                "\"auto\" without strict tools", f->name);
        return NULL;
    }
    json_t *either = json_array();
    for (size_t i = 0; i < json_array_size(o->tools); i++) {
        const json_t *tool = json_array_get(o->tools, i);
        struct str name = json_str(json_object_get(json_object_get(tool, "function"), "name"));
        if (!is_plain_name(name)) {
            err_set(err, ERR_INVALID, "tools[%zu]: a name of letters, digits, '_', '-' and '.' is needed where the "
                    "call is constrained, not \"%.*s\"", i, (int)(name.n < 80 ? name.n : 80), name.data);
            json_decref(either);
            return NULL;
        }
        json_array_append_new(either, call_of(o, tool, i));
    }
    json_t *call = list_of("or", either), *calls = json_array();
    if (f->write_open)
        json_array_append_new(calls, const_c(f->write_open));
    json_array_append(calls, call);
    if (f->write_between && !o->one_call)
        json_array_append_new(calls, json_pack("{s:s, s:o}", "type", "repeat", "content",
                                               list_of("sequence", json_pack("[o, O]", const_c(f->write_between),
                                                                             call))));
    if (f->write_close)
        json_array_append_new(calls, const_c(f->write_close));
    json_decref(call);
    return list_of("sequence", calls);
}

// ---- The answer --------------------------------------------------------------------------------------
// Any text in which no call begins.
static json_t *text_of(const struct call_grammar_options *o, bool calls) {
    const struct output_format *f = o->format;
    json_t *excludes = json_array(), *text;
    const char *const marks[] = {f->section_open, f->call_open, f->write_open};
    for (size_t i = 0; calls && i < 3; i++)
        if (marks[i] && !(i == 2 && (f->section_open || f->call_open)))
            json_array_append_new(excludes, json_string(marks[i]));
    text = json_pack("{s:s, s:o}", "type", "any_text", "excludes", excludes);
    if (calls && !f->call_open && !f->harmony) // there a call is the whole answer
        json_object_set_new(text, "first_not", json_string("{["));
    return text;
}

// An answer by tool calls or by text.
static json_t *body_of(const struct call_grammar_options *o, struct err *err) {
    const struct output_format *f = o->format;
    json_t *calls = NULL;
    if (o->tools) {
        calls = calls_of(o, err);
        if (!calls)
            return NULL;
    }
    if (o->required)
        return calls;
    json_t *text = o->content ? json_incref(o->content) : text_of(o, calls != NULL);
    if (f->write_text)
        text = list_of("sequence", json_pack("[o, o]", const_c(f->write_text), text));
    if (!calls)
        return text;
    json_t *before = NULL; // what may be said before the calls
    if (!o->content && !f->harmony && f->call_open)
        before = text_of(o, true);
    if (!o->content && !f->harmony && !before && f->section_open)
        before = text_of(o, true);
    if (before)
        calls = list_of("sequence", json_pack("[o, o]", before, calls));
    return list_of("or", json_pack("[o, o]", text, calls));
}

static json_t *reasoning_of(const struct call_grammar_options *o) {
    const struct output_format *f = o->format;
    json_t *excludes = json_pack("[s]", f->think_close);
    json_t *rest = json_pack("[{s:s, s:o}, o, o]", "type", "any_text", "excludes", excludes, const_c(f->think_close),
                             f->harmony ? const_c("") : regex("[ \\n]{0,4}"));
    if (o->reasoning == CALL_REASONING_OPEN)
        return list_of("sequence", rest);
    json_array_insert_new(rest, 0, const_c(f->think_open));
    return list_of("or", json_pack("[o, o]", const_c(""), list_of("sequence", rest)));
}

json_t *call_grammar(const struct call_grammar_options *o, struct err *err) {
    err_clear(err);
    json_t *body = body_of(o, err);
    if (!body && err->code)
        return NULL;
    json_t *format = body;
    if (o->reasoning != CALL_REASONING_NONE && o->format->think_close)
        format = list_of("sequence", json_pack("[o, o]", reasoning_of(o), body));
    json_t *tag = json_pack("{s:s, s:o}", "type", "structural_tag", "format", format);
    if (!tag)
        err_set(err, ERR_NOMEM, "out of memory for a grammar");
    return tag;
}
