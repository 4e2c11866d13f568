// POST /v1/messages and /v1/messages/count_tokens: Anthropic's interface.
#include <stdlib.h>

#include "base/log.h"
#include "server/chat_request.h"
#include "server/sse.h"

enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL_USE };

struct messages {
    const struct served *served; // the answer holds it
    struct http_exchange *exchange;
    bool stream, begun;
    uint32_t n_prompt; // tokens; message_start tells them before anything is generated
    char id[64];
    enum block block; // that is open
    uint32_t n_blocks;
    struct strbuf content; // of an answer in one piece: the finished blocks, then the open one's head
    struct strbuf text;    // of the open block
    enum finish_reason finish;
    uint32_t n_calls;
    struct strbuf stop_text;
};

static void free_state(void *state) {
    struct messages *m = state;
    strbuf_deinit(&m->content);
    strbuf_deinit(&m->text);
    strbuf_deinit(&m->stop_text);
    free(m);
}

// ---- Writing --------------------------------------------------------------------------------------
static void append_head(struct strbuf *out, const struct messages *m) {
    strbuf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", m->id);
    strbuf_json_string(out, str_from(m->served->bundle.name));
    strbuf_append_c(out, ",\"diagnostics\":null");
}

static void append_usage(struct strbuf *out, const struct answer_usage *u, bool whole) {
    strbuf_printf(out, "{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
                       "\"cache_read_input_tokens\":%u,\"output_tokens\":%u,"
                       "\"output_tokens_details\":{\"thinking_tokens\":%u},\"server_tool_use\":null",
                  u->n_prompt - u->n_cached, u->n_cached, u->n_generated, u->n_reasoning);
    strbuf_append_c(out, whole ? ",\"cache_creation\":null,\"inference_geo\":null,\"service_tier\":\"standard\","
                                 "\"speed\":null}" : "}");
}

// Of refusals and code execution by Anthropic's servers.
#define NOT_HERE ",\"stop_details\":null,\"container\":null"

static void append_stop(struct strbuf *out, const struct messages *m) {
    const char *reason = m->finish == FINISH_LENGTH      ? "max_tokens"
                         : m->finish == FINISH_STOP_TEXT ? "stop_sequence"
                         : m->n_calls                    ? "tool_use"
                                                         : "end_turn";
    strbuf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (m->finish == FINISH_STOP_TEXT)
        strbuf_json_string(out, strbuf_str(&m->stop_text));
    else
        strbuf_append_c(out, "null");
    strbuf_append_c(out, NOT_HERE);
}

static void begin(struct messages *m) {
    if (m->begun)
        return;
    m->begun = true;
    sse_begin(m->exchange);
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"type\":\"message_start\",\"message\":");
    append_head(&out, m);
    strbuf_append_c(&out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null" NOT_HERE ",\"usage\":");
    append_usage(&out, &(struct answer_usage){.n_prompt = m->n_prompt}, true);
    strbuf_append_c(&out, "}}");
    sse_event(m->exchange, "message_start", strbuf_str(&out));
    sse_event(m->exchange, "ping", STR("{\"type\":\"ping\"}"));
    strbuf_deinit(&out);
}

static void on_quiet(void *state) {
    struct messages *m = state;
    if (m->begun)
        sse_event(m->exchange, "ping", STR("{\"type\":\"ping\"}"));
    begin(m);
}

// What the thinking block is signed with: clients send it back as it is, and nothing here checks it.
static const char SIGNATURE[] = "loam";

static void close_block(struct messages *m) {
    if (m->block == BLOCK_NONE)
        return;
    struct strbuf out = {0};
    if (m->stream) {
        if (m->block == BLOCK_THINKING) {
            strbuf_printf(&out, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":"
                                "{\"type\":\"signature_delta\",\"signature\":\"%s\"}}",
                          m->n_blocks, SIGNATURE);
            sse_event(m->exchange, "content_block_delta", strbuf_str(&out));
            strbuf_clear(&out);
        }
        strbuf_printf(&out, "{\"type\":\"content_block_stop\",\"index\":%u}", m->n_blocks);
        sse_event(m->exchange, "content_block_stop", strbuf_str(&out));
    } else if (m->block == BLOCK_TOOL_USE) {
        strbuf_append(&m->content, m->text.n ? strbuf_str(&m->text) : STR("{}"));
        strbuf_char(&m->content, '}');
    } else {
        strbuf_json_string(&m->content, strbuf_str(&m->text));
        if (m->block == BLOCK_THINKING)
            strbuf_printf(&m->content, ",\"signature\":\"%s\"", SIGNATURE);
        strbuf_char(&m->content, '}');
    }
    strbuf_deinit(&out);
    strbuf_clear(&m->text);
    m->block = BLOCK_NONE;
    m->n_blocks++;
}

