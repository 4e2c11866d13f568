// server/http.h - HTTP on libevent: routes, bodies, answers in one piece or streamed, and work posted
// from other threads. One event thread owns everything here; only http_post() may be called elsewhere.
#ifndef LOAM_SERVER_HTTP_H
#define LOAM_SERVER_HTTP_H
#include <stdbool.h>

#include "base/bytes.h"
#include "base/err.h"

struct http_server;
struct http_exchange; // one request and its answer

typedef void http_handler_fn(struct http_exchange *exchange, void *user);
struct http_route {
    const char *method; // "GET", "POST", "DELETE"
    const char *path;   // exact; a last part "*" matches any one part
    http_handler_fn *handler;
};

struct http_options {
    const char *host; // to bind; NULL with unix_path
    uint16_t port;
    const char *unix_path;          // a socket file instead of TCP; NULL = TCP
    const struct http_route *routes; // ends with a NULL method; must outlive the server
    void *user;                      // given to handlers
    size_t body_bytes_max;
    uint32_t n_connections_max;         // more wait in the listener's queue
    uint32_t idle_timeout_ms; // of a socket that neither takes nor gives anything
    uint32_t head_timeout_ms; // from a request's first byte to the end of its headers
    const char *tls_cert, *tls_key;     // PEM files, NULL = plain HTTP
    // May this request go on? If not, it has answered it. NULL = all.
    bool (*admit)(struct http_exchange *exchange, void *user);
    // Write an error in the route's own shape. type is never NULL.
    void (*error_body)(struct strbuf *out, const struct http_exchange *exchange, int status, const char *type,
                       const char *code, const char *param, struct str message);
};

// Bind and listen; answers nothing before http_run(). ERR_IO ("cannot listen on H:P: ...").
struct http_server *http_create(const struct http_options *options, struct err *err);
void http_destroy(struct http_server *server); // NULL is allowed
uint16_t http_port(const struct http_server *server); // the port it got (0 was asked: any)
// Run until http_stop(). http_accept_no_more() closes the listeners and keeps the open exchanges.
void http_run(struct http_server *server);
void http_stop(struct http_server *server);
void http_accept_no_more(struct http_server *server);
uint32_t http_n_open(const struct http_server *server); // exchanges without their whole answer

// Run fn(user) on the event thread. Any thread; never blocks. False when out of memory.
typedef void http_post_fn(void *user);
bool http_post(struct http_server *server, http_post_fn *fn, void *user);
// Call fn on the event thread when the signal comes.
bool http_on_signal(struct http_server *server, int signal_number, http_post_fn *fn, void *user);
// Call fn on the event thread once, when fd can be read (or has ended).
bool http_on_readable(struct http_server *server, int fd, http_post_fn *fn, void *user);
// Call fn every interval.
bool http_every(struct http_server *server, uint32_t interval_ms, http_post_fn *fn, void *user);

// ---- The request ------------------------------------------------------------------------------
struct str http_path(const struct http_exchange *exchange);   // without the query, still encoded
struct str http_method(const struct http_exchange *exchange);
struct str http_last_part(const struct http_exchange *exchange); // of the path, decoded
struct str http_body(const struct http_exchange *exchange);      // borrowed until the answer is sent
const char *http_header(const struct http_exchange *exchange, const char *name); // NULL: absent
// A parameter behind the path's "?", decoded; NULL: absent. Borrowed until the answer is sent.
const char *http_query(struct http_exchange *exchange, const char *name);
const char *http_request_id(const struct http_exchange *exchange); // X-Request-Id, given or made
struct http_server *http_server_of(const struct http_exchange *exchange);

// ---- The answer: exactly one of http_reply, http_fail, or begin ... end ---------------------------
void http_add_header(struct http_exchange *exchange, const char *name, const char *value);
void http_reply(struct http_exchange *exchange, int status, const char *content_type, struct str body);
static inline void http_reply_json(struct http_exchange *exchange, int status, struct str body) {
    http_reply(exchange, status, "application/json", body);
}
// The JSON that was built, which it frees; 503 if building it ran out of memory.
void http_reply_built(struct http_exchange *exchange, struct strbuf *json);
// An error in the route's shape. type, code and param may be NULL; type then follows from the status.
void http_fail(struct http_exchange *exchange, int status, const char *type, const char *code,
               const char *param, const char *format, ...) __attribute__((format(printf, 6, 7)));
// The same from a struct err.
void http_fail_err(struct http_exchange *exchange, const struct err *err);

void http_stream_begin(struct http_exchange *exchange, int status, const char *content_type);
void http_stream_write(struct http_exchange *exchange, struct str data);
void http_stream_end(struct http_exchange *exchange);
// Bytes written and not yet taken by the client's socket: what a slow reader costs.
size_t http_stream_backlog(const struct http_exchange *exchange);
// fn(user) whenever all that was streamed has been taken.
void http_on_drained(struct http_exchange *exchange, http_post_fn *fn, void *user);
// fn(user) whenever nothing was streamed for that long: a sign of life is due.
void http_on_quiet(struct http_exchange *exchange, uint32_t interval_ms, http_post_fn *fn, void *user);

// The client went away before the whole answer: fn(user) once, then the exchange is gone and must not
// be touched again. Set before returning from the handler if the answer comes later.
void http_on_gone(struct http_exchange *exchange, http_post_fn *fn, void *user);
#endif
