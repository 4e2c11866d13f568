// tokenizer/word_cache.h - the ids of words already seen in one text: most words come again. One thread.
#ifndef LOAM_TOKENIZER_WORD_CACHE_H
#define LOAM_TOKENIZER_WORD_CACHE_H
#include "tokenizer/tokenizer.h"

enum { WORD_CACHE_KEY_BYTES = 22, WORD_CACHE_IDS = 10 };

// One cache line each; a word has one place, the last one there stays.
struct word_cache_slot {
    uint8_t n_key, n_ids; // n_key 0: free
    char key[WORD_CACHE_KEY_BYTES];
    token_id ids[WORD_CACHE_IDS];
};

struct word_cache {
    struct word_cache_slot *slots; // NULL: no cache
    size_t mask;
};

// For a text of n bytes; a short text gets none, nor does one when memory is out.
void word_cache_init(struct word_cache *cache, size_t n);
void word_cache_deinit(struct word_cache *cache);

// Append the ids of the word if they are known.
static inline bool word_cache_find(const struct word_cache *cache, struct str word, uint64_t hash,
                                   struct token_list *out) {
    if (!cache->slots)
        return false;
    const struct word_cache_slot *slot = &cache->slots[hash & cache->mask];
    if (slot->n_key != word.n || memcmp(slot->key, word.data, word.n) != 0)
        return false;
    for (uint32_t i = 0; i < slot->n_ids; i++)
        token_list_append(out, slot->ids[i]);
    return true;
}

static inline void word_cache_put(struct word_cache *cache, struct str word, uint64_t hash,
                                  const token_id *ids, size_t n) {
    if (!cache->slots || word.n > WORD_CACHE_KEY_BYTES || n > WORD_CACHE_IDS)
        return;
    struct word_cache_slot *slot = &cache->slots[hash & cache->mask];
    slot->n_key = (uint8_t)word.n;
    slot->n_ids = (uint8_t)n;
    memcpy(slot->key, word.data, word.n);
    for (size_t i = 0; i < n; i++)
        slot->ids[i] = ids[i];
}
#endif
