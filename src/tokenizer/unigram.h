// tokenizer/unigram.h - the segmentation of highest total score (Kudo 2018), found by dynamic
// programming over the tokens that begin at each character, as SentencePiece does.
#ifndef LOAM_TOKENIZER_UNIGRAM_H
#define LOAM_TOKENIZER_UNIGRAM_H
#include "tokenizer/vocab.h"

// An unknown character costs this much more than the least likely token.
#define UNIGRAM_UNK_PENALTY 10.0

// A byte trie, children of a node side by side and sorted; node 0 is the root.
struct trie_node {
    uint32_t child;      // first child
    uint16_t n_children; // up to 256
    uint8_t label;       // the byte that leads here
    uint8_t pad;
    uint32_t id_next; // token that ends here, + 1, or 0
};

struct unigram {
    const struct vocab *vocab;
    const double *scores;          // [n_ids]
    const struct trie_node *nodes; // [n_nodes]
    uint32_t n_nodes;
    double unk_score;
    token_id unk; // or TOKEN_NONE
    bool byte_fallback;
    token_id fallback[256];
};

struct unigram_scratch {
    struct unigram_end *ends;
    size_t n_ends_max;
};
void unigram_scratch_deinit(struct unigram_scratch *scratch);

// Append the ids of one word of valid UTF-8. ERR_NOMEM; ERR_UNSUPPORTED if it has a character that no
// token covers and the model has no unk token.
bool unigram_encode(const struct unigram *unigram, struct str word, struct unigram_scratch *scratch,
                    struct token_list *out, struct err *err);

// Put the trie of texts[n] (empty ones left out; of equal ones the last counts) into IMAGE_TRIE.
bool unigram_build_trie(struct image_builder *builder, const struct str *texts,
                        const uint8_t *flags, uint32_t n, struct err *err);
// Scores and trie. ERR_FORMAT if they do not fit the vocabulary.
bool unigram_read(struct unigram *unigram, const struct image *image, struct err *err);
#endif
