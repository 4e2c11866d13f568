// tests/model/trace.h - watches a model's step op by op: a shim over a backend's table that keeps what every operation
// wrote, so that two backends can be laid side by side and the first operation that departs be named. On the
// CPU backend it can also round as a backend of bf16 activations would, which tells a fault from rounding.
// One traced backend at a time; not for threads.
#ifndef LOAM_TESTS_MODEL_TRACE_H
#define LOAM_TESTS_MODEL_TRACE_H
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/half.h"

enum { TRACE_ENTRIES_MAX = 8192 };

// What is rounded to bf16 on its way to memory.
enum trace_rounding {
    TRACE_ROUND_STREAM = 1,  // the residual stream and everything added to it in place
    TRACE_ROUND_OUTPUTS = 2, // results of all other operations
    TRACE_ROUND_ROUTER = 4,  // logits of routers
    TRACE_ROUND_INPUTS = 8,  // what products and attention read
};

struct trace_entry {
    const char *op;
    uint32_t n_rows, n_cols;
    float *values;   // [n_rows, n_cols]
    uint32_t *ids;   // of a choice: as the backend wrote them
    float *weights;  // of a route, [n_rows, n_cols]
};
struct trace {
    struct trace_entry entries[TRACE_ENTRIES_MAX];
    uint32_t n;
};

static struct {
    const struct backend_ops *inner;
    struct backend_ops shim;
    struct trace *into; // NULL: nothing is kept
    // Not NULL: choices (of experts, of keys) that differ from this trace's are replaced by them, so that what is
    // compared after them is arithmetic. A choice between near ties says nothing about it.
    const struct trace *choices;
    unsigned rounding;
    uint32_t router_width;
} trace_state;

static inline void trace_clear(struct trace *trace) {
    for (uint32_t i = 0; i < trace->n; i++) {
        free(trace->entries[i].values);
        free(trace->entries[i].ids);
        free(trace->entries[i].weights);
    }
    trace->n = 0;
}

static inline void trace_round(struct mat m) {
    for (uint32_t r = 0; r < m.n_rows; r++)
        for (uint32_t c = 0; c < m.n_cols; c++) {
            float *x = (float *)m.data + (size_t)r * m.stride + c;
            *x = bf16_to_f32(bf16_from_f32(*x));
        }
}
// A rounded copy; freed with trace_drop.
static inline struct mat trace_rounded(struct mat m) {
    if (!(trace_state.rounding & TRACE_ROUND_INPUTS))
        return m;
    struct mat copy = {malloc((size_t)m.n_rows * m.stride * sizeof(float)), m.n_rows, m.n_cols, m.stride};
    for (uint32_t r = 0; r < m.n_rows; r++)
        memcpy((float *)copy.data + (size_t)r * m.stride, (const float *)m.data + (size_t)r * m.stride,
               m.n_cols * sizeof(float));
    trace_round(copy);
    return copy;
}
static inline void trace_drop(struct mat copy, struct mat of) {
    if (copy.data != of.data)
        free(copy.data);
}

static inline float *trace_add(const char *op, uint32_t n_rows, uint32_t n_cols) {
    struct trace *trace = trace_state.into;
    if (!trace || trace->n == TRACE_ENTRIES_MAX)
        return NULL;
    struct trace_entry *entry = &trace->entries[trace->n++];
    *entry = (struct trace_entry){op, n_rows, n_cols, calloc((size_t)n_rows * n_cols + 1, sizeof(float))};
    return entry->values;
}
static inline void trace_keep(struct backend *be, const char *op, struct mat m, unsigned kind) {
    if (trace_state.rounding & kind)
        trace_round(m);
    float *to = trace_add(op, m.n_rows, m.n_cols);
    if (!to)
        return;
    const size_t n = m.n_rows ? (size_t)(m.n_rows - 1) * m.stride + m.n_cols : 0; // in one piece
    char *all = malloc(n * be->act_bytes + 1);
    trace_state.inner->download(be, all, m.data, n * be->act_bytes);
    for (uint32_t r = 0; r < m.n_rows; r++)
        for (uint32_t c = 0; c < m.n_cols; c++) {
            const char *from = all + ((size_t)r * m.stride + c) * be->act_bytes;
            uint16_t narrow;
            if (be->act_bytes == sizeof(float)) {
                memcpy(to++, from, sizeof(float));
            } else {
                memcpy(&narrow, from, sizeof narrow);
                *to++ = bf16_to_f32(narrow);
            }
        }
    free(all);
}

