// hub/registry.h - what is downloaded, remembered in SQLite so that listing reads no model.
// Derived data only: a schema of another version or a damaged file is thrown away and scanned anew. Several
// processes may use it at once (WAL, busy timeout). A struct registry belongs to one thread at a time.
#ifndef LOAM_HUB_REGISTRY_H
#define LOAM_HUB_REGISTRY_H
#include "hub/layout.h"
#include "hub/scan.h"

struct registry;

// Open or create it. NULL path = registry.sqlite in loam's cache folder. Where no file can be written, an
// empty one in memory does (logged). ERR_IO, ERR_NOMEM.
struct registry *registry_open(const char *path, struct err *err);
void registry_close(struct registry *registry); // NULL is allowed

struct registry_update {
    uint32_t n_models, n_scanned, n_removed; // snapshots known now; read anew; rows whose folder is gone
};
// Compare with the cache folder and scan what is new or changed (all with `all`). ERR_IO, ERR_NOMEM.
bool registry_update(struct registry *registry, const struct hub_env *env, bool all,
                     struct registry_update *out, struct err *err);

struct hub_models {
    struct arena arena; // owns everything
    struct hub_model *models; // [n], smallest first
    size_t n;
};
// All snapshots below env's cache folder. ERR_IO, ERR_NOMEM.
bool registry_list(struct registry *registry, const struct hub_env *env, struct hub_models *out,
                   struct err *err);
void hub_models_deinit(struct hub_models *models);

// Open, update and list: what commands need. `update` may be NULL.
bool hub_models_read(const struct hub_env *env, struct hub_models *out, struct registry_update *update,
                     struct err *err);
#endif
