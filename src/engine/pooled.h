// engine/pooled.h - embeddings and reranking: the prompts of both, and what is made of the engine's values.
// Pure functions of a bundle; any thread. The request itself is engine_submit() with GEN_WANT_HIDDEN or
// GEN_WANT_LOGITS.
#ifndef LOAM_ENGINE_POOLED_H
#define LOAM_ENGINE_POOLED_H
#include "engine/bundle.h"

// ---- Embeddings -------------------------------------------------------------------------------
// The tokens to read for the embedding of `text`, with what the tokenizer appends (the end token whose hidden
// state is the embedding). ERR_UNSUPPORTED if the folder's own 1_Pooling/config.json asks for anything but the
// last token; ERR_NOMEM.
bool pooled_embed_prompt(const struct bundle *bundle, struct str text, struct token_list *ids, struct err *err);
// Keep the first n_dimensions of [n] (0 = all; Matryoshka) and scale them to length 1. Returns how many there are, or 0
// with ERR_INVALID: more dimensions than the model has, or a vector that is not numbers.
uint32_t pooled_embedding(float *values, uint32_t n, uint32_t n_dimensions, struct err *err);

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
