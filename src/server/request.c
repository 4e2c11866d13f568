#include "server/request.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"

void request_refuse(struct http_exchange *exchange, const struct request_error *error) {
    int status = err_http_status(error->err.code);
    if (status != 429 && status < 500)
        http_fail(exchange, status, NULL, error->code, error->param, "%s", error->err.message);
    else
        http_fail_err(exchange, &error->err);
}

json_t *request_body(const struct http_exchange *exchange, struct request_error *error) {
    json_t *body = json_parse(http_body(exchange), "body", &error->err);
    if (body && !json_is_object(body)) {
        err_set(&error->err, ERR_INVALID, "the body must be a JSON object");
        json_decref(body);
        body = NULL;
    }
    if (!body)
        error->err.code = ERR_INVALID;
    return body;
}

bool request_wrong(struct request_error *error, const char *param, const char *expected) {
    error->param = param;
    return err_set(&error->err, ERR_INVALID, "'%s' must be %s", param, expected);
}

// A member that is there and not null.
const json_t *request_given(const json_t *body, const char *name) {
    const json_t *value = json_object_get(body, name);
    return json_is_null(value) ? NULL : value;
}

bool request_real(const json_t *body, const char *name, double min, double max, double *out,
                       struct request_error *error) {
    const json_t *value = request_given(body, name);
    if (!value)
        return true;
    char expected[64];
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    double v = json_number_value(value);
    if (!json_is_number(value) || v < min || v > max)
        return request_wrong(error, name, expected);
    *out = v;
    return true;
}

bool request_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out,
                      struct request_error *error) {
    const json_t *value = request_given(body, name);
    if (!value)
        return true;
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min, (long long)max);
    int64_t v = json_integer_value(value);
    if (!json_is_integer(value) || v < min || v > max)
        return request_wrong(error, name, expected);
    *out = v;
    return true;
}

bool request_bool(const json_t *body, const char *name, bool *out, struct request_error *error) {
    const json_t *value = request_given(body, name);
    if (value && !json_is_boolean(value))
        return request_wrong(error, name, "true or false");
    if (value)
        *out = json_is_true(value);
    return true;
}

static bool is_several(const json_t *value) {
    return json_is_array(value) && !json_is_integer(json_array_get(value, 0));
}

size_t request_n_prompts(const json_t *value) {
    return is_several(value) ? json_array_size(value) : json_is_string(value) || json_is_array(value);
}

const json_t *request_prompt_at(const json_t *value, size_t idx) {
    return is_several(value) ? json_array_get(value, idx) : value;
}

bool request_token_ids(const json_t *ids, const char *param, const char *expected, struct token_list *out,
                       struct request_error *error) {
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return request_wrong(error, param, expected);
        token_list_append(out, (token_id)json_integer_value(id));
    }
    return !out->failed || err_set(&error->err, ERR_NOMEM, "out of memory for '%s'", param);
}

bool request_stops(const json_t *body, const char *name, struct generation_fields *out,
                   struct request_error *error) {
    const json_t *stop = request_given(body, name);
    if (!stop)
        return true;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (n > REQUEST_STOPS_MAX)
        return request_wrong(error, name, "a string or an array of at most 16 strings");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(one))
            return request_wrong(error, name, "a string or an array of at most 16 strings");
        if (json_string_length(one)) // an empty one would stop everything: ignored, as elsewhere
            out->stops[out->n_stops++] = json_str(one);
    }
    return true;
}

static bool bias_field(const json_t *body, struct generation_fields *out, struct request_error *error) {
    const json_t *object = request_given(body, "logit_bias");
    if (!object)
        return true;
    if (!json_is_object(object))
        return request_wrong(error, "logit_bias", "an object of token ids and numbers");
    out->bias = calloc(json_object_size(object) + 1, sizeof *out->bias);
    if (!out->bias)
        return err_set(&error->err, ERR_NOMEM, "out of memory for logit_bias");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char *end;
        long id = strtol(key, &end, 10);
        double bias = json_number_value(value);
        if (!*key || *end || id < 0 || id > INT32_MAX || !json_is_number(value) || bias < -100 || bias > 100)
            return request_wrong(error, "logit_bias", "an object of token ids and numbers from -100 to 100");
        out->bias[out->sampling.n_bias++] = (struct logit_bias){(int32_t)id, (float)bias};
    }
    out->sampling.bias = out->bias;
    return true;
}

uint64_t request_fresh_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = hash_u64(clock_ns());
    return seed;
}

