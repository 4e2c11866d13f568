#include "server/metrics.h"

static const double SECONDS[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                 2.5,   5,      10,    20,   40,    80,   160, 640};
static const double TOKENS[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,
                                1000, 2000, 5000,  10000, 20000, 50000,  100000, 200000, 500000};
enum { N_SECONDS = sizeof SECONDS / sizeof *SECONDS, N_TOKENS = sizeof TOKENS / sizeof *TOKENS };

static void observe(struct histogram *h, const double *bounds, uint32_t n_bounds, double value) {
    uint32_t i = 0;
    while (i < n_bounds && value > bounds[i])
        i++;
    h->counts[i]++;
    h->n++;
    h->sum += value;
}

void metrics_count(struct metrics *m, const struct gen_usage *usage) {
    observe(&m->queue_s, SECONDS, N_SECONDS, usage->queue_ms / 1e3);
    observe(&m->e2e_s, SECONDS, N_SECONDS, (usage->queue_ms + usage->prefill_ms + usage->decode_ms) / 1e3);
    if (usage->n_generated)
        observe(&m->ttft_s, SECONDS, N_SECONDS, (usage->queue_ms + usage->prefill_ms) / 1e3);
    if (usage->n_generated > 1)
        observe(&m->itl_s, SECONDS, N_SECONDS, usage->decode_ms / 1e3 / (usage->n_generated - 1));
    observe(&m->prompt_tokens, TOKENS, N_TOKENS, usage->n_prompt);
    observe(&m->generated_tokens, TOKENS, N_TOKENS, usage->n_generated);
    m->n_cached_tokens += usage->n_cached;
}

static void write_histogram(struct strbuf *out, const struct histogram *h, const double *bounds,
                            uint32_t n_bounds, const char *name, const char *help) {
    strbuf_printf(out, "# HELP loam_%s %s\n# TYPE loam_%s histogram\n", name, help, name);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_bounds; i++) {
        sum += h->counts[i];
        strbuf_printf(out, "loam_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)sum);
    }
    strbuf_printf(out, "loam_%s_bucket{le=\"+Inf\"} %llu\nloam_%s_sum %.9g\nloam_%s_count %llu\n", name,
                  (unsigned long long)h->n, name, h->sum, name, (unsigned long long)h->n);
}

void metrics_write(const struct metrics *m, struct strbuf *out) {
    write_histogram(out, &m->queue_s, SECONDS, N_SECONDS, "request_queue_time_seconds",
                    "Time that requests waited before their prompt was read.");
    write_histogram(out, &m->ttft_s, SECONDS, N_SECONDS, "time_to_first_token_seconds",
                    "Time from a request to its first token.");
    write_histogram(out, &m->itl_s, SECONDS, N_SECONDS, "inter_token_latency_seconds",
                    "Mean time between the tokens of a request.");
    write_histogram(out, &m->e2e_s, SECONDS, N_SECONDS, "e2e_request_latency_seconds",
                    "Time from a request to its last token.");
    write_histogram(out, &m->prompt_tokens, TOKENS, N_TOKENS, "request_prompt_tokens",
                    "Tokens of a request's prompt.");
    write_histogram(out, &m->generated_tokens, TOKENS, N_TOKENS, "request_generation_tokens",
                    "Tokens that were generated for a request.");
    strbuf_printf(out, "# HELP loam_prompt_cached_tokens_total Prompt tokens that came from a cache.\n"
                       "# TYPE loam_prompt_cached_tokens_total counter\n"
                       "loam_prompt_cached_tokens_total %llu\n", (unsigned long long)m->n_cached_tokens);
}
