// server/metrics.h - counters and histograms of finished generations, for GET /metrics. Event thread.
#ifndef LOAM_SERVER_METRICS_H
#define LOAM_SERVER_METRICS_H
#include "base/bytes.h"
#include "engine/engine.h"

enum { HISTOGRAM_BUCKETS_MAX = 20 };

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS_MAX + 1]; // not cumulative; the last is +Inf
    uint64_t n;
    double sum;
};

struct metrics {
    struct histogram queue_s, ttft_s, itl_s, e2e_s, prompt_tokens, generated_tokens;
    uint64_t n_cached_tokens;
};

void metrics_count(struct metrics *metrics, const struct gen_usage *usage);
// Append the text exposition format of Prometheus.
void metrics_write(const struct metrics *metrics, struct strbuf *out);
#endif
