#include "sample/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "sample/candidates.h"
#include "sample/sampler_options.h"
#include "sample/scan.h"

struct sampler {
    struct sampler_params params;
    const struct sampler_vocab *vocab;
    struct logit_bias *bias; // [params.n_bias] owned
    struct dry_breakers *breakers;
};

struct sampler_scratch {
    uint32_t n_vocab, n_tokens_max;
    float *work;         // [n_vocab] logits that are changed
    int32_t *ids;        // [n_vocab]
    uint64_t *keys;      // [n_vocab]
    float *weights;      // [n_vocab]
    uint32_t *by_token;  // [n_vocab] zeros between uses
    uint32_t *spare;     // [n_tokens_max]
    double *block_sums;  // [ceil(n_vocab / SCAN_BLOCK)]
};

struct sampler_params sampler_params_default(void) {
    return (struct sampler_params){.temperature = 1, .top_p = 1, .typical_p = 1, .xtc_threshold = 0.1f,
                                   .repetition_penalty = 1, .repetition_context = 20, .presence_context = 20,
                                   .frequency_context = 20,
                                   .dry = {.base = 1.75f, .allowed_length = 2, .last_n = -1}};
}

bool sampler_params_check(const struct sampler_params *p, uint32_t n_vocab, struct err *err) {
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++) {
        const struct sampler_option *o = &SAMPLER_OPTIONS[i];
        double value = sampler_option_get(p, i);
        if (!(value >= o->min && value <= o->max) && !(o->kind == SAMPLER_INT && value < 0)) // any below 0 is "off"
            return err_set(err, ERR_INVALID, "%s must be from %g to %g, not %g", o->name, o->min, o->max, value);
    }
    if (p->n_top_logprobs > SAMPLER_TOP_LOGPROBS_MAX)
        return err_set(err, ERR_INVALID, "top_logprobs must be at most %d, not %u",
                       SAMPLER_TOP_LOGPROBS_MAX, p->n_top_logprobs);
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < 0 || (uint32_t)p->bias[i].id >= n_vocab)
            return err_set(err, ERR_INVALID, "logit_bias names token %d; the model has %u", p->bias[i].id,
                           n_vocab);
    return true;
}

// ---- Life ---------------------------------------------------------------------------------------
struct sampler_scratch *sampler_scratch_create(uint32_t n_vocab, uint32_t n_tokens_max, struct err *err) {
    struct sampler_scratch *s = calloc(1, sizeof *s);
    if (!s)
        goto nomem;
    s->n_vocab = n_vocab;
    s->n_tokens_max = n_tokens_max;
    s->work = malloc(n_vocab * sizeof *s->work);
    s->ids = malloc(n_vocab * sizeof *s->ids);
    s->keys = malloc(n_vocab * sizeof *s->keys);
    s->weights = malloc(n_vocab * sizeof *s->weights);
    s->by_token = calloc(n_vocab, sizeof *s->by_token);
    s->spare = malloc((size_t)n_tokens_max * sizeof *s->spare);
    s->block_sums = malloc((n_vocab / SCAN_BLOCK + 1) * sizeof *s->block_sums);
    if (s->work && s->ids && s->keys && s->weights && s->by_token && s->spare && s->block_sums)
        return s;
nomem:
    sampler_scratch_destroy(s);
    err_set(err, ERR_NOMEM, "out of memory for sampling from %u tokens", n_vocab);
    return NULL;
}

void sampler_scratch_destroy(struct sampler_scratch *s) {
    if (!s)
        return;
    free(s->work);
    free(s->ids);
    free(s->keys);
    free(s->weights);
    free(s->by_token);
    free(s->spare);
    free(s->block_sums);
    free(s);
}

struct sampler *sampler_create(const struct sampler_params *params, const struct sampler_vocab *vocab,
                               struct dry_breakers *breakers, struct err *err) {
    if (!sampler_params_check(params, vocab->n_vocab, err))
        return NULL;
    struct sampler *sampler = calloc(1, sizeof *sampler);
    struct logit_bias *bias = sampler && params->n_bias ? malloc(params->n_bias * sizeof *bias) : NULL;
    if (!sampler || (params->n_bias && !bias)) {
        free(sampler);
        err_set(err, ERR_NOMEM, "out of memory for a sampler");
        return NULL;
    }
    if (bias)
        memcpy(bias, params->bias, params->n_bias * sizeof *bias);
    *sampler = (struct sampler){.params = *params, .vocab = vocab, .bias = bias,
                                .breakers = dry_breakers_acquire(breakers)};
    sampler->params.bias = bias;
    return sampler;
}

