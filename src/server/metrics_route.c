// GET /metrics: Prometheus' text format.
#include "server/server.h"

static void counter(struct strbuf *out, const char *type, const char *name, const char *help, double value) {
    strbuf_printf(out, "# HELP loam_%s %s\n# TYPE loam_%s %s\nloam_%s %.17g\n", name, help, name, type, name,
                  value);
}

void server_metrics(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct engine_stats s;
    engine_stats(server->served->engine, &s);
    struct strbuf out = {0};
    strbuf_append_c(&out, "# HELP loam_info What is served.\n# TYPE loam_info gauge\nloam_info{version=\""
                          LOAM_VERSION "\",model=");
    strbuf_json_string(&out, str_from(server->served->bundle.name));
    strbuf_append_c(&out, "} 1\n");
    counter(&out, "gauge", "num_requests_running", "Requests whose tokens are being computed.", s.n_running);
    counter(&out, "gauge", "num_requests_waiting", "Requests that wait for a place.", s.n_waiting);
    counter(&out, "counter", "requests_total", "Requests that ended.", (double)s.n_requests);
    counter(&out, "counter", "requests_cancelled_total", "Requests that their clients gave up.",
            (double)s.n_cancelled);
    counter(&out, "counter", "preemptions_total", "Times that a request gave its memory to others.",
            (double)s.n_preempted);
    counter(&out, "counter", "engine_steps_total", "Steps of the model.", (double)s.n_steps);
    counter(&out, "counter", "prompt_tokens_total", "Prompt tokens that were read.",
            (double)s.n_prompt_tokens);
    counter(&out, "counter", "generation_tokens_total", "Tokens that were generated.",
            (double)s.n_generated_tokens);
    double used = 0, all = 0;
    for (uint32_t g = 0; g < s.n_groups; g++) {
        used += s.n_pages[g] - s.n_pages_free[g];
        all += s.n_pages[g];
    }
    counter(&out, "gauge", "kv_cache_usage_ratio", "Part of the KV pages that is in use.",
            all > 0 ? used / all : 0);
    counter(&out, "gauge", "prompt_cache_bytes", "KV and snapshots that the prompt cache holds.",
            (double)s.cache.bytes);
    counter(&out, "counter", "prompt_cache_hits_total", "Requests some of whose prompt came from the prompt cache.",
            (double)s.n_cache_hits);
    counter(&out, "counter", "prompt_cache_misses_total", "Requests none of whose prompt did.",
            (double)s.n_cache_misses);
    counter(&out, "counter", "prompt_cache_evictions_total", "Pages that made room for others.",
            (double)s.cache.n_evicted);
    counter(&out, "gauge", "ssd_cache_bytes", "Files of the prompt cache's disk tier.", (double)s.disk.bytes);
    counter(&out, "counter", "ssd_cache_restores_total", "Pages that came from it.", (double)s.cache.n_restored);
    counter(&out, "counter", "ssd_cache_writes_total", "Files that were written to it.", (double)s.disk.n_written);
    counter(&out, "counter", "ssd_cache_failures_total", "Files that could not be written, or were damaged.",
            (double)(s.disk.n_failed + s.disk.n_damaged));
    counter(&out, "gauge", "http_open_exchanges", "HTTP requests without their whole answer.",
            http_n_open(server->http));
    metrics_write(&server->metrics, &out);
    if (out.failed)
        http_fail(exchange, 503, NULL, NULL, NULL, "out of memory for the answer");
    else
        http_reply(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", strbuf_str(&out));
    strbuf_deinit(&out);
}
