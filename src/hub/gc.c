#include "hub/gc.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file_map.h"
#include "hub/blob.h"

enum { FOLDER_DEPTH_MAX = 40 };
#define DOOMED ".doomed-" // begins the name of a folder that is being deleted

struct gc_options gc_defaults(void) {
    return (struct gc_options){.min_age_s = 3600};
}

void gc_plan_deinit(struct gc_plan *plan) {
    arena_deinit(&plan->arena);
    *plan = (struct gc_plan){0};
}

static bool no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "out of memory planning what to delete");
}

// Grow an arena array of the plan by one; the old copy stays in the arena.
static void *grow(struct arena *arena, void *array, size_t n, size_t *capacity, size_t element_bytes) {
    if (n < *capacity)
        return array;
    size_t more = *capacity ? 2 * *capacity : 32;
    void *copy = arena_alloc_array(arena, more, element_bytes);
    if (copy && n)
        memcpy(copy, array, n * element_bytes);
    if (copy)
        *capacity = more;
    return copy;
}

static bool add_item(struct gc_plan *plan, enum gc_kind kind, const char *path, const char *repo,
                     uint64_t n_bytes, struct err *err) {
    struct gc_item *items =
        grow(&plan->arena, plan->items, plan->n_items, &plan->items_capacity, sizeof *plan->items);
    char *path_copy = arena_c_string(&plan->arena, str_from(path));
    char *repo_copy = arena_c_string(&plan->arena, str_from(repo));
    if (!items || !path_copy || !repo_copy)
        return no_memory(err);
    plan->items = items;
    items[plan->n_items++] = (struct gc_item){kind, path_copy, repo_copy, n_bytes};
    plan->n_bytes += n_bytes;
    return true;
}

static bool add_kept(struct gc_plan *plan, const char *path, const char *reason, struct err *err) {
    struct gc_kept *kept =
        grow(&plan->arena, plan->kept, plan->n_kept, &plan->kept_capacity, sizeof *plan->kept);
    char *copy = arena_c_string(&plan->arena, str_from(path));
    if (!kept || !copy)
        return no_memory(err);
    plan->kept = kept;
    kept[plan->n_kept++] = (struct gc_kept){copy, reason};
    return true;
}

// ---- Names in a repository ----------------------------------------------------------------------

struct names {
    struct arena *arena;
    const char **texts;
    size_t n, capacity;
    bool failed;
};

static void names_add(struct names *names, const char *text) {
    const char **texts = grow(names->arena, names->texts, names->n, &names->capacity, sizeof *names->texts);
    char *copy = arena_c_string(names->arena, str_from(text));
    if (!texts || !copy) {
        names->failed = true;
        return;
    }
    names->texts = texts;
    texts[names->n++] = copy;
}

static bool names_have(const struct names *names, const char *text) {
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->texts[i], text) == 0)
            return true;
    return false;
}

struct repo_scan {
    const char *repo, *folder;
    const struct gc_options *options;
    struct names refs, commits; // of the refs that resolve: commits[i] is what refs[i] names
    struct names linked;        // hashes that snapshots which stay link to
    bool has_partial;
};

// Refs may lie in folders (refs/pr/1).
static void read_refs(struct repo_scan *scan, const char *below, int depth) {
    char folder[PATH_MAX], path[PATH_MAX], name[PATH_MAX], commit[HUB_COMMIT_BYTES];
    if (depth > FOLDER_DEPTH_MAX || !hub_path(folder, NULL, "%s/refs%s%s", scan->folder, below[0] ? "/" : "", below))
        return;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || !hub_path(path, NULL, "%s/%s", folder, entry->d_name) ||
            !hub_path(name, NULL, "%s%s%s", below, below[0] ? "/" : "", entry->d_name))
            continue;
        if (path_is_folder(path)) {
            read_refs(scan, name, depth + 1);
            continue;
        }
        if (hub_ref_read(scan->folder, name, commit) &&
            hub_path(path, NULL, "%s/snapshots/%s", scan->folder, commit) && path_is_folder(path)) {
            names_add(&scan->refs, name);
            names_add(&scan->commits, commit);
        }
    }
    if (dir)
        closedir(dir);
}

