// GET /v1/models, /v1/models/ID, /health and /ready: what is served.
#include <time.h>

#include "base/json.h"
#include "server/server.h"

static const char *yes(bool is) {
    return is ? "true" : "false";
}

static void append_support(struct strbuf *out, const char *name, bool supported) {
    strbuf_printf(out, "\"%s\":{\"supported\":%s},", name, yes(supported));
}

// What the model can, in the words of Anthropic's models: each of them is there, also what no model here can.
static void append_capabilities(struct strbuf *out, const struct served *served) {
    static const char *const NONE[] = {"batch", "citations", "code_execution", "pdf_input", "image_input"};
    static const char *const EFFORTS[] = {"low", "medium", "high", "xhigh", "max"};
    bool text = !served->bundle.is_embedding, reasons = text && served_reasons(served);
    bool effort = reasons && served_template_has(served, "reasoning_effort");
    strbuf_char(out, '{');
    for (size_t i = 0; i < sizeof NONE / sizeof *NONE; i++)
        append_support(out, NONE[i], false);
    append_support(out, "structured_outputs", text);
    strbuf_append_c(out, "\"thinking\":{\"types\":{");
    append_support(out, "enabled", reasons);
    append_support(out, "adaptive", reasons);
    append_support(out, "between_tools", reasons);
    append_support(out, "disabled", !reasons || served_template_has(served, "enable_thinking"));
    out->n--; // the last comma
    strbuf_printf(out, "},\"supported\":%s},\"effort\":{", yes(reasons));
    for (size_t i = 0; i < sizeof EFFORTS / sizeof *EFFORTS; i++)
        append_support(out, EFFORTS[i], effort);
    strbuf_printf(out, "\"supported\":%s},\"server_tools\":{\"supported\":false,"
                       "\"code_execution\":{\"supported\":false},\"web_search\":{\"supported\":false}},"
                       "\"context_management\":{\"supported\":false,\"clear_thinking_20251015\":null,\"clear_tool_uses_20250919\":null,\"compact_20260112\":null}}",
                  yes(effort));
}

// How it samples where a request does not say.
static void append_defaults(struct strbuf *out, const struct server *server) {
    const struct bundle *bundle = &server->served->bundle;
    struct sampler_params p = bundle_sampling(bundle);
    sampler_given_apply(&server->options.sampling, &p);
    int64_t n = server->options.max_tokens > 0 ? server->options.max_tokens : bundle_max_tokens(bundle);
    strbuf_printf(out, "{\"temperature\":%.7g,\"top_p\":%.7g,\"top_k\":%d,\"min_p\":%.7g,\"repetition_penalty\":%.7g,"
                       "\"max_tokens\":", (double)p.temperature, (double)p.top_p, p.top_k, (double)p.min_p,
                  (double)p.repetition_penalty);
    if (n > 0)
        strbuf_printf(out, "%lld}", (long long)n);
    else
        strbuf_append_c(out, "null}");
}

// One object for the clients of both APIs.
static void append_model(struct strbuf *out, const struct server *server) {
    const struct served *served = server->served;
    bool text = !served->bundle.is_embedding;
    uint32_t n_context = engine_plan_of(served->engine)->limits.ctx_len;
    time_t started = (time_t)server->started_unix;
    struct tm utc;
    char date[32] = "";
    if (gmtime_r(&started, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    strbuf_append_c(out, "{\"id\":");
    strbuf_json_string(out, str_from(served->bundle.name));
    strbuf_printf(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"loam\",\"type\":\"model\",\"display_name\":",
                  (unsigned long long)server->started_unix);
    strbuf_json_string(out, str_from(served->bundle.name));
    strbuf_printf(out, ",\"created_at\":\"%s\",\"lifecycle\":\"active\",\"line\":null,\"deprecated_at\":null,"
                       "\"retires_at\":null,\"max_input_tokens\":%u,\"max_tokens\":%u,\"context_window\":%u,"
                       "\"reasoning\":%s,\"tools\":%s,\"structured_output\":%s,\"vision\":false,\"audio\":false,"
                       "\"embeddings\":%s,\"capabilities\":",
                  date, n_context, n_context, n_context, yes(text && served_reasons(served)),
                  yes(text && served_template_has(served, "tools")), yes(text), yes(!text));
    append_capabilities(out, served);
    strbuf_append_c(out, ",\"gen_defaults\":");
    append_defaults(out, server);
    strbuf_char(out, '}');
}

void openai_models(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct str name = str_from(server->served->bundle.name);
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"object\":\"list\",\"data\":[");
    append_model(&out, server);
    strbuf_append_c(&out, "],\"has_more\":false,\"first_id\":");
    strbuf_json_string(&out, name);
    strbuf_append_c(&out, ",\"last_id\":");
    strbuf_json_string(&out, name);
    strbuf_char(&out, '}');
    http_reply_built(exchange, &out);
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
    http_reply_built(exchange, &out);
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
