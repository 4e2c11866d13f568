#include "server/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "server/connections.h"

enum {
    HEADER_BYTES_MAX = 64 * 1024,
    // Beyond our own limit evhttp answers for itself, in HTML; up to this much above it we do, in JSON.
    BODY_MARGIN_BYTES = 16 << 20,
};

struct posted {
    struct posted *next;
    http_post_fn *fn;
    void *user;
};

struct watch { // a signal or timer
    struct watch *next;
    struct event *event;
    http_post_fn *fn;
    void *user;
};

struct http_server {
    struct http_options options;
    struct event_base *base;
    struct evhttp *http;
    struct evhttp_bound_socket *listener;
    uint16_t port;
    uint32_t n_open;
    uint64_t n_requests;
    struct watch *watches;
    SSL_CTX *tls;
    struct connections *connections;

    int wake_fd; // eventfd: something was posted
    struct event *wake_event;
    pthread_mutex_t lock; // guards the fields below
    struct posted *posted_first, **posted_last;
};

struct http_exchange {
    struct http_server *server;
    struct evhttp_request *request;
    struct connection *connection; // NULL once it is closed
    struct event *gone_event; // the peer closed its side
    http_post_fn *gone_fn;
    void *gone_user;
    http_post_fn *drained_fn;
    void *drained_user;
    struct event *quiet_event; // nothing was written for quiet_interval
    struct timeval quiet_interval;
    http_post_fn *quiet_fn;
    void *quiet_user;
    bool streaming;
    struct str path, method, body;
    char *last_part; // decoded, owned
    struct evkeyvalq query; // decoded, once it was asked for
    bool query_read;
    char request_id[64];
};

