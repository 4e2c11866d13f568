// server/sse.h - Server-Sent Events: one "data:" line an event.
#ifndef LOAM_SERVER_SSE_H
#define LOAM_SERVER_SSE_H
#include "server/http.h"

static inline void sse_begin(struct http_exchange *exchange) {
    http_stream_begin(exchange, 200, "text/event-stream; charset=utf-8");
}
// `json` is one line.
static inline void sse_data(struct http_exchange *exchange, struct str json) {
    struct strbuf out = {0};
    strbuf_append_c(&out, "data: ");
    strbuf_append(&out, json);
    strbuf_append_c(&out, "\n\n");
    http_stream_write(exchange, strbuf_str(&out));
    strbuf_deinit(&out);
}
#endif
