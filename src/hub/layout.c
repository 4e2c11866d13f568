#include "hub/layout.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_map.h"

bool hub_path(char out[PATH_MAX], struct err *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, PATH_MAX, format, args);
    va_end(args);
    if (n < 0 || n >= PATH_MAX)
        return err_set(err, ERR_INVALID, "path too long: %.200s...", out);
    return true;
}

// ---- Environment --------------------------------------------------------------------------------

static const char *env_text(const char *name) {
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

static bool env_true(const char *name) {
    const char *value = env_text(name);
    return value && (strcasecmp(value, "1") == 0 || strcasecmp(value, "true") == 0 ||
                     strcasecmp(value, "yes") == 0 || strcasecmp(value, "on") == 0);
}

static const char *home_folder(void) {
    const char *home = env_text("HOME");
    return home ? home : "/tmp";
}

// A folder from the environment; a leading ~ is the home folder, as huggingface_hub reads it.
static bool expand_home(const char *value, char out[PATH_MAX], struct err *err) {
    if (value[0] == '~' && (value[1] == '/' || value[1] == '\0'))
        return hub_path(out, err, "%s%s", home_folder(), value + 1);
    return hub_path(out, err, "%s", value);
}

static bool hf_home(char out[PATH_MAX], struct err *err) {
    const char *home = env_text("HF_HOME"), *xdg = env_text("XDG_CACHE_HOME");
    if (home)
        return expand_home(home, out, err);
    if (xdg)
        return hub_path(out, err, "%s/huggingface", xdg);
    return hub_path(out, err, "%s/.cache/huggingface", home_folder());
}

static bool read_token(struct hub_env *env, struct err *err) {
    const char *given = env_text("HF_TOKEN"), *path = env_text("HF_TOKEN_PATH");
    struct strbuf content = {0};
    if (given) {
        strbuf_append_c(&content, given);
    } else {
        char file[PATH_MAX], home[PATH_MAX];
        if (path ? !expand_home(path, file, err)
                 : !hf_home(home, err) || !hub_path(file, err, "%s/token", home))
            return false;
        struct err ignored = {0}; // no readable token file means no token
        file_read(file, HUB_TOKEN_BYTES, &content, &ignored);
    }
    size_t from = 0, to = content.n;
    while (from < to && isspace((unsigned char)content.data[from]))
        from++;
    while (to > from && isspace((unsigned char)content.data[to - 1]))
        to--;
    bool ok = to - from < sizeof env->token;
    for (size_t i = from; ok && i < to; i++)
        ok = content.data[i] > ' ' && content.data[i] < 127;
    if (ok && to > from)
        memcpy(env->token, content.data + from, to - from);
    strbuf_deinit(&content);
    return ok || err_set(err, ERR_INVALID,
                         "the token of %s is not one line of plain characters; set HF_TOKEN anew",
                         given ? "HF_TOKEN" : "the Hugging Face token file");
}

bool hub_env_read(struct hub_env *env, struct err *err) {
    *env = (struct hub_env){.offline = env_true("HF_HUB_OFFLINE")};
    const char *cache = env_text("HF_HUB_CACHE"), *endpoint = env_text("HF_ENDPOINT");
    if (!cache)
        cache = env_text("HUGGINGFACE_HUB_CACHE");
    char home[PATH_MAX];
    if (cache ? !expand_home(cache, env->cache, err)
              : !hf_home(home, err) || !hub_path(env->cache, err, "%s/hub", home))
        return false;
    size_t n = strlen(env->cache);
    while (n > 1 && env->cache[n - 1] == '/')
        env->cache[--n] = '\0';
    if (!endpoint)
        endpoint = "https://huggingface.co";
    if ((strncmp(endpoint, "https://", 8) != 0 && strncmp(endpoint, "http://", 7) != 0) ||
        strlen(endpoint) >= sizeof env->endpoint)
        return err_set(err, ERR_INVALID, "HF_ENDPOINT must be an http(s) URL, not \"%.200s\"", endpoint);
    snprintf(env->endpoint, sizeof env->endpoint, "%s", endpoint);
    n = strlen(env->endpoint);
    while (n && env->endpoint[n - 1] == '/')
        env->endpoint[--n] = '\0';
    return read_token(env, err);
}

// ---- Names --------------------------------------------------------------------------------------

static bool repo_part_ok(const char *part, size_t n) {
    if (n == 0 || n > 96 || part[0] == '.' || part[0] == '-' || part[n - 1] == '.' || part[n - 1] == '-')
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = part[i];
        if (!isalnum((unsigned char)c) && c != '.' && c != '_' && c != '-')
            return false;
        if ((c == '.' || c == '-') && i + 1 < n && part[i + 1] == c) // the hub forbids ".." and "--"
            return false;
    }
    return true;
}

