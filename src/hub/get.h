// hub/get.h - download a repository into the cache so that a crash at any moment leaves nothing that
// looks complete and is not.
//
// Connections are threads; each streams one file, or one chunk of a large file. One further thread hashes
// and writes. Chunks may arrive out of order but reach the disk in order (the reordering happens in a
// bounded window of memory), so a partial file is always a true prefix that any tool may resume.
#ifndef LOAM_HUB_GET_H
#define LOAM_HUB_GET_H
#include <stdatomic.h>

#include "hub/listing.h"

struct hub_progress {
    const char *repo;
    uint64_t bytes_done, bytes_total;    // of all wanted files, those that were there included
    uint64_t bytes_received;             // in this run
    uint32_t n_files_done, n_files;
    uint32_t n_retries;
    double bytes_per_s;                  // over the last 5 s
    double seconds_left;                 // -1 = unknown
    long waiting_for_process;            // another process writes the files that are left; else 0
    bool checking;                       // hashes what earlier runs left
    const char *note;                    // why the last retry was made, or whom it waits for (before the list of
                                         // files is there, with all counts 0), or NULL; until the next call
    bool finished;                       // the last call
};
// Called on the thread of hub_get(), about ten times a second.
typedef void hub_progress_fn(void *user, const struct hub_progress *progress);

struct hub_get_options {
    const char *repo;     // org/name
    const char *revision; // NULL = main
    struct hub_filter filter;
    uint32_t n_connections;
    uint64_t split_bytes;   // larger files are fetched in chunks over several connections
    uint64_t chunk_bytes;
    uint64_t reserve_bytes; // must stay free on the disk
    uint32_t stall_ms;      // a connection that sends (almost) nothing for this long is dropped
    uint32_t backoff_ms;    // before the first retry; doubles
    uint32_t n_failures_max; // in a row, without one byte of progress
    hub_progress_fn *progress; // or NULL
    void *user;
    const atomic_bool *cancel; // or NULL; true ends with ERR_CANCELLED, keeping what is there
};
// 4 connections, 64 MiB split, 16 MiB chunks, 1 GiB reserve, 30 s stall, 0.5 s backoff, 6 failures.
struct hub_get_options hub_get_defaults(void);

struct hub_get_result {
    char snapshot[PATH_MAX]; // the folder
    char commit[HUB_COMMIT_BYTES];
    uint32_t n_files, n_skipped; // wanted, and left out as weights in foreign formats
    uint64_t bytes_total, bytes_received;
    uint32_t n_retries;
};

// ERR_INVALID (names, a licence to accept or a token to set), ERR_NOT_FOUND (no such repository,
// revision or matching file; names the nearest downloaded one), ERR_UNSUPPORTED (no weights that loam
// reads), ERR_FORMAT (content is not what the hub lists), ERR_IO (network, disk, space), ERR_CANCELLED,
// ERR_NOMEM. `result` may be NULL.
bool hub_get(const struct hub_env *env, const struct hub_get_options *options,
             struct hub_get_result *result, struct err *err);
#endif
