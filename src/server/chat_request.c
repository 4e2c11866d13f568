#include "server/chat_request.h"

#include <stdlib.h>

#include "server/call_grammar.h"

void chat_request_deinit(struct chat_request *r) {
    request_fields_deinit(&r->fields);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->kwargs);
    json_decref(r->allowed_tools);
    structured_deinit(&r->structured);
    *r = (struct chat_request){0};
}

static bool out_of_memory(struct request_error *error) {
    return err_set(&error->err, ERR_NOMEM, "out of memory for the messages");
}

static bool is_text_part(const char *type) {
    return strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0 ||
           strcmp(type, "refusal") == 0;
}

json_t *chat_plain_content(const json_t *content, const char *param, size_t message_idx,
                           struct request_error *error) {
    if (!json_is_array(content))
        return json_incref((json_t *)(uintptr_t)content);
    struct strbuf text = {0};
    for (size_t p = 0; p < json_array_size(content); p++) {
        const json_t *part = json_array_get(content, p), *type = json_object_get(part, "type");
        const json_t *part_text = json_object_get(part, "text");
        if (!part_text) // an earlier answer that was a refusal
            part_text = json_object_get(part, "refusal");
        if (!json_is_string(type) || !json_is_string(part_text) || !is_text_part(json_string_value(type))) {
            error->param = param;
            err_set(&error->err, ERR_INVALID, "'%s[%zu].content[%zu]' is of type \"%s\"; this model takes "
                    "text only", param, message_idx, p, json_is_string(type) ? json_string_value(type) : "?");
            strbuf_deinit(&text);
            return NULL;
        }
        strbuf_append(&text, json_str(part_text));
    }
    json_t *plain = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.n);
    if (!plain)
        out_of_memory(error);
    strbuf_deinit(&text);
    return plain;
}

// Tool calls as templates want them: the arguments as an object, where they are one.
static bool open_arguments(json_t *message, const char *param, size_t idx, struct request_error *error) {
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls)) {
        json_object_del(message, "tool_calls");
        return true;
    }
    error->param = param;
    if (!json_is_array(calls))
        return err_set(&error->err, ERR_INVALID, "'%s[%zu].tool_calls' must be an array", param, idx);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        if (!json_is_string(json_object_get(function, "name")))
            return err_set(&error->err, ERR_INVALID, "'%s[%zu].tool_calls[%zu]' must have a function with a "
                           "name", param, idx, i);
        const json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_string(arguments))
            continue;
        struct err ignored;
        json_t *object = json_parse(json_string_length(arguments) ? json_str(arguments) : STR("{}"),
                                    "arguments", &ignored);
        if (json_is_object(object))
            json_object_set(function, "arguments", object);
        json_decref(object);
    }
    error->param = NULL;
    return true;
}

bool chat_request_set_messages(struct chat_request *r, json_t *messages, const char *param,
                               struct request_error *error) {
    r->messages = messages;
    error->param = param;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return err_set(&error->err, ERR_INVALID, "'%s' must be an array with at least one message", param);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        json_t *content = json_object_get(message, "content");
        if (!json_is_string(json_object_get(message, "role")))
            return err_set(&error->err, ERR_INVALID, "'%s[%zu]' must be an object with a 'role'", param, i);
        if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content))
            return err_set(&error->err, ERR_INVALID, "'%s[%zu].content' must be a string or an array of parts",
                           param, i);
        if (content && json_object_set_new(message, "content",
                                           chat_plain_content(content, param, i, error)) != 0)
            return error->err.code ? false : out_of_memory(error);
        json_t *reasoning = json_object_get(message, "reasoning");
        if (json_is_string(reasoning) && !json_object_get(message, "reasoning_content"))
            json_object_set(message, "reasoning_content", reasoning);
        if (!open_arguments(message, param, i, error))
            return false;
    }
    error->param = NULL;
    return true;
}

bool chat_request_set_variable(struct chat_request *r, const char *name, json_t *value,
                               struct request_error *error) {
    if (!r->kwargs)
        r->kwargs = json_object();
    if (!json_object_get(r->kwargs, name) && json_object_set(r->kwargs, name, value) != 0) {
        json_decref(value);
        return out_of_memory(error);
    }
    json_decref(value);
    return true;
}

