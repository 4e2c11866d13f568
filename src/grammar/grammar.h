// grammar/grammar.h - what the engine uses of structured output: a grammar compiled once and shared,
// a state per sequence, and masks of the tokens that may come next.
//
// A struct grammar is reference-counted and shared between sequences and threads; its lazily built
// tables are guarded inside. A struct grammar_state belongs to one thread at a time; states of one
// grammar may be used by different threads at once (they take turns inside).
#ifndef LOAM_GRAMMAR_GRAMMAR_H
#define LOAM_GRAMMAR_GRAMMAR_H
#include <jansson.h>

#include "grammar/vocab.h"

enum grammar_kind {
    GRAMMAR_JSON_SCHEMA, // text: a JSON Schema
    GRAMMAR_JSON_OBJECT, // any JSON object; text unused
    GRAMMAR_EBNF,        // text: GBNF or XGrammar's EBNF
    GRAMMAR_REGEX,       // text: a regular expression that the whole output matches
    GRAMMAR_CHOICE,      // text: a JSON array of strings
    GRAMMAR_TAG,         // text: a structural tag (docs/structured-output.md)
};

enum {
    GRAMMAR_SPACES_DEFAULT = 64, // white space between two tokens of JSON, at most
    GRAMMAR_ROLLBACK_MAX = 64,   // tokens that grammar_state_rollback() can take back
    GRAMMAR_TEXT_BYTES_MAX = 1 << 20,
};

struct grammar_spec {
    enum grammar_kind kind;
    struct str text;
    bool compact; // JSON without any white space between its tokens
};

struct grammar;
struct grammar_state;

// Compile. NULL with ERR_INVALID (the place and what is wrong there, or which named limit of size it
// breaks), ERR_UNSUPPORTED (what cannot be enforced at all), ERR_NOMEM. `vocab` must outlive it.
struct grammar *grammar_compile(const struct grammar_spec *spec,
                                const struct grammar_vocab *vocab, struct err *err);
struct grammar *grammar_acquire(struct grammar *grammar);
void grammar_release(struct grammar *grammar); // NULL is allowed
// JSON Schema keywords that are valid but not wholly enforced: for the Warning header, and a 400 under
// strict.
size_t grammar_n_ignored(const struct grammar *grammar);
const char *grammar_ignored(const struct grammar *grammar, size_t i); // borrowed
const char *grammar_ignored_path(const struct grammar *grammar, size_t i); // where first, borrowed
size_t grammar_bytes(struct grammar *grammar); // memory, tables included
// For a JSON Schema: the instance with members in the order in which the grammar reads them (a new
// reference); for others the instance itself.
json_t *grammar_order(struct grammar *grammar, json_t *instance);

// ---- a sequence --------------------------------------------------------------------------------

// At the start of the grammar. Holds a reference to it. NULL with ERR_NOMEM or a limit's ERR_INVALID.
struct grammar_state *grammar_state_create(struct grammar *grammar, struct err *err);
struct grammar_state *grammar_state_clone(const struct grammar_state *state, struct err *err);
void grammar_state_destroy(struct grammar_state *state); // NULL is allowed

// Bits of the tokens that may come next (grammar_vocab_mask_words() words; end-of-sequence tokens
// included when the grammar may end). False with *err set when a limit of memory was hit; the sequence
// must then fail.
bool grammar_state_mask(struct grammar_state *state, uint32_t *mask, struct err *err);
// May this token come next? The state stays as it is.
bool grammar_state_allows(struct grammar_state *state, token_id token);
// Go past a token; false (and nothing changed) if it may not come. After an end-of-sequence token
// nothing may.
bool grammar_state_advance(struct grammar_state *state, token_id token);
// Take back the last n tokens; false if they are more than were advanced or GRAMMAR_ROLLBACK_MAX.
bool grammar_state_rollback(struct grammar_state *state, uint32_t n);
// The grammar may end here.
bool grammar_state_eos_allowed(struct grammar_state *state);
// The grammar may end here and nothing can follow (or its end was advanced past).
bool grammar_state_is_complete(struct grammar_state *state);
// The bytes that must come next, whatever the model says; appends at most n_max and returns how many.
size_t grammar_state_forced(struct grammar_state *state, size_t n_max, struct strbuf *out);

// ---- compiled grammars kept for the next request -----------------------------------------------

// Thread-safe. Least recently used grammars go when there are more than n_max or they hold more than
// bytes_max.
struct grammar_cache;
struct grammar_cache *grammar_cache_create(const struct grammar_vocab *vocab, uint32_t n_max,
                                           size_t bytes_max, struct err *err);
void grammar_cache_destroy(struct grammar_cache *cache); // NULL is allowed
// An acquired grammar, compiled if it is not there (without holding the cache's lock).
struct grammar *grammar_cache_get(struct grammar_cache *cache, const struct grammar_spec *spec,
                                  struct err *err);
#endif
