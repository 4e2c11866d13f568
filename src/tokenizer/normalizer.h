// tokenizer/normalizer.h - the "normalizer" of tokenizer.json: text to text, before anything is cut.
// Immutable once read; a struct normalizer_scratch belongs to one thread.
#ifndef LOAM_TOKENIZER_NORMALIZER_H
#define LOAM_TOKENIZER_NORMALIZER_H
#include "base/arena.h"
#include "base/json.h"
#include "tokenizer/regex.h"

struct normalizer_step;
struct normalizer {
    struct arena arena;
    struct normalizer_step *steps; // sequences flattened
    size_t n_steps;
};

// Read the component (null: none). ERR_FORMAT, ERR_UNSUPPORTED naming the type, ERR_NOMEM.
bool normalizer_init(struct normalizer *normalizer, const json_t *value, struct err *err);
void normalizer_deinit(struct normalizer *normalizer);

struct normalizer_scratch {
    struct strbuf texts[2];
    struct regex_scratch *regex; // borrowed
};
void normalizer_scratch_deinit(struct normalizer_scratch *scratch);

// Normalize valid UTF-8. *out borrows from `in` or the scratch until its next use. ERR_NOMEM,
// ERR_UNSUPPORTED if a regular expression gave up.
bool normalizer_run(const struct normalizer *normalizer, struct str in,
                    struct normalizer_scratch *scratch, struct str *out, struct err *err);
#endif