static void open_block(struct messages *m, enum block block, const struct output_piece *piece) {
    if (m->block == block && block != BLOCK_TOOL_USE)
        return;
    close_block(m);
    m->block = block;
    struct strbuf own = {0};
    struct strbuf *out = m->stream ? &own : &m->content;
    if (m->stream)
        strbuf_printf(out, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", m->n_blocks);
    else if (m->n_blocks)
        strbuf_char(out, ',');
    if (block == BLOCK_TOOL_USE) {
        char id[64];
        request_new_id("toolu_", id, sizeof id);
        strbuf_append_c(out, "{\"type\":\"tool_use\",\"id\":");
        strbuf_json_string(out, piece->id.n ? piece->id : str_from(id));
        strbuf_append_c(out, ",\"name\":");
        strbuf_json_string(out, piece->text);
        strbuf_append_c(out, m->stream ? ",\"caller\":{\"type\":\"direct\"},\"input\":{}}}"
                                       : ",\"caller\":{\"type\":\"direct\"},\"input\":");
    } else if (block == BLOCK_TEXT) {
        strbuf_append_c(out, m->stream ? "{\"type\":\"text\",\"citations\":null,\"text\":\"\"}}"
                                       : "{\"type\":\"text\",\"citations\":null,\"text\":");
    } else {
        strbuf_append_c(out, m->stream ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}"
                                       : "{\"type\":\"thinking\",\"thinking\":");
    }
    if (m->stream)
        sse_event(m->exchange, "content_block_start", strbuf_str(out));
    strbuf_deinit(&own);
}

static void add_text(struct messages *m, const char *type, const char *member, struct str text) {
    if (!m->stream) {
        strbuf_append(&m->text, text);
        return;
    }
    struct strbuf out = {0};
    strbuf_printf(&out, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":",
                  m->n_blocks, type, member);
    strbuf_json_string(&out, text);
    strbuf_append_c(&out, "}}");
    sse_event(m->exchange, "content_block_delta", strbuf_str(&out));
    strbuf_deinit(&out);
}

static void on_piece(void *state, uint32_t idx, const struct output_piece *piece) {
    (void)idx;
    struct messages *m = state;
    if (m->stream)
        begin(m);
    switch (piece->kind) {
    case OUTPUT_CONTENT:
        open_block(m, BLOCK_TEXT, piece);
        add_text(m, "text_delta", "text", piece->text);
        break;
    case OUTPUT_REASONING:
        open_block(m, BLOCK_THINKING, piece);
        add_text(m, "thinking_delta", "thinking", piece->text);
        break;
    case OUTPUT_CALL_BEGIN:
        open_block(m, BLOCK_TOOL_USE, piece);
        break;
    case OUTPUT_CALL_ARGUMENTS:
        add_text(m, "input_json_delta", "partial_json", piece->text);
        break;
    case OUTPUT_CALL_END:
        close_block(m);
        break;
    }
}

static void on_choice_done(void *state, uint32_t idx, const struct answer_end *end) {
    (void)idx;
    struct messages *m = state;
    m->finish = end->finish;
    m->n_calls = end->n_calls;
    strbuf_append(&m->stop_text, end->stop_text);
    if (m->stream)
        begin(m);
    close_block(m);
}

static void end_stream(struct messages *m, const struct answer_usage *usage) {
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"type\":\"message_delta\",\"delta\":{");
    append_stop(&out, m);
    strbuf_append_c(&out, "},\"usage\":");
    append_usage(&out, usage, false);
    strbuf_char(&out, '}');
    sse_event(m->exchange, "message_delta", strbuf_str(&out));
    sse_event(m->exchange, "message_stop", STR("{\"type\":\"message_stop\"}"));
    http_stream_end(m->exchange);
    strbuf_deinit(&out);
}