void sampler_destroy(struct sampler *sampler) {
    if (!sampler)
        return;
    dry_breakers_release(sampler->breakers);
    free(sampler->bias);
    free(sampler);
}

// ---- Random numbers -----------------------------------------------------------------------------
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

enum purpose { FOR_TOKEN, FOR_XTC };

// Uniform in [0, 1) with 53 bits, for a token of a sequence.
static double uniform(uint64_t seed, uint32_t token_idx, enum purpose purpose) {
    uint32_t c[4] = {token_idx, purpose, 0, 0};
    philox4x32(c, seed);
    uint64_t bits = (uint64_t)c[0] << 21 ^ c[1] >> 11;
    return (double)(bits & ((1ull << 53) - 1)) * 0x1p-53;
}

// ---- 1. Processors ------------------------------------------------------------------------------
static bool penalizes_repetition(const struct sampler_params *p) {
    return p->repetition_penalty > 0 && p->repetition_penalty != 1;
}

static bool has_processors(const struct sampler_params *p) {
    return p->n_bias || penalizes_repetition(p) || p->presence_penalty != 0 || p->frequency_penalty != 0 ||
           (p->dry.multiplier > 0 && p->dry.last_n != 0);
}

enum penalty { REPETITION, PRESENCE, FREQUENCY };

