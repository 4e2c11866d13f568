#include "server/answer.h"

#include <stdlib.h>

#include "base/hash.h"
#include "server/gen_job.h"
#include "server/metrics.h"

enum { BACKLOG_BYTES_MAX = 256 * 1024 }; // of a reader that is slower than the model

struct choice {
    struct answer *answer;
    uint32_t idx;
    struct gen_job *job; // NULL before it starts and after it ended
    struct output_parser *parser;
    struct strbuf reasoning; // to be counted
};

struct answer {
    struct server *server;
    struct served *served; // a reference
    struct http_exchange *exchange;
    const struct answer_surface *surface;
    void *state;
    struct generation_fields fields;
    struct logit_bias *bias;
    struct token_list *prompts;
    uint32_t n_prompts, n_choices, n_started, n_done;
    const struct output_format *format;
    json_t *tools, *keep;
    bool reasoning_open, exact, whole;
    token_id *shown;
    uint32_t n_shown;
    struct answer_usage usage;
    struct choice *choices; // [n_choices]
};

static void answer_free(struct answer *a) {
    if (!a)
        return;
    for (uint32_t i = 0; a->choices && i < a->n_choices; i++) {
        output_parser_destroy(a->choices[i].parser);
        strbuf_deinit(&a->choices[i].reasoning);
        if (a->choices[i].job)
            gen_job_abandon(a->choices[i].job);
    }
    for (uint32_t i = 0; a->prompts && i < a->n_prompts; i++)
        token_list_deinit(&a->prompts[i]);
    json_decref(a->tools);
    json_decref(a->keep);
    grammar_release(a->fields.grammar);
    free(a->prompts);
    free(a->bias);
    free(a->shown);
    free(a->choices);
    served_release(a->served);
    free(a);
}

static void on_gone(void *user) {
    struct answer *a = user;
    a->surface->gone(a->state);
    answer_free(a);
}

static void end(struct answer *a, const struct err *err) {
    const struct answer_surface *surface = a->surface;
    void *state = a->state;
    struct answer_usage usage = a->usage;
    struct served *served = served_acquire(a->served); // the surface still speaks of it
    answer_free(a);
    surface->done(state, &usage, err);
    served_release(served);
}

static void on_drained(void *user) {
    struct answer *a = user;
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (a->choices[i].job)
            gen_job_hold(a->choices[i].job, false);
}

static void on_piece(void *user, const struct output_piece *piece) {
    struct choice *c = user;
    if (piece->kind == OUTPUT_REASONING)
        strbuf_append(&c->reasoning, piece->text);
    c->answer->surface->piece(c->answer->state, c->idx, piece);
}

static void on_delta(void *user, const struct gen_delta *delta);

// Start choices until all have started or the engine has its hands full with ours.
static bool start_choices(struct answer *a, struct err *err) {
    while (a->n_started < a->n_choices) {
        struct choice *c = &a->choices[a->n_started];
        const struct token_list *prompt = &a->prompts[a->n_started / a->fields.n];
        struct gen_request request = {
            .prompt = prompt->ids, .n_prompt = (uint32_t)prompt->n, .max_tokens = a->fields.max_tokens,
            .sampling = a->fields.sampling, .stops = a->fields.stops, .n_stops = a->fields.n_stops,
            .dry_breakers = a->fields.dry_breakers, .n_dry_breakers = a->fields.n_dry_breakers,
            .dry_breakers_given = a->fields.dry_breakers_given,
            .priority = a->fields.priority, .ignore_eos = a->fields.ignore_eos, .shown = a->shown, .n_shown = a->n_shown,
            .grammar = a->fields.grammar};
        uint32_t of_prompt = a->n_started % a->fields.n;
        if (of_prompt) // the first choice is the one that n = 1 gives
            request.sampling.seed = hash_u64(request.sampling.seed + of_prompt);
        if (a->format) {
            struct output_parser_options options = {.format = a->format, .tools = a->tools,
                                                    .reasoning_open = a->reasoning_open,
                                                    .exact = a->exact, .whole = a->whole,
                                                    .fn = on_piece, .user = c};
            if (!c->parser)
                c->parser = output_parser_create(&options, err);
            if (!c->parser)
                return false;
        }
        c->job = gen_job_start(a->server, a->served, &request, on_delta, c, err);
        if (!c->job)
            return err->code == ERR_BUSY && a->n_started > a->n_done; // one of ours will make room
        a->n_started++;
    }
    return true;
}

static void count_end(struct answer *a, struct choice *c, const struct gen_usage *usage) {
    if (c->idx % a->fields.n == 0) {
        a->usage.n_prompt += usage->n_prompt;
        a->usage.n_cached += usage->n_cached;
    }
    a->usage.n_generated += usage->n_generated;
    if (c->reasoning.n) {
        struct token_list ids = {0};
        struct err ignored;
        if (tokenizer_encode(a->served->bundle.tokenizer, strbuf_str(&c->reasoning), 0, &ids, &ignored))
            a->usage.n_reasoning += ids.n < usage->n_generated ? (uint32_t)ids.n : usage->n_generated;
        token_list_deinit(&ids);
    }
    metrics_count(&a->server->metrics, usage);
}