static void on_done(void *state, const struct answer_usage *usage, const struct err *err) {
    struct messages *m = state;
    struct strbuf out = {0};
    if (err && m->begun) { // the status is sent already
        anthropic_error(&out, err_http_status(err->code), NULL, str_from(err->message), http_request_id(m->exchange));
        sse_event(m->exchange, "error", strbuf_str(&out));
        http_stream_end(m->exchange);
        strbuf_deinit(&out);
    } else if (err) {
        http_fail_err(m->exchange, err);
    } else if (m->stream) {
        end_stream(m, usage);
    } else {
        append_head(&out, m);
        strbuf_append_c(&out, ",\"content\":[");
        strbuf_append(&out, strbuf_str(&m->content));
        strbuf_append_c(&out, "],");
        append_stop(&out, m);
        strbuf_append_c(&out, ",\"usage\":");
        append_usage(&out, usage, true);
        strbuf_char(&out, '}');
        out.failed |= m->content.failed || m->text.failed;
        http_reply_built(m->exchange, &out);
    }
    free_state(m);
}

static const struct answer_surface SURFACE = {NULL, on_piece, on_choice_done, on_done, free_state};

void anthropic_error(struct strbuf *out, int status, const char *type, struct str message, const char *request_id) {
    if (!type || strcmp(type, "resource_admission") == 0)
        type = status == 401   ? "authentication_error"
               : status == 403 ? "permission_error"
               : status == 404 ? "not_found_error"
               : status == 413 ? "request_too_large"
               : status == 429 ? "rate_limit_error"
               : status == 503 ? "overloaded_error"
               : status < 500  ? "invalid_request_error"
                               : "api_error";
    strbuf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    strbuf_json_string(out, message);
    strbuf_append_c(out, "},\"request_id\":");
    strbuf_json_string(out, str_from(request_id));
    strbuf_char(out, '}');
}

// ---- The request ------------------------------------------------------------------------------------
static bool wrong_block(struct request_error *error, size_t message, size_t block, const char *type) {
    error->param = "messages";
    return err_set(&error->err, ERR_INVALID, "messages.%zu.content.%zu: a block of type \"%s\" is not "
                   "understood here; this model takes text, tool_use and tool_result", message, block, type);
}

static const char *type_of(const json_t *block) {
    const json_t *type = json_object_get(block, "type");
    return json_is_string(type) ? json_string_value(type) : "?";
}

// A tool's result: text, or text blocks.
static bool add_tool_result(json_t *out, const json_t *block, size_t idx, struct request_error *error) {
    const json_t *id = json_object_get(block, "tool_use_id");
    if (!json_is_string(id)) {
        error->param = "messages";
        return err_set(&error->err, ERR_INVALID, "messages.%zu: a tool_result needs a tool_use_id", idx);
    }
    json_t *text = chat_plain_content(json_object_get(block, "content"), "messages", idx, error);
    if (!text && error->err.code)
        return false;
    if (json_is_null(text) || !text) {
        json_decref(text);
        text = json_string("");
    }
    json_t *message = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text);
    return (message && json_array_append_new(out, message) == 0) ||
           err_set(&error->err, ERR_NOMEM, "out of memory for the messages");
}

