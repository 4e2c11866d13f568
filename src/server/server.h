// server/server.h - loam's HTTP server over one engine: it translates, it never computes.
// The event thread owns this; tokens come from the engine thread through gen_job.
#ifndef LOAM_SERVER_SERVER_H
#define LOAM_SERVER_SERVER_H
#include "hub/downloads.h"
#include "sample/sampler_options.h"
#include "server/guard.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "server/served.h"

enum {
    SERVER_BODY_BYTES_MAX = 64 << 20,
    SERVER_CONNECTIONS_MAX = 4096,
    SERVER_IDLE_TIMEOUT_MS = 120000,
    SERVER_HEAD_TIMEOUT_MS = 20000,
};

struct server_options {
    const char *host; // default 127.0.0.1
    uint16_t port;
    const char *unix_path;  // NULL = TCP
    size_t body_bytes_max;  // 0 = SERVER_BODY_BYTES_MAX
    const char *api_key;      // NULL = no key is asked for
    const char *cors_origins; // whose web pages may ask, comma-separated or "*"; NULL = local ones
    const char *tls_cert, *tls_key; // PEM files; both or none
    uint32_t n_connections_max;     // 0 = SERVER_CONNECTIONS_MAX
    uint32_t idle_timeout_ms, head_timeout_ms; // as http_options; 0 = SERVER_IDLE_TIMEOUT_MS, SERVER_HEAD_TIMEOUT_MS
    uint32_t drain_ms;      // how long SIGTERM waits for running answers; 0 = 30 s
    // Defaults of requests that do not say. What is not given, max_tokens <= 0: the model's own, else loam's.
    struct sampler_given sampling;
    int64_t max_tokens;
    struct hub_downloads *downloads; // what GET /downloads shows, or NULL
    const json_t *template_kwargs; // defaults for chat_template_kwargs, or NULL
};
struct server_options server_options_default(void);

struct server {
    struct server_options options;
    struct served *served;  // the model that new requests get
    struct served *all_served; // and those that still answer earlier ones
    struct http_server *http;
    struct guard guard;
    struct metrics metrics;
    struct response_store *responses;
    struct library *library;
    uint64_t started_unix; // seconds
    bool stopping;
    uint64_t stop_deadline_ns;
    uint32_t n_idle_looks; // in a row that found no open exchange, while stopping
};

// Bind (first: a taken port is told before anything else is done), answering nothing yet.
// A model comes later, before server_run(). ERR_IO, ERR_NOMEM.
struct server *server_create(const struct server_options *options, struct err *err);
// New requests get this model from now on; takes the reference. The one before ends with its last request.
// Event thread, or before server_run().
void server_attach(struct server *server, struct served *served);
// Answer until SIGTERM or SIGINT: then no new requests, running answers finish (at most drain_ms; a second
// signal ends them at once).
void server_run(struct server *server);
void server_destroy(struct server *server); // NULL is allowed
uint16_t server_port(const struct server *server);
// As http_post(): how another thread brings a model.
bool server_post(struct server *server, http_post_fn *fn, void *user);
// As http_on_readable().
bool server_on_readable(struct server *server, int fd, http_post_fn *fn, void *user);

// An error in Anthropic's shape. `type` may be NULL: it then follows from the status.
void anthropic_error(struct strbuf *out, int status, const char *type, struct str message, const char *request_id);

// Route handlers, one file a surface; `user` is the server.
http_handler_fn openai_chat, openai_completions, openai_embeddings, openai_models, openai_model, openai_responses, openai_response,
    openai_response_cancel, openai_response_delete, openai_response_tokens, anthropic_messages, anthropic_count_tokens, server_index, server_health,
    server_rerank, server_fit, server_ready, server_stats, server_metrics, server_tokenize, server_detokenize, server_apply_template,
    server_cache_flush, server_openapi, server_downloads, server_library;
#endif