bool chat_request_variables(struct chat_request *r, const struct server *server, const json_t *body,
                            const json_t *effort, struct request_error *error) {
    static const char *const EFFORTS[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    const json_t *kwargs = request_given(body, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs))
        return request_wrong(error, "chat_template_kwargs", "an object");
    r->kwargs = kwargs ? json_copy((json_t *)(uintptr_t)kwargs) : json_object();
    if (!r->kwargs)
        return out_of_memory(error);
    if (!effort)
        effort = request_given(body, "reasoning_effort");
    if (effort) {
        bool known = false;
        for (size_t i = 0; i < sizeof EFFORTS / sizeof *EFFORTS; i++)
            known |= json_is_string(effort) && strcmp(json_string_value(effort), EFFORTS[i]) == 0;
        if (!known)
            return request_wrong(error, "reasoning_effort", "none, minimal, low, medium, high or xhigh");
        bool none = strcmp(json_string_value(effort), "none") == 0;
        if (!chat_request_set_variable(r, "enable_thinking", json_boolean(!none), error) ||
            (!none && !chat_request_set_variable(r, "reasoning_effort",
                                                 json_incref((json_t *)(uintptr_t)effort), error)))
            return false;
    }
    const json_t *enable = request_given(body, "enable_thinking");
    if (enable && !json_is_boolean(enable))
        return request_wrong(error, "enable_thinking", "true or false");
    if (enable && !chat_request_set_variable(r, "enable_thinking", json_boolean(json_is_true(enable)), error))
        return false;
    if (server->options.template_kwargs)
        json_object_update_missing(r->kwargs, (json_t *)(uintptr_t)server->options.template_kwargs);
    return true;
}

bool chat_request_allow_tools(struct chat_request *r, const json_t *allowed, struct request_error *error) {
    static const char WANTED[] = "of mode auto or required, with tools that have names";
    const json_t *mode = json_object_get(allowed, "mode"), *tools = json_object_get(allowed, "tools");
    const char *word = json_is_string(mode) ? json_string_value(mode) : "";
    if ((strcmp(word, "auto") != 0 && strcmp(word, "required") != 0) || json_array_size(tools) == 0)
        return request_wrong(error, "tool_choice", WANTED);
    r->tool_choice = word[0] == 'r' ? TOOL_CHOICE_REQUIRED : TOOL_CHOICE_AUTO;
    r->allowed_tools = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        json_t *name = json_object_get(function ? function : tool, "name");
        if (!json_is_string(name))
            return request_wrong(error, "tool_choice", WANTED);
        if (!r->allowed_tools || json_array_append(r->allowed_tools, name) != 0)
            return out_of_memory(error);
    }
    return true;
}

bool chat_request_parallel(struct chat_request *r, const json_t *body, struct request_error *error) {
    bool parallel = true;
    if (!request_bool(body, "parallel_tool_calls", &parallel, error))
        return false;
    r->one_call = !parallel;
    return true;
}

static struct str name_of(const json_t *tool) {
    return json_str(json_object_get(json_object_get(tool, "function"), "name"));
}

static bool has_tool(const struct chat_request *r, struct str name) {
    for (size_t i = 0; i < json_array_size(r->tools); i++)
        if (str_eq(name_of(json_array_get(r->tools, i)), name))
            return true;
    return false;
}

bool chat_request_check(const struct chat_request *r, struct request_error *error) {
    error->param = "tool_choice";
    if (r->tool_choice == TOOL_CHOICE_REQUIRED && json_array_size(r->tools) == 0)
        return err_set(&error->err, ERR_INVALID, "'tool_choice' asks for a call, but the request has no tools");
    if (r->tool_choice == TOOL_CHOICE_NAMED && !has_tool(r, r->tool_name))
        return err_set(&error->err, ERR_INVALID, "'tool_choice' names no tool of this request");
    for (size_t i = 0; i < json_array_size(r->allowed_tools); i++)
        if (!has_tool(r, json_str(json_array_get(r->allowed_tools, i))))
            return err_set(&error->err, ERR_INVALID, "'tool_choice' allows a tool that this request does not have");
    if (r->structured.given && (r->tool_choice == TOOL_CHOICE_REQUIRED || r->tool_choice == TOOL_CHOICE_NAMED))
        return err_set(&error->err, ERR_INVALID, "'tool_choice' asks for a call and '%s' for another answer; leave "
                       "one out", r->structured.param);
    error->param = NULL;
    return true;
}

