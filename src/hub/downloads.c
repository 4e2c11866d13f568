#include "hub/downloads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct hub_downloads {
    pthread_mutex_t lock; // guards the fields below
    struct hub_download last[HUB_DOWNLOADS_MAX]; // newest first
    size_t n;
    uint64_t n_begun;
};

const char *hub_download_state_name(enum hub_download_state state) {
    static const char *const NAMES[] = {"running", "done", "failed", "cancelled"};
    return NAMES[state];
}

struct hub_downloads *hub_downloads_create(struct err *err) {
    struct hub_downloads *downloads = calloc(1, sizeof *downloads);
    if (!downloads) {
        err_set(err, ERR_NOMEM, "out of memory for the list of downloads");
        return NULL;
    }
    pthread_mutex_init(&downloads->lock, NULL);
    return downloads;
}

void hub_downloads_destroy(struct hub_downloads *downloads) {
    if (!downloads)
        return;
    pthread_mutex_destroy(&downloads->lock);
    free(downloads);
}

uint64_t hub_downloads_begin(struct hub_downloads *downloads, const char *repo) {
    pthread_mutex_lock(&downloads->lock);
    if (downloads->n == HUB_DOWNLOADS_MAX) { // with nothing but running ones the oldest of them is forgotten
        size_t drop = downloads->n - 1;
        for (size_t i = downloads->n; i-- > 0;) {
            if (downloads->last[i].state != HUB_DOWNLOAD_RUNNING) {
                drop = i;
                break;
            }
        }
        downloads->n--;
        memmove(downloads->last + drop, downloads->last + drop + 1,
                (downloads->n - drop) * sizeof *downloads->last);
    }
    memmove(downloads->last + 1, downloads->last, downloads->n++ * sizeof *downloads->last);
    struct hub_download *d = &downloads->last[0];
    *d = (struct hub_download){.id = ++downloads->n_begun, .seconds_left = -1, .started_unix = (uint64_t)time(NULL)};
    snprintf(d->repo, sizeof d->repo, "%s", repo);
    uint64_t id = d->id;
    pthread_mutex_unlock(&downloads->lock);
    return id;
}

static struct hub_download *find_locked(struct hub_downloads *downloads, uint64_t id) {
    for (size_t i = 0; i < downloads->n; i++)
        if (downloads->last[i].id == id)
            return &downloads->last[i];
    return NULL;
}

void hub_downloads_progress(struct hub_downloads *downloads, uint64_t id, const struct hub_progress *p) {
    pthread_mutex_lock(&downloads->lock);
    struct hub_download *d = find_locked(downloads, id);
    if (d) {
        d->bytes_done = p->bytes_done;
        d->bytes_total = p->bytes_total;
        d->bytes_received = p->bytes_received;
        d->n_files_done = p->n_files_done;
        d->n_files = p->n_files;
        d->n_retries = p->n_retries;
        d->bytes_per_s = p->bytes_per_s;
        d->seconds_left = p->seconds_left;
    }
    pthread_mutex_unlock(&downloads->lock);
}

void hub_downloads_end(struct hub_downloads *downloads, uint64_t id, const struct err *err) {
    pthread_mutex_lock(&downloads->lock);
    struct hub_download *d = find_locked(downloads, id);
    if (d) {
        d->state = !err                         ? HUB_DOWNLOAD_DONE
                   : err->code == ERR_CANCELLED ? HUB_DOWNLOAD_CANCELLED
                                                : HUB_DOWNLOAD_FAILED;
        if (err)
            snprintf(d->message, sizeof d->message, "%s", err->message);
        d->bytes_per_s = 0;
        d->seconds_left = err ? -1 : 0;
        d->ended_unix = (uint64_t)time(NULL);
    }
    pthread_mutex_unlock(&downloads->lock);
}

size_t hub_downloads_list(struct hub_downloads *downloads, struct hub_download out[HUB_DOWNLOADS_MAX]) {
    pthread_mutex_lock(&downloads->lock);
    size_t n = downloads->n;
    memcpy(out, downloads->last, n * sizeof *out);
    pthread_mutex_unlock(&downloads->lock);
    return n;
}
