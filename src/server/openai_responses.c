// /v1/responses: OpenAI's newer interface, with answers that can be gone on from.
#include <stdlib.h>
#include <time.h>

#include "server/chat_request.h"
#include "server/openai_answer.h"
#include "server/response_items.h"

struct responses {
    struct server *server;
    const struct served *served; // the answer holds it
    struct http_exchange *exchange;
    bool stream, begun, store;
    uint32_t sequence;
    char id[64];
    json_t *object;  // the response object
    json_t *output;  // its array of items; borrowed from it
    json_t *input;   // this request's items
    json_t *context; // items of the whole conversation before the output
    json_t *item;    // the open item, borrowed from output, or NULL
    struct strbuf text; // of the open item
    json_t *logprobs;   // of its tokens
    json_t *pending;    // of tokens whose text is not out yet; NULL = not wanted
    uint32_t n_top_logprobs;
    enum finish_reason finish;
};

static void free_state(void *state) {
    struct responses *r = state;
    json_decref(r->object);
    json_decref(r->input);
    json_decref(r->context);
    json_decref(r->logprobs);
    json_decref(r->pending);
    strbuf_deinit(&r->text);
    free(r);
}

// ---- Events -----------------------------------------------------------------------------------------
// Takes the event's members over and adds its type and number.
static void send_event(struct responses *r, const char *type, json_t *members) {
    if (r->stream && members) {
        struct strbuf out = {0};
        json_object_set_new(members, "type", json_string(type));
        json_object_set_new(members, "sequence_number", json_integer(r->sequence++));
        strbuf_json(&out, members);
        sse_event(r->exchange, type, strbuf_str(&out));
        strbuf_deinit(&out);
    }
    json_decref(members);
}

static void send_response(struct responses *r, const char *type) {
    send_event(r, type, json_pack("{s:O}", "response", r->object));
}

static void begin(struct responses *r) {
    if (r->begun || !r->stream)
        return;
    r->begun = true;
    sse_begin(r->exchange);
    send_response(r, "response.created");
    send_response(r, "response.in_progress");
}

static void on_quiet(void *state) {
    struct responses *r = state;
    if (r->begun)
        sse_keep_alive(r->exchange);
    begin(r);
}

// ---- Items -------------------------------------------------------------------------------------------
static const char *kind_of(const json_t *item) {
    return json_string_value(json_object_get(item, "type"));
}

static int output_idx(const struct responses *r) {
    return (int)json_array_size(r->output) - 1;
}

static void open_item(struct responses *r, const char *prefix, json_t *item) {
    char id[64];
    request_new_id(prefix, id, sizeof id);
    json_object_set_new(item, "id", json_string(id));
    json_object_set_new(item, "status", json_string("in_progress"));
    json_array_append_new(r->output, item);
    r->item = item;
    strbuf_clear(&r->text);
    json_t *copy = json_deep_copy(item);
    send_event(r, "response.output_item.added",
               json_pack("{s:i, s:o}", "output_index", output_idx(r), "item", copy));
}

// `logprobs` may be NULL.
static json_t *text_part(const char *kind, struct str text, json_t *logprobs) {
    return strcmp(kind, "reasoning") == 0
               ? json_pack("{s:s, s:s%}", "type", "reasoning_text", "text", text.data ? text.data : "", text.n)
               : json_pack("{s:s, s:s%, s:[], s:o}", "type", "output_text", "text",
                           text.data ? text.data : "", text.n, "annotations", "logprobs",
                           logprobs ? json_incref(logprobs) : json_array());
}

// Members that events about the open item share.
static json_t *about_item(const struct responses *r) {
    return json_pack("{s:O, s:i}", "item_id", json_object_get(r->item, "id"), "output_index", output_idx(r));
}

static json_t *about_part(const struct responses *r) {
    json_t *members = about_item(r);
    json_object_set_new(members, "content_index", json_integer(0));
    return members;
}