bool hub_repo_check(const char *repo, struct err *err) {
    const char *slash = strchr(repo, '/');
    bool ok = slash ? repo_part_ok(repo, (size_t)(slash - repo)) &&
                          repo_part_ok(slash + 1, strlen(slash + 1))
                    : repo_part_ok(repo, strlen(repo));
    return ok || err_set(err, ERR_INVALID,
                         "\"%.200s\" is no repository name; write org/name, as in the model page's address",
                         repo);
}

bool hub_revision_check(const char *revision, struct err *err) {
    size_t n = strlen(revision);
    bool ok = n > 0 && n <= 250 && revision[0] != '/' && revision[n - 1] != '/' &&
              !strstr(revision, "..") && !strstr(revision, "//");
    for (size_t i = 0; ok && i < n; i++)
        ok = (unsigned char)revision[i] > ' ' && revision[i] != 127 && !strchr("\\~^:?*[", revision[i]);
    return ok || err_set(err, ERR_INVALID, "\"%.200s\" is no revision; give a branch, tag or commit",
                         revision);
}

bool hub_file_path_check(struct str path, const char *what, struct err *err) {
    enum { PATH_BYTES_MAX = 1024, PARTS_MAX = 32, PART_BYTES_MAX = 240 };
    size_t n_parts = 0, start = 0;
    bool ok = path.n > 0 && path.n <= PATH_BYTES_MAX;
    for (size_t i = 0; ok && i <= path.n; i++) {
        if (i < path.n && path.data[i] != '/') {
            unsigned char c = (unsigned char)path.data[i];
            ok = c >= ' ' && c != 127 && c != '\\';
            continue;
        }
        struct str part = str_slice(path, start, i);
        ok = part.n > 0 && part.n <= PART_BYTES_MAX && !str_eq_c(part, ".") && !str_eq_c(part, "..") &&
             ++n_parts <= PARTS_MAX;
        start = i + 1;
    }
    return ok || err_set(err, ERR_FORMAT, "%s: unsafe file name \"%.*s\"", what,
                         (int)(path.n < 200 ? path.n : 200), path.data);
}

bool hub_is_commit(const char *text) {
    size_t n = strspn(text, "0123456789abcdef");
    return (n == 40 || n == 64) && text[n] == '\0';
}

bool hub_repo_folder(const struct hub_env *env, const char *repo, char out[PATH_MAX], struct err *err) {
    const char *slash = strchr(repo, '/');
    if (slash)
        return hub_path(out, err, "%s/models--%.*s--%s", env->cache, (int)(slash - repo), repo, slash + 1);
    return hub_path(out, err, "%s/models--%s", env->cache, repo);
}

bool hub_repo_of_folder(const char *folder_name, char out[HUB_REPO_BYTES]) {
    if (strncmp(folder_name, "models--", 8) != 0 || strlen(folder_name + 8) >= HUB_REPO_BYTES)
        return false;
    const char *from = folder_name + 8, *dashes = strstr(from, "--");
    if (dashes)
        snprintf(out, HUB_REPO_BYTES, "%.*s/%s", (int)(dashes - from), from, dashes + 2);
    else
        snprintf(out, HUB_REPO_BYTES, "%s", from);
    return hub_repo_check(out, NULL);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void hub_names_free(char **names, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

bool hub_list_repos(const struct hub_env *env, char ***names, size_t *n, struct err *err) {
    *names = NULL;
    *n = 0;
    DIR *dir = opendir(env->cache);
    if (!dir)
        return errno == ENOENT || err_errno(err, errno, "cannot read the cache folder %s", env->cache);
    size_t capacity = 0;
    bool ok = true;
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        char repo[HUB_REPO_BYTES];
        if (!hub_repo_of_folder(entry->d_name, repo))
            continue;
        if (*n == capacity) {
            capacity = capacity ? 2 * capacity : 32;
            char **more = realloc(*names, capacity * sizeof **names);
            ok = more != NULL;
            if (ok)
                *names = more;
        }
        if (ok && ((*names)[*n] = strdup(repo)))
            ++*n;
        else
            ok = false;
    }
    closedir(dir);
    if (!ok) {
        hub_names_free(*names, *n);
        *names = NULL;
        *n = 0;
        return err_set(err, ERR_NOMEM, "out of memory listing %s", env->cache);
    }
    if (*n)
        qsort(*names, *n, sizeof **names, compare_names);
    return true;
}

// ---- Refs and snapshots -------------------------------------------------------------------------

bool hub_ref_read(const char *repo_folder, const char *revision, char commit[HUB_COMMIT_BYTES]) {
    char path[PATH_MAX];
    struct strbuf content = {0};
    bool ok = hub_path(path, NULL, "%s/refs/%s", repo_folder, revision) &&
              file_read(path, 256, &content, NULL);
    size_t n = ok && content.n ? strcspn(content.data, " \r\n\t") : 0;
    ok = ok && n > 0 && n < HUB_COMMIT_BYTES;
    if (ok)
        snprintf(commit, HUB_COMMIT_BYTES, "%.*s", (int)n, content.data);
    strbuf_deinit(&content);
    return ok && hub_is_commit(commit);
}

static bool make_parent_folders(const char *path, struct err *err) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder)
        return true;
    *slash = '\0';
    return path_make_folders(folder, err);
}

