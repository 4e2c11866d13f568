// The public library: include/loam/loam.h over engine and bundle.
#include "loam/loam.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "engine/bundle.h"
#include "engine/engine.h"
#include "engine/pooled.h"
#include "sample/sampler_options.h"

struct loam_model {
    struct bundle bundle;
    struct engine *engine;
};

struct loam_generation {
    struct gen_ticket *ticket;
    loam_text_fn *on_text;
    void *user;
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t ended;
    bool done, stop_asked, ticket_known;
    float *values; // [n_values] of a request for values; NULL with n_values set: no memory for them
    uint32_t n_values;
    enum finish_reason finish;
    struct gen_usage usage;
    struct err err;
};

_Static_assert((int)LOAM_INTERNAL == (int)ERR_INTERNAL, "public codes mirror base/err.h");
_Static_assert(sizeof((struct loam_error *)0)->message == ERR_MESSAGE_BYTES, "and so do messages");

static bool tell(struct loam_error *error, const struct err *err) {
    if (error) {
        error->code = (enum loam_error_code)err->code;
        memcpy(error->message, err->message, sizeof error->message);
    }
    return false;
}

const char *loam_version(void) {
    return LOAM_VERSION;
}

loam_model *loam_open(const struct loam_options *o, struct loam_error *error) {
    struct err err = {0};
    struct loam_model *model = calloc(1, sizeof *model);
    struct bundle_options options = {
        .folder = o->folder, .backend_name = o->device,
        .backend = {.n_threads = o->n_threads, .math = o->exact ? MATH_EXACT : MATH_FAST, .device = -1},
        .model = {.kv = KV_BF16}};
    struct engine_options engine = {.n_rows = o->n_parallel, .ctx_len = o->ctx_len, .step_ms = o->step_ms,
                                    .memory_budget_bytes = o->memory_budget};
    if (!o->no_prompt_cache)
        engine.prompt_cache_bytes = o->prompt_cache ? o->prompt_cache : (uint64_t)ENGINE_PROMPT_CACHE_GIB << 30;
    if (!model)
        err_set(&err, ERR_NOMEM, "out of memory for a model");
    else if (o->disk_cache && o->no_prompt_cache)
        err_set(&err, ERR_INVALID, "disk_cache is a part of the prompt cache, which no_prompt_cache turns off");
    else if ((!o->kv_dtype || kv_kind_parse(o->kv_dtype, &options.model.kv, &err)) &&
             bundle_open(&model->bundle, &options, &err)) {
        engine.disk_folder = o->disk_cache;
        engine.disk_bytes_max = o->disk_cache_max;
        engine.disk_identity = model->bundle.identity;
        model->engine = engine_create(model->bundle.model, model->bundle.tokenizer, &engine, &err);
    }
    if (model && model->engine)
        return model;
    loam_close(model);
    tell(error, &err);
    return NULL;
}

void loam_close(loam_model *model) {
    if (!model)
        return;
    engine_destroy(model->engine);
    bundle_close(&model->bundle);
    free(model);
}

const char *loam_model_name(const loam_model *model) {
    return model->bundle.name;
}
uint32_t loam_context_length(const loam_model *model) {
    return engine_plan_of(model->engine)->limits.ctx_len;
}
uint32_t loam_vocabulary_size(const loam_model *model) {
    return model_config_of(model->bundle.model)->n_vocab;
}
void loam_cache_statistics(loam_model *model, struct loam_cache_stats *out) {
    struct engine_stats s;
    engine_stats(model->engine, &s);
    *out = (struct loam_cache_stats){.n_hits = s.n_cache_hits, .n_misses = s.n_cache_misses,
                                     .n_cached_tokens = s.n_cached_tokens, .n_evicted = s.cache.n_evicted,
                                     .n_bytes = s.cache.bytes, .n_bytes_max = s.cache.bytes_max,
                                     .n_entries = s.cache.n_nodes, .n_disk_bytes = s.disk.bytes,
                                     .n_disk_read = s.disk.n_read, .n_disk_written = s.disk.n_written,
                                     .n_disk_failed = s.disk.n_failed + s.disk.n_damaged};
}
void loam_free(void *p) {
    free(p);
}