// One snapshot's files: what they link to, and what the hub did not put there.
struct snapshot_scan {
    struct names links; // hashes
    bool has_foreign;
    uint64_t plain_bytes;
};

static void scan_snapshot(struct snapshot_scan *s, const char *folder, int depth) {
    DIR *dir = depth <= FOLDER_DEPTH_MAX ? opendir(folder) : NULL;
    if (!dir)
        s->has_foreign = true; // what cannot be seen is not ours to delete
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_MAX], target[PATH_MAX];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (!hub_path(path, NULL, "%s/%s", folder, entry->d_name) || lstat(path, &st) != 0) {
            s->has_foreign = true;
            continue;
        }
        if (S_ISDIR(st.st_mode)) {
            scan_snapshot(s, path, depth + 1);
            continue;
        }
        ssize_t n = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof target - 1) : -1;
        if (n >= 0)
            target[n] = '\0';
        char *blobs = n >= 0 ? strstr(target, "blobs/") : NULL;
        if (blobs && strncmp(target, "../", 3) == 0 && !strchr(blobs + 6, '/')) {
            names_add(&s->links, blobs + 6);
        } else {
            s->has_foreign = true;
            s->plain_bytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
        }
    }
    if (dir)
        closedir(dir);
}

static uint64_t folder_bytes(const char *folder, int depth) {
    uint64_t total = 0;
    DIR *dir = depth <= FOLDER_DEPTH_MAX ? opendir(folder) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_MAX];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            !hub_path(path, NULL, "%s/%s", folder, entry->d_name) || lstat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode))
            total += folder_bytes(path, depth + 1);
        else if (S_ISREG(st.st_mode))
            total += (uint64_t)st.st_size;
    }
    if (dir)
        closedir(dir);
    return total;
}

static bool has_partial_files(const char *folder) {
    char path[PATH_MAX];
    DIR *dir = hub_path(path, NULL, "%s/blobs", folder) ? opendir(path) : NULL;
    bool found = false;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        found = str_ends(str_from(entry->d_name), STR(".incomplete"));
    if (dir)
        closedir(dir);
    return found;
}

// What a crash in the middle of a deletion left behind.
static bool plan_doomed(struct gc_plan *plan, const char *folder, const char *repo, struct err *err) {
    char path[PATH_MAX];
    DIR *dir = opendir(folder);
    bool ok = true;
    for (struct dirent *entry; ok && dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, DOOMED, strlen(DOOMED)) == 0 &&
            hub_path(path, NULL, "%s/%s", folder, entry->d_name))
            ok = add_item(plan, GC_SNAPSHOT, path, repo, folder_bytes(path, 0), err);
    if (dir)
        closedir(dir);
    return ok;
}

// ---- The plan -----------------------------------------------------------------------------------

// Why a snapshot stays, or NULL. "" = something names it, which needs no mention.
static const char *reason_to_keep(const struct repo_scan *scan, const struct snapshot_scan *snapshot,
                                  const char *commit, const struct stat *st) {
    const struct gc_options *o = scan->options;
    if (o->commit)
        return strcmp(commit, o->commit) == 0 ? NULL : "";
    if (names_have(&scan->commits, commit))
        return "";
    if (scan->refs.n == 0)
        return "no ref of the repository resolves, so nothing tells what is current";
    if (scan->has_partial && !o->force)
        return "the repository has partial files: a download was interrupted or runs (--force takes it)";
    if (snapshot->has_foreign && !o->force)
        return "it holds files that the hub did not put there (--force takes it)";
    if (time(NULL) - st->st_mtime < (time_t)o->min_age_s)
        return "it is younger than an hour: a download may be under way";
    return NULL;
}

