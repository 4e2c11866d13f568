// engine/plan.h - memory is planned: what serving a model will take, before a byte of it is allocated.
// `fit` prints the plan, the engine allocates from it.
#ifndef LOAM_ENGINE_PLAN_H
#define LOAM_ENGINE_PLAN_H
#include "model/model.h"

enum { ENGINE_PROMPT_CACHE_GIB = 8 }; // of those who serve, unless told otherwise

struct engine_options {
    uint32_t n_rows;        // sequences that run together; 0 = 8
    uint32_t n_waiting_max; // requests that may wait; 0 = 64
    uint32_t step_tokens;   // tokens of one step; 0 = 512
    uint32_t step_ms;       // a prompt being read holds running answers up for about this long at a time; 0 = 250
    uint32_t ctx_len;       // longest sequence; 0 = the model's, or what memory allows
    uint64_t memory_budget_bytes; // everything together must stay below; 0 = what the machine has free
    uint64_t kv_budget_bytes;     // the KV pool must stay below; 0 = as planned
    uint64_t prompt_cache_bytes;  // KV and snapshots of past requests that are kept for later ones; 0 = none
    const char *disk_folder;   // where they go from memory, NULL = nowhere; borrowed until engine_create() returns
    const char *disk_identity; // what is known of the model's files: bundle.identity; borrowed likewise
    uint64_t disk_bytes_max;   // of the folder's files; 0 = no limit
    uint32_t disk_idle_s;      // what was not used for so long is written; 0 = 300
};

struct engine_plan {
    struct model_limits limits;
    uint64_t weight_bytes, kv_bytes, state_bytes, workspace_bytes;
    uint64_t usable_bytes;       // what the plan had to fit into
    uint64_t kv_bytes_per_token; // of a sequence that is longer than every window
    uint64_t snapshot_bytes_max; // of the prompt cache's snapshots, in host memory beside the pools
    bool enforced;               // a budget was given: exceeding it is refused, not only told
};

// Plan for a model as opened. The pool holds n_rows sequences of the full context if memory allows, else as
// many pages as fit; at least one sequence of ctx_len, which shrinks (never below 512, ERR_NOMEM then) when
// ctx_len was not asked for. ERR_NOMEM says what is needed and what there is.
bool engine_plan_make(const struct model *model, const struct engine_options *options,
                      struct engine_plan *plan, struct err *err);
#endif
