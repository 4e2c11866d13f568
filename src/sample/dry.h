// sample/dry.h - "don't repeat yourself": a penalty for the token that would prolong a repetition, growing with
// its length, as p-e-w proposed and llama.cpp defines it. Immutable breakers: any thread.
#ifndef LOAM_SAMPLE_DRY_H
#define LOAM_SAMPLE_DRY_H
#include "tokenizer/tokenizer.h"

enum { DRY_BREAKERS_MAX = 32, DRY_BREAKER_BYTES_MAX = 40, DRY_TAIL_TOKENS_MAX = 20 };

// Where repetitions end: token sequences that spell one of the given texts. A token that holds a whole text is one
// by itself; a token that ends with a text's beginning is one with the rest's tokens behind it.
struct dry_breakers;
// Texts of at most DRY_BREAKER_BYTES_MAX bytes, none empty. Counts references. ERR_INVALID, ERR_NOMEM.
struct dry_breakers *dry_breakers_create(const struct tokenizer *tokenizer, const struct str *texts, uint32_t n_texts,
                                         struct err *err);
struct dry_breakers *dry_breakers_acquire(struct dry_breakers *breakers);
void dry_breakers_release(struct dry_breakers *breakers); // NULL is allowed
// Are these the texts that it was made of?
bool dry_breakers_are(const struct dry_breakers *breakers, const struct str *texts, uint32_t n_texts);
// "\n", ":", "\"", "*", as llama.cpp has it.
extern const struct str DRY_BREAKERS_DEFAULT[4];

struct dry_params {
    float multiplier; // 0 = off
    float base;       // >= 1
    uint32_t allowed_length; // >= 1: repetitions of fewer tokens cost nothing
    int32_t last_n;   // tokens looked back over; -1 = all, 0 = off
};
// Take multiplier * base^(length - allowed_length) from each logit whose token would make a repetition of `length`
// tokens longer; the context is tokens [n_tokens]. `spare` holds n_tokens words, `by_token`
// n_vocab zeros, before and after. breakers may be NULL.
void dry_apply(const struct dry_params *params, const struct dry_breakers *breakers, const int32_t *tokens,
               uint32_t n_tokens, uint32_t *spare, uint32_t *by_token, float *logits, uint32_t n_vocab);
#endif
