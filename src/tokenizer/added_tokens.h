// tokenizer/added_tokens.h - the added tokens of tokenizer.json: found in the text before it is
// normalized and cut, or (those marked "normalized") after it is normalized. Immutable once read.
#ifndef LOAM_TOKENIZER_ADDED_TOKENS_H
#define LOAM_TOKENIZER_ADDED_TOKENS_H
#include "tokenizer/vocab.h"

enum added_flags {
    ADDED_LSTRIP = 1 << 0,
    ADDED_RSTRIP = 1 << 1,
    ADDED_SINGLE_WORD = 1 << 2,
    ADDED_NORMALIZED = 1 << 3,
    ADDED_SPECIAL = 1 << 4,
};

// In IMAGE_ADDED: first those found in the raw text, then those found in normalized text, each group
// sorted by the bytes that it is found by.
struct added_token {
    uint32_t off, n; // of IMAGE_ADDED_TEXT
    token_id id;
    uint32_t flags; // enum added_flags
};

struct added_group {
    const struct added_token *tokens;
    uint32_t n;
    uint32_t from[257]; // tokens that begin with byte b are from[b] .. from[b + 1]
    int only_byte;      // all begin with this byte, or -1
};

struct added_tokens {
    const char *text;
    struct added_group raw, normalized;
};

// ERR_FORMAT if the sections do not fit.
bool added_tokens_read(struct added_tokens *added, const struct image *image, uint32_t n_ids,
                       struct err *err);

// Cut `text` at the tokens of a group: call with *at = 0, then until it returns false. A part is the
// token `id`, or text if id is TOKEN_NONE; parts are never empty.
struct added_cutter {
    const struct added_tokens *added;
    const struct added_group *group;
    struct str text;
    bool skip_special;  // spellings of special tokens are plain text
    size_t search_from; // where the next match may begin
    size_t done;        // text before this was given out
    bool has_token;     // a match waits behind a part of text
    struct added_part {
        struct str text;
        size_t from;
        token_id id;
    } token;
};
bool added_next(struct added_cutter *cutter, struct added_part *out);
#endif
