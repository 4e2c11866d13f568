#include "engine/engine.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "cache/kv_cache.h"
#include "engine/kv_identity.h"
#include "engine/step_builder.h"
#include "engine/stop_text.h"

enum {
    WAITING_DEFAULT = 64,
    DISK_IDLE_S_DEFAULT = 300,
    DISK_PAGES_A_STEP = 2,  // that come from disk beside running rows
    SPILL_PAUSE_MS = 100,   // between two pages that go to disk beside running rows
    LOAD_LOOK_MS = 1000,    // how often a disk that answers nothing is looked after
    STEP_MS_DEFAULT = 250,
    CHUNK_MIN = 16,         // tokens of a prompt that a step takes however slow the machine is
    STEPS_PASSED_MAX = 64,  // in which a batch request's prompt was passed over
};

// A request from submit to its last event. Two references: the submitter's ticket and the engine.
struct gen_ticket {
    _Atomic int references;
    _Atomic bool cancelled; // set by any thread, read by the engine between steps

    // The engine thread's own from here on.
    enum gen_want want;
    enum gen_priority priority;
    bool yields;                        // GEN_BATCH, and not yet passed over too often
    uint32_t n_passed, n_steps_passed;  // how often it was
    gen_event_fn *on_event;
    void *user;
    token_id *tokens; // prompt, then what was generated; [capacity]
    uint32_t n_prompt, n_tokens, n_tokens_max;
    uint32_t n_in_cache; // tokens whose KV is in the pages
    uint32_t n_found;    // of these, those that the prompt cache held at the last admission
    uint32_t n_in_step;  // of these, those that the running step computes
    uint64_t space;      // what of the prompt cache is fit for it
    struct prefix_load *load;  // of one that waits: what comes from disk of its prompt; NULL = nothing
    bool was_looked_up;        // on disk
    struct gen_ticket *leader; // of one that waits: who is reading the same prompt for both; NULL = nobody
    struct str *stops;   // [n_stops]
    uint32_t n_stops;
    token_id *shown; // [n_shown] special tokens that appear in the text; n_shown 0: all or none
    uint32_t n_shown;
    struct arena arena; // owns stops and shown
    bool ignore_eos;
    struct grammar_state *grammar; // NULL = any text
    struct sampler *sampler;
    struct detokenizer *detok; // NULL without a tokenizer
    struct strbuf pending;     // text that is settled but may begin a stop string
    struct kv_seq seq;
    bool seq_ready;
    uint32_t state_slot;
    uint32_t rope_variant;
    uint32_t logits_idx; // row of this step's logits, UINT32_MAX if none
    bool in_step;
    struct gen_usage usage;
    uint64_t submitted_ns, started_ns, first_token_ns;
};

struct engine {
    struct model *model;
    const struct tokenizer *tokenizer;
    struct engine_options options;
    struct engine_plan plan;
    uint32_t n_vocab;
    struct sampler_vocab vocab; // whose arrays are the next two
    token_id *ends, *newlines;
    pthread_mutex_t breakers_lock; // guards the field below
    struct dry_breakers *breakers; // the last that were asked for, NULL before
    pthread_t thread;
    bool thread_started;
    struct queue *inbox;         // submit -> engine thread
    _Atomic bool stopping;       // destroy -> engine thread
    _Atomic bool draining;       // drain -> submit
    _Atomic bool forgetting;     // forget -> engine thread
    _Atomic uint32_t n_live;     // submit +1, last event -1

    // The engine thread's own.
    struct kv_cache *kv;
    struct prefix_cache *prefix; // NULL = off
    struct disk_cache *disk;     // its second tier, NULL = none
    uint64_t spill_due_ns;       // when something of it is to be written
    _Atomic bool is_woken;       // the disk's thread -> engine thread: a wake-up is in the inbox
    struct step_builder step;
    struct gen_ticket **running; // [n_rows], those that yield last, each kind in order of admission
    struct gen_ticket **waiting; // [n_waiting_max + n_rows], first in first out
    uint32_t n_running, n_waiting, n_waiting_max;
    uint64_t token_ns;           // what a prompt's token costs, measured; 0 = not yet
    struct sampler_scratch *scratch;
    uint32_t *mask;       // [ceil(n_vocab / 32)] of the tokens that a grammar allows next
    float *hidden;        // [d_model] of a request for it
    uint32_t *free_slots; // recurrent state slots; stack
    uint32_t n_free_slots;

    pthread_mutex_t stats_lock; // guards the field below
    struct engine_stats stats;
    pthread_mutex_t flush_lock; // guards the field below
    struct flush *flushes;      // list of those who wait for one
};

struct flush {
    struct flush *next;
    engine_flush_fn *fn;
    void *user;
    uint64_t n_failed; // writes before it
};

const char *finish_reason_name(enum finish_reason reason) {
    static const char *const NAMES[] = {"none", "stop", "stop", "length", "cancelled", "error"};
    return NAMES[reason];
}

const char *gen_priority_name(enum gen_priority priority) {
    return priority == GEN_BATCH ? "batch" : "interactive";
}

bool gen_priority_parse(const char *name, enum gen_priority *out, struct err *err) {
    for (int p = GEN_INTERACTIVE; p <= GEN_BATCH; p++) {
        if (strcmp(name, gen_priority_name((enum gen_priority)p)) == 0) {
            *out = (enum gen_priority)p;
            return true;
        }
    }
    return err_set(err, ERR_INVALID, "priority is interactive or batch, not \"%.40s\"", name);
}

// ---- Tickets ----------------------------------------------------------------------------------
static void ticket_free(struct gen_ticket *t) {
    if (!t)
        return;
    sampler_destroy(t->sampler);
    grammar_state_destroy(t->grammar);
    detokenizer_destroy(t->detok);
    strbuf_deinit(&t->pending);
    arena_deinit(&t->arena);
    free(t->tokens);
    free(t);
}

void gen_ticket_release(struct gen_ticket *ticket) {
    if (ticket && atomic_fetch_sub_explicit(&ticket->references, 1, memory_order_acq_rel) == 1)
        ticket_free(ticket);
}

void gen_ticket_cancel(struct gen_ticket *ticket) {
    atomic_store_explicit(&ticket->cancelled, true, memory_order_release);
}