// ---- Templates that know no tools ----------------------------------------------------------------
// The tools are described in the system message, and calls and results are written out as text.
static bool describe_tools(json_t *messages, const json_t *tools) {
    struct strbuf text = {0};
    json_t *first = json_array_get(messages, 0);
    const json_t *role = json_object_get(first, "role");
    bool has_system = json_is_string(role) && strcmp(json_string_value(role), "system") == 0;
    if (has_system && json_is_string(json_object_get(first, "content"))) {
        strbuf_append(&text, json_str(json_object_get(first, "content")));
        strbuf_append_c(&text, "\n\n");
    }
    strbuf_append_c(&text, "You can call these functions:\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        strbuf_json(&text, json_object_get(json_array_get(tools, i), "function"));
        strbuf_char(&text, '\n');
    }
    strbuf_append_c(&text, "To call one, answer with\n<tool_call>\n{\"name\": \"the function's name\", "
                           "\"arguments\": {}}\n</tool_call>\nand its result comes back between "
                           "<tool_response> and </tool_response>.");
    json_t *content = text.failed ? NULL : json_stringn(text.data, text.n);
    strbuf_deinit(&text);
    if (has_system)
        return content && json_object_set_new(first, "content", content) == 0;
    return content &&
           json_array_insert_new(messages, 0, json_pack("{s:s, s:o}", "role", "system", "content",
                                                        content)) == 0;
}

static bool write_out_calls(json_t *message) {
    struct strbuf text = {0};
    const json_t *content = json_object_get(message, "content"), *role = json_object_get(message, "role");
    const json_t *calls = json_object_get(message, "tool_calls");
    bool is_result = strcmp(json_string_value(role), "tool") == 0;
    if (!calls && !is_result)
        return true;
    if (is_result)
        strbuf_append_c(&text, "<tool_response>\n");
    if (json_is_string(content))
        strbuf_append(&text, json_str(content));
    if (is_result)
        strbuf_append_c(&text, "\n</tool_response>");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        strbuf_append_c(&text, text.n ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        strbuf_json(&text, json_object_get(function, "name"));
        strbuf_append_c(&text, ", \"arguments\": ");
        const json_t *arguments = json_object_get(function, "arguments");
        if (json_is_string(arguments))
            strbuf_append(&text, json_str(arguments));
        else
            strbuf_json(&text, arguments);
        strbuf_append_c(&text, "}\n</tool_call>");
    }
    bool ok = !text.failed &&
              json_object_set_new(message, "content", json_stringn(text.data ? text.data : "", text.n)) == 0;
    json_object_del(message, "tool_calls");
    if (is_result)
        json_object_set_new(message, "role", json_string("user"));
    strbuf_deinit(&text);
    return ok;
}

// ---- Rendering -----------------------------------------------------------------------------------
// The messages as this template can take them: a deep copy.
static json_t *fitted_messages(const struct server *server, const struct chat_request *r,
                               const json_t *tools, bool arguments_as_text) {
    json_t *messages = json_deep_copy(r->messages);
    const struct served *served = server->served;
    bool knows_tools = served_template_has(served, "tools") || served_template_has(served, "tool_calls");
    bool knows_developer = served_template_has(served, "developer");
    bool ok = messages != NULL;
    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        if (!knows_developer && strcmp(json_string_value(json_object_get(message, "role")), "developer") == 0)
            ok = json_object_set_new(message, "role", json_string("system")) == 0;
        if (!knows_tools)
            ok = ok && write_out_calls(message);
        for (size_t c = 0; ok && arguments_as_text && knows_tools && c < json_array_size(calls); c++) {
            json_t *function = json_object_get(json_array_get(calls, c), "function");
            const json_t *arguments = json_object_get(function, "arguments");
            struct strbuf text = {0};
            if (json_is_object(arguments)) {
                strbuf_json(&text, arguments);
                ok = !text.failed && json_object_set_new(function, "arguments",
                                                         json_stringn(text.data, text.n)) == 0;
            }
            strbuf_deinit(&text);
        }
    }
    if (ok && tools && !knows_tools)
        ok = describe_tools(messages, tools);
    if (!ok) {
        json_decref(messages);
        return NULL;
    }
    return messages;
}

