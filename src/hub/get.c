#include "hub/get.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/json.h"
#include "base/log.h"
#include "base/nearest.h"
#include "hub/blob.h"
#include "hub/http.h"

enum {
    CONNECTIONS_MAX = 32,
    BLOCK_BYTES = 1 << 20,          // handed from a connection to the writer
    LISTING_BYTES_MAX = 64 << 20,
    BACKOFF_MS_MAX = 30000,
    LOCK_POLL_MS = 200,
    PROGRESS_MS = 100,
    SILENCE_MS = 2000,              // a hub that takes longer to list is named
    RATE_SLOTS = 50,                // PROGRESS_MS each: the rate's window
    SPARE_BLOCKS_MAX = 16,
};

// Received bytes [off, off + n) of a job's blob.
struct block {
    struct block *next;
    struct job *job;
    uint64_t off;
    size_t n, room;
    uint8_t data[];
};

enum job_state {
    JOB_WAITING, // nobody has it
    JOB_OPENING, // a worker locks it and hashes the prefix
    JOB_ACTIVE,  // being received and written
    JOB_CLOSING, // all written; a worker verifies and renames it
    JOB_DONE,    // in blobs/, all files that share it linked
};

// One blob to fetch; several files of the listing may share it.
struct job {
    const struct hub_file *file; // the first of them
    enum job_state state;
    struct blob blob; // of the worker while OPENING and CLOSING, else of the writer thread
    struct blob_lock lock;
    uint64_t busy_until_ns;  // another process has it: do not try before
    uint64_t written;        // in order on disk; mirrors blob.written under the fetch lock
    uint64_t next_off;       // first byte that no transfer was started for
    uint64_t resumed_from;
    bool is_split;           // fetched in chunks by several workers
    bool has_streamer;       // one transfer runs to the end: no more are started
    uint32_t n_transfers;    // running
    uint32_t n_mismatches;
    struct block *pending;   // received ahead of `written`, ascending
    char *url;               // where redirects ended, reused for further chunks; NULL = ask the hub
};

struct fetch {
    const struct hub_env *env;
    const struct hub_get_options *options; // checked
    char repo_folder[PATH_MAX], commit[HUB_COMMIT_BYTES];
    const struct hub_listing *listing;
    const bool *wanted; // [listing->n_files]
    atomic_bool stop;   // a failure or the caller's wish; read without the lock

    pthread_mutex_t lock; // guards all below and every job but its blob
    pthread_cond_t changed;
    struct job *jobs; // [n_jobs]
    size_t n_jobs, n_jobs_done;
    struct block *queue_first, *queue_last; // to the writer
    struct block *spare; // whole blocks to use again: fresh memory costs more than filling it
    uint32_t n_spare;
    bool writer_may_end;
    bool failed;
    struct err err; // the first failure
    uint64_t bytes_done, bytes_total, bytes_received;
    uint32_t n_files_done, n_files, n_retries;
    uint32_t n_checking; // workers that hash what is there of a file
    long waiting_for_process;
    char note[700];
    bool note_is_new;
};

struct worker {
    struct fetch *fetch;
    struct http_session *session;
    pthread_t thread;
    struct job *last; // whose next chunk it prefers
    // The transfer that runs:
    struct job *job;
    uint64_t off, to;    // next byte to deliver, and where it ends
    uint64_t skip;       // bytes of a whole-file answer that are on disk already
    bool is_streamer;    // runs to the end of the file
    bool asked_range;
    bool whole_answer;   // the server ignored Range
    bool superseded;     // another transfer covers the rest
    bool bad_answer;     // *err says why
    struct err err;
    struct block *block; // being filled
};

struct hub_get_options hub_get_defaults(void) {
    return (struct hub_get_options){
        .n_connections = 4,
        .split_bytes = 64u << 20,
        .chunk_bytes = 16u << 20,
        .reserve_bytes = 1u << 30,
        .stall_ms = 30000,
        .backoff_ms = 500,
        .n_failures_max = 6,
    };
}

// ---- Failures and waiting -----------------------------------------------------------------------

static void fail_locked(struct fetch *f, const struct err *err) {
    if (!f->failed) {
        f->failed = true;
        f->err = *err;
    }
    atomic_store(&f->stop, true);
    pthread_cond_broadcast(&f->changed);
}

static void fail(struct fetch *f, const struct err *err) {
    pthread_mutex_lock(&f->lock);
    fail_locked(f, err);
    pthread_mutex_unlock(&f->lock);
}

static bool is_stopped(struct fetch *f) {
    if (f->options->cancel && atomic_load(f->options->cancel))
        atomic_store(&f->stop, true);
    return atomic_load(&f->stop);
}

static void wait_ms_locked(struct fetch *f, uint32_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)ms * 1000000u;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait(&f->changed, &f->lock, &until);
}

static uint64_t window_bytes(const struct fetch *f, const struct job *job) {
    return job->is_split ? (f->options->n_connections + 1) * f->options->chunk_bytes : 16 * BLOCK_BYTES;
}

// How long to wait before failure number n_failures + 1 is risked: the server's wish, else doubling with
// some chance in it, so that many clients do not return at once.
static uint32_t backoff_ms(const struct hub_get_options *options, uint32_t n_failures,
                           uint32_t retry_after_ms) {
    if (retry_after_ms)
        return retry_after_ms;
    uint64_t ms = (uint64_t)options->backoff_ms << (n_failures < 16 ? n_failures : 16);
    if (ms > BACKOFF_MS_MAX)
        ms = BACKOFF_MS_MAX;
    return (uint32_t)(ms / 2 + clock_ns() / 1000 % (ms / 2 + 1));
}

