// tests/hub/fixture.h - a made-up repository, the hub's shape for it, and checks of the resulting cache.
#ifndef LOAM_TESTS_HUB_FIXTURE_H
#define LOAM_TESTS_HUB_FIXTURE_H
#include "check.h"

#include <limits.h>
#include <sys/types.h>

#include "hub/fault_server.h"
#include "hub/get.h"

enum { FIXTURE_FILES_MAX = 40 };

struct fixture_file {
    char path[200];
    bool is_lfs;
    uint8_t *data;
    size_t n;
    char hash[65];
};

struct fixture_repo {
    char name[100], commit[41];
    struct fixture_file files[FIXTURE_FILES_MAX];
    size_t n_files;
};

// A temporary folder (malloc'ed path); removed with all in it.
char *fixture_folder(const char *base); // base NULL = the system's
void fixture_remove(char *folder);
void fixture_write(const char *path, const void *data, size_t n); // makes parent folders
void fixture_path(char out[PATH_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));
bool fixture_exists(const char *format, ...) __attribute__((format(printf, 1, 2)));

void fixture_repo_init(struct fixture_repo *repo, const char *name, char commit_digit);
void fixture_repo_deinit(struct fixture_repo *repo);
// A file of n bytes that depend on the path and `seed`; text NULL.
struct fixture_file *fixture_add(struct fixture_repo *repo, const char *path, bool is_lfs, size_t n,
                                 unsigned seed);
struct fixture_file *fixture_add_text(struct fixture_repo *repo, const char *path, const char *text);
// config.json, a tokenizer, two shards of `shard_bytes`, an index, a file in a folder, a foreign *.bin.
void fixture_add_model(struct fixture_repo *repo, size_t shard_bytes);
char *fixture_listing(const struct fixture_repo *repo); // the API's JSON, malloc'ed

// An environment whose cache is folder/hub and whose endpoint is http://ip:port.
struct hub_env fixture_env(const char *folder, const char *ip, int port);
// Small chunks, short waits, no reserve.
struct hub_get_options fixture_options(const struct fixture_repo *repo);

// Answer as the hub does: the listing, and files without redirect. False if the target is another.
bool fixture_hub(const struct fixture_repo *repo, const struct fault_request *request,
                 struct fault_reply *reply, char *listing);

// Everything that would be fetched by default is there, linked and right; refs/main names the commit; no
// partial file is left.
void fixture_check_complete(const struct hub_env *env, const struct fixture_repo *repo);
// After a crash: no blob has wrong content, no link dangles, no config.json or ref without all weights.
void fixture_check_nothing_false(const struct hub_env *env, const struct fixture_repo *repo);

// Lay a snapshot of a tiny llama model (config.json, model.safetensors, README.md, chat template) into
// <cache>/models--.../snapshots/<40 times digit>, with links to blobs, and make refs/main name it.
void fixture_snapshot(const struct hub_env *env, const char *repo, char commit_digit, bool with_ref);

// Run nginx with the repositories below 127.0.0.1:port, LFS files redirected to 127.0.0.2:port, where a
// request with a token is refused. `kib_per_s` limits each connection; 0 = no limit. -1 if there is no nginx.
struct nginx {
    pid_t pid;
    int port;
    char *folder;
};
bool nginx_start(struct nginx *nginx, const struct fixture_repo *repos, size_t n_repos,
                 unsigned kib_per_s);
void nginx_stop(struct nginx *nginx);
#endif