static void open_text_item(struct responses *r, const char *kind) {
    if (strcmp(kind, "reasoning") == 0)
        open_item(r, "rs_", json_pack("{s:s, s:[], s:[]}", "type", kind, "summary", "content"));
    else
        open_item(r, "msg_", json_pack("{s:s, s:s, s:[]}", "type", kind, "role", "assistant", "content"));
    json_t *members = about_part(r);
    json_object_set_new(members, "part", text_part(kind, (struct str){0}, NULL));
    send_event(r, "response.content_part.added", members);
}

// Events say the same as the part, but for the bytes.
static json_t *without_bytes(const json_t *logprobs) {
    json_t *copy = logprobs ? json_deep_copy(logprobs) : json_array();
    for (size_t i = 0; i < json_array_size(copy); i++) {
        json_t *one = json_array_get(copy, i), *top = json_object_get(one, "top_logprobs");
        json_object_del(one, "bytes");
        for (size_t k = 0; k < json_array_size(top); k++)
            json_object_del(json_array_get(top, k), "bytes");
    }
    return copy;
}

static void close_item(struct responses *r, const char *status) {
    if (!r->item)
        return;
    const char *kind = kind_of(r->item);
    struct str text = strbuf_str(&r->text);
    if (strcmp(kind, "function_call") == 0) {
        json_object_set_new(r->item, "arguments", json_stringn(text.data ? text.data : "", text.n));
        json_t *members = about_item(r);
        json_object_set(members, "name", json_object_get(r->item, "name"));
        json_object_set(members, "arguments", json_object_get(r->item, "arguments"));
        send_event(r, "response.function_call_arguments.done", members);
    } else {
        bool reasoning = strcmp(kind, "reasoning") == 0;
        json_t *members = about_part(r);
        json_object_set_new(members, "text", json_stringn(text.data ? text.data : "", text.n));
        if (!reasoning)
            json_object_set_new(members, "logprobs", without_bytes(r->logprobs));
        send_event(r, reasoning ? "response.reasoning_text.done" : "response.output_text.done", members);
        members = about_part(r);
        json_object_set_new(members, "part", text_part(kind, text, r->logprobs));
        send_event(r, "response.content_part.done", members);
        json_array_append_new(json_object_get(r->item, "content"), text_part(kind, text, r->logprobs));
    }
    json_object_set_new(r->item, "status", json_string(status));
    send_event(r, "response.output_item.done",
               json_pack("{s:i, s:O}", "output_index", output_idx(r), "item", r->item));
    r->item = NULL;
    json_decref(r->logprobs);
    r->logprobs = NULL;
}

// The tokens that the piece at hand is made of, or NULL. What is no text of a message has none.
static json_t *take_pending(struct responses *r) {
    json_t *taken = r->pending;
    if (taken)
        r->pending = json_array();
    return taken;
}

static void on_tokens(void *state, uint32_t idx, const struct sampled *tokens, size_t n) {
    (void)idx;
    struct responses *r = state;
    for (size_t i = 0; r->pending && i < n; i++) {
        struct strbuf text = {0};
        struct err ignored;
        openai_append_logprob(&text, r->served, &tokens[i], r->n_top_logprobs);
        json_array_append_new(r->pending, json_parse(strbuf_str(&text), "logprobs", &ignored));
        strbuf_deinit(&text);
    }
}

static void add_text(struct responses *r, const char *kind, const char *event, struct str text) {
    if (!r->item || strcmp(kind_of(r->item), kind) != 0) {
        close_item(r, "completed");
        open_text_item(r, kind);
    }
    strbuf_append(&r->text, text);
    json_t *logprobs = take_pending(r);
    if (logprobs && strcmp(kind, "message") == 0) {
        if (!r->logprobs)
            r->logprobs = json_array();
        json_array_extend(r->logprobs, logprobs);
    }
    if (!r->stream) {
        json_decref(logprobs);
        return;
    }
    json_t *members = about_part(r);
    json_object_set_new(members, "delta", json_stringn(text.data, text.n));
    if (strcmp(kind, "message") == 0)
        json_object_set_new(members, "logprobs", without_bytes(logprobs));
    json_decref(logprobs);
    send_event(r, event, members);
}