// ---- Work from other threads --------------------------------------------------------------------
bool http_post(struct http_server *server, http_post_fn *fn, void *user) {
    struct posted *item = malloc(sizeof *item);
    if (!item)
        return false;
    *item = (struct posted){NULL, fn, user};
    pthread_mutex_lock(&server->lock);
    bool was_empty = server->posted_first == NULL;
    *server->posted_last = item;
    server->posted_last = &item->next;
    pthread_mutex_unlock(&server->lock);
    if (was_empty) {
        uint64_t one = 1;
        while (write(server->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
    return true;
}

static void run_posted(struct http_server *server) {
    pthread_mutex_lock(&server->lock);
    struct posted *item = server->posted_first;
    server->posted_first = NULL;
    server->posted_last = &server->posted_first;
    pthread_mutex_unlock(&server->lock);
    while (item) {
        struct posted *next = item->next;
        item->fn(item->user);
        free(item);
        item = next;
    }
}

static void on_wake(evutil_socket_t fd, short what, void *user) {
    (void)what;
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
    run_posted(user);
}

static void on_watch(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    struct watch *watch = user;
    watch->fn(watch->user);
}

static struct watch *new_watch(struct http_server *server, http_post_fn *fn, void *user) {
    struct watch *watch = calloc(1, sizeof *watch);
    if (watch) {
        *watch = (struct watch){server->watches, NULL, fn, user};
        server->watches = watch;
    }
    return watch;
}

bool http_on_signal(struct http_server *server, int signal_number, http_post_fn *fn, void *user) {
    struct watch *watch = new_watch(server, fn, user);
    if (watch)
        watch->event = evsignal_new(server->base, signal_number, on_watch, watch);
    return watch && watch->event && event_add(watch->event, NULL) == 0;
}

bool http_on_readable(struct http_server *server, int fd, http_post_fn *fn, void *user) {
    struct watch *watch = new_watch(server, fn, user);
    if (watch)
        watch->event = event_new(server->base, fd, EV_READ, on_watch, watch);
    return watch && watch->event && event_add(watch->event, NULL) == 0;
}

bool http_every(struct http_server *server, uint32_t interval_ms, http_post_fn *fn, void *user) {
    struct watch *watch = new_watch(server, fn, user);
    struct timeval interval = {interval_ms / 1000, (interval_ms % 1000) * 1000};
    if (watch)
        watch->event = event_new(server->base, -1, EV_PERSIST, on_watch, watch);
    return watch && watch->event && event_add(watch->event, &interval) == 0;
}

// ---- Connections --------------------------------------------------------------------------------
static bool open_tls(struct http_server *server, const struct http_options *o, struct err *err) {
    server->tls = SSL_CTX_new(TLS_server_method());
    if (!server->tls)
        return err_set(err, ERR_NOMEM, "out of memory for TLS");
    SSL_CTX_set_min_proto_version(server->tls, TLS1_2_VERSION);
    const char *file = o->tls_cert;
    bool ok = SSL_CTX_use_certificate_chain_file(server->tls, o->tls_cert) == 1;
    if (ok) {
        file = o->tls_key;
        ok = SSL_CTX_use_PrivateKey_file(server->tls, o->tls_key, SSL_FILETYPE_PEM) == 1 &&
             SSL_CTX_check_private_key(server->tls) == 1;
    }
    if (!ok) {
        char reason[256];
        ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
        err_set(err, ERR_INVALID, "cannot use %s for TLS: %s", file, reason);
    }
    return ok;
}

// ---- Exchanges ----------------------------------------------------------------------------------
static void exchange_free(struct http_exchange *x) {
    if (x->gone_event)
        event_free(x->gone_event);
    if (x->quiet_event)
        event_free(x->quiet_event);
    if (x->connection)
        connection_end(x->connection);
    x->server->n_open--;
    if (x->query_read)
        evhttp_clear_headers(&x->query);
    free(x->last_part);
    free(x);
}

// The peer is gone. Whoever works on the answer is told, and the exchange ends here.
static void on_gone(void *of_connection) {
    struct http_exchange *x = of_connection;
    http_post_fn *fn = x->gone_fn;
    void *user = x->gone_user;
    struct evhttp_request *request = x->request;
    x->connection = NULL;
    exchange_free(x);
    // evhttp takes a request whose connection failed off it and leaves it to us; else the connection frees it.
    if (!evhttp_request_get_connection(request))
        evhttp_request_free(request);
    if (fn)
        fn(user);
}

// EPOLLRDHUP: evhttp itself does not read while an answer is being made, so it would not notice.
static void on_peer_closed(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    struct http_exchange *x = user;
    struct evhttp_connection *connection = evhttp_request_get_connection(x->request);
    if (connection)
        evhttp_connection_free(connection); // calls on_gone
}

void http_on_gone(struct http_exchange *x, http_post_fn *fn, void *user) {
    x->gone_fn = fn;
    x->gone_user = user;
    struct evhttp_connection *connection = evhttp_request_get_connection(x->request);
    if (!connection || x->gone_event)
        return;
    connection_on_close(x->connection, x);
    evutil_socket_t fd = bufferevent_getfd(evhttp_connection_get_bufferevent(connection));
    x->gone_event = event_new(x->server->base, fd, EV_CLOSED, on_peer_closed, x);
    if (x->gone_event)
        event_add(x->gone_event, NULL);
}

void http_on_drained(struct http_exchange *x, http_post_fn *fn, void *user) {
    x->drained_fn = fn;
    x->drained_user = user;
}

static void on_quiet(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    struct http_exchange *x = user;
    event_add(x->quiet_event, &x->quiet_interval);
    if (http_stream_backlog(x) == 0) // a reader that takes nothing needs no sign of life
        x->quiet_fn(x->quiet_user);
}

void http_on_quiet(struct http_exchange *x, uint32_t interval_ms, http_post_fn *fn, void *user) {
    x->quiet_fn = fn;
    x->quiet_user = user;
    x->quiet_interval = (struct timeval){interval_ms / 1000, (interval_ms % 1000) * 1000};
    if (!x->quiet_event)
        x->quiet_event = evtimer_new(x->server->base, on_quiet, x);
    if (x->quiet_event)
        event_add(x->quiet_event, &x->quiet_interval);
}

struct str http_path(const struct http_exchange *x) { return x->path; }
struct str http_method(const struct http_exchange *x) { return x->method; }
struct str http_body(const struct http_exchange *x) { return x->body; }
struct http_server *http_server_of(const struct http_exchange *x) { return x->server; }
const char *http_request_id(const struct http_exchange *x) { return x->request_id; }
struct str http_last_part(const struct http_exchange *x) { return str_from(x->last_part); }

const char *http_header(const struct http_exchange *x, const char *name) {
    return evhttp_find_header(evhttp_request_get_input_headers(x->request), name);
}

const char *http_query(struct http_exchange *x, const char *name) {
    if (!x->query_read) {
        const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(x->request);
        const char *text = uri ? evhttp_uri_get_query(uri) : NULL;
        TAILQ_INIT(&x->query);
        x->query_read = true;
        if (text)
            evhttp_parse_query_str(text, &x->query); // one that is ill-formed has no parameters
    }
    return evhttp_find_header(&x->query, name);
}

void http_add_header(struct http_exchange *x, const char *name, const char *value) {
    evhttp_add_header(evhttp_request_get_output_headers(x->request), name, value);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct str body) {
    http_add_header(x, "Content-Type", content_type);
    http_add_header(x, "X-Request-Id", x->request_id);
    struct evbuffer *out = evhttp_request_get_output_buffer(x->request);
    evbuffer_add(out, body.data, body.n);
    struct evhttp_request *request = x->request;
    exchange_free(x);
    evhttp_send_reply(request, status, NULL, NULL);
}

static const char *type_of_status(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

void http_fail(struct http_exchange *x, int status, const char *type, const char *code,
               const char *param, const char *format, ...) {
    char message[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    struct strbuf body = {0};
    x->server->options.error_body(&body, x, status, type ? type : type_of_status(status), code, param,
                                  str_from(message));
    log_info("server: refused id=%s path=%.*s status=%d", x->request_id, (int)x->path.n, x->path.data,
             status);
    http_reply_json(x, status, strbuf_str(&body));
    strbuf_deinit(&body);
}

void http_fail_err(struct http_exchange *x, const struct err *err) {
    int status = err_http_status(err->code);
    if (status == 429)
        http_add_header(x, "Retry-After", "1");
    http_fail(x, status, status == 429 ? "resource_admission" : NULL,
              status == 429 ? "queue_full" : NULL, NULL, "%s", err->message);
}

void http_reply_built(struct http_exchange *x, struct strbuf *json) {
    struct err err = {0};
    if (json->failed) {
        err_set(&err, ERR_NOMEM, "out of memory for the answer");
        http_fail_err(x, &err);
    } else {
        http_reply_json(x, 200, strbuf_str(json));
    }
    strbuf_deinit(json);
}

void http_stream_begin(struct http_exchange *x, int status, const char *content_type) {
    http_add_header(x, "Content-Type", content_type);
    http_add_header(x, "Cache-Control", "no-cache");
    http_add_header(x, "X-Request-Id", x->request_id);
    x->streaming = true;
    evhttp_send_reply_start(x->request, status, NULL);
}

static void on_written(struct evhttp_connection *connection, void *user) {
    (void)connection;
    struct http_exchange *x = user;
    if (x->drained_fn)
        x->drained_fn(x->drained_user);
}

void http_stream_write(struct http_exchange *x, struct str data) {
    if (data.n == 0)
        return; // an empty chunk would end the answer
    struct evbuffer *chunk = evbuffer_new();
    if (!chunk)
        return;
    evbuffer_add(chunk, data.data, data.n);
    evhttp_send_reply_chunk_with_cb(x->request, chunk, on_written, x);
    if (x->quiet_event)
        event_add(x->quiet_event, &x->quiet_interval);
    evbuffer_free(chunk);
}

void http_stream_end(struct http_exchange *x) {
    struct evhttp_request *request = x->request;
    exchange_free(x);
    evhttp_send_reply_end(request);
}

size_t http_stream_backlog(const struct http_exchange *x) {
    struct evhttp_connection *connection = evhttp_request_get_connection(x->request);
    if (!connection)
        return 0;
    return evbuffer_get_length(bufferevent_get_output(evhttp_connection_get_bufferevent(connection)));
}

// ---- Routing ------------------------------------------------------------------------------------
static const char *method_name(enum evhttp_cmd_type type) {
    switch (type) {
    case EVHTTP_REQ_GET:
        return "GET";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_HEAD:
        return "HEAD";
    case EVHTTP_REQ_PUT:
        return "PUT";
    case EVHTTP_REQ_DELETE:
        return "DELETE";
    case EVHTTP_REQ_OPTIONS:
        return "OPTIONS";
    case EVHTTP_REQ_PATCH:
        return "PATCH";
    default:
        return "?";
    }
}

static bool path_matches(const char *pattern, struct str path) {
    size_t n = strlen(pattern);
    if (n >= 2 && strcmp(pattern + n - 2, "/*") == 0)
        return path.n > n - 1 && memcmp(path.data, pattern, n - 1) == 0;
    return path.n == n && memcmp(path.data, pattern, n) == 0;
}

static bool method_matches(const char *wanted, struct str method) {
    return str_eq_c(method, wanted) || (strcmp(wanted, "GET") == 0 && str_eq_c(method, "HEAD"));
}

static void dispatch(struct http_exchange *x) {
    const struct http_options *options = &x->server->options;
    char allowed[64] = "";
    for (const struct http_route *route = options->routes; route->method; route++) {
        if (!path_matches(route->path, x->path))
            continue;
        if (method_matches(route->method, x->method)) {
            if (x->body.n > options->body_bytes_max) {
                http_fail(x, 413, NULL, "body_too_large", NULL,
                          "the body has %zu bytes, more than the limit of %zu", x->body.n,
                          options->body_bytes_max);
                return;
            }
            route->handler(x, options->user);
            return;
        }
        size_t n = strlen(allowed);
        snprintf(allowed + n, sizeof allowed - n, "%s%s", n ? ", " : "", route->method);
    }
    if (allowed[0]) {
        http_add_header(x, "Allow", allowed);
        http_fail(x, 405, NULL, "method_not_allowed", NULL, "%.*s does not take %.*s; it takes %s",
                  (int)x->path.n, x->path.data, (int)x->method.n, x->method.data, allowed);
    } else {
        http_fail(x, 404, NULL, "not_found", NULL, "there is no route %.*s; GET /v1 lists the routes",
                  (int)x->path.n, x->path.data);
    }
}

static void on_request(struct evhttp_request *request, void *user) {
    struct http_server *server = user;
    struct http_exchange *x = calloc(1, sizeof *x);
    struct connection *connection = connections_find(server->connections, evhttp_request_get_connection(request));
    if (!x || !connection) {
        free(x);
        evhttp_send_error(request, 503, NULL);
        return;
    }
    x->server = server;
    x->request = request;
    x->connection = connection;
    connection_begin(connection);
    server->n_open++;
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    x->path = str_from(path && path[0] ? path : "/");
    while (x->path.n > 1 && x->path.data[x->path.n - 1] == '/')
        x->path.n--;
    x->method = str_from(method_name(evhttp_request_get_command(request)));
    const char *slash = memrchr(x->path.data, '/', x->path.n);
    char *last = str_dup((struct str){slash ? slash + 1 : x->path.data,
                                      slash ? x->path.n - (size_t)(slash + 1 - x->path.data) : x->path.n});
    x->last_part = last ? evhttp_uridecode(last, 0, NULL) : NULL;
    free(last);
    struct evbuffer *body = evhttp_request_get_input_buffer(request);
    size_t n = evbuffer_get_length(body);
    x->body = (struct str){n ? (const char *)evbuffer_pullup(body, -1) : "", n};
    const char *given = http_header(x, "X-Request-Id");
    uint64_t made = hash_u64(clock_ns() ^ ++server->n_requests << 32);
    if (given && given[0] && strlen(given) < sizeof x->request_id)
        snprintf(x->request_id, sizeof x->request_id, "%s", given);
    else
        snprintf(x->request_id, sizeof x->request_id, "req_%016llx", (unsigned long long)made);
    if (!server->options.admit || server->options.admit(x, server->options.user))
        dispatch(x);
}

// ---- Life ---------------------------------------------------------------------------------------
static bool listen_unix(struct http_server *server, const char *path, struct err *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return err_set(err, ERR_INVALID, "socket path is too long (%zu bytes at most): %s",
                       sizeof address.sun_path - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    struct stat st;
    if (lstat(path, &st) == 0) { // a socket that nobody listens on is a leftover
        if (!S_ISSOCK(st.st_mode))
            return err_set(err, ERR_INVALID, "%s exists and is not a socket", path);
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool alive = probe >= 0 && connect(probe, (struct sockaddr *)&address, sizeof address) == 0;
        if (probe >= 0)
            close(probe);
        if (alive)
            return err_set(err, ERR_IO, "another server is listening on %s", path);
        unlink(path);
    }
    struct evconnlistener *listener = evconnlistener_new_bind(
        server->base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, -1,
        (struct sockaddr *)&address, sizeof address);
    if (!listener)
        return err_errno(err, errno, "cannot listen on %s", path);
    server->listener = evhttp_bind_listener(server->http, listener);
    return server->listener || err_set(err, ERR_NOMEM, "out of memory for the listener");
}

static bool listen_tcp(struct http_server *server, const struct http_options *o, struct err *err) {
    server->listener = evhttp_bind_socket_with_handle(server->http, o->host, o->port);
    if (!server->listener) {
        int saved = errno;
        err_errno(err, saved ? saved : EADDRNOTAVAIL, "cannot listen on %s:%u", o->host, o->port);
        if (saved == EADDRINUSE)
            err_set(err, ERR_IO, "port %u on %s is in use by another program; choose another with --port",
                    o->port, o->host);
        return false;
    }
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    int fd = evhttp_bound_socket_get_fd(server->listener);
    if (getsockname(fd, (struct sockaddr *)&address, &n) == 0)
        server->port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                           : ((struct sockaddr_in *)&address)->sin_port);
    // Connections inherit these. Tokens are small writes: never wait to fill a packet. A peer that vanished without a
    // word (half open) is asked after a minute, and given up when it says nothing for another.
    static const struct {
        int level, name, value;
    } OPTIONS[] = {{IPPROTO_TCP, TCP_NODELAY, 1},    {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 15}, {IPPROTO_TCP, TCP_KEEPCNT, 4},
                   {IPPROTO_TCP, TCP_USER_TIMEOUT, 120000}};
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        setsockopt(fd, OPTIONS[i].level, OPTIONS[i].name, &OPTIONS[i].value, sizeof OPTIONS[i].value);
    return true;
}

struct http_server *http_create(const struct http_options *options, struct err *err) {
    struct http_server *server = calloc(1, sizeof *server);
    if (!server) {
        err_set(err, ERR_NOMEM, "out of memory for the server");
        return NULL;
    }
    server->options = *options;
    server->wake_fd = -1;
    server->posted_last = &server->posted_first;
    pthread_mutex_init(&server->lock, NULL);
    server->base = event_base_new();
    server->http = server->base ? evhttp_new(server->base) : NULL;
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->base && server->wake_fd >= 0)
        server->wake_event = event_new(server->base, server->wake_fd, EV_READ | EV_PERSIST, on_wake, server);
    if (!server->http || !server->wake_event || event_add(server->wake_event, NULL) != 0) {
        err_set(err, ERR_NOMEM, "out of memory for the server");
        http_destroy(server);
        return NULL;
    }
    if (options->tls_cert && !open_tls(server, options, err)) {
        http_destroy(server);
        return NULL;
    }
    struct connections_options limits = {.base = server->base, .tls = server->tls, .closed = on_gone,
                                         .n_max = options->n_connections_max, .idle_ms = options->idle_timeout_ms, .head_ms = options->head_timeout_ms};
    server->connections = connections_create(&limits, err);
    if (!server->connections) {
        http_destroy(server);
        return NULL;
    }
    evhttp_set_gencb(server->http, on_request, server);
    evhttp_set_max_headers_size(server->http, HEADER_BYTES_MAX);
    evhttp_set_max_body_size(server->http, (ev_ssize_t)(options->body_bytes_max + BODY_MARGIN_BYTES));
    evhttp_set_timeout_tv(server->http, &(struct timeval){options->idle_timeout_ms / 1000,
                                                          options->idle_timeout_ms % 1000 * 1000});
    evhttp_set_allowed_methods(server->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                                 EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                                 EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
    bool listening = options->unix_path ? listen_unix(server, options->unix_path, err)
                                        : listen_tcp(server, options, err);
    if (!listening) {
        http_destroy(server);
        return NULL;
    }
    connections_watch(server->connections, server->http, evhttp_bound_socket_get_listener(server->listener));
    return server;
}

void http_destroy(struct http_server *server) {
    if (!server)
        return;
    connections_forget_listener(server->connections);
    if (server->http)
        evhttp_free(server->http);
    run_posted(server);
    connections_destroy(server->connections);
    SSL_CTX_free(server->tls);
    if (server->wake_event)
        event_free(server->wake_event);
    while (server->watches) {
        struct watch *watch = server->watches;
        server->watches = watch->next;
        if (watch->event)
            event_free(watch->event);
        free(watch);
    }
    if (server->base)
        event_base_free(server->base);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    if (server->options.unix_path)
        unlink(server->options.unix_path);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

uint16_t http_port(const struct http_server *server) { return server->port; }
uint32_t http_n_open(const struct http_server *server) { return server->n_open; }
void http_run(struct http_server *server) { event_base_dispatch(server->base); }
void http_stop(struct http_server *server) { event_base_loopbreak(server->base); }

void http_accept_no_more(struct http_server *server) {
    connections_forget_listener(server->connections);
    if (server->listener)
        evhttp_del_accept_socket(server->http, server->listener);
    server->listener = NULL;
}