void request_new_id(const char *prefix, char *out, size_t n) {
    static _Atomic uint64_t counter; // only makes ids of one process differ
    uint64_t a = request_fresh_seed(), b = atomic_fetch_add(&counter, 1);
    snprintf(out, n, "%s%016llx%08llx", prefix, (unsigned long long)a, (unsigned long long)(b & 0xFFFFFFFF));
}

// Every option of the table that the body has.
static bool sampling_fields(const json_t *body, struct sampler_params *out, struct request_error *error) {
    for (size_t i = 0; i < SAMPLER_OPTIONS_N; i++) {
        const struct sampler_option *o = &SAMPLER_OPTIONS[i];
        double real = 0;
        int64_t whole = 0;
        bool is_real = o->kind == SAMPLER_REAL;
        if (!request_given(body, o->name))
            continue;
        if (!(is_real ? request_real(body, o->name, o->min, o->max, &real, error)
                      : request_int(body, o->name, (int64_t)o->min, (int64_t)o->max, &whole, error)))
            return false;
        sampler_option_set(out, i, is_real ? real : (double)whole);
    }
    return true;
}

// Borrowed from the body.
static bool breakers_field(const json_t *body, struct generation_fields *out, struct request_error *error) {
    static const char NAME[] = "dry_sequence_breakers", WANTED[] = "an array of at most 32 strings, none empty";
    const json_t *list = request_given(body, NAME);
    if (!list)
        return true;
    if (!json_is_array(list) || json_array_size(list) > REQUEST_BREAKERS_MAX)
        return request_wrong(error, NAME, WANTED);
    out->dry_breakers_given = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (!json_is_string(one) || json_string_length(one) == 0)
            return request_wrong(error, NAME, WANTED);
        out->dry_breakers[out->n_dry_breakers++] = json_str(one);
    }
    return true;
}

static bool priority_field(const json_t *body, struct generation_fields *out, struct request_error *error) {
    const json_t *name = request_given(body, "priority");
    if (!name)
        return true;
    out->priority_given = true;
    return (json_is_string(name) && gen_priority_parse(json_string_value(name), &out->priority, NULL)) ||
           request_wrong(error, "priority", "\"interactive\" or \"batch\"");
}

bool request_priority(const struct http_exchange *exchange, const struct generation_fields *fields,
                      enum gen_priority *out, struct err *err) {
    const char *header = http_header(exchange, "X-Loam-Priority");
    *out = fields->priority;
    return fields->priority_given || !header || gen_priority_parse(header, out, err) ||
           err_wrap(err, "header X-Loam-Priority");
}

bool request_fields(const struct server *server, const json_t *body, struct generation_fields *out,
                    struct request_error *error) {
    const struct server_options *o = &server->options;
    *out = (struct generation_fields){.sampling = bundle_sampling(&server->served->bundle)};
    // The request, else the operator, else the model's authors, else loam.
    sampler_given_apply(&o->sampling, &out->sampling);
    int64_t max_tokens = o->max_tokens > 0 ? o->max_tokens : bundle_max_tokens(&server->served->bundle), seed = 0;
    if (!sampling_fields(body, &out->sampling, error) || !breakers_field(body, out, error) ||
        !bias_field(body, out, error) || !priority_field(body, out, error) ||
        !request_int(body, "seed", INT64_MIN, INT64_MAX, &seed, error) ||
        !request_int(body, "max_tokens", 1, INT32_MAX, &max_tokens, error) ||
        !request_bool(body, "stream", &out->stream, error) ||
        !request_bool(body, "ignore_eos", &out->ignore_eos, error))
        return false;
    out->n = 1;
    out->sampling.seed = request_given(body, "seed") ? (uint64_t)seed : request_fresh_seed();
    out->max_tokens = (uint32_t)max_tokens;
    return true;
}

bool request_completion_fields(const json_t *body, struct generation_fields *out,
                               struct request_error *error) {
    int64_t max_tokens = out->max_tokens, n = 1;
    const json_t *stream_options = request_given(body, "stream_options");
    if (stream_options && !json_is_object(stream_options))
        return request_wrong(error, "stream_options", "an object");
    if (!request_int(body, "max_completion_tokens", 1, INT32_MAX, &max_tokens, error) ||
        !request_int(body, "n", 1, REQUEST_CHOICES_MAX, &n, error) ||
        !request_stops(body, "stop", out, error) ||
        (stream_options &&
         !request_bool(stream_options, "include_usage", &out->include_usage, error)))
        return false;
    out->max_tokens = (uint32_t)max_tokens;
    out->n = (uint32_t)n;
    return true;
}

void request_fields_deinit(struct generation_fields *fields) {
    free(fields->bias);
    grammar_release(fields->grammar);
    fields->grammar = NULL;
    fields->bias = NULL;
}