static void on_piece(void *state, uint32_t idx, const struct output_piece *piece) {
    (void)idx;
    struct responses *r = state;
    char id[64];
    begin(r);
    switch (piece->kind) {
    case OUTPUT_CONTENT:
        add_text(r, "message", "response.output_text.delta", piece->text);
        break;
    case OUTPUT_REASONING:
        add_text(r, "reasoning", "response.reasoning_text.delta", piece->text);
        break;
    case OUTPUT_CALL_BEGIN:
        json_decref(take_pending(r));
        close_item(r, "completed");
        request_new_id("call_", id, sizeof id);
        struct str call_id = piece->id.n ? piece->id : str_from(id);
        open_item(r, "fc_", json_pack("{s:s, s:s%, s:s%, s:s}", "type", "function_call", "call_id",
                                      call_id.data, call_id.n, "name", piece->text.data, piece->text.n,
                                      "arguments", ""));
        break;
    case OUTPUT_CALL_ARGUMENTS:
        json_decref(take_pending(r));
        strbuf_append(&r->text, piece->text);
        if (r->stream) {
            json_t *members = about_item(r);
            json_object_set_new(members, "delta", json_stringn(piece->text.data, piece->text.n));
            send_event(r, "response.function_call_arguments.delta", members);
        }
        break;
    case OUTPUT_CALL_END:
        close_item(r, "completed");
        break;
    }
}

static void on_choice_done(void *state, uint32_t idx, const struct answer_end *end) {
    (void)idx;
    struct responses *r = state;
    r->finish = end->finish;
    begin(r);
    close_item(r, end->finish == FINISH_LENGTH ? "incomplete" : "completed");
}

static void set_usage(struct responses *r, const struct answer_usage *u) {
    json_object_set_new(r->object, "usage",
                        json_pack("{s:i, s:{s:i, s:i}, s:i, s:{s:i}, s:i}", "input_tokens", (int)u->n_prompt,
                                  "input_tokens_details", "cached_tokens", (int)u->n_cached, "cache_write_tokens", 0,
                                  "output_tokens", (int)u->n_generated, "output_tokens_details",
                                  "reasoning_tokens", (int)u->n_reasoning, "total_tokens",
                                  (int)(u->n_prompt + u->n_generated)));
}

static void keep(struct responses *r) {
    json_t *context = json_copy(r->context);
    json_array_extend(context, r->output);
    struct stored_response stored = {r->object, r->input, context};
    response_store_put(r->server->responses, r->id, &stored);
    json_decref(context);
}

static void on_done(void *state, const struct answer_usage *usage, const struct err *err) {
    struct responses *r = state;
    if (err && !r->begun) {
        http_fail_err(r->exchange, err);
        free_state(r);
        return;
    }
    bool cut = r->finish == FINISH_LENGTH;
    if (err) {
        json_object_set_new(r->object, "status", json_string("failed"));
        json_object_set_new(r->object, "error", json_pack("{s:s, s:s}", "code", "server_error", "message",
                                                          err->message));
    } else {
        json_object_set_new(r->object, "status", json_string(cut ? "incomplete" : "completed"));
        if (cut)
            json_object_set_new(r->object, "incomplete_details",
                                json_pack("{s:s}", "reason", "max_output_tokens"));
        else
            json_object_set_new(r->object, "completed_at", json_integer(time(NULL)));
        set_usage(r, usage);
        if (r->store)
            keep(r);
    }
    if (r->stream) {
        send_response(r, err ? "response.failed" : cut ? "response.incomplete" : "response.completed");
        http_stream_end(r->exchange);
    } else {
        struct strbuf out = {0};
        strbuf_json(&out, r->object);
        out.failed |= r->text.failed;
        http_reply_built(r->exchange, &out);
    }
    free_state(r);
}

static const struct answer_surface SURFACE = {on_tokens, on_piece, on_choice_done, on_done, free_state};

