// engine/sentence.h - what sentence-transformers puts behind a model to make an embedding of a text: pooling, dense layers,
// and the prompt that stands before it.
// Source: sentence-transformers: modules.json, 1_Pooling/config.json (one flag a way to pool, or a name),
// N_Dense/config.json and model.safetensors, config_sentence_transformers.json. Immutable once open.
#ifndef LOAM_ENGINE_SENTENCE_H
#define LOAM_ENGINE_SENTENCE_H
#include "base/arena.h"
#include "model/model.h"

enum { SENTENCE_DENSE_MAX = 4 };

struct sentence_dense {
    uint32_t n_in, n_out;
    const float *weight; // [n_out, n_in]
    const float *bias;   // [n_out] or NULL
    bool tanh;
};

struct sentence {
    struct arena arena; // owns all below
    bool given; // the folder says how to pool
    enum model_pooling pooling;
    const char *lacking; // what the folder asks for and loam lacks ("pooling_mode_max_tokens"), NULL = nothing
    struct sentence_dense dense[SENTENCE_DENSE_MAX];
    uint32_t n_dense;
    struct str prompt; // before every text
};

// Read a folder's files, those that are there, for a model whose states have n_dims. ERR_FORMAT, ERR_IO, ERR_NOMEM.
// What loam lacks is no error here: a model may be asked for text alone.
bool sentence_open(struct sentence *sentence, const char *folder, uint32_t n_dims, struct err *err);
void sentence_close(struct sentence *sentence); // a zeroed one is allowed
// The dense layers, in place: as many values come out as go in.
bool sentence_apply(const struct sentence *sentence, float *values, uint32_t n, struct err *err);
#endif