static inline void trace_embed(struct backend *be, const struct weight *table, const int32_t *ids, float scale,
                               struct mat y) {
    trace_state.inner->embed(be, table, ids, scale, y);
    trace_keep(be, "embed", y, TRACE_ROUND_STREAM);
}
static inline void trace_linear(struct backend *be, const struct linear_args *args) {
    struct linear_args a = *args;
    a.x = trace_rounded(args->x);
    trace_state.inner->linear(be, &a);
    trace_drop(a.x, args->x);
    static const char *const NAMES[] = {"linear", "linear 1", "linear 2", "linear 3"};
    for (uint32_t i = 0; i < a.n_outputs; i++) {
        bool router = trace_state.router_width && a.outputs[i].y.n_cols == trace_state.router_width;
        trace_keep(be, router ? "router" : a.store == LINEAR_ADD ? "linear +=" : NAMES[i], a.outputs[i].y,
                   router                    ? TRACE_ROUND_ROUTER
                   : a.store == LINEAR_ADD ? TRACE_ROUND_STREAM
                                           : TRACE_ROUND_OUTPUTS);
    }
}
static inline void trace_norm(struct backend *be, const struct norm_args *args) {
    trace_state.inner->norm(be, args);
    trace_keep(be, "norm", args->y, TRACE_ROUND_OUTPUTS);
    if (args->residual)
        trace_keep(be, "norm residual", args->x, TRACE_ROUND_STREAM);
}
static inline void trace_qkv(struct backend *be, const struct qkv_args *args) {
    trace_state.inner->qkv(be, args);
    trace_keep(be, "qkv q", args->q, TRACE_ROUND_OUTPUTS);
}
static inline void trace_attention(struct backend *be, const struct attention_args *args) {
    struct attention_args a = *args;
    a.q = trace_rounded(args->q);
    trace_state.inner->attention(be, &a);
    trace_drop(a.q, args->q);
    trace_keep(be, "attention", args->out, TRACE_ROUND_OUTPUTS);
}
static inline void trace_glu(struct backend *be, const struct glu_args *args) {
    trace_state.inner->glu(be, args);
    trace_keep(be, "glu", args->y, TRACE_ROUND_OUTPUTS);
}
static inline void trace_unary(struct backend *be, enum unary_kind kind, const float p[4], struct mat x,
                               struct mat y) {
    trace_state.inner->unary(be, kind, p, x, y);
    trace_keep(be, "unary", y, TRACE_ROUND_OUTPUTS);
}
static inline void trace_axpby(struct backend *be, float a, struct mat x, float b, struct mat y) {
    trace_state.inner->axpby(be, a, x, b, y);
    trace_keep(be, "axpby", y, b == 0.0f ? TRACE_ROUND_OUTPUTS : TRACE_ROUND_STREAM);
}
static inline void trace_mul(struct backend *be, struct mat x, struct mat y) {
    trace_state.inner->mul(be, x, y);
    trace_keep(be, "mul", y, TRACE_ROUND_OUTPUTS);
}
static inline void trace_gather(struct backend *be, struct mat x, const uint32_t *rows, struct mat y) {
    trace_state.inner->gather(be, x, rows, y);
    trace_keep(be, "gather", y, 0);
}
static inline float *trace_logits(struct backend *be, struct mat x, const struct weight *head, const float *bias,
                                  float scale, float softcap) {
    struct mat in = trace_rounded(x);
    float *logits = trace_state.inner->logits(be, in, head, bias, scale, softcap);
    trace_drop(in, x);
    return logits;
}
static inline void trace_linear_glu(struct backend *be, struct mat x, const struct weight *gate,
                                    const struct weight *up, enum glu_kind kind, struct mat y) {
    struct mat in = trace_rounded(x);
    trace_state.inner->linear_glu(be, in, gate, up, kind, y);
    trace_drop(in, x);
    trace_keep(be, "linear_glu", y, TRACE_ROUND_OUTPUTS);
}
static inline int trace_by_id(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}
// Keep a choice [n, k] (ascending: its order says nothing), and replace what differs from trace_state.choices.
static inline void trace_choice(struct backend *be, const char *op, uint32_t n, uint32_t k, uint32_t *ids,
                                float *weights) {
    const uint32_t at = trace_state.into ? trace_state.into->n : 0;
    float *to = trace_add(op, n, k);
    if (!to)
        return;
    struct trace_entry *entry = &trace_state.into->entries[at];
    const size_t n_all = (size_t)n * k;
    entry->ids = malloc(n_all * sizeof *ids + 1);
    trace_state.inner->download(be, entry->ids, ids, n_all * sizeof *ids);
    if (weights) {
        entry->weights = malloc(n_all * sizeof *weights + 1);
        trace_state.inner->download(be, entry->weights, weights, n_all * sizeof *weights);
    }
    uint32_t *sorted = malloc(n_all * sizeof *sorted + 1);
    memcpy(sorted, entry->ids, n_all * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++) {
        qsort(sorted + (size_t)i * k, k, sizeof *sorted, trace_by_id);
        for (uint32_t j = 0; j < k; j++)
            to[i * k + j] = sorted[i * k + j] == UINT32_MAX ? -1.0f : (float)sorted[i * k + j];
        const struct trace_entry *want = trace_state.choices ? &trace_state.choices->entries[at] : NULL;
        if (want && want->ids && memcmp(to + i * k, want->values + i * k, k * sizeof *to) != 0) {
            trace_state.inner->upload(be, ids + i * k, want->ids + i * k, k * sizeof *ids);
            if (weights)
                trace_state.inner->upload(be, weights + i * k, want->weights + i * k, k * sizeof *weights);
        }
    }
    free(sorted);
}
static inline void trace_route(struct backend *be, const struct route_args *args) {
    trace_state.inner->route(be, args);
    trace_choice(be, "route", args->logits.n_rows, args->n_used, args->experts, args->weights);
}
static inline void trace_experts(struct backend *be, const struct experts_args *args) {
    struct experts_args a = *args;
    a.x = trace_rounded(args->x);
    trace_state.inner->experts(be, &a);
    trace_drop(a.x, args->x);
    trace_keep(be, "experts", args->y, args->store == LINEAR_ADD ? TRACE_ROUND_STREAM : TRACE_ROUND_OUTPUTS);
}
static inline void trace_conv(struct backend *be, const struct conv_args *args) {
    trace_state.inner->conv(be, args);
    trace_keep(be, "conv", args->y, TRACE_ROUND_OUTPUTS);
}
static inline void trace_delta(struct backend *be, const struct delta_args *args) {
    trace_state.inner->delta(be, args);
    trace_keep(be, "delta", args->out, TRACE_ROUND_OUTPUTS);
}
static inline void trace_index(struct backend *be, const struct index_args *args) {
    trace_state.inner->index(be, args);
    trace_choice(be, "index", args->q.n_rows, args->n_selected, args->selected, NULL);
}

// From now on be's operations go through the shim. Recorded steps are not replayed: they would hide them.
static inline void trace_begin(struct backend *be, struct trace *into, const struct trace *choices, unsigned rounding,
                               uint32_t router_width) {
    if (be->ops != &trace_state.shim)
        trace_state.inner = be->ops;
    struct backend_ops *s = &trace_state.shim;
    *s = *trace_state.inner;
    trace_state.into = into;
    trace_state.choices = choices;
    trace_state.rounding = be->act_bytes == sizeof(float) ? rounding : 0;
    trace_state.router_width = router_width;
    s->step_replay = NULL;
    s->embed = trace_embed, s->linear = trace_linear, s->norm = trace_norm, s->qkv = trace_qkv;
    s->attention = trace_attention, s->glu = trace_glu, s->unary = trace_unary, s->axpby = trace_axpby;
    s->mul = trace_mul, s->gather = trace_gather, s->logits = trace_logits, s->linear_glu = trace_linear_glu;
    s->route = trace_route, s->experts = trace_experts, s->conv = trace_conv, s->delta = trace_delta;
    s->index = trace_index;
    be->ops = s;
}
static inline void trace_end(struct backend *be) {
    be->ops = trace_state.inner;
}
#endif