// ---- The request --------------------------------------------------------------------------------------
static bool read_tools(struct chat_request *r, const json_t *body, struct request_error *error) {
    const json_t *tools = request_given(body, "tools"), *choice = request_given(body, "tool_choice");
    if (tools && !json_is_array(tools))
        return request_wrong(error, "tools", "an array");
    r->tools = tools ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        if (!json_is_string(type))
            return request_wrong(error, "tools", "an array of objects with a type");
        if (strcmp(json_string_value(type), "function") != 0)
            continue; // the built-in tools of other services
        const json_t *name = json_object_get(tool, "name");
        if (!json_is_string(name))
            return request_wrong(error, "tools", "an array of functions that have a name");
        json_t *function = json_object();
        static const char *const KEYS[] = {"name", "description", "parameters", "strict"};
        for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
            if (request_given(tool, KEYS[k]))
                json_object_set(function, KEYS[k], json_object_get(tool, KEYS[k]));
        if (json_array_append_new(r->tools, json_pack("{s:s, s:o}", "type", "function", "function",
                                                      function)) != 0)
            return err_set(&error->err, ERR_NOMEM, "out of memory for the tools");
    }
    const char *word = json_string_value(choice);
    const json_t *name = json_object_get(choice, "name");
    if (!choice || (word && strcmp(word, "auto") == 0))
        return true;
    if (word && strcmp(word, "none") == 0)
        r->tool_choice = TOOL_CHOICE_NONE;
    else if (word && strcmp(word, "required") == 0)
        r->tool_choice = TOOL_CHOICE_REQUIRED;
    else if (choice && json_is_string(json_object_get(choice, "mode")))
        return chat_request_allow_tools(r, choice, error);
    else if (json_is_string(name)) {
        r->tool_choice = TOOL_CHOICE_NAMED;
        r->tool_name = json_str(name);
    } else
        return request_wrong(error, "tool_choice", "none, auto, required, a function by name or allowed_tools");
    return true;
}

// The items of the conversation so far, and this request's.
static bool read_input(struct responses *r, const json_t *body, struct chat_request *chat,
                       struct request_error *error) {
    const json_t *input = request_given(body, "input"), *previous = request_given(body, "previous_response_id");
    const json_t *instructions = request_given(body, "instructions");
    if (previous && !json_is_string(previous))
        return request_wrong(error, "previous_response_id", "a string");
    if (instructions && !json_is_string(instructions))
        return request_wrong(error, "instructions", "a string");
    if (!json_is_string(input) && !(json_is_array(input) && json_array_size(input)))
        return request_wrong(error, "input", "a string or an array of items");
    r->input = response_items_read(r->server->responses, input, error);
    if (!r->input)
        return false;
    r->context = json_array();
    json_t *messages = json_array();
    if (!r->context || !messages) {
        json_decref(messages);
        return err_set(&error->err, ERR_NOMEM, "out of memory for the input");
    }
    struct stored_response before;
    if (previous && !response_store_get(r->server->responses, json_str(previous), &before)) {
        error->param = "previous_response_id";
        error->code = "previous_response_not_found";
        json_decref(messages);
        return err_set(&error->err, ERR_NOT_FOUND, "previous response with id '%s' is not here (any more)",
                       json_string_value(previous));
    }
    if (previous)
        json_array_extend(r->context, (json_t *)(uintptr_t)before.context);
    json_array_extend(r->context, r->input);
    bool ok = true;
    if (instructions)
        ok = json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content",
                                                       instructions)) == 0;
    if (!ok || !response_items_messages(r->context, messages, error)) {
        json_decref(messages);
        return error->err.code ? false : err_set(&error->err, ERR_NOMEM, "out of memory for the input");
    }
    return chat_request_set_messages(chat, messages, "input", error);
}

// The double that a float was written as: 0.7, not 0.699999988.
static double as_written(float value) {
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)value);
    return strtod(text, NULL);
}

