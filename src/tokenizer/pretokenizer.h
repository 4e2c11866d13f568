// tokenizer/pretokenizer.h - the "pre_tokenizer" of tokenizer.json: text to the words that the model
// encodes one by one. Immutable once read; a struct words belongs to one thread.
#ifndef LOAM_TOKENIZER_PRETOKENIZER_H
#define LOAM_TOKENIZER_PRETOKENIZER_H
#include "base/arena.h"
#include "base/json.h"
#include "tokenizer/regex.h"

struct pretokenizer_step;
struct scanner;
struct pretokenizer {
    struct arena arena;
    struct pretokenizer_step *steps; // sequences flattened
    size_t n_steps;
    // The last step is ByteLevel, and words are left as raw bytes instead of being spelled in its
    // letters: for a model that looks up bytes.
    bool raw_bytes;
};

// Read the component (null: none). ERR_FORMAT, ERR_UNSUPPORTED naming the type, ERR_NOMEM.
bool pretokenizer_init(struct pretokenizer *pre, const json_t *value, struct err *err);
void pretokenizer_deinit(struct pretokenizer *pre);
// May raw_bytes be set?
bool pretokenizer_ends_in_bytes(const struct pretokenizer *pre);
// If all it does is to cut raw bytes where one scanner says: that scanner. Else NULL.
const struct scanner *pretokenizer_scanner(const struct pretokenizer *pre);

struct word {
    size_t from, to; // of `text`, never empty
    bool at_start;   // begins where the whole input begins
};
struct words {
    struct str text; // borrows from the input or `texts`
    struct word *items;
    size_t n, capacity;
    struct word *other; // the step's input while `items` is being filled
    size_t other_capacity;
    struct strbuf texts[2];
    struct regex_scratch *regex; // borrowed
};
void words_deinit(struct words *words);

// Cut valid UTF-8 into words. ERR_NOMEM, ERR_UNSUPPORTED if a regular expression gave up.
bool pretokenizer_run(const struct pretokenizer *pre, struct str in, bool at_start,
                      struct words *words, struct err *err);
#endif
