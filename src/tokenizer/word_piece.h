// tokenizer/word_piece.h - WordPiece: the longest token first, again and again; and WordLevel: whole
// words only. Immutable once read.
#ifndef LOAM_TOKENIZER_WORD_PIECE_H
#define LOAM_TOKENIZER_WORD_PIECE_H
#include "tokenizer/vocab.h"

struct word_piece {
    const struct vocab *vocab;
    struct str prefix; // of tokens inside a word
    uint32_t chars_max;
    token_id unk; // or TOKEN_NONE
    bool whole_words; // WordLevel
};

// Append the ids of one word, using `scratch`. ERR_NOMEM; ERR_UNSUPPORTED if it needs an unk token and
// the model has none.
bool word_piece_encode(const struct word_piece *model, struct str word, struct strbuf *scratch,
                       struct token_list *out, struct err *err);
#endif
