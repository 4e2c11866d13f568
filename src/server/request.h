// server/request.h - reading the fields that the generating surfaces share, with OpenAI's way of saying
// what is wrong: a message and the parameter's name.
#ifndef LOAM_SERVER_REQUEST_H
#define LOAM_SERVER_REQUEST_H
#include "base/json.h"
#include "server/server.h"

// A refused request: err says why, param names the field (static text) or is NULL.
struct request_error {
    struct err err;
    const char *param;
};
// Answer the exchange with it.
void request_refuse(struct http_exchange *exchange, const struct request_error *error);

enum { REQUEST_STOPS_MAX = 16 };

struct generation_fields {
    struct sampler_params sampling;
    uint32_t max_tokens; // 0 = until the context is full
    struct str stops[REQUEST_STOPS_MAX]; // borrowed from the body
    uint32_t n_stops;
    bool stream, include_usage, ignore_eos;
    struct logit_bias *bias; // owned: request_fields_deinit
};

// The body as a JSON object for json_decref; NULL with *error set.
json_t *request_body(const struct http_exchange *exchange, struct request_error *error);
// Fields of chat and text completions: temperature, top_p, top_k, min_p, seed, stop, max_tokens,
// max_completion_tokens, stream, stream_options, logit_bias, ignore_eos. Unknown fields are ignored; a wrong
// type or range is an error.
bool request_fields(const struct server *server, const json_t *body, struct generation_fields *out,
                    struct request_error *error);
void request_fields_deinit(struct generation_fields *fields);
// A seed for requests without one: different each time.
uint64_t request_fresh_seed(void);
// "<prefix><24 hex digits>", unique.
void request_new_id(const char *prefix, char *out, size_t n);
#endif