static bool check_request(const struct engine *engine, const struct gen_request *r, struct err *err) {
    uint32_t ctx_len = engine->plan.limits.ctx_len;
    if (r->n_prompt == 0)
        return err_set(err, ERR_INVALID, "the prompt is empty");
    if (r->n_prompt > ctx_len || (r->n_prompt == ctx_len && !model_is_encoder(engine->model)))
        return err_set(err, ERR_INVALID, "the prompt has %u tokens, but this server's context holds %u "
                       "including the answer; shorten the prompt or start loam with a longer "
                       "--context-length", r->n_prompt, ctx_len);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= engine->n_vocab)
            return err_set(err, ERR_INVALID, "token id %d at position %u is outside the vocabulary of %u",
                           r->prompt[i], i, engine->n_vocab);
    if (r->want != GEN_WANT_HIDDEN && !model_has_head(engine->model))
        return err_set(err, ERR_INVALID, "the model has no output head: it makes embeddings only");
    if (r->n_stops && !engine->tokenizer)
        return err_set(err, ERR_INVALID, "stop strings need a tokenizer");
    for (uint32_t i = 0; i < r->n_stops; i++)
        if (r->stops[i].n == 0)
            return err_set(err, ERR_INVALID, "a stop string is empty");
    return sampler_params_check(&r->sampling, engine->n_vocab, err);
}

// Where DRY's repetitions end, a reference. Making it looks at the whole vocabulary, and most requests ask for the
// same, so the last one is kept. Any thread.
static bool breakers_for(struct engine *engine, const struct gen_request *r, struct dry_breakers **out,
                         struct err *err) {
    const struct str *texts = r->dry_breakers_given ? r->dry_breakers : DRY_BREAKERS_DEFAULT;
    uint32_t n = r->dry_breakers_given ? r->n_dry_breakers
                                       : (uint32_t)(sizeof DRY_BREAKERS_DEFAULT / sizeof *DRY_BREAKERS_DEFAULT);
    *out = NULL;
    if (n == 0 || (!engine->tokenizer && !r->dry_breakers_given))
        return true;
    if (!engine->tokenizer)
        return err_set(err, ERR_INVALID, "DRY sequence breakers need a tokenizer");
    pthread_mutex_lock(&engine->breakers_lock);
    if (engine->breakers && dry_breakers_are(engine->breakers, texts, n))
        *out = dry_breakers_acquire(engine->breakers);
    pthread_mutex_unlock(&engine->breakers_lock);
    if (*out)
        return true;
    *out = dry_breakers_create(engine->tokenizer, texts, n, err);
    if (!*out)
        return false;
    pthread_mutex_lock(&engine->breakers_lock);
    struct dry_breakers *before = engine->breakers;
    engine->breakers = dry_breakers_acquire(*out);
    pthread_mutex_unlock(&engine->breakers_lock);
    dry_breakers_release(before);
    return true;
}

static struct gen_ticket *ticket_create(struct engine *engine, const struct gen_request *r,
                                        struct err *err) {
    struct gen_ticket *t = calloc(1, sizeof *t);
    if (!t)
        goto nomem;
    atomic_init(&t->references, 2);
    t->want = r->want;
    t->priority = r->priority;
    t->yields = r->priority == GEN_BATCH;
    t->on_event = r->on_event;
    t->user = r->user;
    t->n_prompt = t->n_tokens = t->usage.n_prompt = r->n_prompt;
    uint32_t room = engine->plan.limits.ctx_len - r->n_prompt;
    if (r->want != GEN_WANT_TEXT)
        room = 0; // nothing is appended
    t->n_tokens_max = r->n_prompt + (r->max_tokens ? min_u32(r->max_tokens, room) : room);
    t->ignore_eos = r->ignore_eos;
    t->state_slot = t->logits_idx = UINT32_MAX;
    uint32_t variant_from = model_rope_variant_from(engine->model);
    t->rope_variant = variant_from && t->n_tokens_max > variant_from;
    t->space = t->rope_variant;
    t->tokens = malloc(t->n_tokens_max * sizeof *t->tokens);
    t->stops = arena_array(&t->arena, struct str, r->n_stops);
    if (!t->tokens || !t->stops)
        goto nomem;
    memcpy(t->tokens, r->prompt, r->n_prompt * sizeof *t->tokens);
    t->n_shown = r->n_shown;
    t->shown = arena_array(&t->arena, token_id, r->n_shown);
    if (!t->shown)
        goto nomem;
    if (r->n_shown)
        memcpy(t->shown, r->shown, r->n_shown * sizeof *t->shown);
    for (; t->n_stops < r->n_stops; t->n_stops++)
        if (!arena_copy(&t->arena, r->stops[t->n_stops], &t->stops[t->n_stops]))
            goto nomem;
    struct dry_breakers *breakers = NULL;
    if (r->sampling.dry.multiplier > 0 && !breakers_for(engine, r, &breakers, err))
        goto failed;
    t->sampler = sampler_create(&r->sampling, &engine->vocab, breakers, err);
    dry_breakers_release(breakers);
    if (!t->sampler)
        goto failed;
    t->grammar = r->grammar ? grammar_state_create(r->grammar, err) : NULL;
    if (r->grammar && !t->grammar)
        goto failed;
    if (engine->tokenizer) {
        t->detok = detokenizer_create(engine->tokenizer, !r->show_special && r->n_shown == 0, err);
        if (!t->detok)
            goto failed;
    }
    t->submitted_ns = clock_ns();
    return t;
nomem:
    err_set(err, ERR_NOMEM, "out of memory for a request of %u tokens", r->n_prompt);
failed:
    ticket_free(t);
    return NULL;
}

struct gen_ticket *engine_submit(struct engine *engine, const struct gen_request *request,
                                 struct err *err) {
    if (!check_request(engine, request, err))
        return NULL;
    if (atomic_load_explicit(&engine->draining, memory_order_acquire)) {
        err_set(err, ERR_BUSY, "the server is shutting down");
        return NULL;
    }
    // The count is the bound: it covers those in the inbox, those waiting and those running.
    uint32_t limit = engine->n_waiting_max + engine->plan.limits.n_rows;
    if (atomic_fetch_add_explicit(&engine->n_live, 1, memory_order_acq_rel) >= limit) {
        atomic_fetch_sub_explicit(&engine->n_live, 1, memory_order_acq_rel);
        err_set(err, ERR_BUSY, "%u requests are waiting already; try again later", engine->n_waiting_max);
        return NULL;
    }
    struct gen_ticket *ticket = ticket_create(engine, request, err);
    if (ticket && queue_push(engine->inbox, ticket))
        return ticket;
    if (ticket) {
        ticket_free(ticket);
        err_set(err, ERR_BUSY, "the server is shutting down");
    }
    atomic_fetch_sub_explicit(&engine->n_live, 1, memory_order_acq_rel);
    return NULL;
}

// ---- The end of a request -----------------------------------------------------------------------
// Keep what a sequence has computed for later ones. Not after a failed step, nor for what only embeds: texts to
// embed seldom begin alike.
static void keep(struct engine *engine, struct gen_ticket *t) {
    if (engine->prefix && t->seq_ready && t->n_in_cache && t->want != GEN_WANT_HIDDEN)
        prefix_cache_insert(engine->prefix, t->space, t->tokens, t->n_in_cache, &t->seq, t->state_slot);
}

