#include "hub/resolve.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/nearest.h"

enum { CANDIDATES_SHOWN_MAX = 8 };

bool hub_is_drafter_name(const char *repo) {
    static const char *const MARKS[] = {"-assistant", "_assistant", "-mtp", "_mtp", "dspark", "-eagle"};
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS; i++)
        if (strcasestr(repo, MARKS[i]))
            return true;
    return false;
}

static bool is_model_folder(const char *folder) {
    char config[PATH_MAX];
    return hub_path(config, NULL, "%s/config.json", folder) && path_exists(config);
}

static bool has_model(const struct hub_env *env, const char *repo) {
    char folder[PATH_MAX];
    return hub_snapshot_find(env, repo, NULL, folder, NULL) && is_model_folder(folder);
}

static const char *name_part(const char *repo) {
    const char *slash = strchr(repo, '/');
    return slash ? slash + 1 : repo;
}

static bool not_found(const struct hub_env *env, const char *argument, char **names, size_t n,
                      struct err *err) {
    const char *nearest = text_nearest(argument, (const char *const *)names, n);
    const char *parts[256];
    for (size_t i = 0; !nearest && i < n && i < 256; i++)
        parts[i] = name_part(names[i]);
    if (!nearest) { // by the name alone
        const char *part = text_nearest(argument, parts, n < 256 ? n : 256);
        for (size_t i = 0; part && !nearest && i < n && i < 256; i++)
            nearest = parts[i] == part ? names[i] : NULL;
    }
    if (nearest)
        return err_set(err, ERR_NOT_FOUND, "no model \"%s\" is downloaded; the nearest is %s", argument,
                       nearest);
    if (strchr(argument, '/') && hub_repo_check(argument, NULL))
        return err_set(err, ERR_NOT_FOUND, "%s is neither a folder nor downloaded; get it with: loam get %s",
                       argument, argument);
    if (n == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "no model \"%s\": nothing is downloaded in %s; get one with: loam get org/name", argument,
                       env->cache);
    return err_set(err, ERR_NOT_FOUND, "no downloaded model's name contains \"%s\"; \"loam ls\" lists them",
                   argument);
}

static bool several(const char *argument, const char *const *found, size_t n, struct err *err) {
    char text[700] = "";
    size_t used = 0;
    for (size_t i = 0; i < n && i < CANDIDATES_SHOWN_MAX && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "", found[i]);
    return err_set(err, ERR_INVALID, "\"%s\" matches %zu downloaded models: %s%s; write more of the name",
                   argument, n, text, n > CANDIDATES_SHOWN_MAX ? " ..." : "");
}

// Among the downloaded repositories: the whole name, the whole part after org/, then a piece of the name.
static bool match(const struct hub_env *env, const char *argument, char **names, size_t n,
                  bool models_only, char repo[HUB_REPO_BYTES], struct err *err) {
    const char **found = calloc(n + 1, sizeof *found);
    if (!found)
        return err_set(err, ERR_NOMEM, "out of memory");
    size_t n_found = 0;
    for (int pass = 0; pass < 3 && n_found == 0; pass++) {
        for (size_t i = 0; i < n; i++) {
            bool hit = pass == 0   ? strcasecmp(names[i], argument) == 0
                       : pass == 1 ? strcasecmp(name_part(names[i]), argument) == 0
                                   : strcasestr(names[i], argument) && !hub_is_drafter_name(names[i]);
            if (hit && (!models_only || has_model(env, names[i])))
                found[n_found++] = names[i];
        }
    }
    bool ok = n_found == 1   ? snprintf(repo, HUB_REPO_BYTES, "%s", found[0]) > 0
              : n_found == 0 ? not_found(env, argument, names, n, err)
                             : several(argument, found, n_found, err);
    free(found);
    return ok;
}

bool hub_resolve_repo(const struct hub_env *env, const char *argument, char repo[HUB_REPO_BYTES],
                      struct err *err) {
    char **names;
    size_t n;
    if (!hub_list_repos(env, &names, &n, err))
        return false;
    bool ok = match(env, argument, names, n, false, repo, err);
    hub_names_free(names, n);
    return ok;
}

static bool no_config(const char *folder, struct err *err) {
    return err_set(err, ERR_NOT_FOUND, "%s has no config.json: it is no model folder", folder);
}

bool hub_resolve_model(const struct hub_env *env, const char *argument, struct hub_resolved *out,
                       struct err *err) {
    *out = (struct hub_resolved){0};
    if (argument[0] == '\0')
        return err_set(err, ERR_INVALID, "an empty model name");
    if (is_model_folder(argument))
        return hub_path(out->folder, err, "%s", argument);
    bool is_path = argument[0] == '/' || argument[0] == '.' || argument[0] == '~';
    bool is_folder = path_is_folder(argument);
    if (is_folder && is_path)
        return no_config(argument, err);
    if (is_path)
        return err_set(err, ERR_NOT_FOUND, "there is no folder %s", argument);
    char name[HUB_REPO_BYTES + 256];
    if (snprintf(name, sizeof name, "%s", argument) >= (int)sizeof name)
        return err_set(err, ERR_INVALID, "the model name \"%.60s...\" is too long", argument);
    char *at = strchr(name, '@');
    const char *revision = NULL;
    if (at) {
        *at = '\0';
        revision = at + 1;
        if (!hub_revision_check(revision, err))
            return false;
    }
    char **names;
    size_t n;
    if (!hub_list_repos(env, &names, &n, err))
        return false;
    struct err problem = {0};
    bool ok = match(env, name, names, n, revision == NULL, out->repo, &problem);
    hub_names_free(names, n);
    if (!ok && problem.code == ERR_NOT_FOUND && is_folder)
        return no_config(argument, err);
    if (!ok)
        return err_set(err, problem.code, "%s", problem.message);
    if (!hub_snapshot_find(env, out->repo, revision, out->folder, err))
        return false;
    if (!is_model_folder(out->folder))
        return err_set(err, ERR_NOT_FOUND, "%s has no config.json: the download is not complete, run loam get %s",
                       out->folder, argument);
    return true;
}
