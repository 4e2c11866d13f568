// hub/gc.h - free disk space of the cache: first a plan, then the deed.
//
// What is kept, whatever else: snapshots that a ref names; all of a repository none of whose refs resolves;
// snapshots younger than an hour (a download may be under way); snapshots with files that the hub did not
// put there, and repositories with partial files (unless forced); partial files and locks always. A blob
// goes only when no snapshot that stays links to it.
#ifndef LOAM_HUB_GC_H
#define LOAM_HUB_GC_H
#include "base/arena.h"
#include "hub/layout.h"

struct gc_options {
    const char *repo;   // only this repository; NULL = all
    const char *commit; // with repo: take this snapshot away, refs to it included (loam rm)
    bool force;
    uint32_t min_age_s; // younger snapshots stay
};
struct gc_options gc_defaults(void);

enum gc_kind { GC_SNAPSHOT, GC_BLOB, GC_REF };
struct gc_item {
    enum gc_kind kind;
    const char *path, *repo;
    uint64_t n_bytes; // that deleting it frees: of blobs, and of plain files in snapshots
};
struct gc_kept { // what was left although nothing names it
    const char *path, *reason;
};
struct gc_plan {
    struct arena arena; // owns all
    struct gc_item *items; // [n_items]
    struct gc_kept *kept;  // [n_kept]
    size_t n_items, n_kept;
    size_t items_capacity, kept_capacity;
    uint64_t n_bytes;
};

// Look, change nothing. ERR_NOT_FOUND (the repository or commit is not there), ERR_IO, ERR_NOMEM.
bool gc_plan_make(struct gc_plan *plan, const struct hub_env *env, const struct gc_options *options,
                  struct err *err);
// Delete what the plan lists, refs and snapshots first, so that a crash leaves no link without its blob.
// A blob that another process has locked stays. ERR_IO.
bool gc_plan_run(const struct gc_plan *plan, const struct hub_env *env, struct err *err);
void gc_plan_deinit(struct gc_plan *plan);

// Delete a whole repository from the cache: it is renamed away first, so that no half of it is ever seen.
// ERR_BUSY if another process downloads it, ERR_IO.
bool hub_remove_repo(const struct hub_env *env, const char *repo, struct err *err);
// Bytes that its files take.
uint64_t hub_repo_bytes(const struct hub_env *env, const char *repo);
#endif
