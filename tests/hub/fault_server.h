// tests/hub/fault_server.h - an HTTP server for tests that misbehaves as told: resets, stalls, wrong
// lengths, ignored ranges, slow trickles. A thread a connection; every answer comes from one function.
#ifndef LOAM_TESTS_HUB_FAULT_SERVER_H
#define LOAM_TESTS_HUB_FAULT_SERVER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault_request {
    char target[2048];        // "/org/name/resolve/..."
    char authorization[512];  // "" = none
    bool has_range;
    uint64_t range_from, range_to; // [from, to), UINT64_MAX = to the end
    uint32_t n_before;        // earlier requests of any target
};

enum fault_end { FAULT_KEEP, FAULT_CLOSE, FAULT_RESET, FAULT_STALL };

struct fault_reply {
    int status;
    char headers[1024];     // whole lines, each with \r\n
    const uint8_t *body;    // borrowed until the server stops
    size_t n_body;
    int64_t content_bytes;  // what Content-Length says; -1 = n_body
    size_t n_sent;          // of the body; SIZE_MAX = all
    enum fault_end end;     // after n_sent bytes; STALL holds the connection open in silence
    uint32_t trickle_ms;    // pause after each trickle_bytes
    size_t trickle_bytes;
};

// Fill *reply, which holds 200, an empty body, -1, SIZE_MAX. Called by any thread.
typedef void fault_fn(void *user, const struct fault_request *request, struct fault_reply *reply);

struct fault_server;
// Listen on ip:port (port 0 = any).
struct fault_server *fault_server_start(const char *ip, int port, fault_fn *fn, void *user);
int fault_server_port(const struct fault_server *server);
void fault_server_stop(struct fault_server *server);

// Answer with `body` as a good server does: the range asked for, or all.
void fault_serve(const struct fault_request *request, struct fault_reply *reply, const uint8_t *body,
                 size_t n_body);
#endif
