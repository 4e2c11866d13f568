// hub/downloads.h - what this process is fetching and has fetched lately, for others to look at. Any thread.
#ifndef LOAM_HUB_DOWNLOADS_H
#define LOAM_HUB_DOWNLOADS_H
#include "hub/get.h"

enum { HUB_DOWNLOADS_MAX = 5 }; // the last ones are remembered

enum hub_download_state { HUB_DOWNLOAD_RUNNING, HUB_DOWNLOAD_DONE, HUB_DOWNLOAD_FAILED, HUB_DOWNLOAD_CANCELLED };
const char *hub_download_state_name(enum hub_download_state state); // "running", "done", "failed", "cancelled"

struct hub_download {
    uint64_t id; // counts up from 1
    char repo[HUB_REPO_BYTES];
    enum hub_download_state state;
    uint64_t bytes_done, bytes_total, bytes_received; // as hub_progress
    uint32_t n_files_done, n_files, n_retries;
    double bytes_per_s, seconds_left; // while running; -1 = unknown
    char message[ERR_MESSAGE_BYTES];  // why it failed
    uint64_t started_unix, ended_unix; // seconds; ended 0 = not yet
};

struct hub_downloads;
struct hub_downloads *hub_downloads_create(struct err *err); // ERR_NOMEM
void hub_downloads_destroy(struct hub_downloads *downloads); // NULL is allowed
// Begin one; the oldest that has ended makes room. Returns its id.
uint64_t hub_downloads_begin(struct hub_downloads *downloads, const char *repo);
void hub_downloads_progress(struct hub_downloads *downloads, uint64_t id, const struct hub_progress *progress);
// err NULL = done.
void hub_downloads_end(struct hub_downloads *downloads, uint64_t id, const struct err *err);
// Copies, newest first. Returns how many.
size_t hub_downloads_list(struct hub_downloads *downloads, struct hub_download out[HUB_DOWNLOADS_MAX]);
#endif
