#include "cli/starter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/progress.h"
#include "hub/get.h"

enum { LINE_MS = 5000 };

struct starter {
    struct starter_options options;
    char repo[HUB_REPO_BYTES], revision[256];
    pthread_t thread;
    atomic_bool cancel; // from starter_destroy() to the download
    // The thread's own; `served` goes to the event thread with the posted switch.
    uint64_t download_id, last_line_ns;
    uint32_t tenths_told;
    struct served *served;
};

// A line for each tenth: a server's log is no place for a bar, and GET /downloads has it live.
static void show(void *user, const struct hub_progress *p) {
    struct starter *s = user;
    hub_downloads_progress(s->options.downloads, s->download_id, p);
    if (p->note)
        fprintf(stderr, "%s: %s\n", s->repo, p->note);
    uint32_t tenths = p->bytes_total ? (uint32_t)(10 * p->bytes_done / p->bytes_total) : 0;
    if (tenths <= s->tenths_told || p->finished || clock_ms_since(s->last_line_ns) < LINE_MS)
        return;
    s->tenths_told = tenths;
    s->last_line_ns = clock_ns();
    char done[FORMAT_BYTES], total[FORMAT_BYTES], rate[FORMAT_BYTES], left[32] = "";
    if (p->seconds_left >= 0)
        snprintf(left, sizeof left, ", %.0f s left", p->seconds_left);
    fprintf(stderr, "fetching %s: %s of %s, %s/s%s\n", s->repo, format_bytes(done, p->bytes_done),
            format_bytes(total, p->bytes_total), format_bytes(rate, (uint64_t)p->bytes_per_s), left);
}

static bool fetch(struct starter *s, char snapshot[PATH_MAX], struct err *err) {
    struct hub_env env;
    struct hub_get_options get = hub_get_defaults();
    struct hub_get_result result;
    get.repo = s->repo;
    get.revision = s->revision[0] ? s->revision : NULL;
    get.progress = show;
    get.user = s;
    get.cancel = &s->cancel;
    if (!hub_env_read(&env, err) || !hub_get(&env, &get, &result, err))
        return false;
    snprintf(snapshot, PATH_MAX, "%s", result.snapshot);
    return true;
}

static struct served *open_model(const struct starter *s, const char *snapshot, struct err *err) {
    struct model_args model = s->options.model;
    struct bundle bundle = {0};
    model.model = snapshot;
    model.builtin = false;
    if (!model_args_open(&model, NULL, false, &bundle, err))
        return NULL;
    struct engine_options options = s->options.engine;
    options.disk_identity = bundle.identity;
    struct engine *engine = engine_create(bundle.model, bundle.tokenizer, &options, err);
    if (!engine) {
        bundle_close(&bundle);
        return NULL;
    }
    return served_create(&bundle, engine, err);
}

// On the event thread.
static void take_over(void *user) {
    struct starter *s = user;
    if (s->options.server->stopping) {
        served_release(s->served);
    } else {
        log_info("serve: switched model=%s", s->served->bundle.name);
        server_attach(s->options.server, s->served);
        s->options.on_switch(s->served);
    }
    s->served = NULL;
}

static void *starter_main(void *user) {
    struct starter *s = user;
    struct err err = {0};
    char snapshot[PATH_MAX];
    bool fetched = fetch(s, snapshot, &err);
    hub_downloads_end(s->options.downloads, s->download_id, fetched ? NULL : &err);
    struct served *served = fetched ? open_model(s, snapshot, &err) : NULL;
    s->served = served;
    if (served && server_post(s->options.server, take_over, s))
        return NULL; // s->served is the event thread's from here
    if (served) {
        served_release(served);
        err_set(&err, ERR_NOMEM, "out of memory");
    }
    if (err.code != ERR_CANCELLED)
        fprintf(stderr, "loam serve: %s %s: %s\nThe server goes on as it is.\n", fetched ? "cannot serve" : "cannot fetch",
                s->repo, err.message);
    return NULL;
}

struct starter *starter_start(const struct starter_options *options, struct err *err) {
    struct starter *s = calloc(1, sizeof *s);
    if (!s) {
        err_set(err, ERR_NOMEM, "out of memory");
        return NULL;
    }
    s->options = *options;
    snprintf(s->repo, sizeof s->repo, "%s", options->repo);
    if (options->revision)
        snprintf(s->revision, sizeof s->revision, "%s", options->revision);
    s->download_id = hub_downloads_begin(options->downloads, s->repo);
    s->last_line_ns = clock_ns();
    if (pthread_create(&s->thread, NULL, starter_main, s) != 0) {
        err_set(err, ERR_NOMEM, "cannot start a thread");
        hub_downloads_end(options->downloads, s->download_id, err);
        free(s);
        return NULL;
    }
    return s;
}

void starter_stop(struct starter *s) {
    if (!s)
        return;
    atomic_store(&s->cancel, true);
    pthread_join(s->thread, NULL);
}

void starter_destroy(struct starter *s) {
    free(s);
}
