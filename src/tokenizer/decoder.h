// tokenizer/decoder.h - the "decoder" of tokenizer.json: token texts back to text, piece by piece.
// A struct decoder is immutable once read; a struct decoder_run belongs to one thread.
//
// HF's decoders map a list of token texts to another list and join the last one. Here each step takes
// its tokens one at a time and hands on what can no longer change, so that the pieces of any split
// join to what the whole list gives.
#ifndef LOAM_TOKENIZER_DECODER_H
#define LOAM_TOKENIZER_DECODER_H
#include "base/arena.h"
#include "base/json.h"
#include "tokenizer/regex.h"

struct decoder_step;
struct decoder {
    struct arena arena;
    struct decoder_step *steps; // sequences flattened
    size_t n_steps;
};

// Read the component (null: tokens joined by spaces). `cleanup`: end with the replacements of
// clean_up_tokenization_spaces. ERR_FORMAT, ERR_UNSUPPORTED naming the type, ERR_NOMEM.
bool decoder_init(struct decoder *decoder, const json_t *value, bool cleanup, struct err *err);
void decoder_deinit(struct decoder *decoder);

// How a decoder of the two common forms can be run from the pieces alone.
enum decoder_form {
    DECODER_GENERAL,
    DECODER_BYTE_LEVEL,    // join the bytes, repair the UTF-8
    DECODER_BYTE_FALLBACK, // join the pieces, runs of byte tokens as characters
};
// With DECODER_BYTE_FALLBACK, *n_stripped spaces go from the front of the whole.
enum decoder_form decoder_form(const struct decoder *decoder, uint32_t *n_stripped);
struct decoder_piece_scratch {
    struct regex_scratch *regex; // borrowed
    struct strbuf texts[2];
};
// The bytes that a token's text stands for inside a longer text, borrowed from `text` or the scratch;
// *is_byte: a token of one byte. False when out of memory.
bool decoder_piece(const struct decoder *decoder, struct str text,
                   struct decoder_piece_scratch *scratch, struct str *out, bool *is_byte);

struct decoder_state;
struct decoder_run {
    const struct decoder *decoder;
    struct decoder_state *states; // [n_steps]
    struct regex_scratch *regex;
    bool failed; // out of memory
};
// ERR_NOMEM.
bool decoder_run_init(struct decoder_run *run, const struct decoder *decoder, struct err *err);
bool decoder_run_copy(struct decoder_run *run, const struct decoder_run *from);
void decoder_run_deinit(struct decoder_run *run);
void decoder_run_push(struct decoder_run *run, struct str token, struct strbuf *out);
// The end of the list; the run is then as new.
void decoder_run_finish(struct decoder_run *run, struct strbuf *out);

// The byte of "<0xE4>", or -1.
int decoder_byte_token(struct str text);
#endif