// ---- The writer: blocks in order to disk and hash -----------------------------------------------

static void free_blocks(struct block *b) {
    while (b) {
        struct block *next = b->next;
        free(b);
        b = next;
    }
}

static void give_block_locked(struct fetch *f, struct block *b) {
    if (b->room < BLOCK_BYTES || f->n_spare == SPARE_BLOCKS_MAX) {
        free(b);
        return;
    }
    b->next = f->spare;
    f->spare = b;
    f->n_spare++;
}

// An empty block with room for n bytes, NULL when out of memory.
static struct block *take_block(struct fetch *f, struct job *job, uint64_t off, size_t n) {
    struct block *b = NULL;
    if (n == BLOCK_BYTES) {
        pthread_mutex_lock(&f->lock);
        b = f->spare;
        if (b) {
            f->spare = b->next;
            f->n_spare--;
        }
        pthread_mutex_unlock(&f->lock);
    }
    if (!b)
        b = malloc(sizeof *b + n);
    if (b)
        *b = (struct block){.job = job, .off = off, .room = n};
    return b;
}

static void insert_pending_locked(struct block *block) {
    struct block **at = &block->job->pending;
    while (*at && (*at)->off <= block->off)
        at = &(*at)->next;
    block->next = *at;
    *at = block;
}

// Write what has become contiguous. Called with the lock held; drops it for the disk.
static void drain_locked(struct fetch *f, struct job *job) {
    while (job->pending && job->pending->off <= job->written && !f->failed) {
        struct block *b = job->pending;
        job->pending = b->next;
        uint64_t seen = job->written - b->off; // overlap with what another transfer delivered
        bool ok = true;
        struct err err = {0};
        if (seen < b->n) {
            pthread_mutex_unlock(&f->lock);
            ok = blob_append(&job->blob, (struct bytes){b->data + seen, b->n - (size_t)seen}, &err);
            pthread_mutex_lock(&f->lock);
            f->bytes_done += job->blob.written - job->written;
            job->written = job->blob.written;
        }
        give_block_locked(f, b);
        if (!ok) {
            err_wrap(&err, "%s", job->file->path);
            fail_locked(f, &err);
        }
        pthread_cond_broadcast(&f->changed);
    }
}

