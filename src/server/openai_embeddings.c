// POST /v1/embeddings: texts as vectors.
#include <openssl/evp.h>
#include <stdlib.h>

#include "engine/pooled.h"
#include "server/openai_answer.h"
#include "server/pooled_answer.h"

struct embeddings {
    struct http_exchange *exchange;
    const struct served *served; // the answer holds it
    bool base64;
    uint32_t n_dimensions; // 0 = all
    uint32_t n;
    struct {
        float *values; // [n_values], owned
        uint32_t n_values;
    } vectors[];
};

static void free_state(void *state) {
    struct embeddings *e = state;
    for (uint32_t i = 0; i < e->n; i++)
        free(e->vectors[i].values);
    free(e);
}

static bool on_values(void *state, uint32_t idx, float *values, uint32_t n_values, struct err *err) {
    struct embeddings *e = state;
    uint32_t n = pooled_embedding(&e->served->bundle, values, n_values, e->n_dimensions, err);
    if (n == 0)
        return false;
    e->vectors[idx].values = malloc(n * sizeof *values);
    e->vectors[idx].n_values = n;
    if (!e->vectors[idx].values)
        return err_set(err, ERR_NOMEM, "out of memory for an embedding");
    memcpy(e->vectors[idx].values, values, n * sizeof *values);
    return true;
}

// The float32 values' bytes, little-endian as every machine that loam runs on.
static void append_base64(struct strbuf *out, const float *values, uint32_t n) {
    size_t n_bytes = n * sizeof *values, n_text = (n_bytes + 2) / 3 * 4;
    if (!strbuf_reserve(out, n_text + 1))
        return;
    EVP_EncodeBlock((unsigned char *)out->data + out->n, (const unsigned char *)values, (int)n_bytes);
    out->n += n_text;
}

static void append_vector(struct strbuf *out, const struct embeddings *e, uint32_t idx) {
    const float *values = e->vectors[idx].values;
    uint32_t n = e->vectors[idx].n_values;
    strbuf_char(out, e->base64 ? '"' : '[');
    if (e->base64)
        append_base64(out, values, n);
    for (uint32_t i = 0; !e->base64 && i < n; i++)
        strbuf_printf(out, i ? ",%.9g" : "%.9g", (double)values[i]);
    strbuf_char(out, e->base64 ? '"' : ']');
}

static void on_done(void *state, uint64_t n_tokens, const struct err *err) {
    struct embeddings *e = state;
    if (err) {
        http_fail_err(e->exchange, err);
        free_state(e);
        return;
    }
    struct strbuf out = {0};
    strbuf_append_c(&out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < e->n; i++) {
        strbuf_printf(&out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        append_vector(&out, e, i);
        strbuf_char(&out, '}');
    }
    strbuf_append_c(&out, "],\"model\":");
    strbuf_json_string(&out, str_from(e->served->bundle.name));
    strbuf_printf(&out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (unsigned long long)n_tokens,
                  (unsigned long long)n_tokens);
    http_reply_built(e->exchange, &out);
    free_state(e);
}

static const struct pooled_surface SURFACE = {on_values, on_done, free_state};

// ---- The request ------------------------------------------------------------------------------
static const char INPUT_WANTED[] = "a string, an array of strings, an array of token ids, or an array of those; at "
                                   "most 2048 and none empty";

// Token ids are taken as they are; a text gets the tokenizer's end token and, if there is one, the instruction.
// Source of its form: the model card of Qwen3-Embedding.
static bool read_one(const struct server *server, const json_t *input, struct str instruction,
                     struct token_list *out, struct request_error *error) {
    if (json_is_array(input) && json_array_size(input))
        return request_token_ids(input, "input", INPUT_WANTED, out, error);
    struct str text = json_str(input);
    if (!json_is_string(input) || text.n == 0)
        return request_wrong(error, "input", INPUT_WANTED);
    struct strbuf with = {0};
    if (instruction.n) {
        strbuf_append_c(&with, "Instruct: ");
        strbuf_append(&with, instruction);
        strbuf_append_c(&with, "\nQuery:");
        strbuf_append(&with, text);
        text = strbuf_str(&with);
    }
    bool ok = with.failed ? err_set(&error->err, ERR_NOMEM, "out of memory for the input")
                          : pooled_embed_prompt(&server->served->bundle, text, out, &error->err);
    strbuf_deinit(&with);
    return ok;
}

static bool read_options(const struct server *server, const json_t *body, struct embeddings *e,
                         struct str *instruction, struct request_error *error) {
    const json_t *encoding = request_given(body, "encoding_format"), *task = request_given(body, "instruction");
    int64_t n_dimensions = 0, d_model = model_config_of(server->served->bundle.model)->d_model;
    if (!request_int(body, "dimensions", 1, d_model, &n_dimensions, error))
        return false;
    e->n_dimensions = (uint32_t)n_dimensions;
    e->base64 = encoding && str_eq_c(json_str(encoding), "base64");
    if (encoding && !e->base64 && !str_eq_c(json_str(encoding), "float"))
        return request_wrong(error, "encoding_format", "\"float\" or \"base64\"");
    if (task && !json_is_string(task))
        return request_wrong(error, "instruction", "a string");
    *instruction = json_str(task);
    return true;
}

static bool makes_embeddings(const struct bundle *bundle, struct request_error *error) {
    if (bundle->is_embedding)
        return true;
    error->code = "unsupported_model";
    return err_set(&error->err, ERR_INVALID, "%s answers in text and makes no embeddings; serve an embedding model, such "
                   "as Qwen/Qwen3-Embedding-0.6B", bundle->name);
}

void openai_embeddings(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct token_list *prompts = NULL;
    struct embeddings *e = NULL;
    struct str instruction;
    json_t *body = request_body(exchange, &error);
    const json_t *input = json_object_get(body, "input");
    size_t n = request_n_prompts(input);
    bool ok = body && makes_embeddings(&server->served->bundle, &error) &&
              ((n > 0 && n <= POOLED_PROMPTS_MAX) || request_wrong(&error, "input", INPUT_WANTED));
    if (ok) {
        e = calloc(1, sizeof *e + n * sizeof *e->vectors);
        prompts = calloc(n, sizeof *prompts);
        ok = (e && prompts) || err_set(&error.err, ERR_NOMEM, "out of memory for a request");
    }
    ok = ok && read_options(server, body, e, &instruction, &error);
    for (size_t i = 0; ok && i < n; i++)
        ok = read_one(server, request_prompt_at(input, i), instruction, &prompts[i], &error);
    if (ok) {
        e->exchange = exchange;
        e->served = server->served;
        e->n = (uint32_t)n;
        ok = pooled_answer_start(server, exchange, GEN_WANT_HIDDEN, prompts, e->n, "input", &SURFACE, e, &error);
    }
    if (!ok) {
        request_refuse(exchange, &error);
        free(e);
    }
    for (size_t i = 0; prompts && i < n; i++)
        token_list_deinit(&prompts[i]);
    free(prompts);
    json_decref(body);
}