bool loam_tokenize(const loam_model *model, const char *text, size_t n, bool special, int32_t **ids,
                   size_t *n_ids, struct loam_error *error) {
    struct err err = {0};
    struct token_list list = {0};
    if (!tokenizer_encode(model->bundle.tokenizer, (struct str){text, n}, special ? TOKENIZER_ADD_SPECIAL : 0,
                          &list, &err)) {
        token_list_deinit(&list);
        return tell(error, &err);
    }
    *ids = list.ids; // handed over
    *n_ids = list.n;
    return true;
}

// A built text for the caller, or NULL with the error.
static char *hand_over(bool ok, struct strbuf *text, struct err *err, struct loam_error *error) {
    char *out = ok ? strbuf_take(text) : NULL;
    if (ok && !out)
        err_set(err, ERR_NOMEM, "out of memory for a text");
    strbuf_deinit(text);
    if (!out)
        tell(error, err);
    return out;
}

char *loam_detokenize(const loam_model *model, const int32_t *ids, size_t n_ids, struct loam_error *error) {
    struct err err = {0};
    struct strbuf text = {0};
    bool ok = tokenizer_decode(model->bundle.tokenizer, ids, n_ids, true, &text, &err);
    return hand_over(ok, &text, &err, error);
}

static bool render(const loam_model *model, const char *messages, const char *tools, struct strbuf *out,
                   struct err *err) {
    json_t *message_list = json_parse(str_from(messages), "messages", err);
    json_t *tool_list = message_list && tools ? json_parse(str_from(tools), "tools", err) : NULL;
    bool ok = message_list && (!tools || tool_list);
    if (ok && (!json_is_array(message_list) || (tool_list && !json_is_array(tool_list))))
        ok = err_set(err, ERR_INVALID, "messages and tools must be JSON arrays");
    struct chat_render_options options = {.messages = message_list, .tools = tool_list,
                                          .add_generation_prompt = true};
    ok = ok && chat_template_render(model->bundle.chat, &options, out, err);
    json_decref(message_list);
    json_decref(tool_list);
    return ok;
}

char *loam_apply_template(const loam_model *model, const char *messages, const char *tools,
                          struct loam_error *error) {
    struct err err = {0};
    struct strbuf text = {0};
    bool ok = render(model, messages, tools, &text, &err);
    return hand_over(ok, &text, &err, error);
}

// ---- Answers ----------------------------------------------------------------------------------
static void on_event(const struct gen_event *event, void *user) {
    struct loam_generation *g = user;
    bool go_on = true;
    if (g->on_text && event->text.n)
        go_on = g->on_text(g->user, event->text.data, event->text.n);
    pthread_mutex_lock(&g->lock);
    if (!go_on) {
        g->stop_asked = true;
        if (g->ticket_known) // else loam_start() sees stop_asked when it has the ticket
            gen_ticket_cancel(g->ticket);
    }
    if (event->kind == GEN_DONE) {
        g->done = true;
        g->finish = event->finish;
        g->usage = *event->usage;
        if (event->err)
            g->err = *event->err;
        if (event->values) {
            g->n_values = event->n_values;
            g->values = malloc(event->n_values * sizeof *g->values);
            if (g->values)
                memcpy(g->values, event->values, event->n_values * sizeof *g->values);
        }
        pthread_cond_signal(&g->ended);
    }
    pthread_mutex_unlock(&g->lock);
}

static bool prompt_of(const loam_model *model, const struct loam_request *r, struct token_list *ids,
                      struct err *err) {
    if ((r->messages != NULL) + (r->prompt != NULL) + (r->tokens != NULL) != 1)
        return err_set(err, ERR_INVALID, "a request has exactly one of messages, prompt and tokens");
    if (r->tokens) {
        for (size_t i = 0; i < r->n_tokens; i++)
            token_list_append(ids, r->tokens[i]);
        return !ids->failed || err_set(err, ERR_NOMEM, "out of memory for the prompt");
    }
    struct strbuf text = {0};
    bool ok = true;
    if (r->messages)
        ok = render(model, r->messages, r->tools, &text, err);
    struct str prompt = r->messages ? strbuf_str(&text) : str_from(r->prompt);
    ok = ok && tokenizer_encode(model->bundle.tokenizer, prompt, r->messages ? 0 : TOKENIZER_ADD_SPECIAL, ids,
                                err);
    strbuf_deinit(&text);
    return ok;
}

