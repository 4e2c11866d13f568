// tokenizer/json_skim.h - the two huge members of tokenizer.json, read without building JSON values:
// a vocabulary of 262,144 tokens with its merges is millions of them.
// An optimization only: whatever is unusual is refused here and left to jansson.
#ifndef LOAM_TOKENIZER_JSON_SKIM_H
#define LOAM_TOKENIZER_JSON_SKIM_H
#include "tokenizer/source.h"

struct json_skim {
    struct str vocab, merges; // the values' texts; data is NULL if absent
};

// Find model.vocab and model.merges. False if the text is not such an object or has a member twice.
bool json_skim_find(struct str text, struct json_skim *skim);
// Fill the source's tokens from {"text": id, ...}; texts without escapes borrow from `vocab`. False if
// it has any other form, or when out of memory.
bool json_skim_vocab(struct source *source, struct str vocab);
// The same for ["a b", ...] or [["a", "b"], ...].
bool json_skim_merges(struct source *source, struct str merges);
#endif
