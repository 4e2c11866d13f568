#include "hub/registry.h"

#include <dirent.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file_map.h"
#include "base/hash.h"
#include "base/log.h"

enum { BUSY_TIMEOUT_MS = 20000 };

struct registry {
    sqlite3 *db;
    char path[PATH_MAX];
};

// ---- Columns: one table drives the schema, reading and writing ----------------------------------

enum column_kind { COLUMN_TEXT, COLUMN_BOOL, COLUMN_U32, COLUMN_U64, COLUMN_I64 };
struct column {
    const char *name;
    enum column_kind kind;
    size_t off;
};
#define COLUMN(kind, member) {#member, COLUMN_##kind, offsetof(struct hub_model, member)}
static const struct column COLUMNS[] = {
    COLUMN(TEXT, path),           COLUMN(TEXT, repo),          COLUMN(TEXT, commit),
    COLUMN(TEXT, problem),        COLUMN(TEXT, model_type),    COLUMN(TEXT, architecture),
    COLUMN(TEXT, license),        COLUMN(U64, n_params),       COLUMN(U64, weight_bytes),
    COLUMN(U64, sidecar_bytes),   COLUMN(U64, expert_bytes),   COLUMN(TEXT, quant_mode),
    COLUMN(U64, lookup_bytes),
    COLUMN(U32, quant_bits),      COLUMN(U32, quant_group),    COLUMN(BOOL, is_quant_mixed),
    COLUMN(BOOL, has_vision),     COLUMN(BOOL, has_audio),     COLUMN(BOOL, has_tools),
    COLUMN(BOOL, has_kv_config),  COLUMN(BOOL, is_embedding),  COLUMN(BOOL, is_drafter),
    COLUMN(U32, n_layers),        COLUMN(U32, d_model),        COLUMN(U32, n_vocab),
    COLUMN(U32, ctx_len_max),     COLUMN(U32, n_experts),      COLUMN(U32, n_experts_used),
    COLUMN(U64, kv_token_bytes),  COLUMN(U64, kv_window_token_bytes), COLUMN(U32, window),
    COLUMN(U64, state_bytes),     COLUMN(I64, scanned_at),     COLUMN(I64, folder_mtime_ns),
    COLUMN(I64, config_mtime_ns),
};
enum { N_COLUMNS = sizeof COLUMNS / sizeof *COLUMNS };

static void append_columns(struct strbuf *sql, bool with_types) {
    for (size_t i = 0; i < N_COLUMNS; i++)
        strbuf_printf(sql, "%s\"%s\"%s%s", i ? ", " : "", COLUMNS[i].name,
                      !with_types                        ? ""
                      : COLUMNS[i].kind == COLUMN_TEXT ? " TEXT NOT NULL"
                                                         : " INTEGER NOT NULL",
                      with_types && i == 0 ? " PRIMARY KEY" : "");
}

static bool bind_model(sqlite3_stmt *statement, const struct hub_model *model) {
    bool ok = true;
    for (int i = 0; i < N_COLUMNS; i++) {
        const void *member = (const char *)model + COLUMNS[i].off;
        switch (COLUMNS[i].kind) {
        case COLUMN_TEXT:
            ok = ok && sqlite3_bind_text(statement, i + 1, *(const char *const *)member, -1, SQLITE_STATIC) == SQLITE_OK;
            break;
        case COLUMN_BOOL:
            ok = ok && sqlite3_bind_int64(statement, i + 1, *(const bool *)member) == SQLITE_OK;
            break;
        case COLUMN_U32:
            ok = ok && sqlite3_bind_int64(statement, i + 1, *(const uint32_t *)member) == SQLITE_OK;
            break;
        case COLUMN_U64:
        case COLUMN_I64:
            ok = ok && sqlite3_bind_int64(statement, i + 1, *(const sqlite3_int64 *)member) == SQLITE_OK;
            break;
        }
    }
    return ok;
}

static bool read_model(sqlite3_stmt *statement, struct arena *arena, struct hub_model *model) {
    *model = (struct hub_model){0};
    for (int i = 0; i < N_COLUMNS; i++) {
        void *member = (char *)model + COLUMNS[i].off;
        sqlite3_int64 v = sqlite3_column_int64(statement, i);
        switch (COLUMNS[i].kind) {
        case COLUMN_TEXT: {
            const char *text = (const char *)sqlite3_column_text(statement, i);
            char *copy = arena_c_string(arena, str_from(text ? text : ""));
            if (!copy)
                return false;
            *(const char **)member = copy;
            break;
        }
        case COLUMN_BOOL: *(bool *)member = v != 0; break;
        case COLUMN_U32: *(uint32_t *)member = (uint32_t)v; break;
        case COLUMN_U64: *(uint64_t *)member = (uint64_t)v; break;
        case COLUMN_I64: *(int64_t *)member = v; break;
        }
    }
    return true;
}

