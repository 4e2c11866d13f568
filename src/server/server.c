#include "server/server.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/library.h"
#include "server/openai_answer.h"

enum { DRAIN_MS_DEFAULT = 30000 };

static const struct http_route ROUTES[] = {
    {"POST", "/v1/chat/completions", openai_chat},
    {"POST", "/v1/completions", openai_completions},
    {"POST", "/v1/embeddings", openai_embeddings},
    {"POST", "/v1/rerank", server_rerank},
    {"POST", "/v1/responses", openai_responses},
    {"POST", "/v1/responses/input_tokens", openai_response_tokens},
    {"POST", "/v1/responses/*", openai_response_cancel},
    {"GET", "/v1/responses/*", openai_response},
    {"DELETE", "/v1/responses/*", openai_response_delete},
    {"POST", "/v1/messages", anthropic_messages},
    {"POST", "/v1/messages/count_tokens", anthropic_count_tokens},
    {"GET", "/v1/models", openai_models},
    {"GET", "/v1/models/*", openai_model},
    {"GET", "/v1", server_index},
    {"POST", "/tokenize", server_tokenize},
    {"POST", "/detokenize", server_detokenize},
    {"POST", "/apply-template", server_apply_template},
    {"GET", "/health", server_health},
    {"GET", "/ready", server_ready},
    {"GET", "/stats", server_stats},
    {"GET", "/metrics", server_metrics},
    {"GET", "/fit", server_fit},
    {"GET", "/library", server_library},
    {"GET", "/downloads", server_downloads},
    {"POST", "/admin/cache/flush", server_cache_flush},
    {"GET", "/openapi.json", server_openapi},
    {NULL, NULL, NULL},
};

struct server_options server_options_default(void) {
    return (struct server_options){.host = "127.0.0.1", .port = 8080};
}

// GET /v1: the server describes itself. A port probe reads `models` from it.
void server_index(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"object\":\"server\",\"name\":\"loam\",\"version\":\"" LOAM_VERSION "\","
                          "\"models\":[");
    strbuf_json_string(&out, str_from(server->served->bundle.name));
    strbuf_append_c(&out, "],\"routes\":[");
    for (const struct http_route *route = ROUTES; route->method; route++)
        strbuf_printf(&out, "%s{\"method\":\"%s\",\"path\":\"%s\"}", route == ROUTES ? "" : ",",
                      route->method, route->path);
    strbuf_append_c(&out, "]}");
    http_reply_json(exchange, 200, strbuf_str(&out));
    strbuf_deinit(&out);
}

// A route of Anthropic's, or one of both APIs asked by Anthropic's client.
static bool is_anthropic(const struct http_exchange *exchange) {
    return str_starts(http_path(exchange), STR("/v1/messages")) || http_header(exchange, "anthropic-version");
}

static void error_body(struct strbuf *out, const struct http_exchange *exchange, int status, const char *type,
                       const char *code, const char *param, struct str message) {
    if (is_anthropic(exchange))
        anthropic_error(out, status, type, message, http_request_id(exchange));
    else
        openai_append_error(out, message, type, param, code);
}

static bool admit(struct http_exchange *exchange, void *user) {
    if (is_anthropic(exchange)) // what its client calls X-Request-Id
        http_add_header(exchange, "request-id", http_request_id(exchange));
    return guard_admit(&((struct server *)user)->guard, exchange);
}

struct server *server_create(const struct server_options *options, struct err *err) {
    struct server *server = calloc(1, sizeof *server);
    if (!server) {
        err_set(err, ERR_NOMEM, "out of memory for the server");
        return NULL;
    }
    server->options = *options;
    server->started_unix = (uint64_t)time(NULL);
    struct http_options http = {
        .host = options->host, .port = options->port, .unix_path = options->unix_path, .routes = ROUTES,
        .user = server, .error_body = error_body, .admit = admit, .tls_cert = options->tls_cert,
        .tls_key = options->tls_key,
        .n_connections_max =
            options->n_connections_max ? options->n_connections_max : SERVER_CONNECTIONS_MAX,
        .idle_timeout_ms = options->idle_timeout_ms ? options->idle_timeout_ms : SERVER_IDLE_TIMEOUT_MS,
        .head_timeout_ms = options->head_timeout_ms ? options->head_timeout_ms : SERVER_HEAD_TIMEOUT_MS,
        .body_bytes_max = options->body_bytes_max ? options->body_bytes_max : SERVER_BODY_BYTES_MAX};
    server->guard = (struct guard){options->api_key, options->cors_origins,
                                   options->unix_path ? NULL : options->host};
    server->responses = response_store_create(RESPONSE_STORE_BYTES_MAX, RESPONSE_STORE_TTL_S, err);
    server->library = server->responses ? library_create(err) : NULL;
    server->http = server->library ? http_create(&http, err) : NULL;
    if (!server->http) {
        server_destroy(server);
        return NULL;
    }
    return server;
}

void server_attach(struct server *server, struct served *served) {
    struct served *before = server->served;
    served->next = server->all_served;
    served->link = &server->all_served;
    if (served->next)
        served->next->link = &served->next;
    server->all_served = server->served = served;
    served_release(before);
}

bool server_post(struct server *server, http_post_fn *fn, void *user) {
    return http_post(server->http, fn, user);
}

bool server_on_readable(struct server *server, int fd, http_post_fn *fn, void *user) {
    return http_on_readable(server->http, fd, fn, user);
}

static void stop_when_drained(void *user) {
    struct server *server = user;
    // The last answer is made, but its bytes may not be on their way yet: two more looks.
    server->n_idle_looks = http_n_open(server->http) == 0 ? server->n_idle_looks + 1 : 0;
    if (server->n_idle_looks > 2 || clock_ns() > server->stop_deadline_ns)
        http_stop(server->http);
}

static void on_stop_signal(void *user) {
    struct server *server = user;
    if (server->stopping) { // asked twice: at once
        for (struct served *served = server->all_served; served; served = served->next)
            engine_forget(served->engine);
        http_stop(server->http);
        return;
    }
    uint32_t drain_ms = server->options.drain_ms ? server->options.drain_ms : DRAIN_MS_DEFAULT;
    log_info("server: stopping open=%u", http_n_open(server->http));
    server->stopping = true;
    server->stop_deadline_ns = clock_ns() + (uint64_t)drain_ms * 1000000;
    http_accept_no_more(server->http);
    for (struct served *served = server->all_served; served; served = served->next)
        engine_drain(served->engine);
    // Only now is there something to look for again and again: an idle server has no timer.
    http_every(server->http, 20, stop_when_drained, server);
}

void server_run(struct server *server) {
    http_on_signal(server->http, SIGTERM, on_stop_signal, server);
    http_on_signal(server->http, SIGINT, on_stop_signal, server);
    http_run(server->http);
}

void server_destroy(struct server *server) {
    if (!server)
        return;
    server->stopping = true;
    for (struct served *served = server->all_served; served; served = served->next) {
        engine_destroy(served->engine); // first: its last events still find the event loop
        served->engine = NULL;
    }
    library_stop(server->library);
    http_destroy(server->http);
    library_destroy(server->library);
    while (server->all_served)
        served_destroy(server->all_served);
    response_store_destroy(server->responses);
    free(server);
}

uint16_t server_port(const struct server *server) {
    return http_port(server->http);
}
