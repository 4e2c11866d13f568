// tokenizer/source.h - what the files of a tokenizer say, whatever their format: the tables as arrays,
// everything else as the JSON that tokenizer.json would hold. One thread.
#ifndef LOAM_TOKENIZER_SOURCE_H
#define LOAM_TOKENIZER_SOURCE_H
#include "base/arena.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORD_PIECE, MODEL_WORD_LEVEL };

struct source_token {
    struct str text;
    token_id id;
    double score; // Unigram
};
struct source_merge {
    struct str a, b;
};

struct source {
    struct arena arena;
    json_t *spec;   // normalizer, pre_tokenizer, post_processor, decoder, model, added_tokens;
                    // owned; without the model's vocab and merges
    json_t *config; // tokenizer_config.json, or NULL; owned
    enum model_kind model;
    struct source_token *tokens;
    struct source_merge *merges; // best first
    uint32_t n_tokens, n_merges;
    char fingerprint[65];
};

enum {
    SOURCE_TOKENS_MAX = 1 << 24, // ids stay below this too
    SOURCE_FILE_BYTES_MAX = 1 << 30,
};

void source_deinit(struct source *source);

// Read tokenizer.json and tokenizer_config.json (may be empty); not trusted, not kept. ERR_FORMAT,
// ERR_UNSUPPORTED for a model that is none of the four, ERR_NOMEM.
bool source_from_json(struct source *source, struct bytes tokenizer_json,
                      struct bytes tokenizer_config_json, struct err *err);
#endif
