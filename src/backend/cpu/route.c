#include "backend/cpu/route.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct cpu_scratch_bytes cpu_route_scratch(const struct cpu_backend *cb, const struct backend_limits *limits) {
    (void)cb;
    return (struct cpu_scratch_bytes){.thread = (size_t)limits->n_experts * 2 * sizeof(float)};
}

// The n_best largest of `values`, largest first, the lower index first among equals. NaN counts as the
// least, so that there are always n_best different indices.
static void choose(const float *values, uint32_t n, uint32_t n_best, uint32_t *best) {
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_held == n_best && !(values[i] > values[best[n_best - 1]]) && !isnan(values[best[n_best - 1]]))
            continue;
        if (n_held == n_best && isnan(values[i]))
            continue;
        uint32_t at = n_held < n_best ? n_held++ : n_best - 1;
        for (; at > 0 && (values[i] > values[best[at - 1]] || (isnan(values[best[at - 1]]) && !isnan(values[i])));
             at--)
            best[at] = best[at - 1];
        best[at] = i;
    }
}

// What decides whether a group of experts takes part: DeepSeek V2 (softmax) its best, DeepSeek V3 the sum
// of its best two.
static float group_score(const struct route_args *a, const float *values, uint32_t n) {
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (values[i] > best) {
            second = best;
            best = values[i];
        } else if (values[i] > second) {
            second = values[i];
        }
    }
    return a->kind == ROUTE_SIGMOID && n > 1 ? best + second : best;
}

// Leave only the experts of the best groups in the choice.
static void limit_groups(const struct route_args *a, float *values, uint32_t n) {
    enum { GROUPS_MAX = 64 };
    assert(a->n_groups <= GROUPS_MAX && n % a->n_groups == 0);
    float scores[GROUPS_MAX];
    uint32_t best[GROUPS_MAX], width = n / a->n_groups;
    bool kept[GROUPS_MAX] = {false};
    for (uint32_t g = 0; g < a->n_groups; g++)
        scores[g] = group_score(a, values + (size_t)g * width, width);
    choose(scores, a->n_groups, a->n_groups_used, best);
    for (uint32_t i = 0; i < a->n_groups_used; i++)
        kept[best[i]] = true;
    for (uint32_t i = 0; i < n; i++)
        if (!kept[i / width])
            values[i] = -INFINITY;
}

struct job {
    struct cpu_backend *cb;
    const struct route_args *args;
};

static void token_run(void *arg, uint32_t token, uint32_t thread_idx) {
    const struct job *job = arg;
    const struct route_args *a = job->args;
    const struct cpu_kernels *k = &job->cb->kernels;
    uint32_t n = a->logits.n_cols, n_used = a->n_used;
    const float *logits = mat_row(a->logits, token);
    float *scores = job->cb->thread_scratch[thread_idx], *values = scores + n;
    uint32_t *experts = a->experts + (size_t)token * n_used;
    float *weights = a->weights + (size_t)token * n_used;
    if (a->kind == ROUTE_SOFTMAX_TOPK)
        k->softmax(logits, scores, n);
    else if (a->kind == ROUTE_SIGMOID)
        k->unary(UNARY_SIGMOID, NULL, logits, scores, n);
    else
        memcpy(scores, logits, n * sizeof *scores);
    memcpy(values, scores, n * sizeof *values);
    if (a->correction)
        k->axpby(1.0f, a->correction, 1.0f, values, n);
    if (a->n_groups > 1)
        limit_groups(a, values, n);
    choose(values, n, n_used, experts);
    for (uint32_t i = 0; i < n_used; i++)
        weights[i] = scores[experts[i]];
    if (a->kind == ROUTE_TOPK_SOFTMAX)
        k->softmax(weights, weights, n_used);
    if (a->normalize) {
        float sum = 0;
        for (uint32_t i = 0; i < n_used; i++)
            sum += weights[i];
        if (a->kind == ROUTE_SIGMOID)
            sum += 1e-20f;
        for (uint32_t i = 0; i < n_used; i++)
            weights[i] /= sum;
    }
    for (uint32_t i = 0; i < n_used; i++)
        weights[i] *= a->scale * (a->expert_scale ? a->expert_scale[experts[i]] : 1.0f);
}

void cpu_route(struct backend *be, const struct route_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    assert(args->n_used <= args->logits.n_cols && args->logits.n_cols <= cb->limits.n_experts);
    struct job job = {cb, args};
    cpu_run(cb, token_run, &job, args->logits.n_rows, (uint64_t)args->logits.n_rows * args->logits.n_cols * 16);
}
