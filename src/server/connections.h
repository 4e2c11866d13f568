// server/connections.h - the sockets of an HTTP server from their acceptance to their end: how many there may be, how
// long a request may take to arrive, and how much may wait behind it. Event thread.
//
// evhttp knows one time limit, between two bytes. A client that sends a byte now and then would hold its place for ever:
// here a request's head has a time limit as a whole, and a body must come at a certain speed.
#ifndef LOAM_SERVER_CONNECTIONS_H
#define LOAM_SERVER_CONNECTIONS_H
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum {
    // A body may take as long as a head, and longer as long as so much of it comes.
    CONNECTION_BODY_BYTES_PER_S = 1024,
    // Of heads, and of further requests while one is answered: evhttp goes on reading then, to see the client leave.
    CONNECTION_INPUT_BYTES_MAX = 128 * 1024,
};

struct connections;
struct connection; // one of them, until it closes

struct connections_options {
    struct event_base *base;
    SSL_CTX *tls;    // or NULL
    uint32_t n_max;  // more wait in the listener's queue
    uint32_t idle_ms; // a socket that neither takes nor gives anything, but for an answer that is being made
    uint32_t head_ms; // from a request's first byte to the end of its head; from acceptance where TLS begins
    void (*closed)(void *user); // as connection_on_close() says
};
struct connections *connections_create(const struct connections_options *options, struct err *err); // ERR_NOMEM
// After evhttp_free(), which closes what is open.
void connections_destroy(struct connections *connections); // NULL is allowed
// All connections of this evhttp are ours; the listener is paused where there are too many. Forget it before it goes.
void connections_watch(struct connections *connections, struct evhttp *http, struct evconnlistener *listener);
void connections_forget_listener(struct connections *connections);

// The connection on which a whole request has come.
struct connection *connections_find(struct connections *connections, struct evhttp_connection *evcon);
// The request is being answered.
void connection_begin(struct connection *connection);
// Until its end the options' closed(user) is called when the socket goes.
void connection_on_close(struct connection *connection, void *user);
// The answer is made (not necessarily sent): the next request may come.
void connection_end(struct connection *connection);
#endif
