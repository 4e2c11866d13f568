#include "tokenizer/word_piece.h"

#include "tokenizer/characters.h"

static bool append_unknown(const struct word_piece *model, struct token_list *out, struct err *err) {
    if (model->unk == TOKEN_NONE)
        return err_set(err, ERR_UNSUPPORTED,
                       "tokenizer: the text has a word that the vocabulary lacks, and the model's "
                       "unk token is not in it either");
    token_list_append(out, model->unk);
    return true;
}

// The longest token that the rest of the word begins with: *to is its end.
static token_id longest(const struct word_piece *model, struct str word, size_t from, size_t *to,
                        struct strbuf *scratch) {
    struct str prefix = from ? model->prefix : STR("");
    strbuf_clear(scratch);
    strbuf_append(scratch, prefix);
    strbuf_append(scratch, str_slice(word, from, word.n));
    for (*to = word.n; !scratch->failed && *to > from;) {
        struct str text = {scratch->data, prefix.n + *to - from};
        token_id id = vocab_find(model->vocab, text);
        if (id != TOKEN_NONE)
            return id;
        do
            --*to;
        while (*to > from && ((uint8_t)word.data[*to] & 0xC0) == 0x80);
    }
    return TOKEN_NONE;
}

bool word_piece_encode(const struct word_piece *model, struct str word, struct strbuf *scratch,
                       struct token_list *out, struct err *err) {
    if (model->whole_words) {
        token_id id = vocab_find(model->vocab, word);
        if (id == TOKEN_NONE)
            return append_unknown(model, out, err);
        token_list_append(out, id);
        return true;
    }
    size_t n_chars = 0;
    for (size_t i = 0, n; i < word.n; i += n, n_chars++)
        char_at(word.data + i, &n);
    if (n_chars > model->chars_max)
        return append_unknown(model, out, err);
    size_t n_before = out->n;
    for (size_t at = 0, to; at < word.n; at = to) {
        token_id id = longest(model, word, at, &to, scratch);
        if (scratch->failed)
            return err_set(err, ERR_NOMEM, "tokenizer: out of memory");
        if (id == TOKEN_NONE) { // one bad part spoils the word
            out->n = n_before;
            return append_unknown(model, out, err);
        }
        token_list_append(out, id);
    }
    return true;
}