static void give_back(struct engine *engine, struct gen_ticket *t) {
    for (uint32_t i = 0; i < engine->n_waiting; i++)
        if (engine->waiting[i]->leader == t)
            engine->waiting[i]->leader = NULL; // it reads for itself
    prefix_load_destroy(t->load);
    t->load = NULL;
    if (t->seq_ready)
        kv_seq_deinit(engine->kv, &t->seq);
    t->seq_ready = t->in_step = false;
    t->logits_idx = UINT32_MAX;
    t->n_in_cache = 0;
    if (t->state_slot != UINT32_MAX)
        engine->free_slots[engine->n_free_slots++] = t->state_slot;
    t->state_slot = UINT32_MAX;
}

// The last event, given what is particular to it.
static void finish(struct engine *engine, struct gen_ticket *t, struct gen_event event) {
    enum finish_reason reason = event.finish;
    uint64_t now = clock_ns();
    if (t->first_token_ns)
        t->usage.decode_ms = (double)(now - t->first_token_ns) / 1e6;
    if (reason != FINISH_ERROR)
        keep(engine, t);
    give_back(engine, t);
    pthread_mutex_lock(&engine->stats_lock);
    engine->stats.n_cancelled += reason == FINISH_CANCELLED;
    engine->stats.n_requests++;
    pthread_mutex_unlock(&engine->stats_lock);
    log_info("engine: finished reason=%s prompt_tokens=%u generated_tokens=%u queue_ms=%.1f "
             "prefill_ms=%.1f decode_ms=%.1f", finish_reason_name(reason), t->n_prompt,
             t->usage.n_generated, t->usage.queue_ms, t->usage.prefill_ms, t->usage.decode_ms);
    event.kind = GEN_DONE;
    event.usage = &t->usage;
    t->on_event(&event, t->user);
    atomic_fetch_sub_explicit(&engine->n_live, 1, memory_order_acq_rel);
    gen_ticket_release(t);
}

static void finish_plain(struct engine *engine, struct gen_ticket *t, enum finish_reason reason,
                         const struct err *err) {
    finish(engine, t, (struct gen_event){.finish = reason, .err = err});
}

// ---- Admission ----------------------------------------------------------------------------------
static void take_inbox(struct engine *engine, uint32_t timeout_ms) {
    for (;;) {
        struct gen_ticket *t = timeout_ms ? queue_pop(engine->inbox, timeout_ms)
                                          : queue_try_pop(engine->inbox);
        if (!t)
            return;
        timeout_ms = 0;
        if ((void *)t == engine) // only to wake up
            atomic_store_explicit(&engine->is_woken, false, memory_order_release);
        else
            engine->waiting[engine->n_waiting++] = t;
    }
}

static void remove_at(struct gen_ticket **list, uint32_t *n, uint32_t i) {
    memmove(list + i, list + i + 1, (*n - i - 1) * sizeof *list);
    (*n)--;
}

static void drop_cancelled(struct engine *engine, struct gen_ticket **list, uint32_t *n) {
    for (uint32_t i = 0; i < *n;) {
        struct gen_ticket *t = list[i];
        if (!atomic_load_explicit(&t->cancelled, memory_order_acquire)) {
            i++;
            continue;
        }
        remove_at(list, n, i);
        finish_plain(engine, t, FINISH_CANCELLED, NULL);
    }
}

// Make n pages of a group free, of those that only the prompt cache holds if need be.
static bool make_free(struct engine *engine, uint32_t group, uint32_t n) {
    return kv_cache_n_free(engine->kv, group) >= n ||
           (engine->prefix && prefix_cache_give_way(engine->prefix, group, n));
}

// Pages for the rest of the prompt and one more token must be free: then the prompt never waits halfway.
static bool has_room(struct engine *engine, const struct gen_ticket *t, uint32_t n_found) {
    uint32_t need[KV_GROUPS_MAX];
    uint32_t n_wanted = t->n_tokens + (model_is_encoder(engine->model) ? 0 : 1);
    kv_seq_need(engine->kv, &t->seq, n_found, n_wanted, need);
    for (uint32_t g = 0; g < kv_cache_n_groups(engine->kv); g++) {
        uint32_t window = kv_cache_window(engine->kv, g);
        if (window) // pages behind the window go back while the prompt is read
            need[g] = min_u32(t->n_tokens / KV_PAGE_TOKENS + 1,
                              (window + engine->plan.limits.n_tokens) / KV_PAGE_TOKENS + 2);
        if (!make_free(engine, g, need[g]))
            return false;
    }
    return true;
}

// Pages, state and a place for one of those who wait, and what of its prompt is known already. False: there is no
// room yet. True with *err set: there never will be.
static bool take_room(struct engine *engine, struct gen_ticket *t, struct err *err) {
    struct backend *be = model_backend(engine->model);
    struct state_pool *states = model_state_pool(engine->model);
    struct prefix_hit hit = {0};
    if (!kv_seq_init(engine->kv, &t->seq, err))
        return true;
    if (engine->prefix)
        hit = prefix_cache_find(engine->prefix, t->space, t->tokens, t->n_tokens - 1, &t->seq);
    if (!has_room(engine, t, hit.n_tokens) && engine->n_running > 0) {
        kv_seq_deinit(engine->kv, &t->seq);
        return false; // a running request will give pages back
    }
    t->seq_ready = true;
    if (states)
        t->state_slot = engine->free_slots[--engine->n_free_slots];
    if (hit.n_tokens && !prefix_cache_restore(engine->prefix, &hit, &t->seq, t->state_slot)) {
        kv_seq_clear(engine->kv, &t->seq);
        hit.n_tokens = 0;
    }
    if (states && hit.n_tokens == 0)
        be->ops->state_clear(be, states, t->state_slot);
    t->n_in_cache = t->n_found = hit.n_tokens;
    return true;
}

// It runs from now on, n_found tokens of its prompt being known already.
static void count_start(struct engine *engine, struct gen_ticket *t, uint32_t n_found) {
    if (t->started_ns)
        return; // it was preempted
    t->started_ns = clock_ns();
    t->usage.queue_ms = (double)(t->started_ns - t->submitted_ns) / 1e6;
    t->usage.n_cached = n_found;
    pthread_mutex_lock(&engine->stats_lock);
    engine->stats.n_cache_hits += engine->prefix && n_found > 0;
    engine->stats.n_cache_misses += engine->prefix && n_found == 0;
    engine->stats.n_cached_tokens += engine->prefix ? n_found : 0;
    pthread_mutex_unlock(&engine->stats_lock);
}

// Is all that it needs at its first token what `other`, once its prompt is read, has?
static bool reads_the_same(const struct gen_ticket *t, const struct gen_ticket *other) {
    return t->want == GEN_WANT_TEXT && other->want == GEN_WANT_TEXT && t->space == other->space &&
           t->n_tokens == t->n_prompt && other->n_tokens == other->n_prompt && t->n_prompt == other->n_prompt &&
           memcmp(t->tokens, other->tokens, t->n_prompt * sizeof *t->tokens) == 0;
}