bool hub_ref_write(const char *repo_folder, const char *revision, const char *commit, struct err *err) {
    char path[PATH_MAX];
    return hub_path(path, err, "%s/refs/%s", repo_folder, revision) && make_parent_folders(path, err) &&
           file_write_atomic(path, bytes_of(str_from(commit)), err);
}

static bool newest_snapshot(const char *repo_folder, char out[PATH_MAX]) {
    char folder[PATH_MAX], candidate[PATH_MAX], config[PATH_MAX];
    DIR *dir = hub_path(folder, NULL, "%s/snapshots", repo_folder) ? opendir(folder) : NULL;
    if (!dir)
        return false;
    struct timespec newest = {0};
    bool found = false;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        if (!hub_is_commit(entry->d_name) ||
            !hub_path(candidate, NULL, "%s/%s", folder, entry->d_name) ||
            !hub_path(config, NULL, "%s/config.json", candidate) || !path_exists(config) ||
            stat(candidate, &st) != 0)
            continue;
        if (!found || st.st_mtim.tv_sec > newest.tv_sec ||
            (st.st_mtim.tv_sec == newest.tv_sec && st.st_mtim.tv_nsec > newest.tv_nsec)) {
            newest = st.st_mtim;
            snprintf(out, PATH_MAX, "%s", candidate);
            found = true;
        }
    }
    closedir(dir);
    return found;
}

bool hub_snapshot_find(const struct hub_env *env, const char *repo, const char *revision,
                       char out[PATH_MAX], struct err *err) {
    char folder[PATH_MAX], commit[HUB_COMMIT_BYTES];
    if (!hub_repo_folder(env, repo, folder, err))
        return false;
    const char *ref = revision ? revision : "main";
    if (hub_ref_read(folder, ref, commit) || (hub_is_commit(ref) && snprintf(commit, sizeof commit, "%s", ref))) {
        if (!hub_path(out, err, "%s/snapshots/%s", folder, commit))
            return false;
        if (path_is_folder(out))
            return true;
    }
    if (!revision && newest_snapshot(folder, out))
        return true;
    return err_set(err, ERR_NOT_FOUND, "%s%s%s is not in %s; get it with: loam get %s%s%s", repo,
                   revision ? "@" : "", revision ? revision : "", env->cache, repo, revision ? "@" : "",
                   revision ? revision : "");
}

bool hub_snapshot_link(const char *repo_folder, const char *commit, const char *file, const char *hash,
                       struct err *err) {
    char path[PATH_MAX], blob[PATH_MAX], temporary[PATH_MAX], present[PATH_MAX];
    if (!hub_path(path, err, "%s/snapshots/%s/%s", repo_folder, commit, file) ||
        !hub_path(temporary, err, "%s.link-%ld", path, (long)getpid()) ||
        !hub_path(blob, err, "%s/blobs/%s", repo_folder, hash) || !make_parent_folders(path, err))
        return false;
    struct strbuf target = {0};
    strbuf_append_c(&target, "../../");
    for (const char *p = file; *p; p++)
        if (*p == '/')
            strbuf_append_c(&target, "../");
    strbuf_printf(&target, "blobs/%s", hash);
    if (target.failed) {
        strbuf_deinit(&target);
        return err_set(err, ERR_NOMEM, "out of memory linking %s", path);
    }
    bool ok = true;
    ssize_t n = readlink(path, present, sizeof present);
    if (n < 0 || (size_t)n != target.n || memcmp(present, target.data, target.n) != 0) {
        unlink(temporary); // a crash of an earlier process with our id
        if (symlink(target.data, temporary) == 0)
            ok = rename(temporary, path) == 0 || err_errno(err, errno, "cannot create %s", path);
        else if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS)
            ok = rename(blob, path) == 0 || err_errno(err, errno, "cannot move %s to %s", blob, path);
        else
            ok = err_errno(err, errno, "cannot create %s", path);
        if (ok)
            path_sync_parent(path);
    }
    strbuf_deinit(&target);
    return ok;
}

void hub_url_append(struct strbuf *url, const char *text, bool keep_slash) {
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (isalnum(c) || strchr("-._~", c) || (c == '/' && keep_slash))
            strbuf_char(url, (char)c);
        else
            strbuf_printf(url, "%%%02X", c);
    }
}