// The first four have fields of their own.
static bool sampling_of(const loam_model *model, const struct loam_request *r, struct sampler_params *out,
                        struct logit_bias *bias, struct err *err) {
    struct sampler_params p = bundle_sampling(&model->bundle);
    p.temperature = r->temperature >= 0 ? r->temperature : p.temperature;
    p.top_p = r->top_p >= 0 ? r->top_p : p.top_p;
    p.min_p = r->min_p >= 0 ? r->min_p : p.min_p;
    p.top_k = r->top_k >= 0 ? r->top_k : p.top_k;
    p.seed = r->seed;
    for (uint32_t i = 0; i < r->n_sampling; i++) {
        const struct loam_sampling *one = &r->sampling[i];
        size_t at = 0;
        while (at < SAMPLER_OPTIONS_N && strcmp(one->name, SAMPLER_OPTIONS[at].name) != 0)
            at++;
        if (at == SAMPLER_OPTIONS_N)
            return err_set(err, ERR_INVALID, "there is no sampling option \"%s\"", one->name);
        const struct sampler_option *o = &SAMPLER_OPTIONS[at];
        if (!(one->value >= o->min && one->value <= o->max))
            return err_set(err, ERR_INVALID, "%s must be from %g to %g, not %g", o->name, o->min, o->max,
                           one->value);
        if (o->kind != SAMPLER_REAL && one->value != floor(one->value))
            return err_set(err, ERR_INVALID, "%s must be a whole number, not %g", o->name, one->value);
        sampler_option_set(&p, at, one->value);
    }
    for (uint32_t i = 0; i < r->n_bias; i++)
        bias[i] = (struct logit_bias){r->bias[i].id, r->bias[i].bias};
    p.bias = bias;
    p.n_bias = r->n_bias;
    *out = p;
    return true;
}

static struct loam_generation *generation_create(struct err *err) {
    struct loam_generation *g = calloc(1, sizeof *g);
    if (!g) {
        err_set(err, ERR_NOMEM, "out of memory for a request");
        return NULL;
    }
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->ended, NULL);
    return g;
}