// One message of blocks becomes the tools' results, then the rest.
static bool add_blocks(json_t *out, const char *role, const json_t *blocks, size_t idx,
                       struct request_error *error) {
    struct strbuf text = {0}, thinking = {0};
    json_t *calls = json_array();
    bool has_text = false, ok = calls != NULL;
    for (size_t b = 0; ok && b < json_array_size(blocks); b++) {
        const json_t *block = json_array_get(blocks, b);
        const char *type = type_of(block);
        const json_t *content = json_object_get(block, "text");
        if (strcmp(type, "text") == 0 && json_is_string(content)) {
            strbuf_append(&text, json_str(content));
            has_text = true;
        } else if (strcmp(type, "thinking") == 0) {
            if (json_is_string(json_object_get(block, "thinking")))
                strbuf_append(&thinking, json_str(json_object_get(block, "thinking")));
        } else if (strcmp(type, "redacted_thinking") == 0) {
            // Nothing in it can be read.
        } else if (strcmp(type, "tool_use") == 0 && json_is_string(json_object_get(block, "name"))) {
            const json_t *input = json_object_get(block, "input"), *id = json_object_get(block, "id");
            json_t *call = json_pack("{s:s, s:s, s:{s:O, s:o}}", "id",
                                     json_is_string(id) ? json_string_value(id) : "", "type", "function",
                                     "function", "name", json_object_get(block, "name"), "arguments",
                                     json_is_object(input) ? json_deep_copy(input) : json_object());
            ok = call && json_array_append_new(calls, call) == 0;
        } else if (strcmp(type, "tool_result") == 0) {
            if (!add_tool_result(out, block, idx, error))
                goto failed;
        } else {
            wrong_block(error, idx, b, type);
            goto failed;
        }
    }
    bool any = has_text || json_array_size(calls) || thinking.n || json_array_size(blocks) == 0;
    if (ok && any) {
        json_t *message = json_pack("{s:s, s:s#}", "role", role, "content", text.data ? text.data : "",
                                    (int)text.n);
        ok = message != NULL;
        if (ok && json_array_size(calls))
            ok = json_object_set(message, "tool_calls", calls) == 0;
        if (ok && thinking.n)
            ok = json_object_set_new(message, "reasoning_content",
                                     json_stringn(thinking.data, thinking.n)) == 0;
        ok = ok && json_array_append(out, message) == 0;
        json_decref(message);
    }
    if (ok && !text.failed && !thinking.failed) {
        strbuf_deinit(&text);
        strbuf_deinit(&thinking);
        json_decref(calls);
        return true;
    }
    err_set(&error->err, ERR_NOMEM, "out of memory for the messages");
failed:
    strbuf_deinit(&text);
    strbuf_deinit(&thinking);
    json_decref(calls);
    return false;
}

static bool read_messages(struct chat_request *r, const json_t *body, struct request_error *error) {
    const json_t *messages = json_object_get(body, "messages"), *system = request_given(body, "system");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return request_wrong(error, "messages", "an array with at least one message");
    json_t *out = json_array();
    bool ok = out != NULL;
    if (ok && system) {
        json_t *text = NULL;
        if (json_is_string(system) || json_is_array(system))
            text = chat_plain_content(system, "system", 0, error);
        else
            request_wrong(error, "system", "a string or an array of text blocks");
        if (!text) {
            json_decref(out);
            return false;
        }
        ok = json_array_append_new(out, json_pack("{s:s, s:o}", "role", "system", "content", text)) == 0;
    }
    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
        const char *name = json_is_string(role) ? json_string_value(role) : "";
        error->param = "messages";
        if (strcmp(name, "user") != 0 && strcmp(name, "assistant") != 0 && strcmp(name, "system") != 0) {
            ok = err_set(&error->err, ERR_INVALID, "messages.%zu.role must be user or assistant", i);
        } else if (json_is_string(content)) {
            ok = json_array_append_new(out, json_pack("{s:O, s:O}", "role", role, "content", content)) == 0;
        } else if (json_is_array(content)) {
            ok = add_blocks(out, name, content, i, error);
        } else {
            ok = err_set(&error->err, ERR_INVALID, "messages.%zu.content must be a string or an array of "
                         "blocks", i);
        }
    }
    if (!ok) {
        if (!error->err.code)
            err_set(&error->err, ERR_NOMEM, "out of memory for the messages");
        json_decref(out);
        return false;
    }
    error->param = NULL;
    // A last message of the assistant is the beginning of the answer.
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    r->continue_final = strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0;
    return chat_request_set_messages(r, out, "messages", error);
}

