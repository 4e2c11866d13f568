// engine/engine.h - the scheduler: requests in, tokens out. Sole owner of live inference state.
//
// One engine thread owns the model, its KV pages and every running sequence. Any thread may submit and
// cancel. Each step is one ragged batch: every running sequence's next token, and with what is left of
// the step's budget of tokens and of time chunks of prompts that are still being read. A request's tokens and
// logprobs do not depend on what runs beside it (DESIGN rule 2).
#ifndef LOAM_ENGINE_ENGINE_H
#define LOAM_ENGINE_ENGINE_H
#include "cache/prefix_cache.h"
#include "engine/plan.h"
#include "grammar/grammar.h"
#include "sample/sampler.h"
#include "tokenizer/tokenizer.h"

enum { ENGINE_FLUSH_MS = 30000 };

struct engine;
struct gen_ticket; // a submitted request, as its submitter holds it

// Plan the memory, prepare the model and start the engine thread. The model and the tokenizer (NULL: events
// carry no text, stop strings are refused) must outlive the engine. ERR_NOMEM, ERR_IO.
struct engine *engine_create(struct model *model, const struct tokenizer *tokenizer,
                             const struct engine_options *options, struct err *err);
// Stop at the next step: running and waiting requests end as FINISH_CANCELLED. What the prompt cache has goes to disk,
// if it has one, for at most ENGINE_FLUSH_MS. Joins the thread.
void engine_destroy(struct engine *engine); // NULL is allowed
// Somebody is in a hurry: nothing more goes to disk at the end. Any thread.
void engine_forget(struct engine *engine);
// Refuse new requests (ERR_BUSY) and let the running ones finish; returns at once.
void engine_drain(struct engine *engine);
// Requests that wait or run.
uint32_t engine_n_live(const struct engine *engine);
const struct engine_plan *engine_plan_of(const struct engine *engine);

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,      // an end-of-sequence token
    FINISH_STOP_TEXT, // one of the request's stop strings
    FINISH_LENGTH,    // max_tokens or the context is full
    FINISH_CANCELLED,
    FINISH_ERROR,     // see the event's err
};
const char *finish_reason_name(enum finish_reason reason); // "stop", "length", "cancelled", "error"

struct gen_usage {
    uint32_t n_prompt, n_cached, n_generated; // tokens; n_cached of the prompt came from a cache
    uint32_t n_preempted; // times that it gave its place to others
    double queue_ms, prefill_ms, decode_ms;
};

enum gen_event_kind {
    GEN_TOKEN, // one more token; text may be empty (held back, or the token stands for none)
    GEN_DONE,  // the last event of a request; text is what was held back
};
struct gen_event {
    enum gen_event_kind kind;
    struct sampled token; // GEN_TOKEN
    struct str text;      // borrowed during the call
    enum finish_reason finish;  // GEN_DONE
    struct str stop_text;       // GEN_DONE, FINISH_STOP_TEXT: which stop string
    const struct gen_usage *usage; // GEN_DONE
    const struct err *err;         // GEN_DONE, FINISH_ERROR
    // GEN_DONE, FINISH_STOP, of a request for something else than text: what it wanted, borrowed during the call.
    const float *values; // [n_values]
    uint32_t n_values;
};
// Called on the engine thread, in order, never after GEN_DONE. Must not block.
typedef void gen_event_fn(const struct gen_event *event, void *user);

// What a request is for. The last two end once the prompt is read, with their values in GEN_DONE.
enum gen_want {
    GEN_WANT_TEXT,
    GEN_WANT_HIDDEN, // the last token's hidden state after the final norm [d_model]: embeddings
    GEN_WANT_LOGITS, // the last token's logits [n_vocab]: rerankers
};

// Who goes first where requests must wait. A batch request waits while interactive ones do, and gives its place back to
// one that finds none (its tokens are read again later, to the same bits); but after it has been passed over
// GEN_PASSED_MAX times it counts as interactive, so that it ends whatever else arrives.
enum gen_priority { GEN_INTERACTIVE, GEN_BATCH };
enum { GEN_PASSED_MAX = 4 };
const char *gen_priority_name(enum gen_priority priority); // "interactive", "batch"
// ERR_INVALID lists the names.
bool gen_priority_parse(const char *name, enum gen_priority *out, struct err *err);

struct gen_request {
    enum gen_want want;
    enum gen_priority priority;
    const token_id *prompt; // [n_prompt], copied; at least one
    uint32_t n_prompt;
    uint32_t max_tokens; // 0 = until the context is full
    struct sampler_params sampling;
    const struct str *dry_breakers; // [n_dry_breakers], copied: texts that end DRY's repetitions
    uint32_t n_dry_breakers;
    bool dry_breakers_given; // false: DRY_BREAKERS_DEFAULT
    const struct str *stops; // [n_stops], copied: end the text before any of these
    uint32_t n_stops;
    bool ignore_eos;
    bool show_special; // special tokens appear in the text
    const token_id *shown; // [n_shown], copied: special tokens that appear in the text though others do not
    uint32_t n_shown;
    struct grammar *grammar; // that the text must follow, NULL = any; a reference is taken. Its end ends the text
    gen_event_fn *on_event;
    void *user;
};

// Queue a request. The ticket is released with gen_ticket_release(), in any order with the events.
// NULL with ERR_INVALID (an empty prompt, one that leaves no room in the context, an id outside the
// vocabulary, a sampling parameter out of range), ERR_BUSY (the queue is full, or draining), ERR_NOMEM.
struct gen_ticket *engine_submit(struct engine *engine, const struct gen_request *request,
                                 struct err *err);
// The request leaves at the next step with FINISH_CANCELLED. Any thread, any time before the release.
void gen_ticket_cancel(struct gen_ticket *ticket);
void gen_ticket_release(struct gen_ticket *ticket); // NULL is allowed

// Write all that the prompt cache holds and the disk does not; running requests go on meanwhile. fn(user) once it is
// there, or once it is clear that it will not be (`complete` false: the disk is full, the engine ends), on the engine's
// thread: it must not block. False with ERR_UNSUPPORTED if there is no disk cache, ERR_NOMEM; fn is not called then.
typedef void engine_flush_fn(void *user, bool complete, const struct disk_cache_stats *disk);
bool engine_flush(struct engine *engine, engine_flush_fn *fn, void *user, struct err *err);

struct engine_stats {
    uint32_t n_running, n_waiting;
    uint64_t n_requests, n_steps, n_prompt_tokens, n_generated_tokens, n_cancelled, n_preempted;
    uint64_t n_forked; // requests that went on from the prompt of another that ran at the time
    uint32_t n_groups, n_pages[KV_GROUPS_MAX], n_pages_free[KV_GROUPS_MAX];
    // The prompt cache. A hit is a request some of whose prompt it held; bytes are in the pool, snapshots beside it.
    uint64_t n_cache_hits, n_cache_misses, n_cached_tokens;
    struct prefix_cache_stats cache;
    bool has_disk; // the cache's second tier
    struct disk_cache_stats disk;
};
// A consistent copy, any thread.
void engine_stats(struct engine *engine, struct engine_stats *out);
#endif
