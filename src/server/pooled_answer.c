#include "server/pooled_answer.h"

#include <stdlib.h>

#include "server/gen_job.h"
#include "server/metrics.h"

struct reading {
    struct pooled_answer *answer;
    uint32_t idx;
    struct gen_job *job; // NULL before it starts and after it ended
};

struct pooled_answer {
    struct server *server;
    struct served *served; // a reference
    const struct pooled_surface *surface;
    void *state;
    enum gen_want want;
    uint32_t n_prompts, n_started, n_done;
    uint64_t n_tokens;
    struct token_list *prompts; // [n_prompts]
    struct reading readings[];  // [n_prompts]
};

static void answer_free(struct pooled_answer *a) {
    for (uint32_t i = 0; i < a->n_prompts; i++) {
        if (a->readings[i].job)
            gen_job_abandon(a->readings[i].job);
        if (a->prompts)
            token_list_deinit(&a->prompts[i]);
    }
    served_release(a->served);
    free(a->prompts);
    free(a);
}

static void on_gone(void *user) {
    struct pooled_answer *a = user;
    a->surface->gone(a->state);
    answer_free(a);
}

static void on_delta(void *user, const struct gen_delta *delta);

// Start prompts until all have started or the engine has its hands full with ours.
static bool start_readings(struct pooled_answer *a, struct err *err) {
    for (; a->n_started < a->n_prompts; a->n_started++) {
        struct reading *r = &a->readings[a->n_started];
        const struct token_list *prompt = &a->prompts[a->n_started];
        struct gen_request request = {.want = a->want, .prompt = prompt->ids, .n_prompt = (uint32_t)prompt->n,
                                      .sampling = sampler_params_default()};
        r->job = gen_job_start(a->server, a->served, &request, on_delta, r, err);
        if (!r->job)
            return err->code == ERR_BUSY && a->n_started > a->n_done; // one of ours will make room
    }
    return true;
}

static void end(struct pooled_answer *a, const struct err *err) {
    const struct pooled_surface *surface = a->surface;
    void *state = a->state;
    uint64_t n_tokens = a->n_tokens;
    struct served *served = served_acquire(a->served); // the surface still speaks of it
    answer_free(a);
    surface->done(state, n_tokens, err);
    served_release(served);
}

static void on_delta(void *user, const struct gen_delta *delta) {
    struct reading *r = user;
    struct pooled_answer *a = r->answer;
    struct err err = {0};
    if (!delta->done)
        return;
    r->job = NULL;
    a->n_done++;
    a->n_tokens += delta->usage.n_prompt;
    if (delta->finish == FINISH_ERROR) {
        end(a, delta->err);
        return;
    }
    metrics_count(&a->server->metrics, &delta->usage);
    if (delta->finish == FINISH_CANCELLED || !delta->values)
        err_set(&err, ERR_BUSY, "the server is shutting down");
    else if (a->surface->values(a->state, r->idx, delta->values, delta->n_values, &err) && start_readings(a, &err))
        err_clear(&err);
    if (err.code || a->n_done == a->n_prompts)
        end(a, err.code ? &err : NULL);
}

// All of them before any is read: a prompt that cannot be read must not cost the others' time.
static bool check_prompts(const struct server *server, const struct token_list *prompts, uint32_t n,
                          const char *param, struct request_error *error) {
    uint32_t ctx_len = engine_plan_of(server->served->engine)->limits.ctx_len;
    uint32_t n_vocab = model_config_of(server->served->bundle.model)->n_vocab;
    for (uint32_t i = 0; i < n; i++) {
        error->param = param;
        if (prompts[i].n >= ctx_len) {
            error->code = "context_length_exceeded";
            return err_set(&error->err, ERR_INVALID, "'%s' number %u has %zu tokens, this server's context holds %u; "
                           "shorten it or start loam with a longer --context-length", param, i, prompts[i].n,
                           ctx_len - 1);
        }
        for (size_t t = 0; t < prompts[i].n; t++)
            if ((uint32_t)prompts[i].ids[t] >= n_vocab)
                return err_set(&error->err, ERR_INVALID, "'%s' number %u: token id %d is outside the vocabulary of %u",
                               param, i, prompts[i].ids[t], n_vocab);
        error->param = NULL;
    }
    return true;
}

bool pooled_answer_start(struct server *server, struct http_exchange *exchange, enum gen_want want,
                         struct token_list *prompts, uint32_t n_prompts, const char *param,
                         const struct pooled_surface *surface, void *state, struct request_error *error) {
    if (!check_prompts(server, prompts, n_prompts, param, error))
        return false;
    struct pooled_answer *a = calloc(1, sizeof *a + n_prompts * sizeof *a->readings);
    if (a)
        *a = (struct pooled_answer){.server = server, .served = served_acquire(server->served), .surface = surface,
                                    .state = state, .want = want, .n_prompts = n_prompts,
                                    .prompts = calloc(n_prompts, sizeof *a->prompts)};
    if (!a || !a->prompts) {
        if (a)
            answer_free(a);
        return err_set(&error->err, ERR_NOMEM, "out of memory for a request");
    }
    for (uint32_t i = 0; i < n_prompts; i++)
        a->readings[i] = (struct reading){.answer = a, .idx = i};
    memcpy(a->prompts, prompts, n_prompts * sizeof *a->prompts);
    if (!start_readings(a, &error->err)) {
        memset(a->prompts, 0, n_prompts * sizeof *a->prompts); // still the caller's
        answer_free(a);
        return false;
    }
    memset(prompts, 0, n_prompts * sizeof *prompts);
    err_clear(&error->err);
    http_on_gone(exchange, on_gone, a);
    return true;
}