// For each token among the last `context` (0 = all): divide, once take away, or take away as often as it is there.
static void penalize(float *logits, enum penalty kind, float by, uint32_t context, const struct sampler_context *c,
                     uint32_t *counts) {
    uint32_t n = context ? min_u32(context, c->n_tokens) : c->n_tokens;
    const int32_t *tokens = c->tokens + (c->n_tokens - n);
    for (uint32_t i = 0; i < n; i++)
        counts[tokens[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = counts[tokens[i]];
        float *logit = &logits[tokens[i]];
        counts[tokens[i]] = 0;
        if (count == 0)
            continue; // done
        if (kind == REPETITION)
            *logit = *logit < 0 ? *logit * by : *logit / by;
        else
            *logit -= kind == PRESENCE ? by : by * (float)count;
    }
}

static void process(const struct sampler *sampler, struct sampler_scratch *scratch,
                    const struct sampler_context *context) {
    const struct sampler_params *p = &sampler->params;
    float *logits = scratch->work;
    for (uint32_t i = 0; i < p->n_bias; i++)
        logits[p->bias[i].id] += p->bias[i].bias;
    if (penalizes_repetition(p))
        penalize(logits, REPETITION, p->repetition_penalty, p->repetition_context, context, scratch->by_token);
    if (p->presence_penalty != 0)
        penalize(logits, PRESENCE, p->presence_penalty, p->presence_context, context, scratch->by_token);
    if (p->frequency_penalty != 0)
        penalize(logits, FREQUENCY, p->frequency_penalty, p->frequency_context, context, scratch->by_token);
    dry_apply(&p->dry, sampler->breakers, context->tokens, context->n_tokens, scratch->spare, scratch->by_token,
              logits, scratch->n_vocab);
}

// ---- 2. What is reported --------------------------------------------------------------------------
static void report_top(struct sampler_scratch *scratch, uint32_t n_wanted, const float *logits, float top,
                       float total, struct sampled *out) {
    uint32_t wanted = min_u32(n_wanted, scratch->n_vocab), n = 0;
    // The best few lie within a few units of the best of all, mostly: look there first.
    for (float depth = 4; depth < 1e4f && n < wanted; depth *= 2)
        n = scan_above(logits, scratch->n_vocab, top - depth, scratch->ids);
    if (n < wanted)
        n = scan_above(logits, scratch->n_vocab, -INFINITY, scratch->ids);
    for (uint32_t i = 0; i < n && wanted; i++) {
        float logprob = logits[scratch->ids[i]] - total;
        if (out->n_top == wanted && !(logprob > out->top[wanted - 1].logprob))
            continue;
        uint32_t at = out->n_top < wanted ? out->n_top++ : wanted - 1;
        for (; at > 0 && out->top[at - 1].logprob < logprob; at--)
            out->top[at] = out->top[at - 1];
        out->top[at].id = scratch->ids[i];
        out->top[at].logprob = logprob;
    }
}

// ---- 3. Masks -------------------------------------------------------------------------------------
// No end token yet, unless nothing else is left. Returns the best logit.
static float forbid_ends(const struct sampler *sampler, float *logits) {
    const struct sampler_vocab *v = sampler->vocab;
    float kept[64], best_end = -INFINITY;
    uint32_t n = min_u32(v->n_ends, sizeof kept / sizeof *kept);
    for (uint32_t i = 0; i < n; i++) {
        kept[i] = logits[v->ends[i]];
        best_end = kept[i] > best_end ? kept[i] : best_end;
        logits[v->ends[i]] = -INFINITY;
    }
    float top = scan_max(logits, v->n_vocab);
    if (top > -INFINITY)
        return top;
    for (uint32_t i = n; i-- > 0;) // backwards: an id that is listed twice was saved first
        logits[v->ends[i]] = kept[i];
    return best_end;
}

// ---- 4. Truncation --------------------------------------------------------------------------------
static bool truncates(const struct sampler_params *p) {
    return (p->top_p > 0 && p->top_p < 1) || p->min_p > 0 || p->top_k > 0 || (p->typical_p > 0 && p->typical_p < 1);
}

static double weight_of(const struct candidates *c) {
    double sum = 0;
    for (uint32_t i = 0; i < c->n; i++)
        sum += (double)c->weights[i];
    return sum;
}

// Candidates: the tokens above `floor`, weighing e^(logit - top).
static void collect(struct sampler_scratch *s, const float *logits, float top, float floor, struct candidates *c) {
    c->n = scan_above(logits, s->n_vocab, floor, s->ids);
    for (uint32_t i = 0; i < c->n; i++) {
        float logit = logits[s->ids[i]];
        c->weights[i] = logit;
        c->keys[i] = candidate_key(logit, s->ids[i]);
    }
    scan_exp(c->weights, c->n, top, 1, c->weights);
}

// Locally typical sampling (Meister et al. 2022): the tokens whose surprise is nearest to the expected one.
// With t = logit - top, surprise is log(total) - t and its expectation log(total) - mean, so what counts is
// |t - mean|.
static void keep_typical(struct sampler_scratch *s, const float *logits, float top, double total, double typical_p,
                         struct candidates *c) {
    float mean = (float)(scan_sum_t_exp(logits, s->n_vocab, top) / total);
    for (float width = 3;; width *= 1.5f) {
        bool all = width > 1e4f;
        collect(s, logits, top, all ? -INFINITY : top + mean - width, c);
        uint32_t n = 0;
        for (uint32_t i = 0; i < c->n; i++) {
            int32_t id = candidate_id(c->keys[i]);
            float distance = fabsf(logits[id] - top - mean);
            if (!all && distance >= width)
                continue;
            c->keys[n] = candidate_key(-distance, id);
            c->weights[n++] = c->weights[i];
        }
        c->n = n;
        if (all || weight_of(c) >= typical_p * total)
            break;
    }
    candidates_keep_best(c, typical_p * total, true);
    for (uint32_t i = 0; i < c->n; i++) {
        int32_t id = candidate_id(c->keys[i]);
        c->keys[i] = candidate_key(logits[id], id);
    }
}

static bool is_one_of(int32_t id, const int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

// Exclude top choices (XTC): of the tokens more probable than the threshold all go but the least probable. Returns
// its weight: what weighs more goes, unless it is spared.
static float xtc_least(const struct sampler_params *p, const struct candidates *c, double total) {
    double limit = (double)p->xtc_threshold * total;
    float least = INFINITY;
    for (uint32_t i = 0; i < c->n; i++)
        if ((double)c->weights[i] > limit && c->weights[i] < least)
            least = c->weights[i];
    return least;
}

static bool xtc_spares(const struct sampler_vocab *v, int32_t id) {
    return is_one_of(id, v->ends, v->n_ends) || is_one_of(id, v->newlines, v->n_newlines);
}

static void exclude_top(const struct sampler *sampler, struct candidates *c, double total) {
    float least = xtc_least(&sampler->params, c, total);
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->weights[i] > least && !xtc_spares(sampler->vocab, candidate_id(c->keys[i])))
            continue;
        c->keys[n] = c->keys[i];
        c->weights[n++] = c->weights[i];
    }
    c->n = n;
}

