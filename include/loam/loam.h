// loam.h - run large language models inside your own program.
//
//     struct loam_options options = LOAM_OPTIONS_DEFAULT;
//     struct loam_error error;
//     options.folder = "/models/Qwen3-0.6B-4bit";              // NULL: the small demo model inside the library
//     loam_model *model = loam_open(&options, &error);
//     struct loam_request request = LOAM_REQUEST_DEFAULT;
//     request.messages = "[{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]";
//     request.on_text = print_text;                             // called as the answer grows
//     struct loam_result result;
//     if (model && loam_generate(model, &request, &result, &error))
//         printf("\n%u tokens\n", result.n_generated);
//     loam_close(model);
//
// Link with `pkg-config --cflags --libs loam`. The library never prints, never exits, and starts threads only
// for a model that is open. Everything here may be called from any thread; requests of several threads run
// together in one batch, and none changes a bit of another's answer.
#ifndef LOAM_LOAM_H
#define LOAM_LOAM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loam/loam_error.h"

#ifdef __cplusplus
extern "C" {
#endif

// "0.1.0"
LOAM_API const char *loam_version(void);

// ---- Models -----------------------------------------------------------------------------------
typedef struct loam_model loam_model;

struct loam_options {
    const char *folder;      // a Hugging Face or MLX model folder; NULL = the built-in demo model
    const char *device;      // "auto", "cpu", "cuda", "cuda:N"; NULL = auto
    uint32_t n_threads;      // CPU threads; 0 = physical cores allowed
    bool exact;              // float32 activations instead of rounded ones
    const char *kv_dtype;    // "bf16", "f16", "f32", "q8", "q4"; NULL = bf16
    uint32_t step_ms;        // a prompt being read holds running answers up for about this long at a time; 0 = 250
    uint32_t n_parallel;     // requests that run together; 0 = 8
    uint32_t ctx_len;        // tokens of the longest prompt and answer together; 0 = the model's, or what fits
    uint64_t memory_budget;  // bytes for everything; 0 = what the machine has
    uint64_t prompt_cache;   // bytes of past requests' KV kept for prompts that begin alike; 0 = 8 GiB
    bool no_prompt_cache;    // keep none
    const char *disk_cache;  // a folder for what the prompt cache lets go of, which survives loam_close(); NULL = none
    uint64_t disk_cache_max; // bytes of its files together; 0 = no limit
};
#define LOAM_OPTIONS_DEFAULT {0}

// Open a model and start its engine. NULL with *error (which may be NULL) set: LOAM_NOT_FOUND, LOAM_FORMAT
// (naming the file or tensor), LOAM_UNSUPPORTED (an unknown model type lists the known ones), LOAM_NOMEM.
LOAM_API loam_model *loam_open(const struct loam_options *options, struct loam_error *error);
// Running requests end as cancelled. No other call on the model may be in progress. NULL is allowed.
LOAM_API void loam_close(loam_model *model);
// Valid until loam_close().
LOAM_API const char *loam_model_name(const loam_model *model);
LOAM_API uint32_t loam_context_length(const loam_model *model);
LOAM_API uint32_t loam_vocabulary_size(const loam_model *model);

// The prompt cache's counts. A hit is a request some of whose prompt came from the cache.
struct loam_cache_stats {
    uint64_t n_hits, n_misses, n_cached_tokens, n_evicted; // since loam_open()
    uint64_t n_bytes, n_bytes_max;                         // now
    uint32_t n_entries;                                    // pages of tokens
    uint64_t n_disk_bytes, n_disk_read, n_disk_written, n_disk_failed; // disk_cache: bytes now; files since loam_open()
};
LOAM_API void loam_cache_statistics(loam_model *model, struct loam_cache_stats *out); // any thread

// ---- Tokens -----------------------------------------------------------------------------------
// The ids of UTF-8 text (n bytes), with the model's BOS and the like if `special`. *ids is freed with
// loam_free(). LOAM_NOMEM.
LOAM_API bool loam_tokenize(const loam_model *model, const char *text, size_t n, bool special, int32_t **ids,
                            size_t *n_ids, struct loam_error *error);
// The text of ids, NUL-terminated, freed with loam_free(). Special tokens are left out.
LOAM_API char *loam_detokenize(const loam_model *model, const int32_t *ids, size_t n_ids,
                               struct loam_error *error);
// The prompt that the model's chat template makes of `messages` (a JSON array), NUL-terminated, freed with
// loam_free(). LOAM_INVALID with the template's own words if it refuses the messages.
LOAM_API char *loam_apply_template(const loam_model *model, const char *messages, const char *tools,
                                   struct loam_error *error);
LOAM_API void loam_free(void *p);

// ---- Answers ----------------------------------------------------------------------------------
// More of the answer: n bytes of whole UTF-8 characters, valid during the call. On the engine's thread: it
// must not block. Return false to stop here.
typedef bool loam_text_fn(void *user, const char *text, size_t n);

// One more sampling option by the name that it has in the HTTP API: "repetition_penalty", "xtc_probability",
// "dry_multiplier", "min_tokens" and so on (docs/sampling.md).
struct loam_sampling {
    const char *name;
    double value;
};
struct loam_logit_bias {
    int32_t id;
    float bias; // added to the token's logit
};

// A batch request waits while interactive ones do and gives its place to them, but not for ever: after four times it
// counts as one. Its answer does not depend on it.
enum loam_priority { LOAM_INTERACTIVE, LOAM_BATCH };

struct loam_request {
    // The prompt, exactly one of these three.
    const char *messages;   // JSON array of chat messages
    const char *prompt;     // plain text
    const int32_t *tokens;  // [n_tokens] ids
    size_t n_tokens;
    const char *tools;      // JSON array for the chat template, or NULL

    uint32_t max_tokens;    // 0 = as the model's authors say, else until it ends or the context is full
    float temperature;      // < 0 = the model's own default; 0 = always the likeliest token
    float top_p, min_p;     // < 0 = the model's own default
    int32_t top_k;          // < 0 = the model's own default; 0 = all
    const struct loam_sampling *sampling; // [n_sampling]; before the fields above; the last of a name counts
    uint32_t n_sampling;
    const struct loam_logit_bias *bias;   // [n_bias]
    uint32_t n_bias;
    const char *const *dry_breakers; // [n_dry_breakers] texts that end DRY's repetitions; NULL = the usual ones
    uint32_t n_dry_breakers;
    uint64_t seed;          // same request and seed, same answer
    const char *const *stops; // [n_stops] texts that end the answer before them
    uint32_t n_stops;
    bool ignore_eos;
    enum loam_priority priority;
    loam_text_fn *on_text;  // or NULL
    void *user;
};
#define LOAM_REQUEST_DEFAULT {.temperature = -1, .top_p = -1, .min_p = -1, .top_k = -1}

enum loam_finish { LOAM_FINISH_STOP, LOAM_FINISH_LENGTH, LOAM_FINISH_CANCELLED };
struct loam_result {
    enum loam_finish finish;
    uint32_t n_prompt, n_generated; // tokens
    double prefill_ms, decode_ms;
    uint32_t n_cached; // tokens of the prompt that came from the prompt cache
};

// Answer one request and wait for it. False with *error set: LOAM_INVALID (the prompt does not fit the
// context, a parameter out of range), LOAM_BUSY, LOAM_NOMEM. An answer that on_text stopped is
// LOAM_FINISH_CANCELLED, and true.
LOAM_API bool loam_generate(loam_model *model, const struct loam_request *request, struct loam_result *result,
                            struct loam_error *error);

// The same without waiting. Every started generation must be ended by loam_wait(), once.
typedef struct loam_generation loam_generation;
LOAM_API loam_generation *loam_start(loam_model *model, const struct loam_request *request,
                                     struct loam_error *error);
LOAM_API void loam_cancel(loam_generation *generation);
LOAM_API bool loam_wait(loam_generation *generation, struct loam_result *result, struct loam_error *error);

// ---- Embeddings and reranking -----------------------------------------------------------------
// The embedding of UTF-8 text (n bytes): the last token's final hidden state, cut to its first n_dimensions (0 = all)
// and scaled to length 1. *vector [*n_vector] is freed with loam_free(). An instruction for a query goes into the text,
// as the model's card says. LOAM_INVALID (too long, more dimensions than the model has), LOAM_UNSUPPORTED (the folder
// asks for another pooling than the last token's), LOAM_BUSY, LOAM_NOMEM.
LOAM_API bool loam_embed(loam_model *model, const char *text, size_t n, uint32_t n_dimensions, float **vector,
                         uint32_t *n_vector, struct loam_error *error);
// How well a document answers a query, 0..1, by a reranker of Qwen3-Reranker's form (the probability of "yes" against
// "no"). instruction: the task in a sentence, NULL = web search. LOAM_UNSUPPORTED if the vocabulary lacks what that form
// needs; else as loam_embed().
LOAM_API bool loam_rerank(loam_model *model, const char *instruction, const char *query, const char *document,
                          double *score, struct loam_error *error);

#ifdef __cplusplus
}
#endif
#endif
