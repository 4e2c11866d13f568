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
    bool declared_ids; // added tokens have the ids that they declare, not HF's numbering
    char fingerprint[65];
};

enum {
    SOURCE_TOKENS_MAX = 1 << 24, // ids stay below this too
    SOURCE_FILE_BYTES_MAX = 1 << 30,
};

void source_deinit(struct source *source);

// Hex SHA-256 that names the two files.
void source_fingerprint(struct bytes first, struct bytes second, char out[65]);

// Read tokenizer.json and tokenizer_config.json (may be empty); not trusted. The source borrows from
// the first. ERR_FORMAT, ERR_UNSUPPORTED for a model that is none of the four, ERR_NOMEM.
bool source_from_json(struct source *source, struct bytes tokenizer_json,
                      struct bytes tokenizer_config_json, struct err *err);

// SentencePiece's tokenizer.model (a ModelProto: BPE or Unigram), as Hugging Face converts it. The same
// errors; ERR_UNSUPPORTED for its WORD and CHAR models.
bool source_from_sentencepiece(struct source *source, struct bytes model,
                               struct bytes tokenizer_config_json, struct err *err);
// A tiktoken rank file: lines of base64 and rank. Special tokens come from tokenizer_config.json's
// added_tokens_decoder; the pattern is cl100k's, but Qwen's or Kimi's for their tokenizer_class.
bool source_from_tiktoken(struct source *source, struct bytes ranks,
                          struct bytes tokenizer_config_json, struct err *err);
// tokenizer.model, which may be either of the two.
bool source_from_model_file(struct source *source, struct bytes file,
                            struct bytes tokenizer_config_json, struct err *err);
#endif
