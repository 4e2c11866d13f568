// GET /v1/models, /v1/models/ID, /health and /ready: what is served.
#include "base/json.h"
#include "server/server.h"

static void append_model(struct strbuf *out, const struct server *server) {
    strbuf_append_c(out, "{\"id\":");
    strbuf_json_string(out, str_from(server->served->bundle.name));
    strbuf_printf(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"loam\",\"context_window\":%u}",
                  (unsigned long long)server->started_unix,
                  engine_plan_of(server->served->engine)->limits.ctx_len);
}

void openai_models(struct http_exchange *exchange, void *user) {
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"object\":\"list\",\"data\":[");
    append_model(&out, user);
    strbuf_append_c(&out, "]}");
    http_reply_json(exchange, 200, strbuf_str(&out));
    strbuf_deinit(&out);
}

void openai_model(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    // Names hold slashes (org/name), so the id is everything behind the prefix.
    struct str path = http_path(exchange), prefix = STR("/v1/models/");
    struct str id = str_slice(path, prefix.n, path.n);
    if (!str_eq_c(id, server->served->bundle.name) && !str_eq_c(http_last_part(exchange), server->served->bundle.name)) {
        http_fail(exchange, 404, NULL, "model_not_found", "model",
                  "model \"%.*s\" is not served here; this server has \"%s\"", (int)id.n, id.data,
                  server->served->bundle.name);
        return;
    }
    struct strbuf out = {0};
    append_model(&out, server);
    http_reply_json(exchange, 200, strbuf_str(&out));
    strbuf_deinit(&out);
}

void server_health(struct http_exchange *exchange, void *user) {
    (void)user;
    http_reply_json(exchange, 200, STR("{\"status\":\"ok\"}"));
}

// Requests are answered as long as this is 200: a balancer stops sending when the server is told to stop.
void server_ready(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    if (server->stopping)
        http_fail(exchange, 503, NULL, "shutting_down", NULL, "the server is shutting down");
    else
        http_reply_json(exchange, 200, STR("{\"status\":\"ready\"}"));
}