static bool push_text(struct choice *c, struct str text) {
    if (text.n && c->parser)
        return output_parser_push(c->parser, text);
    if (text.n)
        on_piece(c, &(struct output_piece){.kind = OUTPUT_CONTENT, .text = text});
    return true;
}

static void on_delta(void *user, const struct gen_delta *delta) {
    struct choice *c = user;
    struct answer *a = c->answer;
    struct err err = {0};
    bool ok = true;
    size_t at = 0;
    for (size_t i = 0; ok && a->surface->tokens && i < delta->n_tokens; i++) { // so that a piece knows its tokens
        a->surface->tokens(a->state, c->idx, &delta->tokens[i], 1);
        ok = push_text(c, str_slice(delta->text, at, delta->text_ends[i]));
        at = delta->text_ends[i];
    }
    ok = ok && push_text(c, str_slice(delta->text, at, delta->text.n));
    if (!delta->done) {
        if (!ok) {
            err_set(&err, ERR_NOMEM, "out of memory for the answer");
            end(a, &err);
        } else if (http_stream_backlog(a->exchange) > BACKLOG_BYTES_MAX) {
            for (uint32_t i = 0; i < a->n_choices; i++)
                if (a->choices[i].job)
                    gen_job_hold(a->choices[i].job, true);
        }
        return;
    }
    c->job = NULL;
    a->n_done++;
    if (delta->finish == FINISH_CANCELLED || delta->finish == FINISH_ERROR) {
        if (delta->finish == FINISH_CANCELLED)
            err_set(&err, ERR_BUSY, "the server is shutting down");
        end(a, delta->err ? delta->err : &err);
        return;
    }
    if (c->parser)
        ok = ok && output_parser_finish(c->parser);
    count_end(a, c, &delta->usage);
    struct answer_end choice_end = {.finish = delta->finish, .stop_text = delta->stop_text,
                                    .n_calls = c->parser ? output_parser_n_calls(c->parser) : 0};
    a->surface->choice_done(a->state, c->idx, &choice_end);
    if (!ok || c->reasoning.failed)
        err_set(&err, ERR_NOMEM, "out of memory for the answer");
    else if (!start_choices(a, &err))
        ok = false;
    else
        err_clear(&err);
    if (err.code || a->n_done == a->n_choices)
        end(a, err.code ? &err : NULL);
}

// Special tokens that are marks of the format.
static void add_shown(void *user, struct str mark) {
    struct answer *a = user;
    const struct tokenizer *tokenizer = a->served->bundle.tokenizer;
    struct token_list ids = {0};
    struct err ignored;
    if (tokenizer_encode(tokenizer, mark, 0, &ids, &ignored))
        for (size_t i = 0; i < ids.n && a->n_shown < 64; i++)
            if (tokenizer_is_special(tokenizer, ids.ids[i]))
                a->shown[a->n_shown++] = ids.ids[i];
    token_list_deinit(&ids);
}

bool answer_start(struct server *server, struct http_exchange *exchange, const struct answer_options *o,
                  const struct answer_surface *surface, void *state, struct err *err) {
    enum gen_priority priority;
    if (!request_priority(exchange, o->fields, &priority, err))
        return false;
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(err, ERR_NOMEM, "out of memory for a request");
    *a = (struct answer){.server = server, .served = served_acquire(server->served), .exchange = exchange, .surface = surface, .state = state,
                         .fields = *o->fields, .n_prompts = o->n_prompts,
                         .n_choices = o->n_prompts * o->fields->n, .format = o->format,
                         .tools = json_incref((json_t *)(uintptr_t)o->tools), .keep = json_incref(o->keep),
                         .reasoning_open = o->reasoning_open, .exact = o->exact, .whole = o->whole};
    a->fields.priority = priority;
    if (a->fields.grammar)
        grammar_acquire(a->fields.grammar);
    a->choices = calloc(a->n_choices, sizeof *a->choices);
    a->prompts = calloc(a->n_prompts, sizeof *a->prompts);
    a->shown = o->format ? calloc(64, sizeof *a->shown) : NULL;
    a->bias = malloc((o->fields->sampling.n_bias + 1) * sizeof *a->bias);
    if (!a->choices || !a->prompts || !a->bias || (o->format && !a->shown)) {
        answer_free(a);
        return err_set(err, ERR_NOMEM, "out of memory for a request");
    }
    if (o->fields->sampling.n_bias)
        memcpy(a->bias, o->fields->sampling.bias, o->fields->sampling.n_bias * sizeof *a->bias);
    a->fields.sampling.bias = a->fields.bias = a->bias;
    for (uint32_t i = 0; i < a->n_choices; i++)
        a->choices[i] = (struct choice){.answer = a, .idx = i};
    if (o->format)
        output_format_marks(o->format, add_shown, a);
    memcpy(a->prompts, o->prompts, a->n_prompts * sizeof *a->prompts);
    if (!start_choices(a, err)) {
        memset(a->prompts, 0, a->n_prompts * sizeof *a->prompts); // still the caller's
        answer_free(a);
        return false;
    }
    memset(o->prompts, 0, a->n_prompts * sizeof *o->prompts);
    err_clear(err);
    http_on_gone(exchange, on_gone, a);
    http_on_drained(exchange, on_drained, a);
    return true;
}
