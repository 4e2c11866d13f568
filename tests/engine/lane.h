// tests/engine/lane.h - a zoo model behind the engine, and requests whose every token and logprob is kept.
#ifndef LOAM_TESTS_ENGINE_LANE_H
#define LOAM_TESTS_ENGINE_LANE_H
#include "../model/zoo.h"

#include <pthread.h>

#include "base/clock.h"
#include "engine/engine.h"

enum { LANE_TOKENS_MAX = 96 };

struct lane {
    struct backend *be;
    struct model *model;
    struct engine *engine;
};

struct lane_options {
    enum backend_math math;
    enum kv_kind kv;
    uint32_t n_threads;
    struct engine_options engine;
};

static inline void lane_close(struct lane *lane) {
    engine_destroy(lane->engine);
    model_destroy(lane->model);
    if (lane->be)
        lane->be->ops->close(lane->be);
    *lane = (struct lane){0};
}

static inline bool lane_open(struct lane *lane, const char *folder, const struct lane_options *o, struct err *err) {
    *lane = (struct lane){0};
    struct backend_options be = {.n_threads = o->n_threads, .math = o->math, .cpu_level = getenv("LOAM_CPU_LEVEL"),
                                 .device = -1};
    const char *device = getenv("LOAM_TEST_DEVICE"); // another backend, by hand
    lane->be = backend_open(device ? device : "cpu", &be, err);
    lane->model = lane->be ? model_open(folder, lane->be, &(struct model_options){.kv = o->kv}, err) : NULL;
    lane->engine = lane->model ? engine_create(lane->model, NULL, &o->engine, err) : NULL;
    if (!lane->engine)
        lane_close(lane);
    return lane->engine != NULL;
}

struct lane_answer {
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t ended;
    bool done;
    enum finish_reason finish;
    struct err err;
    uint32_t n_tokens;
    token_id tokens[LANE_TOKENS_MAX];
    float logprobs[LANE_TOKENS_MAX];
    struct gen_usage usage;
    struct gen_ticket *ticket;
};

static inline void lane_on_event(const struct gen_event *event, void *user) {
    struct lane_answer *a = user;
    pthread_mutex_lock(&a->lock);
    if (event->kind == GEN_TOKEN && a->n_tokens < LANE_TOKENS_MAX) {
        a->tokens[a->n_tokens] = event->token.id;
        a->logprobs[a->n_tokens++] = event->token.logprob;
    }
    if (event->kind == GEN_DONE) {
        a->done = true;
        a->finish = event->finish;
        a->usage = *event->usage;
        if (event->err)
            a->err = *event->err;
        pthread_cond_signal(&a->ended);
    }
    pthread_mutex_unlock(&a->lock);
}

// Ask for n_answer tokens, drawn at temperature 1 from `seed`. lane_wait() ends it.
static inline void lane_ask(struct lane *lane, struct lane_answer *a, const token_id *ids, uint32_t n_ids,
                            uint32_t n_answer, uint64_t seed) {
    struct err err = {0};
    *a = (struct lane_answer){0};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->ended, NULL);
    struct gen_request request = {.prompt = ids, .n_prompt = n_ids, .max_tokens = n_answer, .ignore_eos = true,
                                  .sampling = sampler_params_default(), .on_event = lane_on_event, .user = a};
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.sampling.want_logprob = true;
    a->ticket = engine_submit(lane->engine, &request, &err);
    check_ok(a->ticket, &err);
}

static inline void lane_wait(struct lane_answer *a) {
    pthread_mutex_lock(&a->lock);
    while (!a->done)
        pthread_cond_wait(&a->ended, &a->lock);
    pthread_mutex_unlock(&a->lock);
    gen_ticket_release(a->ticket);
    pthread_cond_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
}

// The engine's counts once nothing runs any more; pages in use that the prompt cache does not hold fail the test.
static inline void lane_settle(struct lane *lane, struct engine_stats *stats) {
    uint64_t deadline = clock_ns() + 5000000000u;
    do {
        engine_stats(lane->engine, stats);
    } while ((stats->n_running || stats->n_waiting || engine_n_live(lane->engine)) && clock_ns() < deadline);
    assert_int_equal(stats->n_running + stats->n_waiting, 0);
    for (uint32_t g = 0; g < stats->n_groups; g++)
        if (stats->n_pages[g] - stats->n_pages_free[g] > stats->cache.n_nodes)
            fail_msg("group %u: %u of %u pages are free, the prompt cache holds %u", g, stats->n_pages_free[g],
                     stats->n_pages[g], stats->cache.n_nodes);
}

// Every token and every logprob's bits, up to where `got` was cancelled.
static inline void lane_check_same(const struct lane_answer *want, const struct lane_answer *got, const char *what) {
    if (got->finish == FINISH_ERROR)
        fail_msg("%s: %s", what, got->err.message);
    if (got->finish != FINISH_CANCELLED && want->n_tokens != got->n_tokens)
        fail_msg("%s: %u tokens, alone %u", what, got->n_tokens, want->n_tokens);
    for (uint32_t i = 0; i < got->n_tokens; i++)
        if (want->tokens[i] != got->tokens[i] ||
            memcmp(&want->logprobs[i], &got->logprobs[i], sizeof *want->logprobs) != 0)
            fail_msg("%s: token %u of the answer is %d (%.9g), alone %d (%.9g)", what, i, got->tokens[i],
                     (double)got->logprobs[i], want->tokens[i], (double)want->logprobs[i]);
}
#endif
