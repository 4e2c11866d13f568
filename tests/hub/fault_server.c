#include "hub/fault_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 4096 };

struct fault_server {
    int listener, port;
    fault_fn *fn;
    void *user;
    pthread_t acceptor;
    atomic_bool stop;
    atomic_uint n_requests;
    pthread_t threads[CONNECTIONS_MAX]; // the acceptor's
    uint32_t n_threads;
};

struct connection {
    struct fault_server *server;
    int fd;
};

static bool send_all(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

static void pause_ms(struct fault_server *server, uint32_t ms) {
    for (uint32_t i = 0; i < ms && !atomic_load(&server->stop); i += 10)
        usleep((ms - i < 10 ? ms - i : 10) * 1000);
}

// Read one request's head. False when the client is gone.
static bool read_request(struct connection *c, struct fault_request *request) {
    char head[8192];
    size_t n = 0;
    *request = (struct fault_request){.range_to = UINT64_MAX};
    for (;;) {
        struct pollfd p = {c->fd, POLLIN, 0};
        if (atomic_load(&c->server->stop))
            return false;
        if (poll(&p, 1, 50) <= 0)
            continue;
        if (n == sizeof head - 1 || recv(c->fd, head + n, 1, 0) != 1)
            return false;
        head[++n] = '\0';
        if (n >= 4 && memcmp(head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    if (sscanf(head, "GET %2047s", request->target) != 1)
        return false;
    for (char *line = strstr(head, "\r\n"); line && line[2]; line = strstr(line + 2, "\r\n")) {
        unsigned long long from, last;
        if (strncasecmp(line + 2, "Authorization:", 14) == 0)
            sscanf(line + 16, " %511[^\r]", request->authorization);
        if (strncasecmp(line + 2, "Range: bytes=", 13) == 0) {
            int got = sscanf(line + 15, "%llu-%llu", &from, &last);
            request->has_range = got >= 1;
            request->range_from = from;
            if (got == 2)
                request->range_to = last + 1;
        }
    }
    request->n_before = atomic_fetch_add(&c->server->n_requests, 1);
    return true;
}

static bool send_reply(struct connection *c, const struct fault_reply *reply) {
    char head[2048];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d X\r\n%sContent-Length: %lld\r\n\r\n", reply->status,
                     reply->headers,
                     (long long)(reply->content_bytes >= 0 ? reply->content_bytes : (int64_t)reply->n_body));
    if (!send_all(c->fd, head, (size_t)n))
        return false;
    size_t left = reply->n_sent < reply->n_body ? reply->n_sent : reply->n_body;
    const uint8_t *p = reply->body;
    while (left) {
        size_t piece = reply->trickle_ms && reply->trickle_bytes < left ? reply->trickle_bytes : left;
        if (atomic_load(&c->server->stop) || !send_all(c->fd, p, piece))
            return false;
        p += piece;
        left -= piece;
        if (reply->trickle_ms)
            pause_ms(c->server, reply->trickle_ms);
    }
    if (reply->end == FAULT_STALL)
        while (!atomic_load(&c->server->stop)) {
            struct pollfd gone = {c->fd, POLLIN, 0};
            char byte;
            if (poll(&gone, 1, 50) > 0 && recv(c->fd, &byte, 1, MSG_PEEK) <= 0)
                return false;
        }
    if (reply->end == FAULT_RESET) {
        struct linger now = {1, 0};
        usleep(20 * 1000); // let what was sent arrive: a reset discards it
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    return reply->end == FAULT_KEEP;
}

static void *connection_main(void *user) {
    struct connection *c = user;
    struct fault_request request;
    while (read_request(c, &request)) {
        struct fault_reply reply = {.status = 200, .content_bytes = -1, .n_sent = SIZE_MAX};
        c->server->fn(c->server->user, &request, &reply);
        if (!send_reply(c, &reply))
            break;
    }
    close(c->fd);
    free(c);
    return NULL;
}

static void *acceptor_main(void *user) {
    struct fault_server *server = user;
    while (!atomic_load(&server->stop) && server->n_threads < CONNECTIONS_MAX) {
        struct pollfd p = {server->listener, POLLIN, 0};
        if (poll(&p, 1, 50) <= 0)
            continue;
        struct connection *c = malloc(sizeof *c);
        *c = (struct connection){server, accept(server->listener, NULL, NULL)};
        int one = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (c->fd < 0 || pthread_create(&server->threads[server->n_threads], NULL, connection_main, c) != 0) {
            free(c);
            continue;
        }
        server->n_threads++;
    }
    return NULL;
}

struct fault_server *fault_server_start(const char *ip, int port, fault_fn *fn, void *user) {
    struct fault_server *server = calloc(1, sizeof *server);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t n = sizeof addr;
    inet_pton(AF_INET, ip, &addr.sin_addr);
    server->fn = fn;
    server->user = user;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    setsockopt(server->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server->listener, (struct sockaddr *)&addr, n) != 0 || listen(server->listener, 64) != 0 ||
        getsockname(server->listener, (struct sockaddr *)&addr, &n) != 0 ||
        pthread_create(&server->acceptor, NULL, acceptor_main, server) != 0) {
        perror("fault server");
        abort();
    }
    server->port = ntohs(addr.sin_port);
    return server;
}

int fault_server_port(const struct fault_server *server) {
    return server->port;
}

void fault_server_stop(struct fault_server *server) {
    if (!server)
        return;
    atomic_store(&server->stop, true);
    pthread_join(server->acceptor, NULL);
    for (uint32_t i = 0; i < server->n_threads; i++)
        pthread_join(server->threads[i], NULL);
    close(server->listener);
    free(server);
}

void fault_serve(const struct fault_request *request, struct fault_reply *reply, const uint8_t *body,
                 size_t n_body) {
    reply->body = body;
    reply->n_body = n_body;
    if (!request->has_range)
        return;
    uint64_t from = request->range_from, to = request->range_to < n_body ? request->range_to : n_body;
    if (from >= n_body) {
        reply->status = 416;
        reply->n_body = 0;
        return;
    }
    reply->status = 206;
    reply->body = body + from;
    reply->n_body = (size_t)(to - from);
    snprintf(reply->headers, sizeof reply->headers, "Content-Range: bytes %llu-%llu/%zu\r\n",
             (unsigned long long)from, (unsigned long long)to - 1, n_body);
}
