// grammar/vocab.h - a model's vocabulary as grammars need it: tries of the tokens' bytes, and masks
// of what every JSON string allows, computed once per model.
// Immutable once created: any thread may read it without a lock.
#ifndef LOAM_GRAMMAR_VOCAB_H
#define LOAM_GRAMMAR_VOCAB_H
#include "base/bytes.h"
#include "base/err.h"
#include "tokenizer/tokenizer.h"

struct exprs;

// What a vocabulary is made of. Everything is borrowed during the call only.
struct grammar_vocab_desc {
    uint32_t n_tokens;               // width of the masks: at least the logits' rows that are tokens
    const struct bytes *token_bytes; // [n_tokens]; empty: never allowed
    // [n_tokens] or NULL. Special tokens are allowed only where a structural tag spells them.
    const uint8_t *special;
    const token_id *eos;             // what may end the sequence
    uint32_t n_eos;
};

struct grammar_vocab;
struct grammar_vocab *grammar_vocab_create(const struct grammar_vocab_desc *desc, struct err *err);
// Of a tokenizer. `n_tokens`: the model's logits width (0: the tokenizer's). `eos`: the ids that end
// a sequence, added to the tokenizer's own.
struct grammar_vocab *grammar_vocab_of_tokenizer(const struct tokenizer *tokenizer,
                                                 uint32_t n_tokens, const token_id *eos,
                                                 uint32_t n_eos, struct err *err);
void grammar_vocab_destroy(struct grammar_vocab *vocab); // NULL is allowed
uint32_t grammar_vocab_n(const struct grammar_vocab *vocab);
// 32-bit words of a mask: token t is bit t % 32 of word t / 32.
uint32_t grammar_vocab_mask_words(const struct grammar_vocab *vocab);
size_t grammar_vocab_bytes(const struct grammar_vocab *vocab);

// ---- for the parser ----------------------------------------------------------------------------

// Preorder nodes. The walk keeps one parser state per depth and skips whole subtrees.
struct trie_node {
    uint32_t skip;    // the node after this subtree
    uint32_t entries; // first entry that ends here; they end where the next node's begin
    uint16_t depth;   // bytes from the root, whose depth is 0
    uint8_t byte;
};
struct trie_entry {
    token_id token;
    uint16_t lead; // leading whitespace that was cut off ("rest" only)
};
struct trie {
    struct trie_node *nodes; // [n + 1], the last one closes the entries
    uint32_t n;
    struct trie_entry *entries;
};

enum { VOCAB_CHARS_MAX = 32 };

// Inside a JSON string whose content is free, with the spellings of one kind.
struct vocab_string {
    uint32_t *inside;   // mask: tokens that stay within the string
    struct trie suffix; // what tokens that close the string hold behind the closing quote
};

// Tokens of a kind that grammars often allow as a whole, and the trie of all others. Slice 0: plain
// content of JSON strings (no quote, backslash or control; the last character may be unfinished). The
// others: bytes of a set only. No token of a slice is longer than VOCAB_CHARS_MAX characters.
enum { VOCAB_SLICES = 4 };
struct vocab_slice {
    uint32_t *mask;
    struct trie others;
};
// The bytes of slice i > 0.
bool vocab_slice_has(uint32_t i, uint8_t byte);

// In a special token's bytes its spelling comes behind this byte, which no text holds.
enum { VOCAB_SPECIAL_MARK = 0xFF };

struct grammar_vocab {
    uint32_t n_tokens, n_words;
    struct bytes *token_bytes; // [n_tokens], copies; empty for what is never allowed
    uint8_t *bytes_storage;
    token_id *eos;
    uint32_t n_eos;
    uint32_t depth_max; // longest token
    struct trie all;
    struct trie rest;   // all tokens without their leading JSON whitespace
    struct vocab_slice slices[VOCAB_SLICES];
    // content[n]: tokens of slice 0 of at most n characters (the last may be unfinished), n > 0.
    uint32_t *content[VOCAB_CHARS_MAX + 1];
    struct vocab_string loose, strict; // every spelling; SPELL_JSON's
};

// The longest special token whose spelling `text` begins with, or an empty text. Borrowed.
struct str vocab_special_at(const struct grammar_vocab *vocab, struct str text);

// The expressions whose strings the masks above describe: rest of a string from its inside, closing
// quote included.
uint32_t vocab_string_tail(struct exprs *x, bool loose);
uint32_t vocab_plain_content(struct exprs *x); // any sequence of characters of slice 0
#endif
