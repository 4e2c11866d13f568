// hub/layout.h - where the Hugging Face hub's files live on disk: the same tree, variables and token file
// as the huggingface_hub package, so that `hf` and loam share one cache.
//
//   <cache>/models--org--name/blobs/<hash>                 content, named by sha256 (LFS) or git blob sha1
//   <cache>/models--org--name/blobs/<hash>.incomplete      a true prefix of it, never anything else
//   <cache>/models--org--name/snapshots/<commit>/<file>    link to ../../blobs/<hash> (or a plain file)
//   <cache>/models--org--name/refs/<revision>              the commit, written last
//   <cache>/.locks/models--org--name/<hash>.lock           flock()ed while a blob is written
//
// Source: huggingface_hub's documentation, "Understand caching" and "Environment variables".
// Functions keep no state: any thread may call them.
#ifndef LOAM_HUB_LAYOUT_H
#define LOAM_HUB_LAYOUT_H
#include <limits.h>

#include "base/bytes.h"
#include "base/err.h"

enum {
    HUB_COMMIT_BYTES = 65, // hex and NUL
    HUB_REPO_BYTES = 200,
    HUB_TOKEN_BYTES = 1024,
    HUB_URL_BYTES = 4096,
};

struct hub_env {
    char cache[PATH_MAX]; // HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub
    char endpoint[512];   // HF_ENDPOINT, else https://huggingface.co; no slash at the end
    char token[HUB_TOKEN_BYTES]; // HF_TOKEN, else the token file; "" = none
    bool offline;         // HF_HUB_OFFLINE
};

// Read the environment. ERR_INVALID for an endpoint that is no http(s) URL, or a token with characters
// that cannot be in a header.
bool hub_env_read(struct hub_env *env, struct err *err);

// "org/name" or "name" as the hub allows it, else ERR_INVALID.
bool hub_repo_check(const char *repo, struct err *err);
// A branch, tag, commit or refs/pr/N, else ERR_INVALID.
bool hub_revision_check(const char *revision, struct err *err);
// A path inside a repository that is safe to create below a folder: relative, no "..", no control
// characters, bounded. `what` names the listing. Else ERR_FORMAT.
bool hub_file_path_check(struct str path, const char *what, struct err *err);
bool hub_is_commit(const char *text); // 40 (or 64) lower-case hex digits

// <cache>/models--org--name. ERR_INVALID when the path does not fit.
bool hub_repo_folder(const struct hub_env *env, const char *repo, char out[PATH_MAX], struct err *err);
// "models--org--name" -> "org/name"; false for names of other kinds.
bool hub_repo_of_folder(const char *folder_name, char out[HUB_REPO_BYTES]);

// The repositories that the cache holds, sorted; malloc'ed array of malloc'ed names for
// hub_names_free(). No cache folder is an empty list. ERR_IO, ERR_NOMEM.
bool hub_list_repos(const struct hub_env *env, char ***names, size_t *n, struct err *err);
void hub_names_free(char **names, size_t n);

// The commit that refs/<revision> of a repository's folder names; false if there is no such ref.
bool hub_ref_read(const char *repo_folder, const char *revision, char commit[HUB_COMMIT_BYTES]);
// Write it so that a crash leaves the old or the new one. ERR_IO.
bool hub_ref_write(const char *repo_folder, const char *revision, const char *commit, struct err *err);

// The snapshot folder of a downloaded repository: of `revision` (a ref or a commit), or when NULL of
// refs/main, else the newest that has a config.json. ERR_NOT_FOUND.
bool hub_snapshot_find(const struct hub_env *env, const char *repo, const char *revision,
                       char out[PATH_MAX], struct err *err);

// Make snapshots/<commit>/<file> stand for blobs/<hash>: a relative link, or where the file system has no
// links the blob itself is moved there. What was there is replaced. ERR_IO.
bool hub_snapshot_link(const char *repo_folder, const char *commit, const char *file, const char *hash,
                       struct err *err);

// Percent-encode all but unreserved characters and, with keep_slash, '/'.
void hub_url_append(struct strbuf *url, const char *text, bool keep_slash);

// snprintf that refuses to cut: ERR_INVALID "path too long".
bool hub_path(char out[PATH_MAX], struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#endif
