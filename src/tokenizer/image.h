// tokenizer/image.h - a compiled tokenizer: one block of bytes whose tables are read in place.
// The same block serves in memory and on disk, so there is one way to open a tokenizer. Native byte
// order and layout: an image is a cache of this machine, never an exchange format.
//
//   header | section table | sections, each at a multiple of 64
#ifndef LOAM_TOKENIZER_IMAGE_H
#define LOAM_TOKENIZER_IMAGE_H
#include "base/bytes.h"
#include "base/err.h"

enum { IMAGE_VERSION = 1 };

enum image_section {
    IMAGE_META,        // JSON: everything of the tokenizer's files but the tables below
    IMAGE_FINGERPRINT, // 64 hex digits
    IMAGE_TEXT_OFF,    // u32 [n_ids + 1]: where a token's text begins
    IMAGE_TEXT,        // the texts, as the files spell them, added tokens included
    IMAGE_TEXT_SLOTS,  // struct vocab_slot [power of two]: text -> id, the model's tokens
    IMAGE_ADDED_SLOTS, // the same for the added tokens
    IMAGE_PIECE_OFF,   // u32 [n_ids + 1]: the same for the bytes that a token stands for
    IMAGE_PIECE,
    IMAGE_PIECE_SLOTS, // struct vocab_slot [power of two], byte-level models only
    IMAGE_FLAGS,       // u8 [n_ids]: enum token_flags
    IMAGE_ADDED,       // struct added_token [], sorted: see added_tokens.h
    IMAGE_ADDED_TEXT,  // what they are found by
    IMAGE_MERGES,      // struct merge_slot [power of two]
    IMAGE_SCORES,      // f64 [n_ids], Unigram only
    IMAGE_TRIE,        // struct trie_node [], Unigram only
    IMAGE_N_SECTIONS
};

struct image {
    struct bytes section[IMAGE_N_SECTIONS]; // borrowed from the block
};

struct image_builder {
    struct strbuf section[IMAGE_N_SECTIONS];
};
void image_builder_deinit(struct image_builder *builder);
static inline void image_append(struct image_builder *builder, enum image_section section,
                                const void *data, size_t n) {
    strbuf_append(&builder->section[section], (struct str){data, n});
}
// Lay the sections out into *out, appended to an empty buffer. ERR_NOMEM.
bool image_finish(struct image_builder *builder, struct strbuf *out, struct err *err);
// Find the sections of a block whose start is aligned to 16 bytes or more. ERR_FORMAT if it is no
// image of this version.
bool image_read(struct image *image, struct bytes block, struct err *err);

// Before a block goes to disk: write its checksum into it.
void image_seal(void *block, size_t n);
// Is the block what image_seal() saw?
bool image_is_whole(struct bytes block);
#endif
