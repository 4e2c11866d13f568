// tokenizer/vocab.h - texts by id and ids by text, read in place from an image.
#ifndef LOAM_TOKENIZER_VOCAB_H
#define LOAM_TOKENIZER_VOCAB_H
#include "tokenizer/image.h"
#include "tokenizer/token_hash.h"
#include "tokenizer/tokenizer.h"

enum token_flags {
    TOKEN_IN_MODEL = 1 << 0, // the model's vocabulary has it
    TOKEN_ADDED = 1 << 1,    // an added token
    TOKEN_SPECIAL = 1 << 2,  // an added token that skip_special drops
    TOKEN_BYTE = 1 << 3,     // "<0xE4>": one byte, for the decoder's ByteFallback
    TOKEN_WHOLE = 1 << 4,    // BPE of this token's own text gives back this one token
    TOKEN_LETTERS = 1 << 5,  // spelled in ByteLevel's letters
    TOKEN_RENAMED = 1 << 6,  // an added token that decodes to another text: its normalized form
};

struct vocab_slot {
    uint32_t tag;     // upper half of the text's hash
    uint32_t id_next; // id + 1; 0: free
};

struct vocab {
    uint32_t n_ids;
    uint32_t slot_mask; // slots are a power of two
    const uint32_t *off; // [n_ids + 1]
    const char *text;
    const struct vocab_slot *slots; // NULL: no search by text
};

static inline struct str vocab_text(const struct vocab *vocab, token_id id) {
    uint32_t from = vocab->off[id];
    return (struct str){vocab->text + from, vocab->off[id + 1] - from};
}

static inline token_id vocab_find_hashed(const struct vocab *vocab, struct str text,
                                         uint64_t hash) {
    for (uint32_t i = (uint32_t)hash;; i++) {
        const struct vocab_slot *slot = &vocab->slots[i & vocab->slot_mask];
        if (!slot->id_next)
            return TOKEN_NONE;
        if (slot->tag != (uint32_t)(hash >> 32))
            continue;
        token_id id = (token_id)(slot->id_next - 1);
        struct str have = vocab_text(vocab, id);
        if (have.n == text.n && memcmp(have.data, text.data, text.n) == 0)
            return id;
    }
}
static inline token_id vocab_find(const struct vocab *vocab, struct str text) {
    return text.n && vocab->slots ? vocab_find_hashed(vocab, text, token_hash(text)) : TOKEN_NONE;
}

// Append the offsets and texts of ids 0 to n - 1. ERR_FORMAT above 4 GiB of text.
bool vocab_build(struct image_builder *builder, const struct str *texts, uint32_t n,
                 enum image_section off, enum image_section text, struct err *err);
// Append the slots of the ids whose flags have one of `mask`; empty texts get none, and of equal
// texts the last id is found.
bool vocab_build_slots(struct image_builder *builder, const struct str *texts, uint32_t n,
                       const uint8_t *flags, uint8_t mask, enum image_section slots,
                       struct err *err);
// ERR_FORMAT if the sections do not fit each other. IMAGE_N_SECTIONS for no slots.
bool vocab_read(struct vocab *vocab, const struct image *image, enum image_section off,
                enum image_section text, enum image_section slots, struct err *err);
// A table of at least 1.5 n slots, a power of two.
uint32_t vocab_n_slots(uint32_t n);
#endif