// Who is about to read the prompt of one that waits, NULL = nobody. One that yields does not lead one that does not.
static struct gen_ticket *leader_for(const struct engine *engine, const struct gen_ticket *t) {
    for (uint32_t i = 0; i < engine->n_running; i++)
        if (engine->running[i]->yields <= t->yields && reads_the_same(t, engine->running[i]))
            return engine->running[i];
    for (uint32_t i = 0; i < engine->n_waiting; i++)
        if (engine->waiting[i]->load && engine->waiting[i]->yields <= t->yields && reads_the_same(t, engine->waiting[i]))
            return engine->waiting[i];
    return NULL;
}

// Does one that waits go on from the work of others, which is not done yet?
static bool is_led(struct engine *engine, struct gen_ticket *t) {
    t->leader = leader_for(engine, t);
    if (t->leader)
        return true;
    if (engine->disk && !t->was_looked_up && t->want != GEN_WANT_HIDDEN)
        t->load = prefix_cache_load(engine->prefix, t->space, t->tokens, t->n_tokens - 1);
    t->was_looked_up = true;
    return t->load != NULL;
}

// Into the running ones, at its rank.
static void insert_running(struct engine *engine, struct gen_ticket *t) {
    uint32_t at = engine->n_running++;
    for (; at > 0 && !t->yields && engine->running[at - 1]->yields; at--)
        engine->running[at] = engine->running[at - 1];
    engine->running[at] = t;
}

// The one of lowest rank, of those the latest admitted, gives its pages up and waits at the front; its tokens are read
// again later, to the same bits.
static void preempt_last(struct engine *engine) {
    struct gen_ticket *t = engine->running[--engine->n_running];
    keep(engine, t); // and the oldest of what is kept gives way
    give_back(engine, t);
    memmove(engine->waiting + 1, engine->waiting, engine->n_waiting * sizeof *engine->waiting);
    engine->waiting[0] = t;
    engine->n_waiting++;
    t->usage.n_preempted++;
    pthread_mutex_lock(&engine->stats_lock);
    engine->stats.n_preempted++;
    pthread_mutex_unlock(&engine->stats_lock);
    log_debug("engine: preempted tokens=%u", t->n_tokens);
}

static void pass_over(struct gen_ticket *t) {
    if (++t->n_passed >= GEN_PASSED_MAX)
        t->yields = false;
}

// Whose turn it is, of those that nothing comes for: the first that does not yield, else the first. UINT32_MAX =
// nobody's.
static uint32_t next_waiting(const struct engine *engine) {
    uint32_t turn = UINT32_MAX;
    for (uint32_t i = 0; i < engine->n_waiting; i++) {
        const struct gen_ticket *t = engine->waiting[i];
        if (t->leader || t->load)
            continue;
        if (!t->yields)
            return i;
        if (turn == UINT32_MAX)
            turn = i;
    }
    return turn;
}

// As take_room(); those who follow a running leader keep their places.
static bool take_place(struct engine *engine, struct gen_ticket *t, struct err *err) {
    uint32_t n_taken = engine->n_running;
    for (uint32_t i = 0; i < engine->n_waiting; i++)
        n_taken += engine->waiting[i]->leader && engine->waiting[i]->leader->seq_ready;
    return n_taken < engine->plan.limits.n_rows && take_room(engine, t, err);
}

static void admit(struct engine *engine) {
    for (uint32_t turn; (turn = next_waiting(engine)) != UINT32_MAX;) {
        struct gen_ticket *t = engine->waiting[turn];
        struct err err = {0};
        uint32_t n_interrupted = 0;
        if (is_led(engine, t))
            continue;
        while (!take_place(engine, t, &err)) {
            struct gen_ticket *last = engine->running[engine->n_running - 1]; // else there is a place
            if (t->yields || !last->yields)
                return; // a running request will give its place or its pages back
            pass_over(last);
            preempt_last(engine);
            n_interrupted++; // it waits in front
        }
        turn += n_interrupted;
        remove_at(engine->waiting, &engine->n_waiting, turn);
        for (uint32_t i = 0; i < turn && !n_interrupted; i++) {
            if (!engine->waiting[i]->yields || engine->waiting[i]->leader || engine->waiting[i]->load)
                continue;
            pass_over(engine->waiting[i]);
            break;
        }
        if (err.code) {
            finish_plain(engine, t, FINISH_ERROR, &err);
            continue;
        }
        count_start(engine, t, t->n_found);
        insert_running(engine, t);
        log_debug("engine: admitted prompt_tokens=%u cached_tokens=%u running=%u", t->n_prompt, t->n_found,
                  engine->n_running);
    }
}

// ---- One step -----------------------------------------------------------------------------------
// Pages for t's next n tokens, of the prompt cache's if need be.
static bool reserve(struct engine *engine, struct gen_ticket *t, uint32_t n) {
    uint32_t need[KV_GROUPS_MAX];
    if (kv_seq_reserve(engine->kv, &t->seq, t->n_in_cache, t->n_in_cache + n))
        return true;
    kv_seq_need(engine->kv, &t->seq, t->n_in_cache, t->n_in_cache + n, need);
    for (uint32_t g = 0; g < kv_cache_n_groups(engine->kv); g++)
        if (!make_free(engine, g, need[g])) {
            // The last one running shares pages with the cache alone: without it, none has to be copied.
            if (!engine->prefix || engine->n_running > 1)
                return false;
            prefix_cache_clear(engine->prefix);
            break;
        }
    return kv_seq_reserve(engine->kv, &t->seq, t->n_in_cache, t->n_in_cache + n);
}

// Pages for row i's next n tokens, taken from later rows if need be: the last of the list gives way first,
// but never one that is already part of this step. False: the row sits this step out, or is gone from
// the list (waiting again, or ended because the pool cannot hold it even alone).
static bool reserve_row(struct engine *engine, uint32_t i, uint32_t n) {
    struct gen_ticket *t = engine->running[i];
    while (!reserve(engine, t, n)) {
        bool alone = engine->step.step.n_rows == 0 && engine->n_running == 1;
        struct gen_ticket *last = engine->running[engine->n_running - 1];
        if (last->in_step)
            return false;
        if (!alone) {
            preempt_last(engine);
            if (last == t)
                return false;
            continue;
        }
        struct err err = {0};
        err_set(&err, ERR_NOMEM, "the KV pool cannot hold %u tokens", t->n_in_cache + n);
        engine->n_running = 0;
        finish_plain(engine, t, FINISH_ERROR, &err);
        return false;
    }
    return true;
}

