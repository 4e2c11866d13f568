// tokenizer/tokenizer.h - text <-> token ids, as Hugging Face's tokenizers do it.
// A tokenizer is immutable once open: any thread may use it without a lock.
#ifndef LOAM_TOKENIZER_TOKENIZER_H
#define LOAM_TOKENIZER_TOKENIZER_H
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"

typedef int32_t token_id;
enum { TOKEN_NONE = -1 };

struct tokenizer;

// Token ids that grow. Zero-initialise; running out of memory sticks in `failed`.
struct token_list {
    token_id *ids; // owned
    size_t n, capacity;
    bool failed;
};
void token_list_deinit(struct token_list *list);
void token_list_clear(struct token_list *list); // keeps the memory, clears `failed`
void token_list_append(struct token_list *list, token_id id);

// Open the tokenizer of a model folder: tokenizer.json (with tokenizer_config.json), else
// tokenizer.model (SentencePiece), else a tiktoken rank file. Uses the compiled form in loam's cache
// folder when it is there. NULL with ERR_NOT_FOUND if the folder has none of them, ERR_FORMAT if a file
// is damaged, ERR_UNSUPPORTED naming a component that loam does not know, ERR_IO, ERR_NOMEM.
struct tokenizer *tokenizer_open(const char *folder, struct err *err);

// The same from the bytes of tokenizer.json and tokenizer_config.json (may be empty), not trusted and
// not kept. Never touches the cache.
struct tokenizer *tokenizer_create(struct bytes tokenizer_json, struct bytes tokenizer_config_json,
                                   struct err *err);
void tokenizer_destroy(struct tokenizer *tokenizer); // NULL is allowed

enum tokenizer_encode_flags {
    // Add what the post-processor adds (BOS, EOS ...).
    TOKENIZER_ADD_SPECIAL = 1 << 0,
    // Treat the spellings of special tokens in the text as plain text (untrusted user text).
    TOKENIZER_NO_SPECIAL_SPELLINGS = 1 << 1,
};

// Append the ids of `text`. Ill-formed UTF-8 is read as if each ill-formed part were U+FFFD.
// ERR_NOMEM.
bool tokenizer_encode(const struct tokenizer *tokenizer, struct str text, uint32_t flags,
                      struct token_list *out, struct err *err);

// Append the text of the ids, as HF's decode() gives it (whole-sequence decoders, cleanup as
// tokenizer_config.json asks). Ids outside the vocabulary contribute nothing.
bool tokenizer_decode(const struct tokenizer *tokenizer, const token_id *ids, size_t n,
                      bool skip_special, struct strbuf *out, struct err *err);

// One more than the largest id (added tokens included). The model's logits may be wider.
uint32_t tokenizer_n_vocab(const struct tokenizer *tokenizer);
// The id of a token by its exact text in the vocabulary, or TOKEN_NONE.
token_id tokenizer_id(const struct tokenizer *tokenizer, struct str token);
// The token as the vocabulary spells it ("Ġthe", "<0x0A>"); empty if there is no such id.
struct str tokenizer_token(const struct tokenizer *tokenizer, token_id id);
// The bytes that the token stands for inside a longer text ("Ġthe" -> " the", "<0x0A>" -> "\n"; not
// always valid UTF-8). What grammars match against. Empty for ids that stand for no text.
struct bytes tokenizer_token_bytes(const struct tokenizer *tokenizer, token_id id);
bool tokenizer_is_special(const struct tokenizer *tokenizer, token_id id);
// As tokenizer_config.json and the post-processor say; TOKEN_NONE if there is none.
token_id tokenizer_bos(const struct tokenizer *tokenizer);
token_id tokenizer_eos(const struct tokenizer *tokenizer);
// The spelling of a named special token of tokenizer_config.json ("bos_token", "eos_token",
// "pad_token" ...); data is NULL if it has none.
struct str tokenizer_special_text(const struct tokenizer *tokenizer, const char *name);
// Lower-case hex SHA-256 of what decides the ids: names the tokenizer in cache keys.
const char *tokenizer_fingerprint(const struct tokenizer *tokenizer);

// ---- Incremental detokenizer ------------------------------------------------------------------
// Turns a growing sequence of ids into text pieces: for any split of the ids the pieces join to the
// same whole. A character that more ids could complete is held back, so no piece ever contains a
// broken one. O(1) amortized per id. One owner thread.
struct detokenizer;
struct detokenizer *detokenizer_create(const struct tokenizer *tokenizer, bool skip_special,
                                       struct err *err);
void detokenizer_destroy(struct detokenizer *detok);
// Append the text that `id` settles (perhaps none) to *out. False only when out of memory.
bool detokenizer_push(struct detokenizer *detok, token_id id, struct strbuf *out);
// The sequence has ended: append what was held back, broken characters as U+FFFD. The detokenizer is
// then as new.
bool detokenizer_finish(struct detokenizer *detok, struct strbuf *out);
// A copy with the same state, NULL when out of memory (n > 1 continuations of one prompt).
struct detokenizer *detokenizer_clone(const struct detokenizer *detok);
#endif