static const json_t *tools_for_model(const struct chat_request *r) {
    return r->tool_choice != TOOL_CHOICE_NONE && json_array_size(r->tools) ? r->tools : NULL;
}

bool chat_request_render(const struct server *server, const struct chat_request *r, struct strbuf *text,
                         struct token_list *prompt, struct request_error *error) {
    struct strbuf own = {0};
    struct strbuf *out = text ? text : &own;
    const json_t *tools = tools_for_model(r);
    bool ok = false;
    // Most templates write the arguments of earlier calls as JSON and want objects; some join them as text.
    for (int as_text = 0; as_text < 2 && !ok; as_text++) {
        json_t *messages = fitted_messages(server, r, tools, as_text);
        if (!messages) {
            strbuf_deinit(&own);
            return out_of_memory(error);
        }
        struct chat_render_options options = {.messages = messages, .tools = tools, .kwargs = r->kwargs,
                                              .add_generation_prompt = !r->continue_final,
                                              .continue_final_message = r->continue_final};
        struct err retried = {0};
        strbuf_clear(out);
        ok = chat_template_render(server->served->bundle.chat, &options, out, as_text ? &retried : &error->err);
        json_decref(messages);
    }
    if (ok) {
        err_clear(&error->err);
        ok = tokenizer_encode(server->served->bundle.tokenizer, strbuf_str(out), 0, prompt, &error->err);
    } else if (error->err.code != ERR_NOMEM) { // the template refuses these messages
        error->err.code = ERR_INVALID;
        error->param = "messages";
    }
    strbuf_deinit(&own);
    return ok;
}

// ---- The grammar of the answer --------------------------------------------------------------------
// The tools that may be called. A new reference; NULL: none.
static json_t *callable_tools(const struct chat_request *r) {
    const json_t *tools = tools_for_model(r);
    if (!tools)
        return NULL;
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        bool allowed = r->tool_choice != TOOL_CHOICE_NAMED || str_eq(name_of(tool), r->tool_name);
        if (allowed && r->allowed_tools) {
            allowed = false;
            for (size_t k = 0; k < json_array_size(r->allowed_tools) && !allowed; k++)
                allowed = str_eq(name_of(tool), json_str(json_array_get(r->allowed_tools, k)));
        }
        if (allowed)
            json_array_append(out, tool);
    }
    return out;
}

// What a strict tool's schema leaves out is an error, named by the tool.
static bool check_strict(struct server *server, const json_t *tools, bool *any, struct request_error *error) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_true(json_object_get(json_object_get(tool, "function"), "strict")))
            continue;
        *any = true;
        json_t *schema = call_parameters(tool);
        struct strbuf text = {0};
        strbuf_json(&text, schema);
        struct grammar_spec spec = {.kind = GRAMMAR_JSON_SCHEMA, .text = strbuf_str(&text)};
        struct grammar *grammar = structured_compile(server, NULL, &spec, true, "tools", error);
        if (!grammar) {
            struct str name = name_of(tool);
            err_wrap(&error->err, "tool \"%.*s\"", (int)(name.n < 80 ? name.n : 80), name.data);
        }
        grammar_release(grammar);
        strbuf_deinit(&text);
        json_decref(schema);
        if (!grammar)
            return false;
    }
    return true;
}