// The object as far as the request decides it.
static bool make_object(struct responses *r, const json_t *body, const struct chat_request *chat,
                        struct request_error *error) {
    static const struct {
        const char *key, *otherwise; // JSON; NULL: left out
    } ECHOED[] = {{"instructions", "null"},      {"metadata", "{}"},          {"max_output_tokens", "null"},
                  {"previous_response_id", "null"}, {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"}, {"tool_choice", "\"auto\""}, {"tools", "[]"},
                  {"parallel_tool_calls", "true"}, {"truncation", "\"disabled\""},
                  {"service_tier", "\"default\""}, {"top_logprobs", "0"}, {"prompt_cache_key", "null"},
                  {"access_programs", "null"}, {"user", NULL}};
    r->output = json_array();
    r->object = json_pack("{s:s, s:s, s:I, s:s, s:b, s:n, s:n, s:s, s:o, s:f, s:f, s:b}", "id", r->id,
                          "object", "response", "created_at", (json_int_t)time(NULL), "status",
                          "in_progress", "background", 0, "error", "incomplete_details", "model",
                          r->server->served->bundle.name, "output", r->output, "temperature",
                          as_written(chat->fields.sampling.temperature), "top_p",
                          as_written(chat->fields.sampling.top_p), "store", r->store);
    bool ok = r->object != NULL;
    for (size_t i = 0; ok && i < sizeof ECHOED / sizeof *ECHOED; i++) {
        struct err ignored;
        const json_t *given = request_given(body, ECHOED[i].key);
        if (!given && !ECHOED[i].otherwise)
            continue;
        ok = json_object_set_new(r->object, ECHOED[i].key,
                                 given ? json_incref((json_t *)(uintptr_t)given)
                                       : json_parse(str_from(ECHOED[i].otherwise), "default", &ignored)) == 0;
    }
    return ok || err_set(&error->err, ERR_NOMEM, "out of memory for the response");
}

// include: ["message.output_text.logprobs"] asks for them, top_logprobs for the alternatives.
static bool read_logprobs(struct responses *r, const json_t *body, struct sampler_params *sampling,
                          struct request_error *error) {
    const json_t *include = request_given(body, "include");
    int64_t n_top = 0;
    if (include && !json_is_array(include))
        return request_wrong(error, "include", "an array of strings");
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *one = json_string_value(json_array_get(include, i));
        if (!one)
            return request_wrong(error, "include", "an array of strings");
        sampling->want_logprob |= strcmp(one, "message.output_text.logprobs") == 0;
    }
    if (!request_int(body, "top_logprobs", 0, SAMPLER_TOP_LOGPROBS_MAX, &n_top, error))
        return false;
    if (n_top && !sampling->want_logprob) {
        error->param = "top_logprobs";
        return err_set(&error->err, ERR_INVALID,
                       "'top_logprobs' needs \"message.output_text.logprobs\" in 'include'");
    }
    sampling->n_top_logprobs = r->n_top_logprobs = (uint32_t)n_top;
    r->pending = sampling->want_logprob ? json_array() : NULL;
    return true;
}

static bool read_request(struct responses *r, const json_t *body, struct chat_request *chat,
                         struct request_error *error) {
    const json_t *reasoning = request_given(body, "reasoning");
    int64_t max_tokens = 0;
    bool background = false;
    r->store = true;
    if (!request_fields(r->server, body, &chat->fields, error) ||
        !read_logprobs(r, body, &chat->fields.sampling, error) ||
        !request_int(body, "max_output_tokens", 1, INT32_MAX, &max_tokens, error) ||
        !request_bool(body, "store", &r->store, error) ||
        !request_bool(body, "background", &background, error))
        return false;
    if (background)
        return request_wrong(error, "background", "false: answers are given while the client waits");
    if (reasoning && !json_is_object(reasoning))
        return request_wrong(error, "reasoning", "an object");
    if (max_tokens)
        chat->fields.max_tokens = (uint32_t)max_tokens;
    r->stream = chat->fields.stream;
    const json_t *format = request_given(request_given(body, "text"), "format");
    return structured_read(body, format, &chat->structured, error) &&
           chat_request_parallel(chat, body, error) && read_input(r, body, chat, error) && read_tools(chat, body, error) &&
           chat_request_variables(chat, r->server, body, request_given(reasoning, "effort"), error) &&
           chat_request_check(chat, error) && make_object(r, body, chat, error);
}

static struct responses *create_state(struct server *server, struct http_exchange *exchange,
                                      struct request_error *error) {
    struct responses *r = calloc(1, sizeof *r);
    if (!r) {
        err_set(&error->err, ERR_NOMEM, "out of memory for a request");
        return NULL;
    }
    r->server = server;
    r->served = server->served;
    r->exchange = exchange;
    request_new_id("resp_", r->id, sizeof r->id);
    return r;
}

