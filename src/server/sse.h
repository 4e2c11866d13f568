// server/sse.h - Server-Sent Events: an event is a "data:" line, after an "event:" line where it has a name.
#ifndef LOAM_SERVER_SSE_H
#define LOAM_SERVER_SSE_H
#include "server/http.h"

enum { SSE_QUIET_MS = 10000 }; // without an event: a sign of life, or proxies and clients hang up

static inline void sse_begin(struct http_exchange *exchange) {
    http_stream_begin(exchange, 200, "text/event-stream; charset=utf-8");
}
// `json` is one line; `name` may be NULL.
static inline void sse_event(struct http_exchange *exchange, const char *name, struct str json) {
    struct strbuf out = {0};
    if (name)
        strbuf_printf(&out, "event: %s\n", name);
    strbuf_append_c(&out, "data: ");
    strbuf_append(&out, json);
    strbuf_append_c(&out, "\n\n");
    http_stream_write(exchange, strbuf_str(&out));
    strbuf_deinit(&out);
}
static inline void sse_data(struct http_exchange *exchange, struct str json) {
    sse_event(exchange, NULL, json);
}
static inline void sse_keep_alive(struct http_exchange *exchange) {
    http_stream_write(exchange, STR(": keep-alive\n\n"));
}
#endif
