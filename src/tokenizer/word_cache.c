#include "tokenizer/word_cache.h"

#include <stdlib.h>

enum { TEXT_BYTES_MIN = 1024, SLOTS_MAX = 1 << 14 };

void word_cache_init(struct word_cache *cache, size_t n) {
    *cache = (struct word_cache){0};
    size_t n_slots = 64;
    while (n_slots < SLOTS_MAX && n_slots < n / 16)
        n_slots *= 2;
    if (n >= TEXT_BYTES_MIN)
        cache->slots = calloc(n_slots, sizeof *cache->slots);
    cache->mask = n_slots - 1;
}

void word_cache_deinit(struct word_cache *cache) {
    free(cache->slots);
    *cache = (struct word_cache){0};
}