// XTC and nothing else: only what is above the threshold need be looked at. Leaves the rest in scratch->work.
static void exclude_top_of_all(const struct sampler *sampler, struct sampler_scratch *s, const float *logits,
                               float top) {
    struct candidates c = {.keys = s->keys, .weights = s->weights};
    double total = scan_sum_exp(logits, s->n_vocab, top, 1, NULL);
    float floor = top + logf(sampler->params.xtc_threshold) + (float)log(total);
    collect(s, logits, top, floor - 1e-3f, &c);
    float least = xtc_least(&sampler->params, &c, total);
    if (logits != s->work)
        memcpy(s->work, logits, s->n_vocab * sizeof *logits);
    for (uint32_t i = 0; i < c.n; i++)
        if (c.weights[i] > least && !xtc_spares(sampler->vocab, candidate_id(c.keys[i])))
            s->work[candidate_id(c.keys[i])] = -INFINITY;
}

// The candidates that truncation leaves, at least one. All of them are drawn from what `collect` saw of the
// likeliest tokens; it looks deeper until that cannot matter.
static void truncate(const struct sampler *sampler, struct sampler_scratch *s, const float *logits, float top,
                     bool xtc, struct candidates *c) {
    const struct sampler_params *p = &sampler->params;
    bool by_typical = p->typical_p > 0 && p->typical_p < 1, by_top_p = p->top_p > 0 && p->top_p < 1;
    double total = scan_sum_exp(logits, s->n_vocab, top, 1, NULL), seen = 0;
    if (by_typical) {
        keep_typical(s, logits, top, total, (double)p->typical_p, c);
        total = seen = weight_of(c);
    }
    float floor = p->min_p > 0 ? nextafterf(top + logf(p->min_p), -INFINITY) : -INFINITY;
    for (float depth = 6; !by_typical; depth *= 1.5f) {
        float from = depth > 1e4f ? -INFINITY : top - depth;
        bool enough = from <= floor;
        collect(s, logits, top, enough ? floor : from, c);
        seen = weight_of(c);
        if (enough || (by_top_p && seen >= (double)p->top_p * total))
            break;
        if (by_top_p || p->min_p > 0)
            continue;
        uint32_t wanted = (uint32_t)p->top_k; // and as many as XTC could take from the top
        for (uint32_t i = 0; xtc && i < c->n; i++)
            wanted += (double)c->weights[i] > (double)p->xtc_threshold * total;
        if (c->n >= wanted)
            break;
    }
    if (by_top_p)
        candidates_keep_best(c, (double)p->top_p * total, true);
    if (p->min_p > 0 && (by_typical || by_top_p)) { // of the best that is left
        uint64_t best = 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < c->n; i++)
            best = c->keys[i] > best ? c->keys[i] : best;
        float least = logits[candidate_id(best)] + logf(p->min_p);
        for (uint32_t i = 0; i < c->n; i++) {
            if (logits[candidate_id(c->keys[i])] < least)
                continue;
            c->keys[n] = c->keys[i];
            c->weights[n++] = c->weights[i];
        }
        c->n = n;
    }
    // What was cut off by top_p or min_p has no part in XTC's probabilities; what only was not looked at has.
    if (xtc)
        exclude_top(sampler, c, by_top_p || by_typical || p->min_p > 0 ? weight_of(c) : total);
    if (p->top_k > 0)
        candidates_keep_best(c, p->top_k, false);
}

// ---- 5. The draw ----------------------------------------------------------------------------------
static int32_t best_of(struct sampler_scratch *s, const float *logits, float top) {
    scan_above(logits, s->n_vocab, nextafterf(top, -INFINITY), s->ids);
    return s->ids[0];
}