// Add row i's next n tokens to the step.
static bool add_row(struct engine *engine, uint32_t i, uint32_t n) {
    if (!reserve_row(engine, i, n))
        return false;
    struct gen_ticket *t = engine->running[i];
    bool last = t->n_in_cache + n == t->n_tokens;
    t->logits_idx = last ? engine->step.step.n_logits : UINT32_MAX;
    t->in_step = step_builder_add(&engine->step, &t->seq, t->state_slot, t->n_in_cache, t->rope_variant,
                                  t->tokens + t->n_in_cache, n,
                                  last ? STEP_LOGITS_LAST : STEP_LOGITS_NONE);
    assert(t->in_step); // the builder is sized for every row and the whole budget
    t->n_in_cache += n;
    t->n_in_step = n;
    return true;
}

// How many tokens of prompts a step may hold beside n_decoding running answers, which wait for all of it.
static uint32_t prompt_budget(const struct engine *engine, uint32_t n_decoding) {
    uint32_t budget = engine->plan.limits.n_tokens - n_decoding;
    if (n_decoding == 0 || engine->token_ns == 0)
        return budget;
    uint32_t step_ms = engine->options.step_ms ? engine->options.step_ms : STEP_MS_DEFAULT;
    uint64_t n = (uint64_t)step_ms * 1000000 / engine->token_ns / CHUNK_MIN * CHUNK_MIN;
    return n < budget ? min_u32(max_u32((uint32_t)n, CHUNK_MIN), budget) : budget;
}

// A prompt that others kept out of the step, which must not go on for ever.
static void count_passed(struct engine *engine) {
    for (uint32_t i = 0; i < engine->n_running; i++) {
        struct gen_ticket *t = engine->running[i];
        if (!t->yields || t->in_step || ++t->n_steps_passed < STEPS_PASSED_MAX)
            continue;
        remove_at(engine->running, &engine->n_running, i);
        t->yields = false;
        insert_running(engine, t);
    }
}

// Sequences that only need their next token go first, so that a long prompt never holds them up for more
// than one chunk; prompts share what is left of the budget in the order of the list.
static void build_step(struct engine *engine) {
    uint32_t n_decoding = 0;
    step_builder_clear(&engine->step);
    for (uint32_t i = 0; i < engine->n_running; i++) {
        engine->running[i]->logits_idx = UINT32_MAX;
        engine->running[i]->in_step = false;
    }
    bool whole = model_is_encoder(engine->model); // a text is read whole or, in a later step, not at all
    for (uint32_t i = 0; i < engine->n_running && !whole; i++) {
        struct gen_ticket *t = engine->running[i];
        if (t->n_tokens - t->n_in_cache == 1 && add_row(engine, i, 1))
            n_decoding++;
    }
    uint32_t budget = prompt_budget(engine, n_decoding);
    for (uint32_t i = 0; i < engine->n_running && budget; i++) {
        struct gen_ticket *t = engine->running[i];
        uint32_t n = min_u32(t->n_tokens - t->n_in_cache, budget);
        if (whole && n < t->n_tokens)
            continue;
        if (engine->prefix && n)
            n = min_u32(n, prefix_cache_chunk_end(engine->prefix, t->n_in_cache, t->n_found, t->n_prompt) -
                               t->n_in_cache);
        if (!t->in_step && n && add_row(engine, i, n))
            budget -= n;
    }
    count_passed(engine);
}

static bool is_eos(const struct engine *engine, token_id id) {
    for (uint32_t i = 0; i < engine->vocab.n_ends; i++)
        if (engine->ends[i] == id)
            return true;
    return false;
}

// Does this token appear in the text?
static bool is_shown(const struct engine *engine, const struct gen_ticket *t, token_id id) {
    if (t->n_shown == 0 || !tokenizer_is_special(engine->tokenizer, id))
        return true;
    for (uint32_t i = 0; i < t->n_shown; i++)
        if (t->shown[i] == id)
            return true;
    return false;
}

// Deliver a sampled token; true if the request is over (and gone).
static bool deliver(struct engine *engine, struct gen_ticket *t, const struct sampled *token) {
    bool eos = !t->ignore_eos && is_eos(engine, token->id);
    if (t->grammar)
        eos |= !grammar_state_advance(t->grammar, token->id);
    bool complete = t->grammar && grammar_state_is_complete(t->grammar);
    t->usage.n_generated++;
    if (t->detok && !eos && is_shown(engine, t, token->id) &&
        !detokenizer_push(t->detok, token->id, &t->pending))
        t->pending.failed = true;
    t->tokens[t->n_tokens++] = token->id;
    bool over = eos || complete || t->n_tokens == t->n_tokens_max;
    if (over && t->detok && !detokenizer_finish(t->detok, &t->pending))
        t->pending.failed = true;
    if (t->pending.failed) {
        struct err err = {0};
        err_set(&err, ERR_NOMEM, "out of memory for the text of an answer");
        finish_plain(engine, t, FINISH_ERROR, &err);
        return true;
    }
    uint32_t found = UINT32_MAX;
    struct str pending = strbuf_str(&t->pending);
    size_t ready = pending.n;
    if (t->n_stops)
        ready = stop_text_scan(pending, t->stops, t->n_stops, &found);
    bool stopped = found != UINT32_MAX;
    if (over && !stopped)
        ready = pending.n; // nothing more can complete a stop string
    struct gen_event event = {.kind = GEN_TOKEN, .token = *token,
                              .text = ready ? str_slice(pending, 0, ready) : (struct str){0}};
    t->on_event(&event, t->user);
    if (stopped || over) {
        finish(engine, t, (struct gen_event){
            .finish = stopped ? FINISH_STOP_TEXT : eos || complete ? FINISH_STOP : FINISH_LENGTH,
            .stop_text = stopped ? t->stops[found] : (struct str){0}});
        return true;
    }
    // What is held back moves to the front.
    if (ready) {
        memmove(t->pending.data, t->pending.data + ready, pending.n - ready);
        t->pending.n -= ready;
    }
    return false;
}

// The end of a request that wants values of the last token of its prompt.
static void deliver_values(struct engine *engine, struct gen_ticket *t, const float *logits) {
    struct gen_event event = {.finish = FINISH_STOP, .values = logits, .n_values = engine->n_vocab};
    if (t->want == GEN_WANT_HIDDEN) {
        model_hidden(engine->model, t->logits_idx, engine->hidden);
        event.values = engine->hidden;
        event.n_values = model_config_of(engine->model)->d_model;
    }
    finish(engine, t, event);
}

