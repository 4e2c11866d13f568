#include "server/connections.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"

enum phase {
    PHASE_SILENT, // accepted, no byte yet
    PHASE_IDLE,   // between requests
    PHASE_HEAD,   // a request has begun
    PHASE_BODY,   // its head is whole
    PHASE_ANSWER,
};

struct connection {
    struct connections *all;
    struct connection *next, **link; // in all->first, or in all->fresh before evhttp has it
    struct bufferevent *bev;
    struct evhttp_connection *evcon;
    int fd;
    enum phase phase;
    uint64_t since_ns;   // the phase began
    uint64_t body_bytes; // that have come
    unsigned char tail[3]; // the last bytes of the head so far
    void *user;
};

struct connections {
    struct connections_options options;
    struct connection *first, *fresh;
    struct connection **by_fd; // [n_by_fd]
    size_t n_by_fd;
    uint32_t n;
    struct evconnlistener *listener;
    bool paused;
    struct timeval idle;
    struct event *adopt_event; // evhttp has taken the fresh ones
    struct event *look_event;  // for requests that take too long
};

static void link_to(struct connection **list, struct connection *c) {
    c->next = *list;
    c->link = list;
    if (c->next)
        c->next->link = &c->next;
    *list = c;
}

static void unlink_it(struct connection *c) {
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

// ---- How many -----------------------------------------------------------------------------------------
static void pause_or_resume(struct connections *all) {
    bool pause = all->n >= all->options.n_max;
    if (!all->listener || pause == all->paused)
        return;
    all->paused = pause;
    if (pause)
        evconnlistener_disable(all->listener); // the others wait in the listener's queue
    else
        evconnlistener_enable(all->listener);
}

static void forget(struct connection *c) {
    struct connections *all = c->all;
    unlink_it(c);
    if (c->fd >= 0 && (size_t)c->fd < all->n_by_fd && all->by_fd[c->fd] == c)
        all->by_fd[c->fd] = NULL;
    all->n--;
    free(c);
    pause_or_resume(all);
}

static void on_close(struct evhttp_connection *evcon, void *user) {
    (void)evcon;
    struct connection *c = user;
    void (*closed)(void *) = c->all->options.closed;
    void *of_request = c->user;
    forget(c);
    if (of_request)
        closed(of_request);
}

// ---- How long -----------------------------------------------------------------------------------------
static bool has_limit(const struct connection *c) { // PHASE_SILENT without TLS: evhttp's own will do
    return c->phase == PHASE_HEAD || c->phase == PHASE_BODY || (c->phase == PHASE_SILENT && c->all->options.tls);
}

static void look_soon(struct connections *all) {
    uint32_t ms = all->options.head_ms / 4 < 1000 ? all->options.head_ms / 4 + 1 : 1000;
    event_add(all->look_event, &(struct timeval){ms / 1000, (ms % 1000) * 1000});
}

// evhttp leaves a body in the input until it is whole; all else waits there only as long as it must. Who waits for an
// answer, or still takes one, may be silent.
static void set_limits(struct connection *c) {
    const struct timeval *idle = &c->all->idle;
    bool answer = c->phase == PHASE_ANSWER || evbuffer_get_length(bufferevent_get_output(c->bev)) > 0;
    bufferevent_setwatermark(c->bev, EV_READ, 0, c->phase == PHASE_BODY && !answer ? 0 : CONNECTION_INPUT_BYTES_MAX);
    bufferevent_set_timeouts(c->bev, answer ? NULL : idle, idle);
}

static void enter(struct connection *c, enum phase phase) {
    c->phase = phase;
    c->since_ns = clock_ns();
    c->body_bytes = 0;
    memset(c->tail, 0, sizeof c->tail);
    set_limits(c);
    if (has_limit(c) && !event_pending(c->all->look_event, EV_TIMEOUT, NULL))
        look_soon(c->all);
}

// A head ends with an empty line.
static void read_head(struct connection *c, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool ended = bytes[i] == '\n' && (c->tail[2] == '\n' || (c->tail[2] == '\r' && c->tail[1] == '\n'));
        c->tail[0] = c->tail[1];
        c->tail[1] = c->tail[2];
        c->tail[2] = bytes[i];
        if (ended) {
            enter(c, PHASE_BODY);
            c->body_bytes = n - i - 1;
            return;
        }
    }
}

// `n` bytes at the end of the input are new.
static void take_bytes(struct connection *c, struct evbuffer *input, size_t n) {
    if (c->phase == PHASE_ANSWER)
        return;
    if (c->phase == PHASE_BODY) {
        c->body_bytes += n;
        return;
    }
    if (c->phase != PHASE_HEAD)
        enter(c, PHASE_HEAD);
    struct evbuffer_ptr at;
    evbuffer_ptr_set(input, &at, evbuffer_get_length(input) - n, EVBUFFER_PTR_SET);
    while (n && c->phase == PHASE_HEAD) {
        unsigned char part[4096];
        ev_ssize_t got = evbuffer_copyout_from(input, &at, part, n < sizeof part ? n : sizeof part);
        if (got <= 0)
            return;
        read_head(c, part, (size_t)got);
        n -= (size_t)got;
        if (n)
            evbuffer_ptr_set(input, &at, (size_t)got, EVBUFFER_PTR_ADD);
    }
    if (c->phase == PHASE_BODY)
        c->body_bytes += n;
}

static void on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *user) {
    if (info->n_added)
        take_bytes(user, input, info->n_added);
}

// An answer is taken: what comes behind it gets its own limits.
static void on_output(struct evbuffer *output, const struct evbuffer_cb_info *info, void *user) {
    struct connection *c = user;
    if (info->n_deleted && c->phase != PHASE_ANSWER && evbuffer_get_length(output) == 0)
        set_limits(c);
}

