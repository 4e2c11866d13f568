#include "server/openai_completion.h"

#include <stdlib.h>
#include <time.h>

#include "server/gen_job.h"
#include "server/sse.h"

struct completion {
    struct server *server;
    struct http_exchange *exchange;
    enum completion_kind kind;
    bool stream, include_usage, begun;
    char id[64];
    long long created;
    struct strbuf text; // of an answer in one piece
};

static void free_state(void *state) {
    struct completion *c = state;
    strbuf_deinit(&c->text);
    free(c);
}

static void append_head(struct strbuf *out, const struct completion *c, const char *object) {
    strbuf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object,
                  c->created);
    strbuf_json_string(out, str_from(c->server->bundle->name));
}

static void append_usage(struct strbuf *out, const struct gen_usage *usage) {
    strbuf_printf(out,
                  "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
                  usage->n_prompt, usage->n_generated, usage->n_prompt + usage->n_generated,
                  usage->n_cached);
}

// One chunk with a choice. delta NULL: none; finish NULL: not yet.
static void send_chunk(struct completion *c, struct str text, bool role, const char *finish) {
    struct strbuf out = {0};
    bool chat = c->kind == COMPLETION_CHAT;
    append_head(&out, c, chat ? "chat.completion.chunk" : "text_completion");
    strbuf_append_c(&out, ",\"choices\":[{\"index\":0,");
    if (chat) {
        strbuf_append_c(&out, "\"delta\":{");
        if (role)
            strbuf_append_c(&out, "\"role\":\"assistant\",\"content\":\"\"");
        if (text.n) {
            strbuf_append_c(&out, role ? ",\"content\":" : "\"content\":");
            strbuf_json_string(&out, text);
        }
        strbuf_append_c(&out, "}");
    } else {
        strbuf_append_c(&out, "\"text\":");
        strbuf_json_string(&out, text);
    }
    strbuf_append_c(&out, ",\"logprobs\":null,\"finish_reason\":");
    if (finish)
        strbuf_json_string(&out, str_from(finish));
    else
        strbuf_append_c(&out, "null");
    strbuf_append_c(&out, c->include_usage ? "}],\"usage\":null}" : "}]}");
    sse_data(c->exchange, strbuf_str(&out));
    strbuf_deinit(&out);
}

static void begin(struct completion *c) {
    if (c->begun)
        return;
    c->begun = true;
    sse_begin(c->exchange);
    if (c->kind == COMPLETION_CHAT)
        send_chunk(c, (struct str){0}, true, NULL);
}

static void on_delta(void *state, struct str text) {
    struct completion *c = state;
    if (!c->stream) {
        strbuf_append(&c->text, text);
        return;
    }
    begin(c);
    send_chunk(c, text, false, NULL);
}

static void end_stream(struct completion *c, enum finish_reason finish, const struct gen_usage *usage) {
    begin(c);
    send_chunk(c, (struct str){0}, false, finish_reason_name(finish));
    if (c->include_usage) {
        struct strbuf out = {0};
        append_head(&out, c, c->kind == COMPLETION_CHAT ? "chat.completion.chunk" : "text_completion");
        strbuf_append_c(&out, ",\"choices\":[],\"usage\":");
        append_usage(&out, usage);
        strbuf_append_c(&out, "}");
        sse_data(c->exchange, strbuf_str(&out));
        strbuf_deinit(&out);
    }
    sse_data(c->exchange, STR("[DONE]"));
    http_stream_end(c->exchange);
}

static void end_whole(struct completion *c, enum finish_reason finish, const struct gen_usage *usage) {
    struct strbuf out = {0};
    bool chat = c->kind == COMPLETION_CHAT;
    append_head(&out, c, chat ? "chat.completion" : "text_completion");
    strbuf_append_c(&out, ",\"choices\":[{\"index\":0,");
    if (chat) {
        strbuf_append_c(&out, "\"message\":{\"role\":\"assistant\",\"content\":");
        strbuf_json_string(&out, strbuf_str(&c->text));
        strbuf_append_c(&out, ",\"refusal\":null}");
    } else {
        strbuf_append_c(&out, "\"text\":");
        strbuf_json_string(&out, strbuf_str(&c->text));
    }
    strbuf_printf(&out, ",\"logprobs\":null,\"finish_reason\":\"%s\"}],\"usage\":",
                  finish_reason_name(finish));
    append_usage(&out, usage);
    strbuf_append_c(&out, "}");
    http_reply_json(c->exchange, 200, strbuf_str(&out));
    strbuf_deinit(&out);
}

static void on_done(void *state, enum finish_reason finish, struct str stop_text,
                    const struct gen_usage *usage, const struct err *err) {
    (void)stop_text; // OpenAI's answers do not say which
    struct completion *c = state;
    struct err cancelled = {0};
    if (finish == FINISH_CANCELLED) {
        err_set(&cancelled, ERR_BUSY, "the server is shutting down");
        err = &cancelled;
    }
    if (!err && c->text.failed) {
        err_set(&cancelled, ERR_NOMEM, "out of memory for the answer");
        err = &cancelled;
    }
    if (err && !c->begun) {
        http_fail_err(c->exchange, err);
    } else if (err) { // the status is sent already: the error is an event
        struct strbuf out = {0};
        strbuf_append_c(&out, "{\"error\":{\"message\":");
        strbuf_json_string(&out, str_from(err->message));
        strbuf_append_c(&out, ",\"type\":\"server_error\",\"param\":null,\"code\":null}}");
        sse_data(c->exchange, strbuf_str(&out));
        strbuf_deinit(&out);
        http_stream_end(c->exchange);
    } else if (c->stream) {
        end_stream(c, finish, usage);
    } else {
        end_whole(c, finish, usage);
    }
    free_state(c);
}

static const struct gen_job_surface SURFACE = {on_delta, on_done, free_state};

void openai_completion_start(struct server *server, struct http_exchange *exchange,
                             enum completion_kind kind, const struct generation_fields *fields,
                             const struct token_list *prompt, struct str echo) {
    struct err err = {0};
    struct completion *c = calloc(1, sizeof *c);
    if (!c) {
        err_set(&err, ERR_NOMEM, "out of memory for a request");
        http_fail_err(exchange, &err);
        return;
    }
    *c = (struct completion){.server = server, .exchange = exchange, .kind = kind,
                             .stream = fields->stream, .include_usage = fields->include_usage,
                             .created = (long long)time(NULL)};
    request_new_id(kind == COMPLETION_CHAT ? "chatcmpl-" : "cmpl-", c->id, sizeof c->id);
    struct gen_request request = {
        .prompt = prompt->ids, .n_prompt = (uint32_t)prompt->n, .max_tokens = fields->max_tokens,
        .sampling = fields->sampling, .stops = fields->stops, .n_stops = fields->n_stops,
        .ignore_eos = fields->ignore_eos};
    if (!gen_job_start(server, exchange, &request, &SURFACE, c, &err)) {
        free_state(c);
        if (err.code == ERR_INVALID)
            http_fail(exchange, 400, NULL,
                      prompt->n >= engine_plan_of(server->engine)->limits.ctx_len ? "context_length_exceeded"
                                                                                  : NULL,
                      NULL, "%s", err.message);
        else
            http_fail_err(exchange, &err);
        return;
    }
    if (echo.n)
        on_delta(c, echo);
}
