// POST /admin/cache/flush: all that the prompt cache holds goes to its disk tier; the answer comes once it is there.
#include <stdlib.h>

#include "server/server.h"

struct flush_wait {
    struct server *server;
    struct http_exchange *exchange; // NULL once the client is gone. Event thread
    bool complete;                  // the engine thread's until it posts
    struct disk_cache_stats disk;
};

// On the event thread.
static void on_flushed(void *user) {
    struct flush_wait *wait = user;
    const struct disk_cache_stats *disk = &wait->disk;
    struct strbuf out = {0};
    if (wait->exchange && !wait->complete) {
        http_fail(wait->exchange, 503, NULL, "cache_not_written", NULL,
                  "not all of the prompt cache could be written to disk: see the server's log, free space in the folder "
                  "of --ssd-cache or raise --ssd-cache-max");
    } else if (wait->exchange) {
        strbuf_printf(&out, "{\"status\":\"ok\",\"entries\":%u,\"bytes\":%llu,\"written\":%llu}", disk->n_entries,
                      (unsigned long long)disk->bytes, (unsigned long long)disk->n_written);
        http_reply_built(wait->exchange, &out);
    }
    free(wait);
}

// On the engine thread. Out of memory: the client waits until it gives up.
static void flushed(void *user, bool complete, const struct disk_cache_stats *disk) {
    struct flush_wait *wait = user;
    wait->complete = complete;
    wait->disk = *disk;
    http_post(wait->server->http, on_flushed, wait);
}

static void on_gone(void *user) {
    ((struct flush_wait *)user)->exchange = NULL;
}

void server_cache_flush(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct err err = {0};
    struct flush_wait *wait = calloc(1, sizeof *wait);
    if (!wait) {
        err_set(&err, ERR_NOMEM, "out of memory for a flush");
        http_fail_err(exchange, &err);
        return;
    }
    *wait = (struct flush_wait){.server = server, .exchange = exchange};
    if (!engine_flush(server->served->engine, flushed, wait, &err)) {
        free(wait);
        http_fail_err(exchange, &err);
        return;
    }
    http_on_gone(exchange, on_gone, wait);
}
