// GET /fit: the memory that the served model takes, as it was planned, and how fast it has answered.
#include "engine/fit.h"
#include "base/json.h"
#include "server/server.h"

void server_fit(struct http_exchange *exchange, void *user) {
    const struct server *server = user;
    const struct bundle *bundle = &server->served->bundle;
    const struct engine_plan *plan = engine_plan_of(server->served->engine);
    const struct histogram *itl = &server->metrics.itl_s;
    // Planned against what serving had to fit into: its own pool is not free any more.
    struct engine_options one = {.step_tokens = plan->limits.n_tokens, .memory_budget_bytes = plan->usable_bytes};
    uint64_t total = plan->weight_bytes + plan->kv_bytes + plan->state_bytes + plan->workspace_bytes;
    char device[256];
    struct strbuf out = {0};
    bundle->be->ops->describe(bundle->be, device, sizeof device);
    strbuf_append_c(&out, "{\"model\":");
    strbuf_json_string(&out, str_from(bundle->name));
    strbuf_append_c(&out, ",\"machine\":");
    strbuf_json_string(&out, str_from(device));
    strbuf_printf(&out,
                  ",\"fits\":true,\"weights_bytes\":%llu,\"kv_bytes\":%llu,\"kv_bytes_per_token\":%llu,"
                  "\"state_bytes\":%llu,\"transient_bytes\":%llu,\"total_bytes\":%llu,\"usable_bytes\":%llu,"
                  "\"context_length\":%u,\"sequences\":%u,\"max_safe_context\":%u,\"measured_decode_tps\":",
                  (unsigned long long)plan->weight_bytes, (unsigned long long)plan->kv_bytes,
                  (unsigned long long)plan->kv_bytes_per_token, (unsigned long long)plan->state_bytes,
                  (unsigned long long)plan->workspace_bytes, (unsigned long long)total,
                  (unsigned long long)plan->usable_bytes, plan->limits.ctx_len, plan->limits.n_rows,
                  fit_largest_context(bundle->model, &one));
    if (itl->n && itl->sum > 0)
        strbuf_printf(&out, "%.6g}", (double)itl->n / itl->sum);
    else
        strbuf_append_c(&out, "null}"); // nothing was answered yet
    http_reply_built(exchange, &out);
}