void openai_responses(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct chat_request chat = {0};
    json_t *body = request_body(exchange, &error);
    struct responses *r = body ? create_state(server, exchange, &error) : NULL;
    bool ok = r && read_request(r, body, &chat, &error) &&
              chat_request_start(server, exchange, &chat, body, &SURFACE, r, NULL, &error);
    if (!ok) {
        request_refuse(exchange, &error);
        if (r)
            free_state(r);
    } else if (r->stream) {
        http_on_quiet(exchange, SSE_QUIET_MS, on_quiet, r);
    }
    chat_request_deinit(&chat);
    json_decref(body);
}

// POST /v1/responses/input_tokens: how many tokens the prompt of such a request has.
void openai_response_tokens(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct chat_request chat = {0};
    struct token_list prompt = {0};
    json_t *body = request_body(exchange, &error);
    struct responses *r = body ? create_state(server, exchange, &error) : NULL;
    if (r && read_request(r, body, &chat, &error) && chat_request_render(server, &chat, NULL, &prompt, &error)) {
        struct strbuf out = {0};
        strbuf_printf(&out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", prompt.n);
        http_reply_built(exchange, &out);
    } else {
        request_refuse(exchange, &error);
    }
    if (r)
        free_state(r);
    token_list_deinit(&prompt);
    chat_request_deinit(&chat);
    json_decref(body);
}

// ---- Stored answers ------------------------------------------------------------------------------------
static struct str id_of(const struct http_exchange *exchange, struct str *rest) {
    struct str path = http_path(exchange), prefix = STR("/v1/responses/");
    struct str id = str_slice(path, prefix.n, path.n);
    size_t slash = str_find(id, STR("/"), 0);
    *rest = slash == SIZE_MAX ? (struct str){0} : str_slice(id, slash, id.n);
    return slash == SIZE_MAX ? id : str_slice(id, 0, slash);
}

static void not_found(struct http_exchange *exchange, struct str id) {
    http_fail(exchange, 404, "invalid_request_error", NULL, "id", "response with id '%.*s' is not here (any "
              "more)", (int)id.n, id.data);
}

void openai_response(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct str rest, id = id_of(exchange, &rest);
    struct stored_response stored;
    if (!response_store_get(server->responses, id, &stored) ||
        (rest.n && !str_eq_c(rest, "/input_items"))) {
        not_found(exchange, id);
        return;
    }
    struct strbuf out = {0};
    const char *stream = http_query(exchange, "stream");
    if (!rest.n && stream && strcmp(stream, "true") == 0) {
        http_fail(exchange, 400, NULL, NULL, "stream", "a kept response comes in one piece; only those made with "
                  "'background' could be streamed again, and there are none here");
        return;
    }
    if (rest.n) {
        const char *order = http_query(exchange, "order"), *limit = http_query(exchange, "limit");
        long n = limit ? strtol(limit, NULL, 10) : 20;
        if (n < 1 || n > 100) {
            http_fail(exchange, 400, NULL, NULL, "limit", "'limit' must be an integer from 1 to 100");
            return;
        }
        response_items_list(&out, stored.input, !order || strcmp(order, "asc") != 0, http_query(exchange, "after"),
                            (size_t)n);
    } else {
        strbuf_json(&out, stored.response);
    }
    http_reply_built(exchange, &out);
}

// POST /v1/responses/ID/cancel.
void openai_response_cancel(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct str rest, id = id_of(exchange, &rest);
    struct stored_response stored;
    if (!str_eq_c(rest, "/cancel") || !response_store_get(server->responses, id, &stored))
        not_found(exchange, id);
    else
        http_fail(exchange, 400, NULL, NULL, NULL, "only a response made with 'background' can be cancelled; this one "
                  "was complete when it was answered");
}

void openai_response_delete(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct str rest, id = id_of(exchange, &rest);
    if (rest.n || !response_store_delete(server->responses, id)) {
        not_found(exchange, id);
        return;
    }
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"id\":");
    strbuf_json_string(&out, id);
    strbuf_append_c(&out, ",\"object\":\"response\",\"deleted\":true}");
    http_reply_built(exchange, &out);
}