// Among weights [n]: the first whose running sum exceeds `target`, or the last that weighs anything.
static uint32_t draw_index(const float *weights, uint32_t n, double target) {
    double reached = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        reached += (double)weights[i];
        if (reached > target)
            return i;
        last = weights[i] > 0 ? i : last;
    }
    return last;
}

static int32_t draw_from(const struct candidates *c, const float *logits, float temperature, double u) {
    for (uint32_t i = 0; i < c->n; i++)
        c->weights[i] = logits[candidate_id(c->keys[i])];
    float top = scan_max(c->weights, c->n);
    scan_exp(c->weights, c->n, top, 1 / temperature, c->weights);
    return candidate_id(c->keys[draw_index(c->weights, c->n, u * weight_of(c))]);
}

// From the whole vocabulary: by blocks, then inside one.
static int32_t draw_from_all(struct sampler_scratch *s, const float *logits, float top, float temperature, double u) {
    double total = scan_sum_exp(logits, s->n_vocab, top, 1 / temperature, s->block_sums);
    double target = u * total;
    uint32_t n_blocks = (s->n_vocab + SCAN_BLOCK - 1) / SCAN_BLOCK, block = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (s->block_sums[b] > 0)
            block = b;
        if (target < s->block_sums[b])
            break;
        target -= s->block_sums[b];
    }
    uint32_t from = block * SCAN_BLOCK, n = min_u32(SCAN_BLOCK, s->n_vocab - from);
    scan_exp(logits + from, n, top, 1 / temperature, s->weights);
    return (int32_t)(from + draw_index(s->weights, n, target));
}

static int32_t draw(const struct sampler *sampler, struct sampler_scratch *s, const float *logits, float top,
                    uint32_t token_idx) {
    const struct sampler_params *p = &sampler->params;
    struct candidates c = {.keys = s->keys, .weights = s->weights};
    double u = uniform(p->seed, token_idx, FOR_TOKEN);
    bool xtc = p->xtc_probability > 0 && uniform(p->seed, token_idx, FOR_XTC) <= (double)p->xtc_probability;
    if (truncates(p)) {
        truncate(sampler, s, logits, top, xtc, &c);
        return draw_from(&c, logits, p->temperature, u);
    }
    if (xtc) {
        exclude_top_of_all(sampler, s, logits, top);
        logits = s->work;
        top = scan_max(logits, s->n_vocab);
    }
    return draw_from_all(s, logits, top, p->temperature, u);
}

bool sampler_sample(const struct sampler *sampler, struct sampler_scratch *scratch, const float *logits,
                    const uint32_t *mask, const struct sampler_context *context, struct sampled *out) {
    const struct sampler_params *p = &sampler->params;
    uint32_t n_vocab = scratch->n_vocab, token_idx = context->n_tokens - context->n_prompt;
    assert(context->n_tokens <= scratch->n_tokens_max && n_vocab == sampler->vocab->n_vocab);
    *out = (struct sampled){.id = -1};
    if (has_processors(p)) {
        memcpy(scratch->work, logits, n_vocab * sizeof *logits);
        process(sampler, scratch, context);
        logits = scratch->work;
    }
    float top = scan_max(logits, n_vocab), total = 0;
    bool report = p->want_logprob || p->n_top_logprobs;
    if (!(top > -INFINITY && top < INFINITY))
        return false;
    if (report) {
        total = top + (float)log(scan_sum_exp(logits, n_vocab, top, 1, NULL));
        report_top(scratch, p->n_top_logprobs, logits, top, total, out);
    }
    const float *allowed = logits;
    bool too_early = token_idx < p->min_tokens && sampler->vocab->n_ends;
    if (mask) { // reported logprobs are those from before
        scan_mask(logits, mask, n_vocab, scratch->work);
    } else if (too_early && logits != scratch->work) {
        memcpy(scratch->work, logits, n_vocab * sizeof *logits);
    }
    if (mask || too_early) {
        allowed = scratch->work;
        top = too_early ? forbid_ends(sampler, scratch->work) : scan_max(allowed, n_vocab);
        if (!(top > -INFINITY))
            return false;
    }
    out->id = p->temperature > 0 ? draw(sampler, scratch, allowed, top, token_idx) : best_of(scratch, allowed, top);
    if (p->want_logprob)
        out->logprob = logits[out->id] - total; // an allowed token's logit is the same in either
    return true;
}