static bool is_late(const struct connection *c) {
    double ms = clock_ms_since(c->since_ns), granted = c->all->options.head_ms;
    if (c->phase == PHASE_BODY)
        granted += (double)c->body_bytes * 1000 / CONNECTION_BODY_BYTES_PER_S;
    return has_limit(c) && ms > granted;
}

static void on_look(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    struct connections *all = user;
    bool again = false;
    for (struct connection *c = all->first, *next; c; c = next) {
        next = c->next;
        if (is_late(c) && evbuffer_get_length(bufferevent_get_output(c->bev))) {
            c->since_ns = clock_ns(); // an earlier answer is still on its way
        } else if (is_late(c)) {
            static const char LATE[] = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            log_info("server: closed a connection whose request took too long bytes=%llu",
                     (unsigned long long)c->body_bytes);
            if (!all->options.tls && send(c->fd, LATE, sizeof LATE - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
                // It learns nothing then.
            }
            evhttp_connection_free(c->evcon); // calls on_close
            continue;
        }
        again |= has_limit(c);
    }
    if (again)
        look_soon(all);
}

// ---- Their life ---------------------------------------------------------------------------------------
static bool keep_by_fd(struct connection *c) {
    struct connections *all = c->all;
    size_t at = (size_t)c->fd;
    if (at >= all->n_by_fd) {
        size_t n = at * 2 + 64;
        struct connection **grown = realloc(all->by_fd, n * sizeof *grown);
        if (!grown)
            return false;
        memset(grown + all->n_by_fd, 0, (n - all->n_by_fd) * sizeof *grown);
        all->by_fd = grown;
        all->n_by_fd = n;
    }
    all->by_fd[at] = c;
    return true;
}

// evhttp has made its own object for each fresh connection. It has no way of telling its user, but the bufferevent's
// callbacks are called with it.
static void on_adopt(evutil_socket_t fd, short what, void *user) {
    (void)fd;
    (void)what;
    struct connections *all = user;
    struct connection *c;
    while ((c = all->fresh)) {
        bufferevent_event_cb on_event;
        void *evcon;
        bufferevent_getcb(c->bev, NULL, NULL, &on_event, &evcon);
        unlink_it(c);
        link_to(&all->first, c);
        c->fd = bufferevent_getfd(c->bev);
        bool gone = !on_event; // evhttp ran out of memory over it
        bufferevent_decref(c->bev);
        if (gone) {
            forget(c);
            continue;
        }
        c->evcon = evcon;
        evhttp_connection_set_closecb(c->evcon, on_close, c);
        if (!keep_by_fd(c) || !evbuffer_add_cb(bufferevent_get_input(c->bev), on_input, c) ||
            !evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c)) {
            evhttp_connection_free(c->evcon); // calls on_close
            continue;
        }
        enter(c, PHASE_SILENT);
    }
}

// evhttp asks for a new connection's bufferevent.
static struct bufferevent *new_connection(struct event_base *base, void *user) {
    struct connections *all = user;
    struct connection *c = calloc(1, sizeof *c);
    SSL *ssl = c && all->options.tls ? SSL_new(all->options.tls) : NULL;
    if (ssl)
        c->bev = bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    else if (c && !all->options.tls)
        c->bev = bufferevent_socket_new(base, -1, 0);
    if (!c || !c->bev) {
        SSL_free(c && !c->bev ? ssl : NULL);
        free(c);
        return NULL; // evhttp tries a plain one, which no TLS client will like
    }
    c->all = all;
    c->fd = -1;
    bufferevent_incref(c->bev); // until it is adopted, in this turn of the loop: it may be freed before
    link_to(&all->fresh, c);
    all->n++;
    pause_or_resume(all);
    event_active(all->adopt_event, EV_TIMEOUT, 0);
    return c->bev;
}

struct connections *connections_create(const struct connections_options *options, struct err *err) {
    struct connections *all = calloc(1, sizeof *all);
    if (all) {
        all->options = *options;
        all->idle = (struct timeval){options->idle_ms / 1000, options->idle_ms % 1000 * 1000};
        all->adopt_event = event_new(options->base, -1, 0, on_adopt, all);
        all->look_event = evtimer_new(options->base, on_look, all);
    }
    if (all && all->adopt_event && all->look_event)
        return all;
    connections_destroy(all);
    err_set(err, ERR_NOMEM, "out of memory for the server");
    return NULL;
}

void connections_destroy(struct connections *all) {
    if (!all)
        return;
    while (all->fresh) {
        bufferevent_decref(all->fresh->bev);
        forget(all->fresh);
    }
    if (all->adopt_event)
        event_free(all->adopt_event);
    if (all->look_event)
        event_free(all->look_event);
    free(all->by_fd);
    free(all);
}

void connections_watch(struct connections *all, struct evhttp *http, struct evconnlistener *listener) {
    all->listener = listener;
    evhttp_set_bevcb(http, new_connection, all);
}

void connections_forget_listener(struct connections *all) {
    if (all)
        all->listener = NULL;
}

struct connection *connections_find(struct connections *all, struct evhttp_connection *evcon) {
    int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(evcon));
    struct connection *c = fd >= 0 && (size_t)fd < all->n_by_fd ? all->by_fd[fd] : NULL;
    return c && c->evcon == evcon ? c : NULL;
}

void connection_begin(struct connection *c) {
    enter(c, PHASE_ANSWER);
}

void connection_on_close(struct connection *c, void *user) {
    c->user = user;
}

void connection_end(struct connection *c) {
    struct evbuffer *input = bufferevent_get_input(c->bev);
    c->user = NULL;
    enter(c, PHASE_IDLE);
    if (evbuffer_get_length(input))
        take_bytes(c, input, evbuffer_get_length(input));
}
