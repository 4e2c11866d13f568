// GET /library: the downloaded models. Reading them touches the disk, so a thread does it, one at a time; whoever asks
// meanwhile waits for the same answer.
#include "server/library.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "base/log.h"
#include "hub/model_json.h"
#include "hub/registry.h"
#include "server/server.h"

struct waiter {
    struct waiter *next, **link;
    struct http_exchange *exchange;
};

struct library {
    struct server *server;  // of the reading that runs
    struct waiter *waiters; // for it
    bool reading;
    pthread_t thread; // while `reading`
    struct strbuf models; // the kept answer's array, empty = none yet
    uint64_t read_ns, read_unix;
    // The thread's own until on_read() runs.
    struct strbuf fresh;
    struct err err;
};

struct library *library_create(struct err *err) {
    struct library *library = calloc(1, sizeof *library);
    if (!library)
        err_set(err, ERR_NOMEM, "out of memory for the library");
    return library;
}

void library_stop(struct library *library) {
    if (library && library->reading)
        pthread_join(library->thread, NULL);
    if (library)
        library->reading = false;
}

void library_destroy(struct library *library) {
    if (!library)
        return;
    strbuf_deinit(&library->models);
    strbuf_deinit(&library->fresh);
    free(library);
}

// ---- On the thread ------------------------------------------------------------------------------------
static bool read_models(struct strbuf *out, struct err *err) {
    struct hub_env env;
    struct hub_models models = {0};
    struct host_memory memory;
    if (!hub_env_read(&env, err) || !hub_models_read(&env, &models, NULL, err))
        return false;
    host_memory_read(&memory);
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < models.n; i++)
        if (!models.models[i].problem[0] && models.models[i].is_canonical)
            ok = json_array_append_new(list, hub_model_json(&models.models[i], memory.limit_bytes, false)) == 0;
    if (ok)
        strbuf_json(out, list);
    json_decref(list);
    hub_models_deinit(&models);
    return (ok && !out->failed) || err_set(err, ERR_NOMEM, "out of memory for the library");
}

static void on_read(void *user);

static void *reading_main(void *user) {
    struct library *library = user;
    read_models(&library->fresh, &library->err);
    while (!http_post(library->server->http, on_read, library)) // out of memory for a moment
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return NULL;
}

// ---- On the event thread ------------------------------------------------------------------------------
static void answer(struct library *library, struct http_exchange *exchange) {
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"serving\":");
    strbuf_json_string(&out, str_from(library->server->served->bundle.name));
    strbuf_printf(&out, ",\"read_at\":%llu,\"models\":", (unsigned long long)library->read_unix);
    strbuf_append(&out, strbuf_str(&library->models));
    strbuf_char(&out, '}');
    http_reply_built(exchange, &out);
}

static struct http_exchange *take_waiter(struct library *library) {
    struct waiter *w = library->waiters;
    if (!w)
        return NULL;
    struct http_exchange *exchange = w->exchange;
    library->waiters = w->next;
    if (w->next)
        w->next->link = &library->waiters;
    free(w);
    return exchange;
}

static void on_read(void *user) {
    struct library *library = user;
    struct http_exchange *exchange;
    library_stop(library);
    if (!library->err.code) {
        strbuf_deinit(&library->models);
        library->models = library->fresh;
        library->fresh = (struct strbuf){0};
        library->read_ns = clock_ns();
        library->read_unix = (uint64_t)time(NULL);
    } else { // its message may name local paths
        log_warn("library: cannot read the downloaded models: %s", library->err.message);
    }
    while ((exchange = take_waiter(library)))
        if (library->err.code)
            http_fail(exchange, 500, NULL, NULL, NULL, "the downloaded models cannot be read; the server's log says why");
        else
            answer(library, exchange);
    err_clear(&library->err);
    strbuf_clear(&library->fresh);
}

static void on_gone(void *user) {
    struct waiter *w = user;
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    free(w);
}

void server_library(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct library *library = server->library;
    const char *refresh = http_query(exchange, "refresh");
    bool anew = refresh && strcmp(refresh, "0") != 0 && strcmp(refresh, "false") != 0;
    library->server = server;
    if (library->models.n && !anew && clock_ms_since(library->read_ns) < LIBRARY_KEPT_MS) {
        answer(library, exchange);
        return;
    }
    struct waiter *w = calloc(1, sizeof *w);
    if (w && !library->reading)
        library->reading = pthread_create(&library->thread, NULL, reading_main, library) == 0;
    if (!w || !library->reading) {
        free(w);
        http_fail(exchange, 503, NULL, NULL, NULL, "out of memory for the library");
        return;
    }
    *w = (struct waiter){library->waiters, &library->waiters, exchange};
    if (w->next)
        w->next->link = &w->next;
    library->waiters = w;
    http_on_gone(exchange, on_gone, w);
}