// `t`, which waited for the prompt of its leader, runs from where that is now: the same pages, the same logits. False:
// there is no room yet.
static bool fork_from(struct engine *engine, struct gen_ticket *t, const struct gen_ticket *leader) {
    struct backend *be = model_backend(engine->model);
    struct state_pool *states = model_state_pool(engine->model);
    struct err err = {0};
    if (!kv_seq_init(engine->kv, &t->seq, &err))
        return false;
    kv_seq_share(engine->kv, &t->seq, &leader->seq, leader->n_in_cache);
    uint32_t need[KV_GROUPS_MAX];
    kv_seq_need(engine->kv, &t->seq, leader->n_in_cache, leader->n_in_cache + 1, need);
    for (uint32_t g = 0; g < kv_cache_n_groups(engine->kv); g++) {
        if (!make_free(engine, g, need[g])) {
            kv_seq_deinit(engine->kv, &t->seq);
            return false;
        }
    }
    t->seq_ready = true;
    if (states) {
        t->state_slot = engine->free_slots[--engine->n_free_slots];
        be->ops->state_copy(be, states, leader->state_slot, t->state_slot);
    }
    t->n_in_cache = t->n_found = leader->n_in_cache;
    t->logits_idx = leader->logits_idx;
    t->in_step = false;
    return true;
}

// Who waited for a prompt that this step has read begins to run.
static void fork_waiting(struct engine *engine) {
    for (uint32_t i = 0; i < engine->n_waiting;) {
        struct gen_ticket *t = engine->waiting[i], *leader = t->leader;
        if (!leader || leader->logits_idx == UINT32_MAX) {
            i++;
            continue;
        }
        t->leader = NULL;
        if (engine->n_running == engine->plan.limits.n_rows || !fork_from(engine, t, leader)) {
            i++;
            continue;
        }
        remove_at(engine->waiting, &engine->n_waiting, i);
        count_start(engine, t, t->n_found);
        insert_running(engine, t);
        pthread_mutex_lock(&engine->stats_lock);
        engine->stats.n_forked++;
        pthread_mutex_unlock(&engine->stats_lock);
        log_debug("engine: forked prompt_tokens=%u running=%u", t->n_prompt, engine->n_running);
    }
}

// Returns how many tokens were sampled.
static uint32_t sample_rows(struct engine *engine, const float *logits) {
    fork_waiting(engine);
    uint64_t now = clock_ns();
    uint32_t n_sampled = 0;
    for (uint32_t i = 0; i < engine->n_running;) {
        struct gen_ticket *t = engine->running[i];
        if (engine->prefix && t->in_step && t->want != GEN_WANT_HIDDEN)
            prefix_cache_keep(engine->prefix, t->space, t->tokens, t->n_in_cache - t->n_in_step, t->n_in_cache,
                              t->n_found, t->n_prompt, &t->seq, t->state_slot);
        kv_seq_slide(engine->kv, &t->seq, t->n_in_cache);
        if (t->logits_idx == UINT32_MAX) {
            i++;
            continue;
        }
        if (!t->first_token_ns) {
            t->first_token_ns = now;
            t->usage.prefill_ms = (double)(now - t->started_ns) / 1e6;
        }
        struct sampled token;
        struct err err = {0};
        bool over = true;
        const uint32_t *mask = t->grammar ? engine->mask : NULL;
        const float *row = logits ? logits + (size_t)t->logits_idx * engine->n_vocab : NULL; // NULL: no head
        if (t->want != GEN_WANT_TEXT) {
            deliver_values(engine, t, row);
        } else if (t->grammar && !grammar_state_mask(t->grammar, engine->mask, &err)) {
            finish_plain(engine, t, FINISH_ERROR, &err);
        } else if (sampler_sample(t->sampler, engine->scratch, row, mask,
                                  &(struct sampler_context){t->tokens, t->n_tokens, t->n_prompt}, &token)) {
            n_sampled++;
            over = deliver(engine, t, &token);
        } else {
            err_set(&err, ERR_INTERNAL, mask ? "no token fits the grammar" : "the model's logits are not numbers");
            finish_plain(engine, t, FINISH_ERROR, &err);
        }
        if (over)
            remove_at(engine->running, &engine->n_running, i);
        else
            i++;
    }
    return n_sampled;
}

// ---- The prompt cache's disk tier ---------------------------------------------------------------
// On the disk's thread: there is something for the engine to do.
static void wake(void *user) {
    struct engine *engine = user;
    if (atomic_exchange_explicit(&engine->is_woken, true, memory_order_acq_rel))
        return;
    if (!queue_push(engine->inbox, engine)) // full: it is awake
        atomic_store_explicit(&engine->is_woken, false, memory_order_release);
}

static uint32_t n_loading(const struct engine *engine) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < engine->n_waiting; i++)
        n += engine->waiting[i]->load != NULL;
    return n;
}

// How long an engine that has nothing to compute may sleep.
static uint32_t sleep_ms(const struct engine *engine) {
    if (!engine->disk)
        return UINT32_MAX;
    uint64_t now = clock_ns(), due = engine->spill_due_ns;
    uint32_t ms = due <= now ? 0 : (uint32_t)((due - now) / 1000000 + 1);
    return n_loading(engine) ? min_u32(ms, LOAD_LOOK_MS) : ms;
}

// What was asked to be written, beside the steps: a page each.
static void tend_flushes(struct engine *engine, bool idle) {
    pthread_mutex_lock(&engine->flush_lock);
    bool wanted = engine->flushes != NULL;
    pthread_mutex_unlock(&engine->flush_lock);
    if (!wanted)
        return;
    uint32_t later = prefix_cache_spill(engine->prefix, 0, idle ? UINT32_MAX : 1);
    struct disk_cache_stats disk;
    disk_cache_stats(engine->disk, &disk);
    if (disk.n_pending || later == 0)
        return; // its progress wakes
    pthread_mutex_lock(&engine->flush_lock);
    struct flush *list = engine->flushes;
    engine->flushes = NULL;
    pthread_mutex_unlock(&engine->flush_lock);
    for (struct flush *next; list; list = next) {
        next = list->next;
        list->fn(list->user, later == UINT32_MAX && disk.n_failed == list->n_failed, &disk);
        free(list);
    }
}

static void tend_disk(struct engine *engine, bool idle) {
    if (!engine->disk)
        return;
    uint32_t n_loads = n_loading(engine);
    prefix_cache_take_loaded(engine->prefix, engine->n_running ? DISK_PAGES_A_STEP : UINT32_MAX);
    for (uint32_t i = 0; n_loads && i < engine->n_waiting; i++) {
        struct gen_ticket *t = engine->waiting[i];
        if (!t->load || !prefix_load_is_over(t->load))
            continue;
        prefix_load_destroy(t->load);
        t->load = NULL;
        for (uint32_t k = 0; k < engine->n_waiting; k++) // who waited for it finds the same, or follows once it runs
            if (engine->waiting[k]->leader == t)
                engine->waiting[k]->leader = NULL;
    }
    tend_flushes(engine, idle);
    if (clock_ns() < engine->spill_due_ns)
        return;
    // Whatever is used from now on is due in idle_ms at the earliest.
    uint32_t idle_ms = engine->options.disk_idle_s * 1000;
    uint32_t due = min_u32(prefix_cache_spill(engine->prefix, idle_ms, 1), idle_ms);
    if (engine->n_running)
        due = max_u32(due, SPILL_PAUSE_MS);
    engine->spill_due_ns = clock_ns() + (uint64_t)due * 1000000;
}