static void generation_free(struct loam_generation *g) {
    gen_ticket_release(g->ticket);
    free(g->values);
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

loam_generation *loam_start(loam_model *model, const struct loam_request *r, struct loam_error *error) {
    struct err err = {0};
    struct token_list ids = {0};
    struct str stops[16], breakers[32];
    struct sampler_params sampling;
    struct logit_bias *bias = NULL;
    struct loam_generation *g = generation_create(&err);
    if (!g) {
        tell(error, &err);
        return NULL;
    }
    g->on_text = r->on_text;
    g->user = r->user;
    bool ok = r->n_stops <= sizeof stops / sizeof *stops ||
              err_set(&err, ERR_INVALID, "a request has at most 16 stops, not %u", r->n_stops);
    for (uint32_t i = 0; ok && i < r->n_stops; i++)
        stops[i] = str_from(r->stops[i]);
    ok = ok && (r->n_dry_breakers <= sizeof breakers / sizeof *breakers ||
                err_set(&err, ERR_INVALID, "a request has at most 32 dry_breakers, not %u", r->n_dry_breakers));
    for (uint32_t i = 0; ok && i < r->n_dry_breakers; i++)
        breakers[i] = str_from(r->dry_breakers[i]);
    if (ok) {
        bias = calloc((size_t)r->n_bias + 1, sizeof *bias);
        ok = bias || err_set(&err, ERR_NOMEM, "out of memory for a request");
    }
    if (ok && sampling_of(model, r, &sampling, bias, &err) && prompt_of(model, r, &ids, &err)) {
        struct gen_request request = {
            .prompt = ids.ids, .n_prompt = (uint32_t)ids.n,
            .max_tokens = r->max_tokens ? r->max_tokens : bundle_max_tokens(&model->bundle),
            .stops = stops, .n_stops = r->n_stops, .sampling = sampling, .ignore_eos = r->ignore_eos,
            .priority = r->priority == LOAM_BATCH ? GEN_BATCH : GEN_INTERACTIVE,
            .dry_breakers = breakers, .n_dry_breakers = r->n_dry_breakers,
            .dry_breakers_given = r->dry_breakers != NULL, .on_event = on_event, .user = g};
        g->ticket = engine_submit(model->engine, &request, &err);
    }
    free(bias);
    token_list_deinit(&ids);
    if (!g->ticket) {
        generation_free(g);
        tell(error, &err);
        return NULL;
    }
    pthread_mutex_lock(&g->lock);
    g->ticket_known = true;
    if (g->stop_asked)
        gen_ticket_cancel(g->ticket);
    pthread_mutex_unlock(&g->lock);
    return g;
}

void loam_cancel(loam_generation *generation) {
    gen_ticket_cancel(generation->ticket);
}

static void wait_done(struct loam_generation *g) {
    pthread_mutex_lock(&g->lock);
    while (!g->done)
        pthread_cond_wait(&g->ended, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

bool loam_wait(loam_generation *g, struct loam_result *result, struct loam_error *error) {
    wait_done(g);
    bool ok = g->finish != FINISH_ERROR || tell(error, &g->err);
    if (result)
        *result = (struct loam_result){
            .finish = g->finish == FINISH_LENGTH      ? LOAM_FINISH_LENGTH
                      : g->finish == FINISH_CANCELLED ? LOAM_FINISH_CANCELLED
                                                      : LOAM_FINISH_STOP,
            .n_prompt = g->usage.n_prompt, .n_generated = g->usage.n_generated,
            .n_cached = g->usage.n_cached, .prefill_ms = g->usage.prefill_ms, .decode_ms = g->usage.decode_ms};
    generation_free(g);
    return ok;
}

bool loam_generate(loam_model *model, const struct loam_request *request, struct loam_result *result,
                   struct loam_error *error) {
    loam_generation *g = loam_start(model, request, error);
    return g && loam_wait(g, result, error);
}

// ---- Embeddings and reranking -----------------------------------------------------------------
// Read a prompt for values of its last token; they are in *out, malloc'd.
static bool read_values(loam_model *model, const struct token_list *ids, enum gen_want want, float **out,
                        uint32_t *n_out, struct err *err) {
    struct loam_generation *g = generation_create(err);
    if (!g)
        return false;
    struct gen_request request = {.want = want, .prompt = ids->ids, .n_prompt = (uint32_t)ids->n,
                                  .sampling = sampler_params_default(), .on_event = on_event, .user = g};
    g->ticket = engine_submit(model->engine, &request, err);
    bool ok = g->ticket != NULL;
    if (ok) {
        pthread_mutex_lock(&g->lock);
        g->ticket_known = true;
        pthread_mutex_unlock(&g->lock);
        wait_done(g);
        if (g->finish == FINISH_ERROR)
            *err = g->err;
        else if (g->finish == FINISH_CANCELLED)
            err_set(err, ERR_CANCELLED, "the model was closed");
        else if (!g->values)
            err_set(err, ERR_NOMEM, "out of memory for %u values", g->n_values);
        ok = g->finish == FINISH_STOP && g->values;
        *out = g->values; // handed over
        *n_out = g->n_values;
        g->values = NULL;
    }
    generation_free(g);
    return ok;
}

bool loam_embed(loam_model *model, const char *text, size_t n, uint32_t n_dimensions, float **vector,
                uint32_t *n_vector, struct loam_error *error) {
    struct err err = {0};
    struct token_list ids = {0};
    float *values = NULL;
    uint32_t n_values = 0;
    bool ok = pooled_embed_prompt(&model->bundle, (struct str){text, n}, &ids, &err) &&
              read_values(model, &ids, GEN_WANT_HIDDEN, &values, &n_values, &err);
    n_values = ok ? pooled_embedding(&model->bundle, values, n_values, n_dimensions, &err) : 0;
    token_list_deinit(&ids);
    if (n_values == 0) {
        free(values);
        return tell(error, &err);
    }
    *vector = values;
    *n_vector = n_values;
    return true;
}

bool loam_rerank(loam_model *model, const char *instruction, const char *query, const char *document,
                 double *score, struct loam_error *error) {
    struct err err = {0};
    struct token_list ids = {0};
    struct rerank_query what = {.instruction = instruction ? str_from(instruction) : (struct str){0},
                                .query = str_from(query), .document = str_from(document)};
    float *logits = NULL;
    uint32_t n_vocab;
    bool ok = pooled_rerank_prompt(&model->bundle, &what, &ids, &err) &&
              read_values(model, &ids, GEN_WANT_LOGITS, &logits, &n_vocab, &err);
    if (ok)
        *score = pooled_rerank_score(&model->bundle, logits);
    free(logits);
    token_list_deinit(&ids);
    return ok || tell(error, &err);
}
