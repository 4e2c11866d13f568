// model/model.h - a loaded model: a family's layers bound to weights, and the one ragged step.
// Owned by one thread (the engine's) once prepared. Immutable facts may be read by any thread.
#ifndef LOAM_MODEL_MODEL_H
#define LOAM_MODEL_MODEL_H
#include "artifact/model_config.h"
#include "artifact/weights.h"
#include "backend/backend.h"

struct model;

struct model_options {
    enum kv_kind kv; // of every layer; KV_BF16 is the default of those who serve
    // Layers with their own kind (kv_config.json), NULL = none: [n_layers], -1 = `kv`.
    const int8_t *kv_by_layer;
};

// Open a model folder on a backend, which must outlive it: config, weights, binding, audit.
// NULL with ERR_NOT_FOUND, ERR_FORMAT, ERR_UNSUPPORTED (an unknown model type lists the supported ones; a
// feature that loam lacks is named), ERR_IO, ERR_NOMEM.
struct model *model_open(const char *folder, struct backend *be, const struct model_options *options,
                         struct err *err);
// The same from parts (the built-in model). Takes config and weights over, also on failure.
struct model *model_create(struct model_config *config, struct weights *weights, struct backend *be,
                           const struct model_options *options, struct err *err);
// Keep the weight files in memory until the model goes: for models that compute on the host. ERR_NOMEM.
bool model_lock_weights(const struct model *model, struct err *err);
void model_destroy(struct model *model); // NULL is allowed

// True for encoders (BERT and its like, EmbeddingGemma): every token sees the whole text, so that a text is one row of one
// step, never cut into chunks, and nothing of it serves another one. They have no head.
bool model_is_encoder(const struct model *model);
// What model_hidden() makes of an encoder's text. MODEL_POOL_LAST unless told otherwise.
enum model_pooling { MODEL_POOL_LAST, MODEL_POOL_FIRST, MODEL_POOL_MEAN };
void model_set_pooling(struct model *model, enum model_pooling pooling);

// False for a folder that was saved without an output head (some embedding models): its steps have no logits.
bool model_has_head(const struct model *model);
const struct model_config *model_config_of(const struct model *model);
struct backend *model_backend(const struct model *model);
// Every model type that loam runs, comma-separated, for messages and docs.
const char *model_supported_types(void);

// ---- Memory -----------------------------------------------------------------------------------
// What the model will ask of its backend; exact, so that `fit` and `serve` speak of the same bytes.
struct model_memory {
    uint64_t weight_bytes;                  // as bound (mapped on the CPU, resident on a GPU)
    uint32_t n_groups;                      // KV groups; a row has a block table for each
    uint32_t group_window[KV_GROUPS_MAX];   // sliding window of a group, 0 = all positions
    uint64_t group_page_bytes[KV_GROUPS_MAX]; // one page (KV_PAGE_TOKENS positions) over its layers
    uint64_t state_slot_bytes;              // recurrent state of one sequence, 0 = none
};
void model_memory(const struct model *model, struct model_memory *out);

struct model_limits {
    uint32_t n_tokens, n_rows, n_logits; // of one step
    uint32_t ctx_len;                    // longest sequence
    uint32_t n_pages[KV_GROUPS_MAX];     // of each group's pool
    uint32_t n_state_slots;
};
// Bytes of scratch that model_prepare() takes for these limits: activations, logits, the backend's own.
uint64_t model_workspace_bytes(const struct model *model, const struct model_limits *limits);
// Allocate KV pools, state slots and scratch. Once. ERR_NOMEM.
bool model_prepare(struct model *model, const struct model_limits *limits, struct err *err);

struct kv_pool *model_kv_pool(const struct model *model);       // NULL before prepare
struct state_pool *model_state_pool(const struct model *model); // NULL if the model has no state
// True if the model has a second rope table for rows that go beyond this context (LongRoPE); else 0.
uint32_t model_rope_variant_from(const struct model *model);

// ---- The step ---------------------------------------------------------------------------------
// Run one step. On success *logits points at [step->n_logits, n_vocab] float32, valid until the next step
// (NULL when no logits are wanted, or without a head). Token ids must be in [0, n_vocab): checked at the door, not here.
bool model_step(struct model *model, const struct step *step, const float **logits, struct err *err);
// The hidden state after the final norm [d_model] of the last step's logits row i, as float32 (embeddings). Of an encoder:
// of the token of that row that the pooling says, or the mean over all of them.
void model_hidden(const struct model *model, uint32_t i, float *hidden);

// Watch the residual stream: layer -1 is the input of layer 0, n_layers the final norm (of the tokens whose
// logits are wanted). For tests; slows the step. NULL stops it.
typedef void model_tap_fn(void *user, int layer, struct mat x);
void model_set_tap(struct model *model, model_tap_fn *tap, void *user);
#endif
