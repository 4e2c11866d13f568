// POST /v1/chat/completions.
#include <stdlib.h>
#include <time.h>

#include "server/chat_request.h"
#include "server/openai_answer.h"

struct chat_choice {
    struct strbuf content, reasoning; // of an answer in one piece
    struct strbuf calls;              // elements of tool_calls, each without its closing marks until it ends
    struct strbuf arguments;          // of the call that is being read
    struct strbuf logprobs;           // elements that are not sent yet
    bool begun;                       // the role is sent
    const char *finish;
};

struct chat {
    const struct served *served; // the answer holds it
    struct http_exchange *exchange;
    bool stream, include_usage, begun, want_logprobs;
    uint32_t n_top_logprobs, n_choices;
    char id[64];
    long long created;
    struct chat_choice choices[];
};

static void free_state(void *state) {
    struct chat *c = state;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        strbuf_deinit(&c->choices[i].content);
        strbuf_deinit(&c->choices[i].reasoning);
        strbuf_deinit(&c->choices[i].calls);
        strbuf_deinit(&c->choices[i].arguments);
        strbuf_deinit(&c->choices[i].logprobs);
    }
    free(c);
}

static void append_logprobs(struct strbuf *out, struct chat_choice *choice, bool want) {
    if (!want) {
        strbuf_append_c(out, "null");
        return;
    }
    strbuf_append_c(out, "{\"content\":[");
    strbuf_append(out, strbuf_str(&choice->logprobs));
    strbuf_append_c(out, "],\"refusal\":null}");
    strbuf_clear(&choice->logprobs);
}

// One chunk of a choice: `delta` is the inside of the delta object.
static void send_chunk(struct chat *c, uint32_t idx, struct str delta, const char *finish) {
    struct chat_choice *choice = &c->choices[idx];
    struct strbuf out = {0};
    openai_append_head(&out, c->served, c->id, "chat.completion.chunk", c->created);
    strbuf_printf(&out, ",\"choices\":[{\"index\":%u,\"delta\":{", idx);
    strbuf_append(&out, delta);
    strbuf_append_c(&out, "},\"logprobs\":");
    append_logprobs(&out, choice, choice->begun && c->want_logprobs && choice->logprobs.n);
    strbuf_append_c(&out, ",\"finish_reason\":");
    if (finish)
        strbuf_json_string(&out, str_from(finish));
    else
        strbuf_append_c(&out, "null");
    strbuf_append_c(&out, c->include_usage ? "}],\"usage\":null}" : "}]}");
    sse_data(c->exchange, strbuf_str(&out));
    strbuf_deinit(&out);
}

static void begin(struct chat *c, uint32_t idx) {
    if (!c->begun)
        sse_begin(c->exchange);
    c->begun = true;
    if (!c->choices[idx].begun) // tells the role only; the first token's logprobs come with its text
        send_chunk(c, idx, STR("\"role\":\"assistant\",\"content\":\"\",\"refusal\":null"), NULL);
    c->choices[idx].begun = true;
}

static void on_quiet(void *state) {
    struct chat *c = state;
    if (c->begun)
        sse_keep_alive(c->exchange);
    begin(c, 0);
}

static void on_tokens(void *state, uint32_t idx, const struct sampled *tokens, size_t n) {
    struct chat *c = state;
    struct strbuf *out = &c->choices[idx].logprobs;
    for (size_t i = 0; i < n; i++) {
        if (out->n)
            strbuf_char(out, ',');
        openai_append_logprob(out, c->served, &tokens[i], c->n_top_logprobs);
    }
}

static void append_call_id(struct strbuf *out, const struct output_piece *piece) {
    char made[64];
    request_new_id("call_", made, sizeof made);
    strbuf_json_string(out, piece->id.n ? piece->id : str_from(made));
}

