#include "sample/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

struct candidate {
    float logprob;
    int32_t id;
};

struct sampler {
    struct sampler_params params;
    struct logit_bias *bias; // [params.n_bias] owned
    uint32_t n_vocab;
    float *logits;                // [n_vocab] processed copy
    struct candidate *candidates; // [n_vocab]
};

struct sampler_params sampler_params_default(void) {
    return (struct sampler_params){.temperature = 1, .top_p = 1};
}

bool sampler_params_check(const struct sampler_params *p, uint32_t n_vocab, struct err *err) {
    if (!(p->temperature >= 0 && p->temperature <= 5))
        return err_set(err, ERR_INVALID, "temperature must be from 0 to 5, not %g", (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return err_set(err, ERR_INVALID, "top_p must be from 0 to 1, not %g", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return err_set(err, ERR_INVALID, "min_p must be from 0 to 1, not %g", (double)p->min_p);
    if (p->n_top_logprobs > SAMPLER_TOP_LOGPROBS_MAX)
        return err_set(err, ERR_INVALID, "top_logprobs must be at most %d, not %u",
                       SAMPLER_TOP_LOGPROBS_MAX, p->n_top_logprobs);
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < 0 || (uint32_t)p->bias[i].id >= n_vocab)
            return err_set(err, ERR_INVALID, "logit_bias names token %d; the model has %u", p->bias[i].id,
                           n_vocab);
    return true;
}

struct sampler *sampler_create(const struct sampler_params *params, uint32_t n_vocab, struct err *err) {
    if (!sampler_params_check(params, n_vocab, err))
        return NULL;
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        goto nomem;
    sampler->params = *params;
    sampler->n_vocab = n_vocab;
    if (params->n_bias) {
        sampler->bias = malloc(params->n_bias * sizeof *sampler->bias);
        if (!sampler->bias)
            goto nomem;
        memcpy(sampler->bias, params->bias, params->n_bias * sizeof *sampler->bias);
        sampler->logits = malloc(n_vocab * sizeof *sampler->logits);
        if (!sampler->logits)
            goto nomem;
    }
    sampler->params.bias = sampler->bias;
    if (params->temperature > 0) {
        sampler->candidates = malloc(n_vocab * sizeof *sampler->candidates);
        if (!sampler->candidates)
            goto nomem;
    }
    return sampler;
nomem:
    sampler_destroy(sampler);
    err_set(err, ERR_NOMEM, "out of memory for a sampler of %u tokens", n_vocab);
    return NULL;
}

void sampler_destroy(struct sampler *sampler) {
    if (!sampler)
        return;
    free(sampler->bias);
    free(sampler->logits);
    free(sampler->candidates);
    free(sampler);
}

void philox4x32(uint32_t c[4], uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
        memcpy(c, next, sizeof next);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// Uniform in [0, 1) with 53 bits.
static double uniform(uint64_t seed, uint32_t token_idx) {
    uint32_t c[4] = {token_idx, 0, 0, 0};
    philox4x32(c, seed);
    uint64_t bits = (uint64_t)c[0] << 21 ^ c[1] >> 11;
    return (double)(bits & ((1ull << 53) - 1)) * 0x1p-53;
}

static bool allowed(const uint32_t *mask, uint32_t id) {
    return !mask || (mask[id / 32] >> (id % 32) & 1);
}

static float log_sum_exp(const float *logits, uint32_t n) {
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    return max + (float)log(sum);
}

static int best_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->logprob != y->logprob)
        return x->logprob > y->logprob ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void report_top(const struct sampler *sampler, const float *logits, float total,
                       struct sampled *out) {
    uint32_t wanted = min_u32(sampler->params.n_top_logprobs, sampler->n_vocab);
    for (uint32_t id = 0; id < sampler->n_vocab && wanted; id++) {
        float logprob = logits[id] - total;
        if (out->n_top == wanted && !(logprob > out->top[wanted - 1].logprob))
            continue;
        uint32_t at = out->n_top < wanted ? out->n_top++ : wanted - 1;
        for (; at > 0 && out->top[at - 1].logprob < logprob; at--)
            out->top[at] = out->top[at - 1];
        out->top[at].id = (int32_t)id;
        out->top[at].logprob = logprob;
    }
}

static int32_t greedy(const struct sampler *sampler, const float *logits, const uint32_t *mask) {
    int32_t best = -1;
    for (uint32_t id = 0; id < sampler->n_vocab; id++)
        if (allowed(mask, id) && (best < 0 || logits[id] > logits[best]))
            best = (int32_t)id;
    return best;
}

// Keep the most likely candidates: sorted best first, cut by top_p (the smallest set whose probabilities
// reach it), min_p (share of the best) and top_k. Returns how many stay, at least one.
static uint32_t truncate(const struct sampler_params *p, struct candidate *candidates, uint32_t n,
                         float masked_total) {
    bool by_top_p = p->top_p > 0 && p->top_p < 1;
    if (!by_top_p && p->min_p <= 0 && p->top_k <= 0)
        return n;
    qsort(candidates, n, sizeof *candidates, best_first);
    uint32_t keep = n;
    if (by_top_p) {
        double sum = 0;
        for (uint32_t i = 0; i < keep; i++) {
            sum += (double)expf(candidates[i].logprob - masked_total);
            if (sum >= (double)p->top_p) {
                keep = i + 1;
                break;
            }
        }
    }
    if (p->min_p > 0) {
        float floor_logprob = candidates[0].logprob + logf(p->min_p);
        while (keep > 1 && candidates[keep - 1].logprob < floor_logprob)
            keep--;
    }
    if (p->top_k > 0)
        keep = min_u32(keep, (uint32_t)p->top_k);
    return keep;
}

static int32_t draw(struct sampler *sampler, const float *logits, float total, const uint32_t *mask,
                    uint32_t token_idx) {
    const struct sampler_params *p = &sampler->params;
    struct candidate *candidates = sampler->candidates;
    uint32_t n = 0;
    double masked_sum = 0;
    for (uint32_t id = 0; id < sampler->n_vocab; id++) {
        if (!allowed(mask, id) || !(logits[id] > -INFINITY))
            continue;
        candidates[n++] = (struct candidate){logits[id] - total, (int32_t)id};
        masked_sum += mask ? (double)expf(logits[id] - total) : 0;
    }
    if (n == 0)
        return greedy(sampler, logits, mask);
    n = truncate(p, candidates, n, mask ? (float)log(masked_sum) : 0);
    float max = candidates[0].logprob;
    for (uint32_t i = 1; i < n; i++)
        max = candidates[i].logprob > max ? candidates[i].logprob : max;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)expf((candidates[i].logprob - max) / p->temperature);
    double target = uniform(p->seed, token_idx) * sum, reached = 0;
    for (uint32_t i = 0; i < n; i++) {
        reached += (double)expf((candidates[i].logprob - max) / p->temperature);
        if (reached > target)
            return candidates[i].id;
    }
    return candidates[n - 1].id;
}

bool sampler_sample(struct sampler *sampler, const float *logits, const uint32_t *mask,
                    uint32_t token_idx, struct sampled *out) {
    const struct sampler_params *p = &sampler->params;
    *out = (struct sampled){.id = -1};
    if (p->n_bias) {
        memcpy(sampler->logits, logits, sampler->n_vocab * sizeof *logits);
        for (uint32_t i = 0; i < p->n_bias; i++)
            sampler->logits[p->bias[i].id] += p->bias[i].bias;
        logits = sampler->logits;
    }
    float total = 0;
    if (p->temperature > 0 || p->want_logprob || p->n_top_logprobs)
        total = log_sum_exp(logits, sampler->n_vocab);
    out->id = p->temperature > 0 ? draw(sampler, logits, total, mask, token_idx)
                                 : greedy(sampler, logits, mask);
    if (out->id < 0)
        return false;
    if (p->want_logprob)
        out->logprob = logits[out->id] - total;
    report_top(sampler, logits, total, out);
    return true;
}