static bool read_tools(struct chat_request *r, const json_t *body, struct request_error *error) {
    const json_t *tools = request_given(body, "tools"), *choice = request_given(body, "tool_choice");
    if (tools && !json_is_array(tools))
        return request_wrong(error, "tools", "an array");
    r->tools = tools ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        const json_t *name = json_object_get(tool, "name");
        if (json_is_string(type) && strcmp(json_string_value(type), "custom") != 0)
            continue; // the built-in tools of their servers
        if (!json_is_string(name))
            return request_wrong(error, "tools", "an array of tools that have a name");
        const json_t *description = json_object_get(tool, "description");
        const json_t *schema = json_object_get(tool, "input_schema");
        const json_t *strict = request_given(tool, "strict");
        if (strict && !json_is_boolean(strict))
            return request_wrong(error, "tools", "an array of tools whose strict is true or false");
        json_t *made = json_pack("{s:s, s:{s:O, s:O*, s:O*, s:O*}}", "type", "function", "function", "name", name,
                                 "description", json_is_string(description) ? description : NULL,
                                 "parameters", json_is_object(schema) ? schema : NULL, "strict", strict);
        if (!made || json_array_append_new(r->tools, made) != 0)
            return err_set(&error->err, ERR_NOMEM, "out of memory for the tools");
    }
    if (!choice)
        return true;
    const char *type = type_of(choice);
    const json_t *name = json_object_get(choice, "name");
    if (!request_bool(choice, "disable_parallel_tool_use", &r->one_call, error))
        return false;
    if (strcmp(type, "none") == 0) {
        r->tool_choice = TOOL_CHOICE_NONE;
    } else if (strcmp(type, "any") == 0) {
        r->tool_choice = TOOL_CHOICE_REQUIRED;
    } else if (strcmp(type, "tool") == 0 && json_is_string(name)) {
        r->tool_choice = TOOL_CHOICE_NAMED;
        r->tool_name = json_str(name);
    } else if (strcmp(type, "auto") != 0) {
        return request_wrong(error, "tool_choice", "an object of type auto, any, tool (with a name) or none");
    }
    return true;
}

static bool read_request(const struct server *server, const json_t *body, struct chat_request *r,
                         struct request_error *error) {
    const json_t *thinking = request_given(body, "thinking");
    const json_t *format = request_given(request_given(body, "output_config"), "format");
    if (!format)
        format = request_given(body, "output_format");
    if (!request_fields(server, body, &r->fields, error) ||
        !request_stops(body, "stop_sequences", &r->fields, error) || !read_messages(r, body, error) ||
        !read_tools(r, body, error) || !structured_read(body, format, &r->structured, error) ||
        !chat_request_variables(r, server, body, NULL, error))
        return false;
    if (thinking) {
        const char *type = type_of(thinking);
        const json_t *budget = json_object_get(thinking, "budget_tokens");
        bool on = strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0;
        if (!on && strcmp(type, "disabled") != 0)
            return request_wrong(error, "thinking", "an object of type enabled, adaptive or disabled");
        if (budget && !json_is_integer(budget))
            return request_wrong(error, "thinking", "an object whose budget_tokens is an integer");
        if (!chat_request_set_variable(r, "enable_thinking", json_boolean(on), error))
            return false;
        if (on && budget &&
            !chat_request_set_variable(r, "thinking_budget", json_incref((json_t *)(uintptr_t)budget), error))
            return false;
    }
    return chat_request_check(r, error);
}

void anthropic_messages(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct chat_request r = {0};
    struct messages *m = NULL;
    json_t *body = request_body(exchange, &error);
    bool ok = body && read_request(server, body, &r, &error);
    if (ok) {
        m = calloc(1, sizeof *m);
        ok = m || err_set(&error.err, ERR_NOMEM, "out of memory for a request");
    }
    if (ok) {
        m->served = server->served;
        m->exchange = exchange;
        m->stream = r.fields.stream;
        request_new_id("msg_", m->id, sizeof m->id);
        ok = chat_request_start(server, exchange, &r, body, &SURFACE, m, &m->n_prompt, &error);
    }
    if (!ok) {
        request_refuse(exchange, &error);
        if (m)
            free_state(m);
    } else if (m->stream) {
        http_on_quiet(exchange, SSE_QUIET_MS, on_quiet, m);
    }
    chat_request_deinit(&r);
    json_decref(body);
}

void anthropic_count_tokens(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct chat_request r = {0};
    struct token_list prompt = {0};
    json_t *body = request_body(exchange, &error);
    if (body && read_request(server, body, &r, &error) &&
        chat_request_render(server, &r, NULL, &prompt, &error)) {
        struct strbuf out = {0};
        strbuf_printf(&out, "{\"input_tokens\":%zu}", prompt.n);
        http_reply_built(exchange, &out);
    } else {
        request_refuse(exchange, &error);
    }
    token_list_deinit(&prompt);
    chat_request_deinit(&r);
    json_decref(body);
}
