// POST /v1/rerank: documents by how well they answer a query, in the form of Jina's and Cohere's APIs.
#include <stdlib.h>

#include "engine/pooled.h"
#include "server/openai_answer.h"
#include "server/pooled_answer.h"

struct ranked {
    uint32_t idx;
    double score;
};

struct rerank {
    struct http_exchange *exchange;
    const struct served *served; // the answer holds it
    json_t *body;                // a reference
    char id[64];
    bool return_documents;
    uint32_t n_top, n;
    struct ranked documents[]; // [n]
};

static void free_state(void *state) {
    struct rerank *r = state;
    if (r)
        json_decref(r->body);
    free(r);
}

static bool on_values(void *state, uint32_t idx, float *values, uint32_t n_values, struct err *err) {
    struct rerank *r = state;
    (void)n_values;
    (void)err;
    r->documents[idx] = (struct ranked){idx, pooled_rerank_score(&r->served->bundle, values)};
    return true;
}

static int better_first(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->idx < y->idx ? -1 : x->idx > y->idx; // equal ones in their order
}

// A document is a text or {"text": ...}.
static const json_t *document_text(const json_t *document) {
    return json_is_object(document) ? json_object_get(document, "text") : document;
}

static void on_done(void *state, uint64_t n_tokens, const struct err *err) {
    struct rerank *r = state;
    if (err) {
        http_fail_err(r->exchange, err);
        free_state(r);
        return;
    }
    qsort(r->documents, r->n, sizeof *r->documents, better_first);
    const json_t *documents = json_object_get(r->body, "documents");
    struct strbuf out = {0};
    strbuf_printf(&out, "{\"id\":\"%s\",\"object\":\"list\",\"model\":", r->id);
    strbuf_json_string(&out, str_from(r->served->bundle.name));
    strbuf_append_c(&out, ",\"results\":[");
    for (uint32_t i = 0; i < r->n_top; i++) {
        const struct ranked *d = &r->documents[i];
        strbuf_printf(&out, "%s{\"index\":%u,\"relevance_score\":%.9g", i ? "," : "", d->idx, d->score);
        if (r->return_documents) {
            strbuf_append_c(&out, ",\"document\":{\"text\":");
            strbuf_json_string(&out, json_str(document_text(json_array_get(documents, d->idx))));
            strbuf_char(&out, '}');
        }
        strbuf_char(&out, '}');
    }
    strbuf_printf(&out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (unsigned long long)n_tokens,
                  (unsigned long long)n_tokens);
    http_reply_built(r->exchange, &out);
    free_state(r);
}

static const struct pooled_surface SURFACE = {on_values, on_done, free_state};

// ---- The request ------------------------------------------------------------------------------
static const char DOCUMENTS_WANTED[] = "an array of 1 to 2048 texts, or of objects with a text";

static bool read_prompts(const struct server *server, const json_t *body, struct token_list *prompts,
                         struct request_error *error) {
    const json_t *query = request_given(body, "query"), *instruction = request_given(body, "instruction");
    const json_t *documents = json_object_get(body, "documents");
    if (!json_is_string(query) || json_string_length(query) == 0)
        return request_wrong(error, "query", "a text");
    if (instruction && !json_is_string(instruction))
        return request_wrong(error, "instruction", "a string");
    for (size_t i = 0; i < json_array_size(documents); i++) {
        const json_t *text = document_text(json_array_get(documents, i));
        struct rerank_query one = {json_str(instruction), json_str(query), json_str(text)};
        if (!json_is_string(text))
            return request_wrong(error, "documents", DOCUMENTS_WANTED);
        if (!pooled_rerank_prompt(&server->served->bundle, &one, &prompts[i], &error->err)) {
            error->code = error->err.code == ERR_UNSUPPORTED ? "unsupported_model" : NULL;
            return false;
        }
    }
    return true;
}

void server_rerank(struct http_exchange *exchange, void *user) {
    struct server *server = user;
    struct request_error error = {0};
    struct token_list *prompts = NULL;
    struct rerank *r = NULL;
    json_t *body = request_body(exchange, &error);
    const json_t *documents = json_object_get(body, "documents");
    size_t n = json_array_size(documents);
    int64_t n_top = (int64_t)n;
    bool ok = body && ((n > 0 && n <= POOLED_PROMPTS_MAX) || request_wrong(&error, "documents", DOCUMENTS_WANTED));
    if (ok) {
        r = calloc(1, sizeof *r + n * sizeof *r->documents);
        prompts = calloc(n, sizeof *prompts);
        ok = (r && prompts) || err_set(&error.err, ERR_NOMEM, "out of memory for a request");
    }
    ok = ok && request_int(body, "top_n", 1, INT32_MAX, &n_top, &error) &&
         request_bool(body, "return_documents", &r->return_documents, &error) &&
         read_prompts(server, body, prompts, &error);
    if (ok) {
        r->exchange = exchange;
        r->served = server->served;
        r->body = json_incref(body);
        r->n = (uint32_t)n;
        r->n_top = n_top < (int64_t)n ? (uint32_t)n_top : r->n;
        request_new_id("rerank-", r->id, sizeof r->id);
        ok = pooled_answer_start(server, exchange, GEN_WANT_LOGITS, prompts, r->n, "documents", &SURFACE, r, &error);
    }
    if (!ok) {
        request_refuse(exchange, &error);
        free_state(r);
    }
    for (size_t i = 0; prompts && i < n; i++)
        token_list_deinit(&prompts[i]);
    free(prompts);
    json_decref(body);
}