static void stream_piece(struct chat *c, uint32_t idx, const struct output_piece *piece) {
    struct strbuf delta = {0};
    begin(c, idx);
    switch (piece->kind) {
    case OUTPUT_CONTENT:
        strbuf_append_c(&delta, "\"content\":");
        strbuf_json_string(&delta, piece->text);
        break;
    case OUTPUT_REASONING:
        strbuf_append_c(&delta, "\"reasoning_content\":");
        strbuf_json_string(&delta, piece->text);
        break;
    case OUTPUT_CALL_BEGIN:
        strbuf_printf(&delta, "\"tool_calls\":[{\"index\":%u,\"id\":", piece->call_idx);
        append_call_id(&delta, piece);
        strbuf_append_c(&delta, ",\"type\":\"function\",\"function\":{\"name\":");
        strbuf_json_string(&delta, piece->text);
        strbuf_append_c(&delta, ",\"arguments\":\"\"}}]");
        break;
    case OUTPUT_CALL_ARGUMENTS:
        strbuf_printf(&delta, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", piece->call_idx);
        strbuf_json_string(&delta, piece->text);
        strbuf_append_c(&delta, "}}]");
        break;
    case OUTPUT_CALL_END:
        return;
    }
    send_chunk(c, idx, strbuf_str(&delta), NULL);
    strbuf_deinit(&delta);
}

static void on_piece(void *state, uint32_t idx, const struct output_piece *piece) {
    struct chat *c = state;
    struct chat_choice *choice = &c->choices[idx];
    if (c->stream) {
        stream_piece(c, idx, piece);
        return;
    }
    switch (piece->kind) {
    case OUTPUT_CONTENT:
        strbuf_append(&choice->content, piece->text);
        break;
    case OUTPUT_REASONING:
        strbuf_append(&choice->reasoning, piece->text);
        break;
    case OUTPUT_CALL_BEGIN:
        strbuf_append_c(&choice->calls, piece->call_idx ? ",{\"id\":" : "{\"id\":");
        append_call_id(&choice->calls, piece);
        strbuf_append_c(&choice->calls, ",\"type\":\"function\",\"function\":{\"name\":");
        strbuf_json_string(&choice->calls, piece->text);
        strbuf_clear(&choice->arguments);
        break;
    case OUTPUT_CALL_ARGUMENTS:
        strbuf_append(&choice->arguments, piece->text);
        break;
    case OUTPUT_CALL_END:
        strbuf_append_c(&choice->calls, ",\"arguments\":");
        strbuf_json_string(&choice->calls, strbuf_str(&choice->arguments));
        strbuf_append_c(&choice->calls, "}}");
        break;
    }
}

static void on_choice_done(void *state, uint32_t idx, const struct answer_end *end) {
    struct chat *c = state;
    const char *finish = end->n_calls && end->finish != FINISH_LENGTH ? "tool_calls"
                                                                      : finish_reason_name(end->finish);
    c->choices[idx].finish = finish;
    if (!c->stream)
        return;
    begin(c, idx);
    send_chunk(c, idx, (struct str){0}, finish);
}

static void end_stream(struct chat *c, const struct answer_usage *usage) {
    if (c->include_usage) {
        struct strbuf out = {0};
        openai_append_head(&out, c->served, c->id, "chat.completion.chunk", c->created);
        strbuf_append_c(&out, ",\"choices\":[],\"usage\":");
        openai_append_usage(&out, usage);
        strbuf_char(&out, '}');
        sse_data(c->exchange, strbuf_str(&out));
        strbuf_deinit(&out);
    }
    sse_data(c->exchange, STR("[DONE]"));
    http_stream_end(c->exchange);
}

static void append_choice(struct strbuf *out, struct chat *c, uint32_t idx) {
    struct chat_choice *choice = &c->choices[idx];
    strbuf_printf(out, "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", idx);
    if (choice->content.n || !choice->calls.n)
        strbuf_json_string(out, strbuf_str(&choice->content));
    else
        strbuf_append_c(out, "null");
    strbuf_append_c(out, ",\"refusal\":null");
    if (choice->reasoning.n) {
        strbuf_append_c(out, ",\"reasoning_content\":");
        strbuf_json_string(out, strbuf_str(&choice->reasoning));
    }
    if (choice->calls.n) {
        strbuf_append_c(out, ",\"tool_calls\":[");
        strbuf_append(out, strbuf_str(&choice->calls));
        strbuf_char(out, ']');
    }
    strbuf_append_c(out, "},\"logprobs\":");
    append_logprobs(out, choice, c->want_logprobs);
    strbuf_printf(out, ",\"finish_reason\":\"%s\"}", choice->finish);
}

static void end_whole(struct chat *c, const struct answer_usage *usage) {
    struct strbuf out = {0};
    openai_append_head(&out, c->served, c->id, "chat.completion", c->created);
    strbuf_append_c(&out, ",\"choices\":[");
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (i)
            strbuf_char(&out, ',');
        append_choice(&out, c, i);
        const struct chat_choice *choice = &c->choices[i];
        out.failed |= choice->content.failed || choice->reasoning.failed || choice->calls.failed ||
                      choice->arguments.failed || choice->logprobs.failed;
    }
    strbuf_append_c(&out, "],\"usage\":");
    openai_append_usage(&out, usage);
    strbuf_char(&out, '}');
    http_reply_built(c->exchange, &out);
}

