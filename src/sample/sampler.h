// sample/sampler.h - logits -> token: processors, truncation, and a seeded draw.
//
// Order, as mlx-lm has it: (1) processors change logits: logit_bias, then penalties; (2) log-softmax gives
// the logprobs that are reported; (3) a token mask; (4) truncation of the distribution at temperature 1:
// top_p, min_p, top_k; (5) a draw at `temperature`, or the best token (lowest id among equals) when it is 0.
//
// A draw depends on the seed, the index of the token in its sequence and the logits alone, so the same
// request gives the same text whatever runs beside it. One owner thread per sampler.
#ifndef LOAM_SAMPLE_SAMPLER_H
#define LOAM_SAMPLE_SAMPLER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { SAMPLER_TOP_LOGPROBS_MAX = 20 };

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampler_params {
    float temperature; // 0 = greedy
    float top_p;       // 0 or >= 1: off
    float min_p;       // 0: off
    int32_t top_k;     // <= 0: off
    uint64_t seed;
    const struct logit_bias *bias; // [n_bias], copied
    uint32_t n_bias;
    uint32_t n_top_logprobs; // to report, at most SAMPLER_TOP_LOGPROBS_MAX
    bool want_logprob;       // of the chosen token
};
// temperature 1, nothing else.
struct sampler_params sampler_params_default(void);
// Ranges: temperature [0, 5], top_p [0, 1], min_p [0, 1], ids below n_vocab. ERR_INVALID naming the field.
bool sampler_params_check(const struct sampler_params *params, uint32_t n_vocab, struct err *err);

struct sampled {
    int32_t id;
    float logprob; // of id, when wanted
    uint32_t n_top;
    struct {
        int32_t id;
        float logprob;
    } top[SAMPLER_TOP_LOGPROBS_MAX]; // best first
};

struct sampler;
struct sampler *sampler_create(const struct sampler_params *params, uint32_t n_vocab, struct err *err);
void sampler_destroy(struct sampler *sampler);

// Choose a token. logits [n_vocab] are read only. `mask`, if not NULL, has a bit for every allowed token
// (bit i % 32 of word i / 32). token_idx counts the tokens that the sequence generated before this one.
// False only if the mask allows nothing.
bool sampler_sample(struct sampler *sampler, const float *logits, const uint32_t *mask,
                    uint32_t token_idx, struct sampled *out);

// Four independent 32-bit words for a counter under a key: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011).
void philox4x32(uint32_t counter[4], uint64_t key);
#endif