// At the end.
static void close_disk(struct engine *engine) {
    if (!engine->disk)
        return;
    struct disk_cache_stats before, after;
    disk_cache_stats(engine->disk, &before);
    bool forget = atomic_load_explicit(&engine->forgetting, memory_order_acquire);
    bool complete = !forget && prefix_cache_flush(engine->prefix, clock_ns() + (uint64_t)ENGINE_FLUSH_MS * 1000000);
    disk_cache_stats(engine->disk, &after);
    if (!forget && (!complete || after.n_failed != before.n_failed))
        log_warn("engine: not all of the prompt cache could be written to disk");
    pthread_mutex_lock(&engine->flush_lock);
    struct flush *list = engine->flushes;
    engine->flushes = NULL;
    pthread_mutex_unlock(&engine->flush_lock);
    for (struct flush *next; list; list = next) {
        next = list->next;
        list->fn(list->user, complete && after.n_failed == list->n_failed, &after);
        free(list);
    }
}

bool engine_flush(struct engine *engine, engine_flush_fn *fn, void *user, struct err *err) {
    if (!engine->disk)
        return err_set(err, ERR_UNSUPPORTED, "the prompt cache has no disk to go to: start loam with --ssd-cache DIR");
    struct flush *flush = calloc(1, sizeof *flush);
    if (!flush)
        return err_set(err, ERR_NOMEM, "out of memory for a flush");
    struct disk_cache_stats disk;
    disk_cache_stats(engine->disk, &disk);
    *flush = (struct flush){.fn = fn, .user = user, .n_failed = disk.n_failed};
    pthread_mutex_lock(&engine->flush_lock);
    flush->next = engine->flushes;
    engine->flushes = flush;
    pthread_mutex_unlock(&engine->flush_lock);
    wake(engine);
    return true;
}

static void publish_stats(struct engine *engine) {
    pthread_mutex_lock(&engine->stats_lock);
    struct engine_stats *stats = &engine->stats;
    stats->n_running = engine->n_running;
    stats->n_waiting = engine->n_waiting;
    if (engine->prefix)
        prefix_cache_stats(engine->prefix, &stats->cache);
    if (engine->disk) // its own lock is taken for moments only
        disk_cache_stats(engine->disk, &stats->disk);
    stats->has_disk = engine->disk != NULL;
    stats->n_groups = kv_cache_n_groups(engine->kv);
    for (uint32_t g = 0; g < stats->n_groups; g++) {
        stats->n_pages[g] = kv_cache_n_pages(engine->kv, g);
        stats->n_pages_free[g] = kv_cache_n_free(engine->kv, g);
    }
    pthread_mutex_unlock(&engine->stats_lock);
}

// What a token costs in steps that read prompts; the cost grows with the context, so the latest count most.
static void measure_step(struct engine *engine, uint32_t n_tokens, uint64_t ns) {
    if (n_tokens < engine->n_running + CHUNK_MIN)
        return; // reading weights costs more than the tokens
    uint64_t token_ns = ns / n_tokens;
    engine->token_ns = engine->token_ns ? (engine->token_ns + token_ns) / 2 : token_ns;
}

static void run_step(struct engine *engine) {
    build_step(engine);
    const struct step *step = &engine->step.step;
    if (step->n_tokens == 0)
        return;
    const float *logits;
    struct err err = {0};
    uint32_t n_decoded = 0;
    uint64_t start = clock_ns();
    if (model_step(engine->model, step, &logits, &err)) {
        measure_step(engine, step->n_tokens, clock_ns() - start);
        n_decoded = sample_rows(engine, logits);
    } else { // the device failed: no row of this step can go on
        log_error("engine: step failed: %s", err.message);
        while (engine->n_running)
            finish_plain(engine, engine->running[--engine->n_running], FINISH_ERROR, &err);
    }
    pthread_mutex_lock(&engine->stats_lock);
    engine->stats.n_steps++;
    engine->stats.n_generated_tokens += n_decoded;
    engine->stats.n_prompt_tokens += step->n_tokens - step->n_logits;
    pthread_mutex_unlock(&engine->stats_lock);
}

static void *engine_main(void *user) {
    struct engine *engine = user;
    while (!atomic_load_explicit(&engine->stopping, memory_order_acquire)) {
        bool idle = engine->n_running == 0 && (engine->n_waiting == 0 || n_loading(engine));
        if (idle)
            publish_stats(engine);
        take_inbox(engine, idle ? sleep_ms(engine) : 0);
        tend_disk(engine, idle);
        drop_cancelled(engine, engine->waiting, &engine->n_waiting);
        drop_cancelled(engine, engine->running, &engine->n_running);
        admit(engine);
        publish_stats(engine);
        run_step(engine);
    }
    take_inbox(engine, 0);
    while (engine->n_running)
        finish_plain(engine, engine->running[--engine->n_running], FINISH_CANCELLED, NULL);
    while (engine->n_waiting)
        finish_plain(engine, engine->waiting[--engine->n_waiting], FINISH_CANCELLED, NULL);
    close_disk(engine);
    return NULL;
}

// ---- Life ---------------------------------------------------------------------------------------
static void copy_page(void *user, uint32_t group, uint32_t from, uint32_t to) {
    struct engine *engine = user;
    struct backend *be = model_backend(engine->model);
    be->ops->kv_copy_page(be, model_kv_pool(engine->model), group, from, to);
}

// The tokens that end a sequence, and those of a newline, which some samplers treat apart.
static bool collect_vocab(struct engine *engine, struct err *err) {
    const struct model_config *config = model_config_of(engine->model);
    struct token_list newline = {0};
    engine->vocab.n_vocab = engine->n_vocab;
    engine->ends = calloc(config->n_eos + 1, sizeof *engine->ends);
    if (!engine->ends)
        return err_set(err, ERR_NOMEM, "out of memory for the engine");
    for (uint32_t i = 0; i <= config->n_eos; i++) {
        token_id id = i < config->n_eos ? config->eos[i]
                      : engine->tokenizer ? tokenizer_eos(engine->tokenizer) : TOKEN_NONE;
        if (id >= 0 && (uint32_t)id < engine->n_vocab)
            engine->ends[engine->vocab.n_ends++] = id;
    }
    bool ok = !engine->tokenizer || tokenizer_encode(engine->tokenizer, STR("\n"), 0, &newline, err);
    uint32_t n = 0;
    for (size_t i = 0; i < newline.n; i++)
        if ((uint32_t)newline.ids[i] < engine->n_vocab)
            newline.ids[n++] = newline.ids[i];
    engine->newlines = newline.ids; // handed over
    engine->vocab.ends = engine->ends;
    engine->vocab.newlines = newline.ids;
    engine->vocab.n_newlines = n;
    return ok && (!newline.failed || err_set(err, ERR_NOMEM, "out of memory for the engine"));
}

