// loam/loam_hub.h - models on disk: download, list, resolve, delete, and whether they fit.
// The cache is the Hugging Face hub's, found by the same environment variables (docs/models-on-disk.md).
// Functions may be called from any thread; they return LOAM_OK or a code with *error (which
// may be NULL) filled.
#ifndef LOAM_HUB_H
#define LOAM_HUB_H
#include <stddef.h>
#include <stdint.h>

#include "loam/loam_error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LOAM_PATH_BYTES = 4096 };

// ---- Download -----------------------------------------------------------------------------------
struct loam_hub_progress {
    uint64_t bytes_done, bytes_total, bytes_received;
    uint32_t n_files_done, n_files;
    double bytes_per_s, seconds_left; // -1 = unknown
    const char *note;                 // why a connection was tried again, or NULL
};
// About ten times a second, on the calling thread. Not 0 stops the download, keeping what is there.
typedef int loam_hub_progress_fn(void *user, const struct loam_hub_progress *progress);

struct loam_hub_get_options {
    const char *repo;      // "org/name"
    const char *revision;  // NULL = main
    const char *const *include, *const *exclude; // globs
    size_t n_include, n_exclude;
    uint32_t n_connections; // 0 = 4
    loam_hub_progress_fn *progress; // or NULL
    void *user;
};
// Download, verified and resumable. `folder` receives the snapshot's path.
LOAM_API int loam_hub_get(const struct loam_hub_get_options *options, char folder[LOAM_PATH_BYTES],
                          struct loam_error *error);

// ---- What is there ------------------------------------------------------------------------------
// The folder of a MODEL argument: a folder, org/name[@revision], or part of one downloaded model's name.
LOAM_API int loam_hub_resolve(const char *model, char folder[LOAM_PATH_BYTES], struct loam_error *error);

struct loam_hub_model {
    const char *id, *revision, *path, *model_type, *license;
    const char *quant_mode; // "" = not quantized
    uint32_t quant_bits, quant_group, context_length;
    uint64_t n_params, weight_bytes, sidecar_bytes;
    uint64_t kv_bytes_per_token; // bf16, of layers that keep all positions
    int has_tools, has_vision, has_audio, is_embedding, is_drafter;
    int is_canonical; // the revision that the bare name means
};
struct loam_hub_list;
// The usable downloaded models, smallest first; scans what is new. NULL on failure.
LOAM_API struct loam_hub_list *loam_hub_list(struct loam_error *error);
LOAM_API size_t loam_hub_list_n(const struct loam_hub_list *list);
// Borrowed until loam_hub_list_free().
LOAM_API const struct loam_hub_model *loam_hub_list_model(const struct loam_hub_list *list, size_t idx);
LOAM_API void loam_hub_list_free(struct loam_hub_list *list); // NULL is allowed

// Read every downloaded model again. *n_models may be NULL.
LOAM_API int loam_hub_scan(size_t *n_models, struct loam_error *error);

// ---- Deleting -----------------------------------------------------------------------------------
// Snapshots and blobs that no ref needs: how many and how many bytes; deleted if `act`.
LOAM_API int loam_hub_gc(int force, int act, size_t *n_items, uint64_t *n_bytes, struct loam_error *error);
// Delete a downloaded model (org/name, or part of one name) with all its revisions.
LOAM_API int loam_hub_remove(const char *model, struct loam_error *error);

// ---- Fitting ------------------------------------------------------------------------------------
struct loam_fit_options {
    const char *device;   // NULL = auto
    uint32_t context_length, n_sequences, step_tokens; // 0 = serve's defaults
    const char *kv_quant; // "4", "8", "config"; NULL or "off" = bf16
    uint64_t memory_budget_bytes; // 0 = what the machine has
};
struct loam_fit_report {
    int fits;
    char reason[1024]; // why not
    uint64_t weight_bytes, kv_bytes, state_bytes, workspace_bytes, total_bytes, usable_bytes;
    uint64_t kv_bytes_per_token;
    uint32_t context_length, n_sequences; // planned
    uint32_t context_length_largest;      // of one sequence
    double prefill_tps, decode_tps;       // predicted
};
// What serving `model` takes. `options` NULL = all defaults. The first call on a device measures its speed.
LOAM_API int loam_fit(const char *model, const struct loam_fit_options *options,
                      struct loam_fit_report *report, struct loam_error *error);

#ifdef __cplusplus
}
#endif
#endif