static enum call_reasoning reasoning_before(const struct server *server, const struct chat_request *r,
                                            struct str prompt) {
    const struct output_format *f = server->served->format;
    if (f->harmony)
        return CALL_REASONING_MAYBE;
    if (output_format_reasoning_open(f, prompt))
        return CALL_REASONING_OPEN;
    if (!served_reasons(server->served) ||
        json_is_false(json_object_get(r->kwargs, "enable_thinking")) || r->continue_final ||
        output_format_reasoning_closed(f, prompt))
        return CALL_REASONING_NONE;
    return CALL_REASONING_MAYBE;
}

// *out: the grammar that the answer must follow, a reference, or NULL where it is free.
static bool answer_grammar(struct server *server, struct http_exchange *exchange, const struct chat_request *r,
                           enum call_reasoning reasoning, struct grammar **out, struct request_error *error) {
    const struct structured *s = &r->structured;
    bool required = r->tool_choice == TOOL_CHOICE_REQUIRED || r->tool_choice == TOOL_CHOICE_NAMED;
    json_t *tools = callable_tools(r);
    bool any_strict = false, ok = check_strict(server, tools, &any_strict, error);
    bool constrained = required || any_strict || (tools && (r->one_call || r->allowed_tools || s->given));
    if (!required && !any_strict && !r->allowed_tools && tools && !call_grammar_can(server->served->format)) {
        if (r->one_call)
            http_add_header(exchange, "Warning", "199 loam \"parallel calls are not ruled out for this model\"");
        json_decref(tools);
        tools = NULL;
        constrained = false;
    }
    *out = NULL;
    if (ok && s->given) { // alone first: its errors are about itself
        *out = structured_grammar(server, exchange, s, error);
        ok = *out != NULL;
    }
    if (ok && (constrained || (s->given && reasoning != CALL_REASONING_NONE))) {
        grammar_release(*out);
        *out = NULL;
        json_t *content = s->given ? structured_format(s) : NULL;
        struct call_grammar_options options = {
            .format = server->served->format, .reasoning = reasoning, .tools = tools, .all_strict = required,
            .required = required, .one_call = r->one_call || r->tool_choice == TOOL_CHOICE_NAMED,
            .content = content};
        json_t *tag = call_grammar(&options, &error->err);
        struct strbuf text = {0};
        if (tag)
            strbuf_json(&text, tag);
        else
            error->param = "tools";
        struct grammar_spec spec = {.kind = GRAMMAR_TAG, .text = strbuf_str(&text)};
        if (tag) // what the answer's own format leaves out was told above
            *out = structured_compile(server, s->given ? NULL : exchange, &spec, false,
                                      tools ? "tools" : s->param, error);
        ok = *out != NULL;
        strbuf_deinit(&text);
        json_decref(tag);
        json_decref(content);
    }
    json_decref(tools);
    return ok;
}

bool chat_request_start(struct server *server, struct http_exchange *exchange, const struct chat_request *r,
                        json_t *body, const struct answer_surface *surface, void *state,
                        uint32_t *n_prompt, struct request_error *error) {
    struct strbuf text = {0};
    struct token_list prompt = {0};
    struct generation_fields fields = r->fields; // borrows what it owns
    bool ok = chat_request_render(server, r, &text, &prompt, error);
    enum call_reasoning reasoning = ok ? reasoning_before(server, r, strbuf_str(&text)) : CALL_REASONING_NONE;
    ok = ok && answer_grammar(server, exchange, r, reasoning, &fields.grammar, error);
    if (ok) {
        struct answer_options options = {
            .fields = &fields, .prompts = &prompt, .n_prompts = 1, .format = server->served->format,
            .tools = tools_for_model(r), .keep = body,
            .reasoning_open = reasoning == CALL_REASONING_OPEN,
            .exact = fields.grammar != NULL, .whole = r->structured.given};
        if (n_prompt)
            *n_prompt = (uint32_t)prompt.n;
        ok = answer_start(server, exchange, &options, surface, state, &error->err);
        if (!ok && prompt.n >= engine_plan_of(server->served->engine)->limits.ctx_len)
            error->code = "context_length_exceeded";
    }
    grammar_release(fields.grammar);
    strbuf_deinit(&text);
    token_list_deinit(&prompt);
    return ok;
}