// ---- Opening ------------------------------------------------------------------------------------

static bool sql_fail(struct registry *r, struct err *err) {
    return err_set(err, ERR_IO, "the model registry %s: %s", r->path, sqlite3_errmsg(r->db));
}

static bool run_sql(struct registry *r, const char *sql, struct err *err) {
    return sqlite3_exec(r->db, sql, NULL, NULL, NULL) == SQLITE_OK || sql_fail(r, err);
}

static int user_version(sqlite3 *db) {
    sqlite3_stmt *statement = NULL;
    int version = -1;
    if (sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        version = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return version;
}

// The table's definition names its version: whatever changes a column changes the version.
static bool make_schema(struct registry *r, struct err *err) {
    struct strbuf sql = {0};
    strbuf_append_c(&sql, "CREATE TABLE models (");
    append_columns(&sql, true);
    strbuf_append_c(&sql, ")");
    int version = (int)(hash_str(strbuf_str(&sql)) & 0x7FFFFFFF);
    bool ok = !sql.failed || err_set(err, ERR_NOMEM, "out of memory");
    if (ok && user_version(r->db) != version) {
        ok = run_sql(r, "BEGIN IMMEDIATE", err);
        // Another process may have been faster while this one waited.
        if (ok && user_version(r->db) != version) {
            char set_version[64];
            snprintf(set_version, sizeof set_version, "PRAGMA user_version = %d", version);
            ok = run_sql(r, "DROP TABLE IF EXISTS models", err) && run_sql(r, sql.data, err) &&
                 run_sql(r, set_version, err);
        }
        ok = run_sql(r, ok ? "COMMIT" : "ROLLBACK", ok ? err : NULL) && ok;
    }
    strbuf_deinit(&sql);
    return ok;
}

static bool open_file(struct registry *r, const char *path, struct err *err) {
    snprintf(r->path, sizeof r->path, "%s", path);
    if (sqlite3_open_v2(path, &r->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        return sql_fail(r, err);
    sqlite3_busy_timeout(r->db, BUSY_TIMEOUT_MS);
    return run_sql(r, "PRAGMA journal_mode = WAL", err) && run_sql(r, "PRAGMA synchronous = NORMAL", err) &&
           make_schema(r, err);
}

static void close_file(struct registry *r) {
    sqlite3_close(r->db);
    r->db = NULL;
}

static void remove_files(const char *path) {
    static const char *const ENDS[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        char file[PATH_MAX];
        if (hub_path(file, NULL, "%s%s", path, ENDS[i]))
            unlink(file);
    }
}

struct registry *registry_open(const char *path, struct err *err) {
    char standard[PATH_MAX], folder[PATH_MAX];
    struct registry *r = calloc(1, sizeof *r);
    if (!r) {
        err_set(err, ERR_NOMEM, "out of memory");
        return NULL;
    }
    struct err first = {0};
    if (!path) {
        path_cache_folder(folder, sizeof folder);
        if (hub_path(standard, NULL, "%s/registry.sqlite", folder) && path_make_folders(folder, &first))
            path = standard;
    }
    if (path && open_file(r, path, &first))
        return r;
    int code = r->db ? sqlite3_errcode(r->db) : SQLITE_OK;
    close_file(r);
    if (path && (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)) {
        log_warn("hub: the registry is damaged and made anew path=%s", path);
        remove_files(path);
        if (open_file(r, path, &first))
            return r;
        close_file(r);
    }
    log_warn("hub: the registry cannot be kept: %s", first.message);
    if (open_file(r, ":memory:", err))
        return r;
    registry_close(r);
    return NULL;
}

void registry_close(struct registry *registry) {
    if (registry)
        close_file(registry);
    free(registry);
}

// ---- Reading ------------------------------------------------------------------------------------

static bool is_below(const char *path, const char *folder) {
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

static bool read_rows(struct registry *r, struct hub_models *out, struct err *err) {
    *out = (struct hub_models){0};
    struct strbuf sql = {0};
    strbuf_append_c(&sql, "SELECT ");
    append_columns(&sql, false);
    strbuf_append_c(&sql, ", (SELECT count(*) FROM models) FROM models ORDER BY weight_bytes + sidecar_bytes, path");
    sqlite3_stmt *statement = NULL;
    bool ok = !sql.failed && sqlite3_prepare_v2(r->db, sql.data, -1, &statement, NULL) == SQLITE_OK;
    int step = SQLITE_DONE;
    while (ok && (step = sqlite3_step(statement)) == SQLITE_ROW) {
        if (!out->models) // one SELECT sees one state: the count cannot be passed
            out->models = arena_array(&out->arena, struct hub_model, (size_t)sqlite3_column_int(statement, N_COLUMNS));
        ok = out->models && read_model(statement, &out->arena, &out->models[out->n]);
        out->n += ok;
    }
    if (!ok || step != SQLITE_DONE) {
        ok = sqlite3_errcode(r->db) == SQLITE_ROW ? err_set(err, ERR_NOMEM, "out of memory reading %s", r->path)
                                                  : sql_fail(r, err);
        hub_models_deinit(out);
    }
    sqlite3_finalize(statement);
    strbuf_deinit(&sql);
    return ok;
}

void hub_models_deinit(struct hub_models *models) {
    arena_deinit(&models->arena);
    *models = (struct hub_models){0};
}

// The canonical revision of a repository: refs/main's, else the one that changed last.
static void mark_canonical(const struct hub_env *env, struct hub_models *list) {
    for (size_t i = 0; i < list->n; i++) {
        struct hub_model *first = &list->models[i];
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = strcmp(list->models[k].repo, first->repo) == 0;
        if (seen)
            continue;
        char folder[PATH_MAX], commit[HUB_COMMIT_BYTES];
        bool has_ref = hub_repo_folder(env, first->repo, folder, NULL) && hub_ref_read(folder, "main", commit);
        struct hub_model *newest = NULL, *named = NULL;
        for (size_t k = i; k < list->n; k++) {
            struct hub_model *m = &list->models[k];
            if (strcmp(m->repo, first->repo) != 0)
                continue;
            if (has_ref && strcmp(m->commit, commit) == 0)
                named = m;
            if (!newest || (newest->problem[0] && !m->problem[0]) ||
                (!newest->problem[0] == !m->problem[0] && m->folder_mtime_ns > newest->folder_mtime_ns))
                newest = m;
        }
        (named ? named : newest)->is_canonical = true;
    }
}

bool registry_list(struct registry *registry, const struct hub_env *env, struct hub_models *out,
                   struct err *err) {
    if (!read_rows(registry, out, err))
        return false;
    size_t n = 0;
    for (size_t i = 0; i < out->n; i++)
        if (is_below(out->models[i].path, env->cache))
            out->models[n++] = out->models[i];
    out->n = n;
    mark_canonical(env, out);
    return true;
}

// ---- Updating -----------------------------------------------------------------------------------

struct update {
    struct registry *registry;
    const struct hub_env *env;
    bool all;
    struct hub_models known;
    struct arena arena; // of what is scanned now
    struct hub_model *scanned; // [n_scanned] malloc'ed
    size_t n_scanned, capacity, n_seen;
};

static int compare_paths(const void *a, const void *b) {
    return strcmp(((const struct hub_model *)a)->path, ((const struct hub_model *)b)->path);
}

static bool add_scanned(struct update *u, const struct hub_model *model, struct err *err) {
    if (u->n_scanned == u->capacity) {
        size_t capacity = u->capacity ? 2 * u->capacity : 16;
        struct hub_model *more = realloc(u->scanned, capacity * sizeof *more);
        if (!more)
            return err_set(err, ERR_NOMEM, "out of memory scanning");
        u->scanned = more;
        u->capacity = capacity;
    }
    u->scanned[u->n_scanned++] = *model;
    return true;
}

static bool look_at_snapshot(struct update *u, const char *repo, const char *folder, const char *commit,
                             struct err *err) {
    struct hub_model key = {.path = folder};
    int64_t folder_ns, config_ns;
    if (!hub_scan_stamp(folder, &folder_ns, &config_ns))
        return true;
    u->n_seen++;
    const struct hub_model *known =
        u->known.n ? bsearch(&key, u->known.models, u->known.n, sizeof key, compare_paths) : NULL;
    // A folder with a problem may be cured where no mtime shows it (a shard that its link points to).
    if (known && !u->all && known->folder_mtime_ns == folder_ns && known->config_mtime_ns == config_ns &&
        !known->problem[0])
        return true;
    struct hub_model model = {.repo = arena_c_string(&u->arena, str_from(repo)),
                              .commit = arena_c_string(&u->arena, str_from(commit))};
    if (!model.repo || !model.commit)
        return err_set(err, ERR_NOMEM, "out of memory scanning %s", folder);
    return hub_scan(&model, folder, &u->arena, err) && add_scanned(u, &model, err);
}

static bool look_at_repo(struct update *u, const char *repo, struct err *err) {
    char folder[PATH_MAX], snapshots[PATH_MAX], snapshot[PATH_MAX];
    if (!hub_repo_folder(u->env, repo, folder, err) || !hub_path(snapshots, err, "%s/snapshots", folder))
        return false;
    DIR *dir = opendir(snapshots);
    bool ok = true;
    for (struct dirent *entry; ok && dir && (entry = readdir(dir));) {
        if (!hub_is_commit(entry->d_name) || !hub_path(snapshot, NULL, "%s/%s", snapshots, entry->d_name))
            continue;
        ok = look_at_snapshot(u, repo, snapshot, entry->d_name, err);
    }
    if (dir)
        closedir(dir);
    return ok;
}

static bool write_rows(struct update *u, uint32_t *n_removed, struct err *err) {
    struct registry *r = u->registry;
    sqlite3_stmt *insert = NULL, *drop = NULL;
    struct strbuf sql = {0};
    strbuf_append_c(&sql, "INSERT OR REPLACE INTO models (");
    append_columns(&sql, false);
    strbuf_append_c(&sql, ") VALUES (?");
    for (int i = 1; i < N_COLUMNS; i++)
        strbuf_append_c(&sql, ", ?");
    strbuf_append_c(&sql, ")");
    bool ok = !sql.failed || err_set(err, ERR_NOMEM, "out of memory");
    ok = ok && run_sql(r, "BEGIN IMMEDIATE", err);
    bool begun = ok;
    ok = ok && ((sqlite3_prepare_v2(r->db, sql.data, -1, &insert, NULL) == SQLITE_OK &&
                 sqlite3_prepare_v2(r->db, "DELETE FROM models WHERE path = ?", -1, &drop, NULL) == SQLITE_OK) ||
                sql_fail(r, err));
    for (size_t i = 0; ok && i < u->known.n; i++) {
        if (path_is_folder(u->known.models[i].path))
            continue;
        ok = (sqlite3_bind_text(drop, 1, u->known.models[i].path, -1, SQLITE_STATIC) == SQLITE_OK &&
              sqlite3_step(drop) == SQLITE_DONE && sqlite3_reset(drop) == SQLITE_OK) ||
             sql_fail(r, err);
        ++*n_removed;
    }
    for (size_t i = 0; ok && i < u->n_scanned; i++)
        ok = (bind_model(insert, &u->scanned[i]) && sqlite3_step(insert) == SQLITE_DONE &&
              sqlite3_reset(insert) == SQLITE_OK) ||
             sql_fail(r, err);
    sqlite3_finalize(insert);
    sqlite3_finalize(drop);
    if (begun)
        ok = run_sql(r, ok ? "COMMIT" : "ROLLBACK", ok ? err : NULL) && ok;
    strbuf_deinit(&sql);
    return ok;
}

static bool any_gone(const struct hub_models *known) {
    for (size_t i = 0; i < known->n; i++)
        if (!path_is_folder(known->models[i].path))
            return true;
    return false;
}

bool registry_update(struct registry *registry, const struct hub_env *env, bool all,
                     struct registry_update *out, struct err *err) {
    struct registry_update result = {0};
    struct update u = {.registry = registry, .env = env, .all = all};
    char **names;
    size_t n_names;
    if (!read_rows(registry, &u.known, err))
        return false;
    bool ok = hub_list_repos(env, &names, &n_names, err);
    if (ok) {
        if (u.known.n)
            qsort(u.known.models, u.known.n, sizeof *u.known.models, compare_paths);
        for (size_t i = 0; ok && i < n_names; i++)
            ok = look_at_repo(&u, names[i], err);
        hub_names_free(names, n_names);
    }
    if (ok && (u.n_scanned || any_gone(&u.known)))
        ok = write_rows(&u, &result.n_removed, err);
    result.n_models = (uint32_t)u.n_seen;
    result.n_scanned = (uint32_t)u.n_scanned;
    hub_models_deinit(&u.known);
    arena_deinit(&u.arena);
    free(u.scanned);
    if (out)
        *out = result;
    return ok;
}

bool hub_models_read(const struct hub_env *env, struct hub_models *out, struct registry_update *update,
                     struct err *err) {
    *out = (struct hub_models){0};
    struct registry *registry = registry_open(NULL, err);
    bool ok = registry && registry_update(registry, env, false, update, err) &&
              registry_list(registry, env, out, err);
    registry_close(registry);
    return ok;
}
