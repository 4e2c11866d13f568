// hub/scan.h - what a model folder holds, told from config.json and the headers of its weights alone.
// Any thread may scan.
#ifndef LOAM_HUB_SCAN_H
#define LOAM_HUB_SCAN_H
#include "base/arena.h"
#include "base/err.h"

struct hub_model {
    const char *path;    // the folder
    const char *repo;    // "org/name", "" for a plain folder
    const char *commit;  // of the snapshot, "" for a plain folder
    bool is_canonical;   // the revision that the bare name means
    const char *problem; // why loam cannot use it; "" = it can
    const char *model_type, *architecture;
    const char *license; // of the README's front matter, "" if it says nothing
    uint64_t n_params;   // as trained: packed weights count unpacked
    uint64_t weight_bytes;  // of the language model
    uint64_t sidecar_bytes; // vision and audio towers, in the same file or beside it
    uint64_t expert_bytes;  // the part of weight_bytes that a token uses only a share of
    uint64_t lookup_bytes;  // likewise, tables of which a token takes one row (untied embeddings)
    const char *quant_mode; // "affine", "mxfp4" ...; "" = none
    uint32_t quant_bits, quant_group;
    bool is_quant_mixed; // some layers have other bits
    bool has_vision, has_audio, has_tools, has_kv_config, is_embedding, is_drafter;
    uint32_t n_layers, d_model, n_vocab, ctx_len_max, n_experts, n_experts_used;
    uint64_t kv_token_bytes;  // bf16 KV of one more position, layers that keep all of them
    uint64_t kv_window_token_bytes; // likewise of sliding layers, up to the window
    uint32_t window;          // of sliding layers, 0 = none
    uint64_t state_bytes;     // recurrent state of a sequence
    int64_t scanned_at;       // seconds since 1970
    int64_t folder_mtime_ns, config_mtime_ns; // tell whether a new scan is needed
};

// Fill everything but repo, commit and is_canonical. What cannot be read goes into `problem`; false
// (ERR_NOMEM) only when out of memory. Texts live in the arena.
bool hub_scan(struct hub_model *model, const char *folder, struct arena *arena, struct err *err);
// Is the folder's model made for embeddings, not for text? Told by sentence-transformers' files, else by its name
// ("org/name" or the folder's own; may be NULL).
bool hub_is_embedding(const char *folder, const char *name);
// Only the two mtimes, to compare; false if the folder is gone.
bool hub_scan_stamp(const char *folder, int64_t *folder_mtime_ns, int64_t *config_mtime_ns);

// Bytes of KV and state that one sequence of n_tokens takes.
uint64_t hub_model_kv_bytes(const struct hub_model *model, uint64_t n_tokens);
// An estimate of what serving takes with one sequence of min(ctx_len_max, 8192) tokens; `loam fit` plans it
// exactly.
uint64_t hub_model_serve_bytes(const struct hub_model *model);
#endif