static bool open_disk(struct engine *engine, struct err *err) {
    struct engine_options *o = &engine->options;
    char identity[65];
    const char *files = o->disk_identity ? o->disk_identity : "";
    o->disk_idle_s = o->disk_idle_s ? min_u32(o->disk_idle_s, 86400) : DISK_IDLE_S_DEFAULT;
    if (!kv_identity(engine->model, engine->kv, &engine->step, files, identity, err))
        return false;
    struct disk_cache_options disk = {.folder = o->disk_folder, .identity = identity, .bytes_max = o->disk_bytes_max,
                                      .on_progress = wake, .user = engine};
    engine->disk = disk_cache_create(&disk, err);
    o->disk_folder = o->disk_identity = NULL; // the caller's
    return engine->disk || err_wrap(err, "disk cache");
}

static bool allocate(struct engine *engine, struct err *err) {
    const struct model_limits *limits = &engine->plan.limits;
    struct model_memory memory;
    model_memory(engine->model, &memory);
    struct kv_cache_options options = {.n_groups = memory.n_groups, .ctx_len = limits->ctx_len,
                                       .copy = copy_page, .user = engine};
    for (uint32_t g = 0; g < memory.n_groups; g++) {
        options.group_window[g] = memory.group_window[g];
        options.n_pages[g] = limits->n_pages[g];
    }
    uint32_t n_live_max = engine->n_waiting_max + limits->n_rows;
    engine->kv = kv_cache_create(&options, err);
    engine->inbox = queue_create(n_live_max + 1, err); // and a wake-up
    if (!engine->kv || !engine->inbox ||
        !step_builder_init(&engine->step, limits->n_tokens, limits->n_rows, limits->n_logits, err) ||
        !collect_vocab(engine, err))
        return false;
    engine->scratch = sampler_scratch_create(engine->n_vocab, limits->ctx_len, err);
    if (!engine->scratch)
        return false;
    engine->mask = calloc((engine->n_vocab + 31) / 32, sizeof *engine->mask);
    engine->hidden = calloc(model_config_of(engine->model)->d_model, sizeof *engine->hidden);
    engine->running = calloc(limits->n_rows, sizeof(struct gen_ticket *));
    engine->waiting = calloc(n_live_max, sizeof(struct gen_ticket *));
    engine->free_slots = calloc(max_u32(limits->n_state_slots, 1), sizeof(uint32_t));
    if (!engine->mask || !engine->hidden || !engine->running || !engine->waiting || !engine->free_slots)
        return err_set(err, ERR_NOMEM, "out of memory for the engine");
    for (uint32_t i = 0; i < limits->n_state_slots; i++)
        engine->free_slots[engine->n_free_slots++] = limits->n_state_slots - 1 - i;
    if (!model_prepare(engine->model, limits, err))
        return false;
    if (engine->options.prompt_cache_bytes == 0 || model_is_encoder(engine->model))
        return true;
    if (engine->options.disk_folder && !open_disk(engine, err))
        return false;
    struct prefix_cache_options cache = {
        .device = {.kv = engine->kv, .be = model_backend(engine->model), .pool = model_kv_pool(engine->model),
                   .states = model_state_pool(engine->model)},
        .bytes_max = engine->options.prompt_cache_bytes, .snapshot_bytes_max = engine->plan.snapshot_bytes_max,
        .disk = engine->disk};
    model_memory(engine->model, &memory); // exact, now that there are pools
    memcpy(cache.device.page_bytes, memory.group_page_bytes, sizeof cache.device.page_bytes);
    engine->prefix = prefix_cache_create(&cache, err);
    return engine->prefix != NULL;
}

struct engine *engine_create(struct model *model, const struct tokenizer *tokenizer,
                             const struct engine_options *options, struct err *err) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        err_set(err, ERR_NOMEM, "out of memory for the engine");
        return NULL;
    }
    engine->model = model;
    engine->tokenizer = tokenizer;
    engine->options = *options;
    engine->n_waiting_max = options->n_waiting_max ? options->n_waiting_max : WAITING_DEFAULT;
    engine->n_vocab = model_config_of(model)->n_vocab;
    pthread_mutex_init(&engine->stats_lock, NULL);
    pthread_mutex_init(&engine->flush_lock, NULL);
    pthread_mutex_init(&engine->breakers_lock, NULL);
    if (!engine_plan_make(model, options, &engine->plan, err) || !allocate(engine, err)) {
        engine_destroy(engine);
        return NULL;
    }
    publish_stats(engine);
    int rc = pthread_create(&engine->thread, NULL, engine_main, engine);
    if (rc != 0) {
        err_errno(err, rc, "cannot start the engine thread");
        engine_destroy(engine);
        return NULL;
    }
    engine->thread_started = true;
    return engine;
}

void engine_drain(struct engine *engine) {
    atomic_store_explicit(&engine->draining, true, memory_order_release);
}

void engine_forget(struct engine *engine) {
    atomic_store_explicit(&engine->forgetting, true, memory_order_release);
}

void engine_destroy(struct engine *engine) {
    if (!engine)
        return;
    if (engine->thread_started) {
        atomic_store_explicit(&engine->draining, true, memory_order_release);
        atomic_store_explicit(&engine->stopping, true, memory_order_release);
        queue_close(engine->inbox);
        pthread_join(engine->thread, NULL);
    }
    prefix_cache_destroy(engine->prefix);
    disk_cache_destroy(engine->disk);
    kv_cache_destroy(engine->kv);
    queue_destroy(engine->inbox);
    step_builder_deinit(&engine->step);
    pthread_mutex_destroy(&engine->stats_lock);
    pthread_mutex_destroy(&engine->flush_lock);
    pthread_mutex_destroy(&engine->breakers_lock);
    dry_breakers_release(engine->breakers);
    sampler_scratch_destroy(engine->scratch);
    free(engine->ends);
    free(engine->newlines);
    free(engine->mask);
    free(engine->hidden);
    free(engine->running);
    free(engine->waiting);
    free(engine->free_slots);
    free(engine);
}

uint32_t engine_n_live(const struct engine *engine) {
    return atomic_load_explicit(&engine->n_live, memory_order_acquire);
}

const struct engine_plan *engine_plan_of(const struct engine *engine) {
    return &engine->plan;
}

void engine_stats(struct engine *engine, struct engine_stats *out) {
    pthread_mutex_lock(&engine->stats_lock);
    *out = engine->stats;
    pthread_mutex_unlock(&engine->stats_lock);
}
