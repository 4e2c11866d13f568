// backend/cpu/attention.h - paged attention (an entry of backend_ops, see there).
#ifndef LOAM_BACKEND_CPU_ATTENTION_H
#define LOAM_BACKEND_CPU_ATTENTION_H
#include "backend/cpu/cpu_backend.h"

struct cpu_scratch_bytes cpu_attention_scratch(const struct cpu_backend *cb, const struct backend_limits *limits);
// Put query i into its place in the panels that attention_scores_fn takes.
static inline void attention_pack_query(float *panels, uint32_t i, uint32_t k_dim, const float *query) {
    float *to = panels + (size_t)(i / ATTENTION_PANEL) * ATTENTION_PANEL * k_dim + i % ATTENTION_PANEL;
    for (uint32_t d = 0; d < k_dim; d++)
        to[(size_t)d * ATTENTION_PANEL] = query[d];
}

void cpu_attention(struct backend *be, const struct attention_args *args);
#endif