static void on_done(void *state, const struct answer_usage *usage, const struct err *err) {
    struct chat *c = state;
    if (err && c->begun)
        openai_stream_error(c->exchange, err);
    else if (err)
        http_fail_err(c->exchange, err);
    else if (c->stream)
        end_stream(c, usage);
    else
        end_whole(c, usage);
    free_state(c);
}

static const struct answer_surface SURFACE = {on_tokens, on_piece, on_choice_done, on_done, free_state};

// ---- The request ----------------------------------------------------------------------------------
static bool read_tools(struct chat_request *r, const json_t *body, struct request_error *error) {
    const json_t *tools = request_given(body, "tools");
    if (!tools)
        return true;
    if (!json_is_array(tools))
        return request_wrong(error, "tools", "an array");
    r->tools = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        if (!json_is_object(tool) || (type && !json_is_string(type)))
            return request_wrong(error, "tools", "an array of objects with a type");
        if (type && strcmp(json_string_value(type), "function") != 0)
            continue; // the built-in tools of other services
        if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
            return request_wrong(error, "tools", "an array of functions that have a name");
        json_array_append(r->tools, tool);
    }
    return true;
}

static bool read_tool_choice(struct chat_request *r, const json_t *body, struct request_error *error) {
    const json_t *choice = request_given(body, "tool_choice");
    if (!choice || (json_is_string(choice) && strcmp(json_string_value(choice), "auto") == 0))
        return true;
    if (json_is_string(choice) && strcmp(json_string_value(choice), "none") == 0) {
        r->tool_choice = TOOL_CHOICE_NONE;
        return true;
    }
    if (json_is_string(choice) && strcmp(json_string_value(choice), "required") == 0) {
        r->tool_choice = TOOL_CHOICE_REQUIRED;
        return true;
    }
    const json_t *allowed = json_object_get(choice, "allowed_tools");
    if (allowed)
        return chat_request_allow_tools(r, allowed, error);
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    if (!json_is_string(name))
        return request_wrong(error, "tool_choice", "none, auto, required, a function by name or allowed_tools");
    r->tool_choice = TOOL_CHOICE_NAMED;
    r->tool_name = json_str(name);
    return true;
}

static bool read_logprobs(struct chat_request *r, const json_t *body, struct request_error *error) {
    int64_t n_top = 0;
    if (!request_bool(body, "logprobs", &r->fields.sampling.want_logprob, error) ||
        !request_int(body, "top_logprobs", -1, SAMPLER_TOP_LOGPROBS_MAX, &n_top, error))
        return false;
    if (n_top > 0 && !r->fields.sampling.want_logprob) {
        error->param = "top_logprobs";
        return err_set(&error->err, ERR_INVALID, "'top_logprobs' needs 'logprobs' to be true");
    }
    r->fields.sampling.n_top_logprobs = n_top > 0 ? (uint32_t)n_top : 0;
    return true;
}

bool openai_chat_read(const struct server *server, const json_t *body, struct chat_request *r,
                      struct request_error *error) {
    return request_fields(server, body, &r->fields, error) &&
           request_completion_fields(body, &r->fields, error) && read_logprobs(r, body, error) &&
           chat_request_set_messages(r, json_deep_copy(json_object_get(body, "messages")), "messages",
                                     error) &&
           read_tools(r, body, error) && read_tool_choice(r, body, error) &&
           chat_request_parallel(r, body, error) && structured_read(body, NULL, &r->structured, error) &&
           chat_request_variables(r, server, body, NULL, error) && chat_request_check(r, error);
}

void openai_chat(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct chat_request r = {0};
    struct chat *c = NULL;
    json_t *body = request_body(exchange, &error);
    if (!body || !openai_chat_read(server, body, &r, &error)) {
        request_refuse(exchange, &error);
        goto out;
    }
    c = calloc(1, sizeof *c + r.fields.n * sizeof *c->choices);
    if (c) {
        c->served = server->served;
        c->exchange = exchange;
        c->stream = r.fields.stream;
        c->include_usage = r.fields.include_usage;
        c->want_logprobs = r.fields.sampling.want_logprob;
        c->n_top_logprobs = r.fields.sampling.n_top_logprobs;
        c->n_choices = r.fields.n;
        c->created = (long long)time(NULL);
        request_new_id("chatcmpl-", c->id, sizeof c->id);
    } else {
        err_set(&error.err, ERR_NOMEM, "out of memory for a request");
    }
    if (!c || !chat_request_start(server, exchange, &r, body, &SURFACE, c, NULL, &error)) {
        request_refuse(exchange, &error);
        if (c)
            free_state(c);
    } else if (c->stream) {
        http_on_quiet(exchange, SSE_QUIET_MS, on_quiet, c);
    }
out:
    chat_request_deinit(&r);
    json_decref(body);
}
