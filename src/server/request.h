// server/request.h - reading the fields that the generating surfaces share, with OpenAI's way of saying
// what is wrong: a message and the parameter's name.
#ifndef LOAM_SERVER_REQUEST_H
#define LOAM_SERVER_REQUEST_H
#include "base/json.h"
#include "server/server.h"

// A refused request: err says why, param names the field and code the case (both static text) or are NULL.
struct request_error {
    struct err err;
    const char *param, *code;
};
// Answer the exchange with it.
void request_refuse(struct http_exchange *exchange, const struct request_error *error);

// "'<param>' must be <expected>", ERR_INVALID. Returns false.
bool request_wrong(struct request_error *error, const char *param, const char *expected);
// Members of `body`; absent or null leaves *out alone. `name` is static text.
const json_t *request_given(const json_t *body, const char *name); // NULL when absent or null
bool request_real(const json_t *body, const char *name, double min, double max, double *out,
                  struct request_error *error);
bool request_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out,
                 struct request_error *error);
bool request_bool(const json_t *body, const char *name, bool *out, struct request_error *error);

// A prompt field holds one text, one array of token ids, or an array of either: how many there are (0: none of
// these), and each of them: a string, an array, or something wrong.
size_t request_n_prompts(const json_t *value);
const json_t *request_prompt_at(const json_t *value, size_t idx);
// Append token ids; whether the model has them is the engine's to say. `expected` is what `param` must be.
bool request_token_ids(const json_t *ids, const char *param, const char *expected, struct token_list *out,
                       struct request_error *error);

enum { REQUEST_STOPS_MAX = 16, REQUEST_BREAKERS_MAX = 32, REQUEST_CHOICES_MAX = 128 };

struct generation_fields {
    struct sampler_params sampling;
    uint32_t max_tokens; // 0 = until the context is full
    struct str stops[REQUEST_STOPS_MAX]; // borrowed from the body
    uint32_t n_stops;
    struct str dry_breakers[REQUEST_BREAKERS_MAX]; // likewise
    uint32_t n_dry_breakers;
    bool dry_breakers_given;
    uint32_t n; // choices
    bool stream, include_usage, ignore_eos;
    enum gen_priority priority;
    bool priority_given; // else the header says
    struct logit_bias *bias; // owned: request_fields_deinit
    struct grammar *grammar; // a reference, or NULL
};

// The body as a JSON object for json_decref; NULL with *error set.
json_t *request_body(const struct http_exchange *exchange, struct request_error *error);
// Read what every generating surface has: SAMPLER_OPTIONS, dry_sequence_breakers, logit_bias, seed, max_tokens,
// stream, ignore_eos, priority; where the request does not say, the operator's value, else the model's, else loam's. Unknown
// fields are ignored; a wrong type or range is an error.
bool request_fields(const struct server *server, const json_t *body, struct generation_fields *out,
                    struct request_error *error);
// And what chat and text completions have besides: stop, max_completion_tokens, stream_options, n.
bool request_completion_fields(const json_t *body, struct generation_fields *out,
                               struct request_error *error);
// A string or an array of strings that end the text.
bool request_stops(const json_t *body, const char *name, struct generation_fields *out,
                   struct request_error *error);
// How urgent the request is: its field, else the header X-Loam-Priority, else interactive. ERR_INVALID.
bool request_priority(const struct http_exchange *exchange, const struct generation_fields *fields,
                      enum gen_priority *out, struct err *err);
void request_fields_deinit(struct generation_fields *fields);
// A seed for requests without one: different each time.
uint64_t request_fresh_seed(void);
// "<prefix><24 hex digits>", unique.
void request_new_id(const char *prefix, char *out, size_t n);
#endif
