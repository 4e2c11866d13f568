// A server whose model says what its prompt tells it to: the text between the last "<<<" and ">>>". The engine's
// interface is played by this file, so that tool calls and reasoning can be driven end to end. Where the request has
// a grammar, a script that it refuses, or that ends before it may, is an error that says so.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/server.h"

struct engine {
    struct engine_plan plan;
    const struct tokenizer *tokenizer;
    _Atomic uint32_t n_live;
};

struct gen_ticket {
    struct engine *engine;
    _Atomic int references;
    _Atomic bool cancelled;
    gen_event_fn *on_event;
    void *user;
    char *text;
    struct err refused; // by the grammar
    uint32_t n_prompt, max_tokens;
};

void gen_ticket_release(struct gen_ticket *t) {
    if (t && atomic_fetch_sub(&t->references, 1) == 1) {
        free(t->text);
        free(t);
    }
}

void gen_ticket_cancel(struct gen_ticket *t) {
    atomic_store(&t->cancelled, true);
}

// The text in pieces of three bytes and less: marks are cut anywhere.
static void *say(void *user) {
    struct gen_ticket *t = user;
    struct gen_usage usage = {.n_prompt = t->n_prompt};
    size_t n = strlen(t->text);
    enum finish_reason finish = FINISH_STOP;
    for (size_t i = 0; i < n && finish == FINISH_STOP;) {
        size_t m = 1 + usage.n_generated % 3;
        while (i + m < n && ((unsigned char)t->text[i + m] & 0xC0) == 0x80)
            m++;
        m = m < n - i ? m : n - i;
        usage.n_generated++;
        struct gen_event event = {.kind = GEN_TOKEN, .text = {t->text + i, m}};
        t->on_event(&event, t->user);
        i += m;
        usleep(500); // so that pieces stay pieces
        if (atomic_load(&t->cancelled))
            finish = FINISH_CANCELLED;
        else if (t->max_tokens && usage.n_generated == t->max_tokens)
            finish = FINISH_LENGTH;
    }
    struct gen_event event = {.kind = GEN_DONE, .finish = finish, .usage = &usage};
    if (t->refused.code) {
        event.finish = FINISH_ERROR;
        event.err = &t->refused;
    }
    t->on_event(&event, t->user);
    atomic_fetch_sub(&t->engine->n_live, 1);
    gen_ticket_release(t);
    return NULL;
}

// Does the grammar take the script as the whole answer?
static void try_grammar(struct gen_ticket *t, struct grammar *grammar) {
    struct token_list ids = {0};
    struct err err = {0};
    struct grammar_state *state = grammar_state_create(grammar, &err);
    if (!state || !tokenizer_encode(t->engine->tokenizer, str_from(t->text), TOKENIZER_NO_SPECIAL_SPELLINGS,
                                    &ids, &err))
        abort();
    for (size_t i = 0; i < ids.n && !t->refused.code; i++)
        if (!grammar_state_advance(state, ids.ids[i])) {
            struct strbuf rest = {0};
            tokenizer_decode(t->engine->tokenizer, ids.ids + i, (uint32_t)(ids.n - i), false, &rest, &err);
            err_set(&t->refused, ERR_INVALID, "the grammar refuses: %s", rest.data);
            strbuf_deinit(&rest);
        }
    if (!t->refused.code && !grammar_state_eos_allowed(state))
        err_set(&t->refused, ERR_INVALID, "the grammar wants more");
    if (t->refused.code)
        t->text[0] = 0;
    grammar_state_destroy(state);
    token_list_deinit(&ids);
}

struct gen_ticket *engine_submit(struct engine *engine, const struct gen_request *r, struct err *err) {
    struct gen_ticket *t = calloc(1, sizeof *t);
    struct strbuf prompt = {0};
    pthread_t thread;
    if (!t || !tokenizer_decode(engine->tokenizer, r->prompt, r->n_prompt, false, &prompt, err))
        abort();
    const char *from = prompt.data, *next;
    while ((next = strstr(from, "<<<")))
        from = next + 3;
    char *end = strstr(from, ">>>");
    while (end && end[3] == '>')
        end++;
    *t = (struct gen_ticket){.engine = engine, .on_event = r->on_event, .user = r->user,
                             .n_prompt = r->n_prompt, .max_tokens = r->max_tokens,
                             .text = end ? str_dup((struct str){from, (size_t)(end - from)}) : strdup("nothing")};
    if (r->grammar)
        try_grammar(t, r->grammar);
    atomic_init(&t->references, 2);
    atomic_fetch_add(&engine->n_live, 1);
    strbuf_deinit(&prompt);
    if (pthread_create(&thread, NULL, say, t) != 0)
        abort();
    pthread_detach(thread);
    return t;
}

const char *finish_reason_name(enum finish_reason reason) {
    return reason == FINISH_LENGTH ? "length" : "stop";
}
bool gen_priority_parse(const char *name, enum gen_priority *out, struct err *err) {
    (void)name, (void)err;
    *out = GEN_INTERACTIVE;
    return true;
}
uint32_t engine_n_live(const struct engine *engine) { return atomic_load(&engine->n_live); }
void engine_destroy(struct engine *engine) {
    while (engine && engine_n_live(engine))
        usleep(1000);
}
void engine_drain(struct engine *engine) { (void)engine; }
void engine_forget(struct engine *engine) { (void)engine; }
bool engine_flush(struct engine *engine, engine_flush_fn *fn, void *user, struct err *err) {
    (void)engine, (void)fn, (void)user;
    return err_set(err, ERR_UNSUPPORTED, "a script has no cache");
}
const struct engine_plan *engine_plan_of(const struct engine *engine) { return &engine->plan; }
void engine_stats(struct engine *engine, struct engine_stats *out) {
    *out = (struct engine_stats){.n_running = engine_n_live(engine)};
}

int main(void) {
    struct err err = {0};
    struct bundle bundle = {0};
    struct bundle_options bundle_options = {.backend_name = "cpu"};
    struct server_options options = server_options_default();
    options.port = 0;
    struct server *server = server_create(&options, &err);
    if (!server || !bundle_open(&bundle, &bundle_options, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    struct engine engine = {.plan.limits = {.ctx_len = 100000, .n_rows = 64}, .tokenizer = bundle.tokenizer};
    struct served *served = served_create(&bundle, &engine, &err);
    if (!served)
        return 1;
    server_attach(server, served);
    fprintf(stderr, "ready http://127.0.0.1:%u\n", server_port(server));
    server_run(server);
    server_destroy(server);
    return 0;
}
