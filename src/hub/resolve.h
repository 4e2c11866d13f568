// hub/resolve.h - what a MODEL argument means: a folder, org/name, or part of the name of one downloaded
// model. Looks at the disk, not at the registry. Any thread may call it.
#ifndef LOAM_HUB_RESOLVE_H
#define LOAM_HUB_RESOLVE_H
#include "hub/layout.h"

struct hub_resolved {
    char folder[PATH_MAX];     // holds a config.json
    char repo[HUB_REPO_BYTES]; // "" for a plain folder
};

// Find the model folder of `argument`: a folder with a config.json; org/name or org/name@revision that is
// downloaded; else the one downloaded model whose name contains the text (upper and lower case alike; the
// whole name after org/ wins over a part of it; draft models only by their whole name).
// ERR_INVALID lists the candidates when several match; ERR_NOT_FOUND names the nearest downloaded one and
// how to get it.
bool hub_resolve_model(const struct hub_env *env, const char *argument, struct hub_resolved *out,
                       struct err *err);
// Only the repository's name of what is downloaded, by the same rules, model or not (get, rm).
bool hub_resolve_repo(const struct hub_env *env, const char *argument, char repo[HUB_REPO_BYTES],
                      struct err *err);
// A model that only guesses tokens for another ("-assistant", "-MTP", "dspark" ...).
bool hub_is_drafter_name(const char *repo);
#endif