static bool plan_snapshots(struct gc_plan *plan, struct repo_scan *scan, struct err *err) {
    char snapshots[PATH_MAX], path[PATH_MAX];
    DIR *dir = hub_path(snapshots, NULL, "%s/snapshots", scan->folder) ? opendir(snapshots) : NULL;
    bool ok = true;
    for (struct dirent *entry; ok && dir && (entry = readdir(dir));) {
        struct stat st;
        if (entry->d_name[0] == '.' || !hub_path(path, NULL, "%s/%s", snapshots, entry->d_name) ||
            lstat(path, &st) != 0)
            continue;
        struct snapshot_scan snapshot = {.links.arena = &plan->arena};
        scan_snapshot(&snapshot, path, 0);
        const char *reason = reason_to_keep(scan, &snapshot, entry->d_name, &st);
        if (!reason) {
            ok = add_item(plan, GC_SNAPSHOT, path, scan->repo, snapshot.plain_bytes, err);
            continue;
        }
        for (size_t i = 0; i < snapshot.links.n; i++)
            names_add(&scan->linked, snapshot.links.texts[i]);
        scan->linked.failed = scan->linked.failed || snapshot.links.failed;
        if (reason[0])
            ok = add_kept(plan, path, reason, err);
    }
    if (dir)
        closedir(dir);
    return ok && (!scan->linked.failed || no_memory(err));
}

static bool plan_blobs(struct gc_plan *plan, const struct repo_scan *scan, struct err *err) {
    char blobs[PATH_MAX], path[PATH_MAX];
    // Without a ref that resolves, or while a download is unfinished, an unlinked blob may be wanted.
    if (!scan->options->commit && (scan->refs.n == 0 || (scan->has_partial && !scan->options->force)))
        return true;
    DIR *dir = hub_path(blobs, NULL, "%s/blobs", scan->folder) ? opendir(blobs) : NULL;
    bool ok = true;
    for (struct dirent *entry; ok && dir && (entry = readdir(dir));) {
        struct stat st;
        // Only names that blobs have: partial files, locks and whatever else lies there stay.
        size_t n = strspn(entry->d_name, "0123456789abcdef");
        if ((n != 40 && n != 64) || entry->d_name[n] != '\0' || names_have(&scan->linked, entry->d_name) ||
            !hub_path(path, NULL, "%s/%s", blobs, entry->d_name) || lstat(path, &st) != 0 ||
            !S_ISREG(st.st_mode))
            continue;
        if (!scan->options->commit && time(NULL) - st.st_ctime < (time_t)scan->options->min_age_s)
            continue;
        ok = add_item(plan, GC_BLOB, path, scan->repo, (uint64_t)st.st_size, err);
    }
    if (dir)
        closedir(dir);
    return ok;
}

static bool plan_repo(struct gc_plan *plan, const struct hub_env *env, const char *repo,
                      const struct gc_options *options, struct err *err) {
    char folder[PATH_MAX], path[PATH_MAX];
    if (!hub_repo_folder(env, repo, folder, err))
        return false;
    if (options->commit && (!hub_path(path, err, "%s/snapshots/%s", folder, options->commit) ||
                            !path_is_folder(path)))
        return err_set(err, ERR_NOT_FOUND, "%s has no snapshot %s", repo, options->commit);
    struct repo_scan scan = {
        .repo = repo,
        .folder = folder,
        .options = options,
        .refs.arena = &plan->arena,
        .commits.arena = &plan->arena,
        .linked.arena = &plan->arena,
        .has_partial = has_partial_files(folder),
    };
    read_refs(&scan, "", 0);
    if (scan.refs.failed || scan.commits.failed)
        return no_memory(err);
    for (size_t i = 0; options->commit && i < scan.refs.n; i++)
        if (strcmp(scan.commits.texts[i], options->commit) == 0 &&
            (!hub_path(path, err, "%s/refs/%s", folder, scan.refs.texts[i]) ||
             !add_item(plan, GC_REF, path, repo, 0, err)))
            return false;
    return plan_snapshots(plan, &scan, err) && plan_blobs(plan, &scan, err) &&
           (!hub_path(path, NULL, "%s/snapshots", folder) || plan_doomed(plan, path, repo, err));
}

bool gc_plan_make(struct gc_plan *plan, const struct hub_env *env, const struct gc_options *options,
                  struct err *err) {
    *plan = (struct gc_plan){0};
    bool ok = true;
    if (options->repo) {
        ok = plan_repo(plan, env, options->repo, options, err);
    } else {
        char **names;
        size_t n;
        if (!hub_list_repos(env, &names, &n, err))
            return false;
        for (size_t i = 0; ok && i < n; i++)
            ok = plan_repo(plan, env, names[i], options, err);
        ok = ok && plan_doomed(plan, env->cache, "", err);
        hub_names_free(names, n);
    }
    if (!ok)
        gc_plan_deinit(plan);
    return ok;
}

