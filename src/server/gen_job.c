#include "server/gen_job.h"

#include <pthread.h>
#include <stdlib.h>

struct gen_job {
    struct server *server;
    struct served *served; // a reference: the ticket is its engine's
    bool want_tokens;
    // Event thread only.
    gen_delta_fn *fn; // NULL once abandoned
    void *user;
    struct gen_ticket *ticket;
    bool held;

    pthread_mutex_t lock; // guards the fields below
    bool posted;          // a take() is on its way to the event thread
    struct strbuf text;
    struct sampled *tokens;
    size_t *text_ends; // [n_tokens] bytes of text after each
    size_t n_tokens, n_tokens_max;
    bool done;
    enum finish_reason finish;
    struct gen_usage usage;
    struct err err;
    struct strbuf stop_text;
    float *values; // [n_values]
    uint32_t n_values;
};

static void job_free(struct gen_job *job) {
    gen_ticket_release(job->ticket);
    strbuf_deinit(&job->text);
    strbuf_deinit(&job->stop_text);
    free(job->tokens);
    free(job->text_ends);
    free(job->values);
    pthread_mutex_destroy(&job->lock);
    served_release(job->served);
    free(job);
}

// On the event thread: hand over what has come since the last time.
static void take(void *user) {
    struct gen_job *job = user;
    pthread_mutex_lock(&job->lock);
    job->posted = false;
    if (job->held && job->fn) {
        pthread_mutex_unlock(&job->lock);
        return;
    }
    struct strbuf text = job->text;
    struct sampled *tokens = job->tokens;
    size_t *text_ends = job->text_ends;
    struct gen_delta delta = {.tokens = tokens, .text_ends = text_ends, .n_tokens = job->n_tokens,
                              .done = job->done};
    job->text = (struct strbuf){0};
    job->tokens = NULL;
    job->text_ends = NULL;
    job->n_tokens = job->n_tokens_max = 0;
    pthread_mutex_unlock(&job->lock);
    delta.text = strbuf_str(&text);
    if (delta.done) { // nobody else touches the job any more
        if (text.failed) {
            job->finish = FINISH_ERROR;
            err_set(&job->err, ERR_NOMEM, "out of memory for the answer");
        }
        delta.finish = job->finish;
        delta.usage = job->usage;
        delta.stop_text = strbuf_str(&job->stop_text);
        delta.values = job->values;
        delta.n_values = job->n_values;
        delta.err = job->finish == FINISH_ERROR ? &job->err : NULL;
    }
    if (job->fn && (delta.text.n || delta.n_tokens || delta.done))
        job->fn(job->user, &delta);
    if (delta.done)
        job_free(job);
    strbuf_deinit(&text);
    free(tokens);
    free(text_ends);
}

// After the token's text is there.
static void keep_token(struct gen_job *job, const struct sampled *token) {
    if (job->n_tokens == job->n_tokens_max) {
        size_t n = job->n_tokens_max ? job->n_tokens_max * 2 : 16;
        struct sampled *grown = realloc(job->tokens, n * sizeof *grown);
        job->tokens = grown ? grown : job->tokens;
        size_t *ends = realloc(job->text_ends, n * sizeof *ends);
        job->text_ends = ends ? ends : job->text_ends;
        if (!grown || !ends) {
            job->text.failed = true;
            return;
        }
        job->n_tokens_max = n;
    }
    job->text_ends[job->n_tokens] = job->text.n;
    job->tokens[job->n_tokens++] = *token;
}

// True if a take() must be sent: there is something for it and none is on its way. A token without text (a
// held-back character) is no news. The caller then sends it, without the lock.
static bool claim_take_locked(struct gen_job *job) {
    bool post = !job->posted && (job->done || job->text.n);
    job->posted |= post;
    return post;
}

// Any thread, only after claim_take_locked() said so: until this take() runs nobody frees the job. Without the
// claim the job must not be touched once the lock is gone: a take() on its way may see `done` and free it.
static void send_take(struct gen_job *job) {
    if (http_post(job->server->http, take, job))
        return;
    pthread_mutex_lock(&job->lock);
    job->posted = false; // out of memory: the next token tries again
    pthread_mutex_unlock(&job->lock);
}

// On the engine thread.
static void on_event(const struct gen_event *event, void *user) {
    struct gen_job *job = user;
    pthread_mutex_lock(&job->lock);
    strbuf_append(&job->text, event->text);
    if (event->kind == GEN_TOKEN && job->want_tokens)
        keep_token(job, &event->token);
    if (event->kind == GEN_DONE) {
        job->done = true;
        job->finish = event->finish;
        job->usage = *event->usage;
        if (event->err)
            job->err = *event->err;
        strbuf_append(&job->stop_text, event->stop_text);
        if (event->n_values) {
            job->values = malloc(event->n_values * sizeof *job->values);
            job->n_values = event->n_values;
            if (job->values)
                memcpy(job->values, event->values, event->n_values * sizeof *job->values);
            else
                job->text.failed = true;
        }
    }
    bool claimed = claim_take_locked(job);
    pthread_mutex_unlock(&job->lock);
    if (claimed)
        send_take(job);
}

void gen_job_abandon(struct gen_job *job) {
    job->fn = NULL;
    gen_ticket_cancel(job->ticket);
    gen_job_hold(job, false); // what ended while it was held is freed now
}

void gen_job_hold(struct gen_job *job, bool hold) {
    if (job->held == hold)
        return;
    job->held = hold;
    if (hold)
        return;
    pthread_mutex_lock(&job->lock);
    bool claimed = claim_take_locked(job);
    pthread_mutex_unlock(&job->lock);
    if (claimed)
        send_take(job);
}

struct gen_job *gen_job_start(struct server *server, struct served *served, struct gen_request *request,
                              gen_delta_fn *fn, void *user, struct err *err) {
    if (!served->engine) {
        err_set(err, ERR_BUSY, "the server is shutting down");
        return NULL;
    }
    struct gen_job *job = calloc(1, sizeof *job);
    if (!job) {
        err_set(err, ERR_NOMEM, "out of memory for a request");
        return NULL;
    }
    *job = (struct gen_job){.server = server, .served = served_acquire(served), .fn = fn, .user = user,
                            .want_tokens = request->sampling.want_logprob};
    pthread_mutex_init(&job->lock, NULL);
    request->on_event = on_event;
    request->user = job;
    job->ticket = engine_submit(served->engine, request, err);
    if (!job->ticket) {
        job_free(job);
        return NULL;
    }
    return job;
}
