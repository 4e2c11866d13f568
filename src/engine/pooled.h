// engine/pooled.h - embeddings and reranking: the prompts of both, and what is made of the engine's values.
// Pure functions of a bundle; any thread. The request itself is engine_submit() with GEN_WANT_HIDDEN or
// GEN_WANT_LOGITS.
#ifndef LOAM_ENGINE_POOLED_H
#define LOAM_ENGINE_POOLED_H
#include "engine/bundle.h"

// ---- Embeddings -------------------------------------------------------------------------------
// The tokens to read for the embedding of `text`, with the folder's own prompt before it and what the tokenizer puts around
// it (for some models the end token whose hidden state is the embedding). ERR_UNSUPPORTED if the folder makes its
// embeddings in a way that loam lacks, which is named; ERR_NOMEM.
bool pooled_embed_prompt(const struct bundle *bundle, struct str text, struct token_list *ids, struct err *err);
// The engine's values [n] through the folder's dense layers, if it has any; the first n_dimensions of them (0 = all;
// Matryoshka), scaled to length 1. Returns how many there are, or 0 with ERR_INVALID (more dimensions than the model has),
// ERR_INTERNAL (a vector that is not numbers), ERR_NOMEM.
uint32_t pooled_embedding(const struct bundle *bundle, float *values, uint32_t n, uint32_t n_dimensions, struct err *err);

// ---- Reranking --------------------------------------------------------------------------------
// Source of the prompt and the score: the model card of Qwen3-Reranker.
struct rerank_query {
    struct str instruction; // empty = POOLED_RERANK_INSTRUCTION
    struct str query, document;
};
#define POOLED_RERANK_INSTRUCTION \
    "Given a web search query, retrieve relevant passages that answer the query"
// The tokens to read to judge one document. ERR_UNSUPPORTED if the vocabulary has no tokens "yes" and "no" or none of
// the turn markers; ERR_NOMEM.
bool pooled_rerank_prompt(const struct bundle *bundle, const struct rerank_query *query, struct token_list *ids,
                          struct err *err);
// The document's score in 0..1: the probability of "yes" against "no". `logits` [n_vocab].
double pooled_rerank_score(const struct bundle *bundle, const float *logits);
#endif
