// tokenizer/bpe.h - byte-pair encoding: join the neighbouring pair of lowest rank until none is left.
// Immutable once read; a struct bpe_scratch belongs to one thread.
#ifndef LOAM_TOKENIZER_BPE_H
#define LOAM_TOKENIZER_BPE_H
#include "tokenizer/vocab.h"

struct merge_slot {
    uint32_t a, b;    // the pair
    uint32_t rank;    // lower joins first
    uint32_t id_next; // of the joined token, + 1; 0: free
};

struct bpe {
    const struct vocab *vocab;  // spelled as tokenizer.json does
    const struct vocab *pieces; // the same tokens by the bytes they stand for, or NULL
    const uint8_t *flags;       // of `pieces`
    const struct merge_slot *merges;
    uint32_t merge_mask;
    bool has_unk; // characters the vocabulary lacks become `unk`, else they vanish
    token_id unk; // TOKEN_NONE if the vocabulary lacks that as well
    bool fuse_unk, byte_fallback, ignore_merges;
    struct str prefix, suffix;  // continuing_subword_prefix, end_of_word_suffix
    token_id fallback[256];     // "<0x00>" ...; all of them or none is used for a character
    token_id letters[256];      // of a byte that ByteLevel spells, or TOKEN_NONE
};

struct bpe_symbol {
    token_id id; // TOKEN_NONE once joined to its left neighbour
    uint32_t prev, next;
    uint32_t rank;   // of the pair with `next`, UINT32_MAX if it never joins
    token_id joined; // what that pair becomes
};

struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t n_symbols_max;
    uint64_t *heap; // rank << 32 | position
    size_t n_heap, n_heap_max;
    struct strbuf affixed;
};
void bpe_scratch_deinit(struct bpe_scratch *scratch);

// Append the ids of one word. ERR_NOMEM; ERR_UNSUPPORTED if it needs the unk token and there is none.
bool bpe_encode(const struct bpe *bpe, struct str word, struct bpe_scratch *scratch,
                struct token_list *out, struct err *err);
// The same for a word of raw bytes (at least one) that ByteLevel would spell, whose token_hash() is
// `hash`. Requires bpe->pieces.
bool bpe_encode_bytes(const struct bpe *bpe, struct str word, uint64_t hash,
                      struct bpe_scratch *scratch, struct token_list *out, struct err *err);
// Set TOKEN_WHOLE in flags[n_ids] where it holds; bpe_encode_bytes() is right without, but slower.
bool bpe_mark_whole(const struct bpe *bpe, uint8_t *flags, struct err *err);

// One merge of a model file, by ids.
struct merge {
    token_id a, b, joined;
};
// Put the merges, best first, into an IMAGE_MERGES table; of equal pairs the last counts, as in HF.
bool bpe_build_merges(struct image_builder *builder, const struct merge *merges, uint32_t n,
                      struct err *err);
// ERR_FORMAT if the table does not fit the vocabulary.
bool bpe_read_merges(struct bpe *bpe, const struct image *image, struct err *err);
#endif
