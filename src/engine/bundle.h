// engine/bundle.h - everything one served model needs, opened together and closed together.
#ifndef LOAM_ENGINE_BUNDLE_H
#define LOAM_ENGINE_BUNDLE_H
#include "engine/sentence.h"
#include "model/model.h"
#include "sample/sampler.h"
#include "template/template.h"
#include "tokenizer/tokenizer.h"

struct bundle_options {
    const char *folder;       // of the model; NULL = the built-in model
    const char *name;         // as it is called in answers; NULL = the folder's own name
    const char *backend_name; // "auto", "cpu", "cuda", "cuda:N"; NULL = auto
    struct backend_options backend;
    struct model_options model;
    bool lock_weights;        // keep the weight files in memory: CPU only
    bool without_tokenizer;   // ids in, ids out: the folder needs no tokenizer
};

struct bundle {
    char *name;
    bool is_builtin;
    struct backend *be;
    struct model *model;
    struct tokenizer *tokenizer;  // NULL only without_tokenizer
    struct chat_template *chat;   // NULL only without_tokenizer
    bool is_embedding; // made for embeddings, not for text
    struct sentence sentence; // how the folder makes embeddings
    char *identity; // text: names, sizes and times of the files that make the model, and its tokenizer's fingerprint
    double load_ms;
};

// Open a model folder or the built-in model. ERR_NOT_FOUND, ERR_FORMAT, ERR_UNSUPPORTED, ERR_IO, ERR_NOMEM,
// each naming the file or tensor; ERR_INVALID for lock_weights where the device has memory of its own.
bool bundle_open(struct bundle *bundle, const struct bundle_options *options, struct err *err);
void bundle_close(struct bundle *bundle); // a zeroed one is allowed

// Only the tokenizer or the chat template of a folder, NULL = the built-in model's. The caller destroys it. Errors
// as tokenizer_open() and chat_template_open().
struct tokenizer *bundle_open_tokenizer(const char *folder, struct err *err);
struct chat_template *bundle_open_chat(const char *folder, struct err *err);

// The KV kind of a name that people write: "bf16", "f16", "f32", "q8", "q4". ERR_INVALID lists them.
bool kv_kind_parse(const char *name, enum kv_kind *out, struct err *err);

// How to sample when nobody says otherwise: as the model's authors ask (generation_config.json), else at
// temperature 0.7.
struct sampler_params bundle_sampling(const struct bundle *bundle);
// And how long an answer may be: the authors' max_new_tokens, 0 = as long as the context allows.
uint32_t bundle_max_tokens(const struct bundle *bundle);
#endif