static void *writer_main(void *user) {
    struct fetch *f = user;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        struct block *b = f->queue_first;
        if (!b) {
            if (f->writer_may_end)
                break;
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        f->queue_first = b->next;
        if (!f->queue_first)
            f->queue_last = NULL;
        struct job *job = b->job;
        insert_pending_locked(b);
        drain_locked(f, job);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

// ---- One transfer -------------------------------------------------------------------------------

static void push_block(struct worker *w) {
    struct block *b = w->block;
    struct fetch *f = w->fetch;
    w->block = NULL;
    if (!b || b->n == 0) {
        free(b);
        return;
    }
    pthread_mutex_lock(&f->lock);
    b->next = NULL;
    if (f->queue_last)
        f->queue_last->next = b;
    else
        f->queue_first = b;
    f->queue_last = b;
    f->bytes_received += b->n;
    pthread_cond_broadcast(&f->changed);
    // Wait while this is too far ahead of the disk. The transfer of the first missing byte never waits
    // here for another's, so somebody always moves on.
    struct job *job = w->job;
    while (w->off > job->written + window_bytes(f, job) && !is_stopped(f))
        wait_ms_locked(f, 500);
    pthread_mutex_unlock(&f->lock);
}

static bool bad_answer(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad_answer(struct worker *w, const char *format, ...) {
    va_list args;
    char text[300];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    w->bad_answer = true;
    return err_set(&w->err, ERR_FORMAT, "%s", text);
}

// Check that the answer is the bytes that were asked for, or the whole file.
static bool on_head(void *user, const struct http_head *head) {
    struct worker *w = user;
    struct fetch *f = w->fetch;
    struct job *job = w->job;
    uint64_t n_bytes = job->file->n_bytes;
    if (head->status == 206) {
        if (!head->has_range)
            return bad_answer(w, "the server sent a part without saying which");
        if (head->range_from != w->off || head->range_total != n_bytes)
            return bad_answer(w, "the server sent bytes from %llu of %llu, wanted from %llu of %llu",
                              (unsigned long long)head->range_from, (unsigned long long)head->range_total,
                              (unsigned long long)w->off, (unsigned long long)n_bytes);
        return true;
    }
    if (head->content_bytes >= 0 && (uint64_t)head->content_bytes != n_bytes)
        return bad_answer(w, "the server sends %lld bytes, the hub lists %llu",
                          (long long)head->content_bytes, (unsigned long long)n_bytes);
    if (!w->asked_range)
        return true;
    // The whole file from its first byte. One such transfer serves the whole job; the others end.
    pthread_mutex_lock(&f->lock);
    if (job->has_streamer && !w->is_streamer) {
        w->superseded = true;
    } else {
        job->has_streamer = w->is_streamer = w->whole_answer = true;
        w->skip = job->written;
        w->off = 0;
        w->to = n_bytes;
    }
    pthread_mutex_unlock(&f->lock);
    return !w->superseded;
}

static bool on_body(void *user, struct bytes data) {
    struct worker *w = user;
    if (is_stopped(w->fetch))
        return false;
    if (w->skip) {
        size_t n = w->skip < data.n ? (size_t)w->skip : data.n;
        w->skip -= n;
        w->off += n;
        data.data += n;
        data.n -= n;
    }
    while (data.n && w->off < w->to) {
        if (!w->block) {
            uint64_t left = w->to - w->off;
            w->block = take_block(w->fetch, w->job, w->off, left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES);
            if (!w->block) {
                w->bad_answer = true;
                return err_set(&w->err, ERR_NOMEM, "out of memory");
            }
        }
        struct block *b = w->block;
        size_t n = b->room - b->n < data.n ? b->room - b->n : data.n;
        memcpy(b->data + b->n, data.data, n);
        b->n += n;
        w->off += n;
        data.data += n;
        data.n -= n;
        if (b->n == b->room)
            push_block(w);
    }
    // Whatever comes after the end was not asked for.
    return data.n == 0 && !w->superseded;
}

static bool should_stop(void *user) {
    struct worker *w = user;
    if (is_stopped(w->fetch))
        return true;
    struct fetch *f = w->fetch;
    pthread_mutex_lock(&f->lock);
    if (w->job->has_streamer && !w->is_streamer)
        w->superseded = true;
    pthread_mutex_unlock(&f->lock);
    return w->superseded;
}

static void explain_status(const struct fetch *f, const struct http_result *result, const char *path,
                           struct err *err);

// Later chunks go straight to where the hub's redirect led.
static void remember_url(struct fetch *f, struct job *job, const char *url) {
    pthread_mutex_lock(&f->lock);
    if (!job->url)
        job->url = strdup(url); // without it the hub is asked again
    pthread_mutex_unlock(&f->lock);
}

// Fetch [off, to) of the job. Retries by itself; on final failure the whole fetch fails.
static void transfer(struct worker *w) {
    struct fetch *f = w->fetch;
    struct job *job = w->job;
    uint32_t n_failures = 0;
    w->superseded = w->whole_answer = false;
    while (w->off < w->to && !w->superseded && !is_stopped(f)) {
        struct strbuf url = {0};
        pthread_mutex_lock(&f->lock);
        bool direct = job->url != NULL;
        if (direct) {
            strbuf_append_c(&url, job->url);
        } else {
            strbuf_printf(&url, "%s/", f->env->endpoint);
            hub_url_append(&url, f->options->repo, true);
            strbuf_printf(&url, "/resolve/%s/", f->commit);
            hub_url_append(&url, job->file->path, true);
        }
        pthread_mutex_unlock(&f->lock);
        if (url.failed) {
            strbuf_deinit(&url);
            err_set(&w->err, ERR_NOMEM, "out of memory");
            fail(f, &w->err);
            return;
        }
        uint64_t before = w->off;
        w->skip = 0;
        w->bad_answer = w->whole_answer = false;
        w->asked_range = w->off > 0 || w->to < job->file->n_bytes;
        struct http_request request = {
            .url = url.data,
            .token = f->env->token,
            .origin = f->env->endpoint,
            .has_range = w->asked_range,
            .range_from = w->off,
            .range_to = w->to < job->file->n_bytes ? w->to : UINT64_MAX,
            .stall_ms = f->options->stall_ms,
            .on_head = on_head,
            .on_body = on_body,
            .should_stop = should_stop,
            .user = w,
        };
        struct http_result result;
        struct err err = {0};
        enum http_outcome outcome = http_get(w->session, &request, &result, &err);
        strbuf_deinit(&url);
        push_block(w); // also what came before a failure: it is a true part of the file
        if (w->off >= w->to && job->is_split && result.n_redirects)
            remember_url(f, job, result.url);
        if (w->off >= w->to || w->superseded || is_stopped(f))
            break;
        if (w->bad_answer) {
            err = w->err;
            outcome = err.code == ERR_NOMEM ? HTTP_FAILED : HTTP_AGAIN;
        } else if (outcome == HTTP_DONE) {
            outcome = HTTP_AGAIN;
            err_set(&err, ERR_IO, "the server ended the file at byte %llu of %llu",
                    (unsigned long long)w->off, (unsigned long long)job->file->n_bytes);
        } else if (outcome == HTTP_FAILED && direct) {
            outcome = HTTP_AGAIN; // a signed address has expired: ask the hub again
        } else if (outcome == HTTP_FAILED && result.status) {
            explain_status(f, &result, job->file->path, &err);
        }
        pthread_mutex_lock(&f->lock);
        if (w->whole_answer) // it stood for every transfer: all that is not on disk is left
            w->off = job->written;
        n_failures = w->off > before ? 1 : n_failures + 1;
        free(job->url);
        job->url = NULL;
        if (outcome == HTTP_FAILED || n_failures > f->options->n_failures_max) {
            err_wrap(&err, "%s", job->file->path);
            fail_locked(f, &err);
        } else {
            f->n_retries++;
            uint32_t ms = backoff_ms(f->options, n_failures - 1, result.retry_after_ms);
            snprintf(f->note, sizeof f->note, "%.200s: %.400s; trying again in %.1f s",
                     job->file->path, err.message, ms / 1000.0);
            f->note_is_new = true;
            uint64_t start = clock_ns();
            while (!is_stopped(f) && clock_ms_since(start) < ms)
                wait_ms_locked(f, 100);
        }
        pthread_mutex_unlock(&f->lock);
    }
}

// ---- Jobs ---------------------------------------------------------------------------------------

static bool blob_is_there(const struct fetch *f, const struct hub_file *file) {
    char path[PATH_MAX];
    struct stat st;
    return hub_path(path, NULL, "%s/blobs/%s", f->repo_folder, file->hash) && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->n_bytes;
}

// A tree without links (Windows, some network file systems) holds the content in the snapshot itself.
static bool plain_file_is_there(const struct fetch *f, const struct hub_file *file) {
    char path[PATH_MAX];
    struct stat st;
    return hub_path(path, NULL, "%s/snapshots/%s/%s", f->repo_folder, f->commit, file->path) &&
           lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->n_bytes;
}

// A snapshot with a config.json but without its weights would look like a model: config.json comes last.
static bool is_linked_last(const struct hub_file *file) {
    return strcmp(file->path, "config.json") == 0;
}

// Link every wanted file that is made of this blob.
static bool link_files(struct fetch *f, const struct hub_file *blob, bool last, struct err *err) {
    for (size_t i = 0; i < f->listing->n_files; i++) {
        const struct hub_file *file = &f->listing->files[i];
        if (!f->wanted[i] || strcmp(file->hash, blob->hash) != 0 || is_linked_last(file) != last ||
            plain_file_is_there(f, file))
            continue;
        if (!hub_snapshot_link(f->repo_folder, f->commit, file->path, file->hash, err))
            return false;
    }
    return true;
}

static uint32_t n_files_of(const struct fetch *f, const struct job *job) {
    uint32_t n = 0;
    for (size_t i = 0; i < f->listing->n_files; i++)
        n += f->wanted[i] && strcmp(f->listing->files[i].hash, job->file->hash) == 0;
    return n;
}

static void job_done_locked(struct fetch *f, struct job *job) {
    job->state = JOB_DONE;
    f->n_jobs_done++;
    f->n_files_done += n_files_of(f, job);
    pthread_cond_broadcast(&f->changed);
}

// Lock the blob and open its partial file. Called without the lock.
static void open_job(struct worker *w, struct job *job) {
    struct fetch *f = w->fetch;
    struct err err = {0};
    long owner = 0;
    enum blob_lock_result locked =
        blob_lock_try(&job->lock, f->env->cache, f->repo_folder, job->file->hash, &owner, &err);
    if (locked == BLOB_LOCK_FAILED) {
        fail(f, &err);
        return;
    }
    if (locked == BLOB_LOCK_BUSY) {
        pthread_mutex_lock(&f->lock);
        job->state = JOB_WAITING;
        job->busy_until_ns = clock_ns() + LOCK_POLL_MS * 1000000ull;
        f->waiting_for_process = owner;
        pthread_mutex_unlock(&f->lock);
        return;
    }
    if (blob_is_there(f, job->file)) { // the other process has finished it
        blob_lock_release(&job->lock);
        bool ok = link_files(f, job->file, false, &err);
        pthread_mutex_lock(&f->lock);
        f->bytes_done += job->file->n_bytes;
        if (ok)
            job_done_locked(f, job);
        else
            fail_locked(f, &err);
        pthread_mutex_unlock(&f->lock);
        return;
    }
    pthread_mutex_lock(&f->lock);
    f->n_checking++;
    pthread_mutex_unlock(&f->lock);
    bool ok = blob_open(&job->blob, f->repo_folder, job->file, &err);
    pthread_mutex_lock(&f->lock);
    f->n_checking--;
    if (ok) {
        job->state = JOB_ACTIVE;
        job->written = job->next_off = job->resumed_from = job->blob.written;
        job->is_split = f->options->n_connections > 1 &&
                        job->file->n_bytes - job->written > f->options->split_bytes;
        f->bytes_done += job->written;
        f->waiting_for_process = 0;
    } else {
        err_wrap(&err, "%s", job->file->path);
        fail_locked(f, &err);
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

// Verify, rename, link. A wrong hash is tried once more from the first byte: the prefix may have been
// another tool's, or damaged.
static void close_job(struct worker *w, struct job *job) {
    struct fetch *f = w->fetch;
    struct err err = {0};
    bool ok = blob_finish(&job->blob, &err);
    bool is_wrong = !ok && err.code == ERR_FORMAT;
    ok = ok && link_files(f, job->file, false, &err); // under the lock: gc takes unlinked blobs
    blob_lock_release(&job->lock);
    pthread_mutex_lock(&f->lock);
    if (ok) {
        job_done_locked(f, job);
    } else if (is_wrong && ++job->n_mismatches < 2) {
        snprintf(f->note, sizeof f->note, "%.200s: %.400s; fetching it again", job->file->path,
                 err.message);
        f->note_is_new = true;
        f->n_retries++;
        f->bytes_done -= job->written;
        job->state = JOB_WAITING;
        job->has_streamer = false;
        free_blocks(job->pending); // stale: of transfers that were superseded
        job->pending = NULL;
        pthread_cond_broadcast(&f->changed);
    } else {
        err_wrap(&err, "%s", job->file->path);
        fail_locked(f, &err);
    }
    pthread_mutex_unlock(&f->lock);
}

// Start a transfer of the job if there is something left to start; fills the worker's fields.
static bool begin_transfer_locked(struct worker *w, struct job *job) {
    struct fetch *f = w->fetch;
    uint64_t n_bytes = job->file->n_bytes;
    if (job->state != JOB_ACTIVE || job->has_streamer || job->next_off >= n_bytes)
        return false;
    if (job->is_split && job->next_off >= job->written + window_bytes(f, job))
        return false;
    w->job = w->last = job;
    w->off = job->next_off;
    w->is_streamer = !job->is_split;
    w->to = n_bytes;
    if (job->is_split && n_bytes - w->off > f->options->chunk_bytes)
        w->to = w->off + f->options->chunk_bytes;
    job->next_off = w->to;
    job->has_streamer = w->is_streamer;
    job->n_transfers++;
    return true;
}

static void end_transfer_locked(struct worker *w) {
    struct fetch *f = w->fetch;
    struct job *job = w->job;
    job->n_transfers--;
    if (w->is_streamer)
        job->has_streamer = false;
    if (w->whole_answer) { // a server without ranges: never split this file again
        job->is_split = false;
        job->next_off = job->file->n_bytes;
    }
    pthread_cond_broadcast(&f->changed);
}

static bool is_complete_locked(const struct job *job) {
    return job->state == JOB_ACTIVE && job->written == job->file->n_bytes && job->n_transfers == 0;
}

static void *worker_main(void *user) {
    struct worker *w = user;
    struct fetch *f = w->fetch;
    pthread_mutex_lock(&f->lock);
    while (!is_stopped(f) && f->n_jobs_done < f->n_jobs) {
        struct job *to_close = NULL, *to_open = NULL;
        bool transfers = w->last && begin_transfer_locked(w, w->last);
        uint64_t now = clock_ns();
        for (size_t i = 0; i < f->n_jobs && !transfers && !to_close; i++) {
            struct job *job = &f->jobs[i];
            if (is_complete_locked(job))
                to_close = job;
            else if (!to_open && job->state == JOB_WAITING && job->busy_until_ns <= now)
                to_open = job;
        }
        for (size_t i = 0; i < f->n_jobs && !transfers && !to_close && !to_open; i++)
            transfers = begin_transfer_locked(w, &f->jobs[i]);
        if (to_close || to_open) {
            struct job *job = to_close ? to_close : to_open;
            job->state = to_close ? JOB_CLOSING : JOB_OPENING;
            pthread_mutex_unlock(&f->lock);
            if (to_close)
                close_job(w, job);
            else
                open_job(w, job);
            pthread_mutex_lock(&f->lock);
            if (to_open)
                w->last = job;
        } else if (transfers) {
            pthread_mutex_unlock(&f->lock);
            transfer(w);
            pthread_mutex_lock(&f->lock);
            end_transfer_locked(w);
        } else {
            wait_ms_locked(f, LOCK_POLL_MS);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

// ---- The listing --------------------------------------------------------------------------------

struct body {
    struct strbuf text;
    struct fetch *fetch;
    uint64_t start_ns;
    bool told;
};

static bool collect_body(void *user, struct bytes data) {
    struct body *body = user;
    if (body->text.n + data.n > LISTING_BYTES_MAX)
        return false;
    strbuf_append(&body->text, str_of(data));
    return !body->text.failed;
}

// A word for whoever watches while there is no byte to count yet. On the thread of hub_get().
__attribute__((format(printf, 2, 3))) static void tell(const struct fetch *f, const char *format, ...) {
    if (!f->options->progress)
        return;
    char note[sizeof f->note];
    va_list args;
    va_start(args, format);
    vsnprintf(note, sizeof note, format, args);
    va_end(args);
    struct hub_progress p = {
        .repo = f->options->repo, .n_retries = f->n_retries, .seconds_left = -1, .note = note};
    f->options->progress(f->options->user, &p);
}

static bool body_should_stop(void *user) {
    struct body *body = user;
    if (!body->told && clock_ms_since(body->start_ns) > SILENCE_MS) {
        body->told = true;
        tell(body->fetch, "waiting for %s to list the files of %s", body->fetch->env->endpoint,
             body->fetch->options->repo);
    }
    return is_stopped(body->fetch);
}

// Say in *err what a 4xx means for a repository or (path) one of its files, with a cure; other answers
// leave *err as it is.
static void explain_status(const struct fetch *f, const struct http_result *result, const char *path,
                           struct err *err) {
    const char *repo = f->options->repo, *endpoint = f->env->endpoint;
    const char *revision = f->options->revision;
    bool has_token = f->env->token[0] != '\0';
    if (strcmp(result->error_code, "GatedRepo") == 0 || result->status == 403) {
        err_set(err, ERR_INVALID, "%s wants its licence accepted: do that at %s/%s, %s (the hub answered %ld)",
                repo, endpoint, repo,
                has_token ? "with the account whose token is in HF_TOKEN"
                          : "then set HF_TOKEN to a token of your account",
                result->status);
        return;
    }
    if (result->status == 404 && path) {
        err_set(err, ERR_NOT_FOUND, "the hub lists it but does not have it (404)");
        return;
    }
    if (result->status == 404 && strcmp(result->error_code, "RevisionNotFound") == 0) {
        err_set(err, ERR_NOT_FOUND, "%s has no revision \"%s\" at %s", repo, revision ? revision : "main",
                endpoint);
        return;
    }
    if (result->status != 401 && result->status != 404)
        return;
    char near[HUB_REPO_BYTES + 64] = "";
    char **names;
    size_t n;
    if (hub_list_repos(f->env, &names, &n, NULL)) {
        const char *nearest = text_nearest(repo, (const char *const *)names, n);
        if (nearest)
            snprintf(near, sizeof near, "; the nearest that is downloaded is %s", nearest);
        hub_names_free(names, n);
    }
    if (result->status == 404)
        err_set(err, ERR_NOT_FOUND, "there is no repository %s%s%s at %s%s%s", repo,
                revision ? " with revision " : "", revision ? revision : "", endpoint,
                has_token ? "" : " (a private one needs HF_TOKEN)", near);
    else
        err_set(err, ERR_INVALID,
                "%s does not exist at %s, or wants a token: %s, and accept its licence at %s/%s if it has one "
                "(the hub answered 401)%s",
                repo, endpoint,
                has_token ? "the one in HF_TOKEN was refused, set a valid one" : "set HF_TOKEN", endpoint,
                repo, near);
}

static bool fetch_listing(struct fetch *f, struct http_session *session, struct hub_listing *listing,
                          struct err *err) {
    const char *revision = f->options->revision ? f->options->revision : "main";
    struct strbuf url = {0};
    strbuf_printf(&url, "%s/api/models/", f->env->endpoint);
    hub_url_append(&url, f->options->repo, true);
    strbuf_append_c(&url, "/revision/");
    hub_url_append(&url, revision, false);
    strbuf_append_c(&url, "?blobs=true");
    struct body body = {.fetch = f, .start_ns = clock_ns()};
    bool ok = !url.failed || err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t n_failures = 0; ok;) {
        strbuf_clear(&body.text);
        struct http_request request = {
            .url = url.data,
            .token = f->env->token,
            .origin = f->env->endpoint,
            .stall_ms = f->options->stall_ms,
            .on_body = collect_body,
            .should_stop = body_should_stop,
            .user = &body,
        };
        struct http_result result;
        struct err http_err = {0};
        enum http_outcome outcome = http_get(session, &request, &result, &http_err);
        if (outcome == HTTP_DONE)
            break;
        if (outcome == HTTP_STOPPED) {
            ok = is_stopped(f) ? err_set(err, ERR_CANCELLED, "stopped")
                               : err_set(err, ERR_FORMAT, "the hub's list of files for %s is too large",
                                         f->options->repo);
        } else if (outcome == HTTP_FAILED || ++n_failures > f->options->n_failures_max) {
            err_wrap(&http_err, "cannot list the files of %s at %s", f->options->repo, f->env->endpoint);
            explain_status(f, &result, NULL, &http_err);
            ok = err_set(err, http_err.code, "%s", http_err.message);
        } else {
            f->n_retries++;
            uint32_t ms = backoff_ms(f->options, n_failures - 1, result.retry_after_ms);
            tell(f, "cannot list the files of %s: %.400s; trying again in %.1f s", f->options->repo,
                 http_err.message, ms / 1000.0);
            uint64_t start = clock_ns();
            while (!is_stopped(f) && clock_ms_since(start) < ms)
                usleep(50 * 1000);
        }
    }
    if (ok) {
        char what[300];
        snprintf(what, sizeof what, "the hub's list of files for %s", f->options->repo);
        ok = hub_listing_parse(listing, strbuf_str(&body.text), what, err);
    }
    strbuf_deinit(&body.text);
    strbuf_deinit(&url);
    return ok;
}

// ---- The plan -----------------------------------------------------------------------------------

static bool has_weights(const char *path) {
    return str_ends(str_from(path), STR(".safetensors"));
}

// Which files, and is there something that loam can read among them?
static bool choose_files(struct fetch *f, bool *wanted, uint32_t *n_skipped, struct err *err) {
    const char *foreign = NULL;
    bool any_weights = false;
    for (size_t i = 0; i < f->listing->n_files; i++) {
        const struct hub_file *file = &f->listing->files[i];
        wanted[i] = hub_filter_wants(&f->options->filter, file->path);
        f->n_files += wanted[i];
        f->bytes_total += wanted[i] ? file->n_bytes : 0;
        any_weights = any_weights || has_weights(file->path);
        if (!wanted[i] && hub_is_foreign_weight(file->path)) {
            ++*n_skipped;
            foreign = file->path;
        }
    }
    if (f->options->filter.n_include == 0 && !any_weights && foreign)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s has no safetensors weights, only formats that loam does not read (%s); "
                       "--include '*' fetches them all the same", f->options->repo, foreign);
    if (f->n_files == 0)
        return err_set(err, ERR_NOT_FOUND, "%s has %zu files, but the --include and --exclude patterns leave none",
                       f->options->repo, f->listing->n_files);
    return true;
}

static int compare_jobs(const void *a, const void *b) {
    const struct hub_file *x = ((const struct job *)a)->file, *y = ((const struct job *)b)->file;
    int order = strcmp(x->hash, y->hash);
    return order ? order : strcmp(x->path, y->path);
}

static int compare_jobs_small_first(const void *a, const void *b) {
    uint64_t x = ((const struct job *)a)->file->n_bytes, y = ((const struct job *)b)->file->n_bytes;
    return x < y ? -1 : x > y ? 1 : compare_jobs(a, b);
}

// One job a blob; blobs that are there are done at once.
static bool plan_jobs(struct fetch *f, struct err *err) {
    f->jobs = calloc(f->n_files, sizeof *f->jobs);
    if (!f->jobs)
        return err_set(err, ERR_NOMEM, "out of memory for %u files", f->n_files);
    size_t n = 0;
    for (size_t i = 0; i < f->listing->n_files; i++)
        if (f->wanted[i])
            f->jobs[n++] = (struct job){.file = &f->listing->files[i], .lock.fd = -1, .blob.fd = -1};
    qsort(f->jobs, n, sizeof *f->jobs, compare_jobs);
    size_t n_blobs = 0;
    for (size_t i = 0; i < n; i++) {
        if (n_blobs && strcmp(f->jobs[n_blobs - 1].file->hash, f->jobs[i].file->hash) == 0)
            f->bytes_total -= f->jobs[i].file->n_bytes; // the same content twice is fetched once
        else
            f->jobs[n_blobs++] = f->jobs[i];
    }
    f->n_jobs = n_blobs;
    qsort(f->jobs, n_blobs, sizeof *f->jobs, compare_jobs_small_first);
    for (size_t i = 0; i < n_blobs; i++) {
        struct job *job = &f->jobs[i];
        if (!blob_is_there(f, job->file) && !plain_file_is_there(f, job->file))
            continue;
        if (!link_files(f, job->file, false, err))
            return false;
        f->bytes_done += job->file->n_bytes;
        job_done_locked(f, job);
    }
    return true;
}

static uint64_t partial_bytes(const struct fetch *f, const struct hub_file *file) {
    char path[PATH_MAX];
    struct stat st;
    if (!hub_path(path, NULL, "%s/blobs/%s.incomplete", f->repo_folder, file->hash) || stat(path, &st) != 0 ||
        (uint64_t)st.st_size > file->n_bytes)
        return 0;
    return (uint64_t)st.st_size;
}

static bool check_space(const struct fetch *f, struct err *err) {
    uint64_t missing = 0;
    for (size_t i = 0; i < f->n_jobs; i++)
        if (f->jobs[i].state != JOB_DONE)
            missing += f->jobs[i].file->n_bytes - partial_bytes(f, f->jobs[i].file);
    struct statvfs fs;
    if (missing == 0 || statvfs(f->repo_folder, &fs) != 0)
        return true;
    uint64_t available = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (available >= missing && available - missing >= f->options->reserve_bytes)
        return true;
    return err_set(err, ERR_IO,
                   "%s needs %.2f GB more and %.2f GB must stay free, but %s has %.2f GB; free some space (loam "
                   "gc, loam rm) or point HF_HUB_CACHE at a larger disk",
                   f->options->repo, (double)missing / 1e9, (double)f->options->reserve_bytes / 1e9,
                   f->env->cache, (double)available / 1e9);
}

// ---- Running ------------------------------------------------------------------------------------

struct rate {
    uint64_t at_ns[RATE_SLOTS], bytes[RATE_SLOTS];
    uint32_t n;
};

static double rate_update(struct rate *rate, uint64_t bytes) {
    uint32_t slot = rate->n % RATE_SLOTS, oldest = rate->n < RATE_SLOTS ? 0 : (rate->n + 1) % RATE_SLOTS;
    rate->at_ns[slot] = clock_ns();
    rate->bytes[slot] = bytes;
    rate->n++;
    double seconds = (double)(rate->at_ns[slot] - rate->at_ns[oldest]) / 1e9;
    return seconds > 0.05 ? (double)(bytes - rate->bytes[oldest]) / seconds : 0;
}

// Called with the lock held; drops it for the callback.
static void report_locked(struct fetch *f, struct rate *rate, bool finished) {
    if (!f->options->progress)
        return;
    char note[sizeof f->note];
    memcpy(note, f->note, sizeof note);
    struct hub_progress p = {
        .repo = f->options->repo,
        .bytes_done = f->bytes_done,
        .bytes_total = f->bytes_total,
        .bytes_received = f->bytes_received,
        .n_files_done = f->n_files_done,
        .n_files = f->n_files,
        .n_retries = f->n_retries,
        .bytes_per_s = rate_update(rate, f->bytes_received),
        .seconds_left = -1,
        .waiting_for_process = f->waiting_for_process,
        .checking = f->n_checking > 0,
        .note = f->note_is_new ? note : NULL,
        .finished = finished,
    };
    f->note_is_new = false;
    pthread_mutex_unlock(&f->lock);
    if (p.bytes_per_s > 0 && p.bytes_total >= p.bytes_done)
        p.seconds_left = (double)(p.bytes_total - p.bytes_done) / p.bytes_per_s;
    f->options->progress(f->options->user, &p);
    pthread_mutex_lock(&f->lock);
}

// Start the threads, wait for all jobs, end the threads.
static bool run_jobs(struct fetch *f, struct http_session *first, struct err *err) {
    uint32_t n = f->options->n_connections, n_workers = 0;
    struct worker *workers = calloc(n, sizeof *workers);
    pthread_t writer;
    if (!workers || pthread_create(&writer, NULL, writer_main, f) != 0) {
        free(workers);
        return err_set(err, ERR_NOMEM, "cannot start the threads of a download");
    }
    for (uint32_t i = 0; i < n; i++) {
        struct worker *w = &workers[i];
        w->fetch = f;
        struct err ignored = {0};
        w->session = i == 0 ? first : http_session_create(&ignored);
        if (!w->session || pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            if (i)
                http_session_destroy(w->session);
            break; // fewer connections do as well
        }
        n_workers++;
    }
    struct rate rate = {0};
    pthread_mutex_lock(&f->lock);
    if (n_workers == 0) {
        struct err none = {0};
        err_set(&none, ERR_NOMEM, "cannot start the threads of a download");
        fail_locked(f, &none);
    }
    while (f->n_jobs_done < f->n_jobs && !is_stopped(f)) {
        wait_ms_locked(f, PROGRESS_MS);
        report_locked(f, &rate, false);
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < n_workers; i++) {
        pthread_join(workers[i].thread, NULL);
        if (i)
            http_session_destroy(workers[i].session);
        free(workers[i].block);
    }
    pthread_mutex_lock(&f->lock);
    f->writer_may_end = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(writer, NULL);
    pthread_mutex_lock(&f->lock);
    report_locked(f, &rate, true);
    pthread_mutex_unlock(&f->lock);
    free(workers);
    if (f->failed) {
        if (err)
            *err = f->err;
        return false;
    }
    if (f->n_jobs_done < f->n_jobs)
        return err_set(err, ERR_CANCELLED, "stopped; what is there is kept, the same command continues");
    return true;
}

static bool finish_snapshot(struct fetch *f, struct err *err) {
    for (size_t i = 0; i < f->n_jobs; i++)
        if (!link_files(f, f->jobs[i].file, true, err))
            return false;
    const char *revision = f->options->revision ? f->options->revision : "main";
    return strcmp(revision, f->commit) == 0 || hub_ref_write(f->repo_folder, revision, f->commit, err);
}

static bool get_offline(const struct hub_env *env, const struct hub_get_options *options,
                        struct hub_get_result *result, struct err *err) {
    if (hub_snapshot_find(env, options->repo, options->revision, result->snapshot, NULL)) {
        const char *commit = strrchr(result->snapshot, '/') + 1;
        snprintf(result->commit, sizeof result->commit, "%s", commit);
        return true;
    }
    return err_set(err, ERR_IO, "%s is not downloaded, and HF_HUB_OFFLINE forbids fetching it; unset it",
                   options->repo);
}

static bool get_listed(struct fetch *f, struct http_session *session, bool *wanted,
                       struct hub_get_result *result, struct err *err) {
    char blobs[PATH_MAX];
    f->wanted = wanted;
    bool ok = choose_files(f, wanted, &result->n_skipped, err) &&
              hub_path(blobs, err, "%s/blobs", f->repo_folder) && path_make_folders(blobs, err) &&
              plan_jobs(f, err) && check_space(f, err) && run_jobs(f, session, err) &&
              finish_snapshot(f, err) &&
              hub_path(result->snapshot, err, "%s/snapshots/%s", f->repo_folder, f->commit);
    for (size_t i = 0; i < f->n_jobs; i++) {
        struct job *job = &f->jobs[i];
        free_blocks(job->pending);
        blob_close(&job->blob);
        blob_lock_release(&job->lock);
        free(job->url);
    }
    free(f->jobs);
    free_blocks(f->spare);
    result->n_files = f->n_files;
    result->bytes_total = f->bytes_total;
    result->bytes_received = f->bytes_received;
    result->n_retries = f->n_retries;
    snprintf(result->commit, sizeof result->commit, "%s", f->commit);
    return ok;
}

bool hub_get(const struct hub_env *env, const struct hub_get_options *options,
             struct hub_get_result *result, struct err *err) {
    struct hub_get_result unused;
    if (!result)
        result = &unused;
    *result = (struct hub_get_result){0};
    struct hub_get_options checked = *options;
    if (checked.n_connections < 1)
        checked.n_connections = 1;
    if (checked.n_connections > CONNECTIONS_MAX)
        checked.n_connections = CONNECTIONS_MAX;
    if (checked.chunk_bytes < BLOCK_BYTES)
        checked.chunk_bytes = BLOCK_BYTES;
    struct fetch f = {.env = env, .options = &checked};
    if (!hub_repo_check(options->repo, err) ||
        (options->revision && !hub_revision_check(options->revision, err)) ||
        !hub_repo_folder(env, options->repo, f.repo_folder, err))
        return false;
    if (env->offline)
        return get_offline(env, options, result, err);
    struct http_session *session = http_session_create(err);
    if (!session)
        return false;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&f.changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&f.lock, NULL);
    struct hub_listing listing = {0};
    bool ok = fetch_listing(&f, session, &listing, err);
    if (ok) {
        f.listing = &listing;
        snprintf(f.commit, sizeof f.commit, "%s", listing.commit);
        bool *wanted = calloc(listing.n_files + 1, sizeof *wanted);
        ok = wanted ? get_listed(&f, session, wanted, result, err)
                    : err_set(err, ERR_NOMEM, "out of memory for %zu files", listing.n_files);
        free(wanted);
    }
    hub_listing_deinit(&listing);
    http_session_destroy(session);
    pthread_cond_destroy(&f.changed);
    pthread_mutex_destroy(&f.lock);
    return ok;
}
