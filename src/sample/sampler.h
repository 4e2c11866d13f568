// sample/sampler.h - logits -> token: processors, truncation, and a seeded draw.
//
// Order and definitions as mlx-lm has them (docs/sampling.md):
//   1. processors change logits: logit_bias; repetition, presence and frequency penalty; DRY
//   2. log-softmax gives the logprobs that are reported
//   3. masks: a grammar's tokens; no end token before min_tokens
//   4. truncation at temperature 1: typical_p, top_p, min_p, XTC, top_k
//   5. a draw at `temperature`, or the best token (lowest id among equals) when that is 0: 4 does not matter then
//
// A token depends on the parameters, the sequence before it and the logits alone: nothing is kept from one call to
// the next, so a request that is preempted and computed again, or runs beside others, gives the same text.
#ifndef LOAM_SAMPLE_SAMPLER_H
#define LOAM_SAMPLE_SAMPLER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "sample/dry.h"

enum { SAMPLER_TOP_LOGPROBS_MAX = 20 };

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampler_params {
    float temperature; // 0 = greedy
    float top_p;       // 0 or >= 1: off
    float min_p;       // 0: off
    float typical_p;   // 0 or >= 1: off
    int32_t top_k;     // <= 0: off
    float xtc_probability; // 0: off
    float xtc_threshold;
    float repetition_penalty; // 0 or 1: off
    float presence_penalty, frequency_penalty; // 0: off
    uint32_t repetition_context, presence_context, frequency_context; // tokens looked back over, 0 = all
    struct dry_params dry;
    uint32_t min_tokens; // generated ones before an end token may come
    uint64_t seed;
    const struct logit_bias *bias; // [n_bias], copied
    uint32_t n_bias;
    uint32_t n_top_logprobs; // to report, at most SAMPLER_TOP_LOGPROBS_MAX
    bool want_logprob;       // of the chosen token
};
// temperature 1; windows of 20 tokens, XTC's threshold 0.1, DRY's base 1.75 and length 2, for who switches them on.
struct sampler_params sampler_params_default(void);
// Ranges as SAMPLER_OPTIONS has them, ids below n_vocab. ERR_INVALID naming the field.
bool sampler_params_check(const struct sampler_params *params, uint32_t n_vocab, struct err *err);

// What samplers of a model share. Immutable; outlives them.
struct sampler_vocab {
    uint32_t n_vocab;
    const int32_t *ends;     // [n_ends] end-of-sequence tokens
    const int32_t *newlines; // [n_newlines]: XTC leaves these and the ends alone
    uint32_t n_ends, n_newlines;
};

struct sampled {
    int32_t id;
    float logprob; // of id, when wanted
    uint32_t n_top;
    struct {
        int32_t id;
        float logprob;
    } top[SAMPLER_TOP_LOGPROBS_MAX]; // best first
};

// Room for one call at a time, shared by all samplers of a thread.
struct sampler_scratch;
// For sequences of up to n_tokens_max. ERR_NOMEM.
struct sampler_scratch *sampler_scratch_create(uint32_t n_vocab, uint32_t n_tokens_max, struct err *err);
void sampler_scratch_destroy(struct sampler_scratch *scratch); // NULL is allowed

struct sampler;
// breakers (a reference is taken) or NULL: where DRY's repetitions end.
struct sampler *sampler_create(const struct sampler_params *params, const struct sampler_vocab *vocab,
                               struct dry_breakers *breakers, struct err *err);
void sampler_destroy(struct sampler *sampler);

// The sequence so far: the first n_prompt of n_tokens are the prompt. All ids are below n_vocab.
struct sampler_context {
    const int32_t *tokens;
    uint32_t n_tokens, n_prompt;
};
// Choose the next token. logits [n_vocab] are read only. `mask`, if not NULL, has a bit for every allowed token
// (bit i % 32 of word i / 32). False only if the mask allows nothing, or the logits are not numbers.
bool sampler_sample(const struct sampler *sampler, struct sampler_scratch *scratch, const float *logits,
                    const uint32_t *mask, const struct sampler_context *context, struct sampled *out);

// Four independent 32-bit words for a counter under a key: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
void philox4x32(uint32_t counter[4], uint64_t key);
#endif
