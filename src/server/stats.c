// GET /stats: what the engine is doing, in numbers.
#include "server/server.h"

void server_stats(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct engine_stats s;
    engine_stats(server->served->engine, &s);
    const struct engine_plan *plan = engine_plan_of(server->served->engine);
    struct strbuf out = {0};
    strbuf_printf(&out, "{\"server\":{\"owner\":\"loam\",\"version\":\"%s\",\"model\":", LOAM_VERSION);
    strbuf_json_string(&out, str_from(server->served->bundle.name));
    strbuf_printf(&out,
                  ",\"started_at\":%llu},\"admission\":{\"max_context\":%u,\"usable_bytes\":%llu,"
                  "\"weights_bytes\":%llu,\"kv_bytes\":%llu,\"workspace_bytes\":%llu},"
                  "\"batch\":{\"configured\":%u,\"active_rows\":%u,\"pending_rows\":%u,"
                  "\"submitted_rows\":%llu,\"cancelled_rows\":%llu,\"preempted_rows\":%llu},"
                  "\"tokens\":{\"steps\":%llu,\"prompt\":%llu,\"generated\":%llu},\"kv\":[",
                  (unsigned long long)server->started_unix, plan->limits.ctx_len,
                  (unsigned long long)plan->usable_bytes, (unsigned long long)plan->weight_bytes,
                  (unsigned long long)plan->kv_bytes, (unsigned long long)plan->workspace_bytes,
                  plan->limits.n_rows, s.n_running, s.n_waiting,
                  (unsigned long long)(s.n_requests + engine_n_live(server->served->engine)),
                  (unsigned long long)s.n_cancelled, (unsigned long long)s.n_preempted,
                  (unsigned long long)s.n_steps, (unsigned long long)s.n_prompt_tokens,
                  (unsigned long long)s.n_generated_tokens);
    for (uint32_t g = 0; g < s.n_groups; g++)
        strbuf_printf(&out, "%s{\"pages\":%u,\"free\":%u}", g ? "," : "", s.n_pages[g], s.n_pages_free[g]);
    struct response_store_stats store;
    response_store_stats(server->responses, &store);
    strbuf_printf(&out, "],\"prompt_cache\":{\"entries\":%u,\"snapshots\":%u,\"bytes\":%llu,\"snapshot_bytes\":%llu,"
                        "\"max_bytes\":%llu,\"hits\":%llu,\"misses\":%llu,\"cached_tokens\":%llu,\"evicted\":%llu,"
                        "\"forked\":%llu}",
                  s.cache.n_nodes, s.cache.n_snapshots, (unsigned long long)s.cache.bytes,
                  (unsigned long long)s.cache.snapshot_bytes, (unsigned long long)s.cache.bytes_max,
                  (unsigned long long)s.n_cache_hits, (unsigned long long)s.n_cache_misses,
                  (unsigned long long)s.n_cached_tokens, (unsigned long long)s.cache.n_evicted,
                  (unsigned long long)s.n_forked);
    if (s.has_disk)
        strbuf_printf(&out, ",\"ssd_cache\":{\"entries\":%u,\"bytes\":%llu,\"max_bytes\":%llu,\"restores\":%llu,"
                            "\"restore_ms_last\":%.3f,\"spills\":%llu,\"demotions\":%llu,\"unwritten\":%u,"
                            "\"pending_spills\":%u,\"pending_spill_bytes\":%llu,\"dropped_spills\":%llu,"
                            "\"failed_spills\":%llu,\"damaged\":%llu,\"evicted\":%llu}",
                      s.disk.n_entries, (unsigned long long)s.disk.bytes, (unsigned long long)s.disk.bytes_max,
                      (unsigned long long)s.cache.n_restored, s.cache.restore_ms, (unsigned long long)s.disk.n_written,
                      (unsigned long long)s.cache.n_demoted, s.cache.n_dirty, s.disk.n_pending,
                      (unsigned long long)s.disk.pending_bytes, (unsigned long long)s.disk.n_dropped,
                      (unsigned long long)s.disk.n_failed, (unsigned long long)s.disk.n_damaged,
                      (unsigned long long)s.disk.n_evicted);
    strbuf_printf(&out, ",\"response_store\":{\"entries\":%u,\"bytes\":%zu,\"max_bytes\":%zu,"
                        "\"ttl_ms\":%u}}", store.n_entries, store.bytes, store.bytes_max,
                  store.ttl_s * 1000);
    http_reply_json(exchange, 200, strbuf_str(&out));
    strbuf_deinit(&out);
}