// ---- The deed -----------------------------------------------------------------------------------

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static bool remove_tree(const char *path, struct err *err) {
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 ||
           err_errno(err, errno, "cannot delete %s", path);
}

// Out of sight at once, then gone file by file.
static bool remove_folder(const char *path, struct err *err) {
    char doomed[PATH_MAX];
    const char *name = strrchr(path, '/') + 1;
    if (!hub_path(doomed, err, "%.*s" DOOMED "%s-%ld", (int)(name - path), path, name, (long)getpid()))
        return false;
    if (rename(path, doomed) != 0)
        return err_errno(err, errno, "cannot delete %s", path);
    path_sync_parent(path);
    return remove_tree(doomed, err);
}

static bool remove_blob(const struct hub_env *env, const struct gc_item *item, struct err *err) {
    char folder[PATH_MAX];
    struct blob_lock lock;
    long owner;
    if (!hub_repo_folder(env, item->repo, folder, err))
        return false;
    switch (blob_lock_try(&lock, env->cache, folder, strrchr(item->path, '/') + 1, &owner, err)) {
    case BLOB_LOCK_FAILED: return false;
    case BLOB_LOCK_BUSY: return true; // somebody is at work on it
    case BLOB_LOCKED: break;
    }
    bool ok = unlink(item->path) == 0 || errno == ENOENT || err_errno(err, errno, "cannot delete %s", item->path);
    blob_lock_release(&lock);
    return ok;
}

bool gc_plan_run(const struct gc_plan *plan, const struct hub_env *env, struct err *err) {
    static const enum gc_kind ORDER[] = {GC_REF, GC_SNAPSHOT, GC_BLOB};
    for (size_t k = 0; k < sizeof ORDER / sizeof *ORDER; k++) {
        for (size_t i = 0; i < plan->n_items; i++) {
            const struct gc_item *item = &plan->items[i];
            if (item->kind != ORDER[k])
                continue;
            bool ok = true;
            switch (item->kind) {
            case GC_REF:
                ok = unlink(item->path) == 0 || errno == ENOENT ||
                     err_errno(err, errno, "cannot delete %s", item->path);
                break;
            case GC_SNAPSHOT: ok = remove_folder(item->path, err); break;
            case GC_BLOB: ok = remove_blob(env, item, err); break;
            }
            if (!ok)
                return false;
        }
    }
    return true;
}

// True if some process holds a lock of the repository.
static bool is_locked(const struct hub_env *env, const char *folder) {
    char locks[PATH_MAX];
    const char *name = strrchr(folder, '/') + 1;
    DIR *dir = hub_path(locks, NULL, "%s/.locks/%s", env->cache, name) ? opendir(locks) : NULL;
    bool busy = false;
    for (struct dirent *entry; dir && !busy && (entry = readdir(dir));) {
        struct str file = str_from(entry->d_name);
        if (!str_ends(file, STR(".lock")))
            continue;
        char hash[NAME_MAX + 1];
        snprintf(hash, sizeof hash, "%.*s", (int)(file.n - 5), file.data);
        struct blob_lock lock;
        long owner;
        busy = blob_lock_try(&lock, env->cache, folder, hash, &owner, NULL) == BLOB_LOCK_BUSY;
        blob_lock_release(&lock);
    }
    if (dir)
        closedir(dir);
    return busy;
}

bool hub_remove_repo(const struct hub_env *env, const char *repo, struct err *err) {
    char folder[PATH_MAX], locks[PATH_MAX];
    if (!hub_repo_folder(env, repo, folder, err))
        return false;
    if (!path_is_folder(folder))
        return err_set(err, ERR_NOT_FOUND, "%s is not downloaded", repo);
    if (is_locked(env, folder))
        return err_set(err, ERR_BUSY, "another process downloads %s; stop it first", repo);
    if (!remove_folder(folder, err))
        return false;
    return !hub_path(locks, NULL, "%s/.locks/%s", env->cache, strrchr(folder, '/') + 1) ||
           !path_is_folder(locks) || remove_tree(locks, err);
}

uint64_t hub_repo_bytes(const struct hub_env *env, const char *repo) {
    char folder[PATH_MAX];
    return hub_repo_folder(env, repo, folder, NULL) ? folder_bytes(folder, 0) : 0;
}
