#include "server/gen_job.h"

#include <pthread.h>
#include <stdlib.h>

struct gen_job {
    struct server *server;
    const struct gen_job_surface *surface;
    // Event thread only.
    void *state; // NULL once the client is gone
    struct gen_ticket *ticket;

    pthread_mutex_t lock; // guards the fields below
    bool posted;          // a take() is on its way to the event thread
    struct strbuf text;
    bool done;
    enum finish_reason finish;
    struct gen_usage usage;
    struct err err;
    struct strbuf stop_text;
};

static void job_free(struct gen_job *job) {
    gen_ticket_release(job->ticket);
    strbuf_deinit(&job->text);
    strbuf_deinit(&job->stop_text);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

// On the event thread: hand over what has come since the last time.
static void take(void *user) {
    struct gen_job *job = user;
    pthread_mutex_lock(&job->lock);
    struct strbuf text = job->text;
    job->text = (struct strbuf){0};
    job->posted = false;
    bool done = job->done;
    pthread_mutex_unlock(&job->lock);
    if (job->state && text.n)
        job->surface->delta(job->state, strbuf_str(&text));
    if (done) { // nobody else touches the job any more
        if (job->state)
            job->surface->done(job->state, job->finish, strbuf_str(&job->stop_text), &job->usage,
                               job->finish == FINISH_ERROR ? &job->err : NULL);
        job_free(job);
    }
    strbuf_deinit(&text);
}

// On the engine thread.
static void on_event(const struct gen_event *event, void *user) {
    struct gen_job *job = user;
    pthread_mutex_lock(&job->lock);
    strbuf_append(&job->text, event->text);
    if (event->kind == GEN_DONE) {
        job->done = true;
        job->finish = event->finish;
        job->usage = *event->usage;
        if (event->err)
            job->err = *event->err;
        strbuf_append(&job->stop_text, event->stop_text);
    }
    // A token without text (a held-back character) is no news.
    bool post = !job->posted && (job->done || job->text.n);
    job->posted |= post;
    pthread_mutex_unlock(&job->lock);
    if (post && !http_post(job->server->http, take, job)) {
        pthread_mutex_lock(&job->lock);
        job->posted = false; // out of memory: the next token tries again
        pthread_mutex_unlock(&job->lock);
    }
}

static void on_gone(void *user) {
    struct gen_job *job = user;
    void *state = job->state;
    job->state = NULL;
    gen_ticket_cancel(job->ticket);
    job->surface->gone(state);
}

bool gen_job_start(struct server *server, struct http_exchange *exchange, struct gen_request *request,
                   const struct gen_job_surface *surface, void *state, struct err *err) {
    struct gen_job *job = calloc(1, sizeof *job);
    if (!job)
        return err_set(err, ERR_NOMEM, "out of memory for a request");
    *job = (struct gen_job){.server = server, .surface = surface, .state = state};
    pthread_mutex_init(&job->lock, NULL);
    request->on_event = on_event;
    request->user = job;
    job->ticket = engine_submit(server->engine, request, err);
    if (!job->ticket) {
        job_free(job);
        return false;
    }
    http_on_gone(exchange, on_gone, job);
    return true;
}
