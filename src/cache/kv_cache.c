#include "cache/kv_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

struct group {
    uint32_t window, n_pages, n_free;
    uint32_t *free_pages; // stack of n_free ids
    uint32_t *references; // [n_pages]
};

struct kv_cache {
    struct kv_cache_options options;
    struct group groups[KV_GROUPS_MAX];
    uint32_t n_blocks_max; // pages that ctx_len positions need
};

struct kv_cache *kv_cache_create(const struct kv_cache_options *options, struct err *err) {
    struct kv_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        err_set(err, ERR_NOMEM, "out of memory for the KV cache");
        return NULL;
    }
    cache->options = *options;
    cache->n_blocks_max = kv_blocks_of(options->ctx_len);
    for (uint32_t g = 0; g < options->n_groups; g++) {
        struct group *group = &cache->groups[g];
        group->window = options->group_window[g];
        group->n_pages = group->n_free = options->n_pages[g];
        group->free_pages = calloc(max_u32(group->n_pages, 1), sizeof *group->free_pages);
        group->references = calloc(max_u32(group->n_pages, 1), sizeof *group->references);
        if (!group->free_pages || !group->references) {
            kv_cache_destroy(cache);
            err_set(err, ERR_NOMEM, "out of memory for %u KV pages", options->n_pages[g]);
            return NULL;
        }
        for (uint32_t i = 0; i < group->n_pages; i++) // low ids leave first
            group->free_pages[i] = group->n_pages - 1 - i;
    }
    return cache;
}

void kv_cache_destroy(struct kv_cache *cache) {
    if (!cache)
        return;
    for (uint32_t g = 0; g < KV_GROUPS_MAX; g++) {
        free(cache->groups[g].free_pages);
        free(cache->groups[g].references);
    }
    free(cache);
}

uint32_t kv_cache_n_free(const struct kv_cache *cache, uint32_t group) {
    return cache->groups[group].n_free;
}
uint32_t kv_cache_n_pages(const struct kv_cache *cache, uint32_t group) {
    return cache->groups[group].n_pages;
}
uint32_t kv_cache_n_groups(const struct kv_cache *cache) {
    return cache->options.n_groups;
}
uint32_t kv_cache_n_tokens_max(const struct kv_cache *cache) {
    return cache->options.ctx_len;
}
uint32_t kv_cache_window(const struct kv_cache *cache, uint32_t group) {
    return cache->groups[group].window;
}
uint32_t kv_cache_references(const struct kv_cache *cache, uint32_t group, uint32_t page) {
    return cache->groups[group].references[page];
}

uint32_t kv_cache_take(struct kv_cache *cache, uint32_t g) {
    struct group *group = &cache->groups[g];
    if (group->n_free == 0)
        return KV_PAGE_NONE;
    uint32_t page = group->free_pages[--group->n_free];
    assert(group->references[page] == 0);
    group->references[page] = 1;
    return page;
}

void kv_cache_acquire(struct kv_cache *cache, uint32_t group, uint32_t page) {
    assert(cache->groups[group].references[page] > 0);
    cache->groups[group].references[page]++;
}

void kv_cache_release(struct kv_cache *cache, uint32_t g, uint32_t page) {
    struct group *group = &cache->groups[g];
    assert(page < group->n_pages && group->references[page] > 0);
    if (--group->references[page] == 0)
        group->free_pages[group->n_free++] = page;
}

bool kv_seq_init(struct kv_cache *cache, struct kv_seq *seq, struct err *err) {
    *seq = (struct kv_seq){0};
    for (uint32_t g = 0; g < cache->options.n_groups; g++) {
        seq->table[g] = malloc(max_u32(cache->n_blocks_max, 1) * sizeof(uint32_t));
        if (!seq->table[g]) {
            kv_seq_deinit(cache, seq);
            return err_set(err, ERR_NOMEM, "out of memory for a sequence's block table");
        }
        memset(seq->table[g], 0xFF, cache->n_blocks_max * sizeof(uint32_t)); // KV_PAGE_NONE
    }
    return true;
}

// Give back the entries [from, to) of a table.
static void drop(struct kv_cache *cache, struct kv_seq *seq, uint32_t g, uint32_t from, uint32_t to) {
    for (uint32_t b = from; b < to; b++) {
        if (seq->table[g][b] != KV_PAGE_NONE)
            kv_cache_release(cache, g, seq->table[g][b]);
        seq->table[g][b] = KV_PAGE_NONE;
    }
}

void kv_seq_clear(struct kv_cache *cache, struct kv_seq *seq) {
    for (uint32_t g = 0; g < cache->options.n_groups; g++) {
        if (seq->table[g])
            drop(cache, seq, g, 0, seq->n_blocks);
        seq->first_block[g] = 0;
    }
    seq->n_blocks = 0;
}

void kv_seq_deinit(struct kv_cache *cache, struct kv_seq *seq) {
    if (cache)
        kv_seq_clear(cache, seq);
    for (uint32_t g = 0; g < KV_GROUPS_MAX; g++)
        free(seq->table[g]);
    *seq = (struct kv_seq){0};
}

static bool needs_page(const struct kv_cache *cache, const struct kv_seq *seq, uint32_t g, uint32_t b) {
    uint32_t page = b < seq->n_blocks ? seq->table[g][b] : KV_PAGE_NONE;
    return page == KV_PAGE_NONE || cache->groups[g].references[page] > 1;
}

void kv_seq_need(const struct kv_cache *cache, const struct kv_seq *seq, uint32_t from, uint32_t to,
                 uint32_t n_pages[KV_GROUPS_MAX]) {
    for (uint32_t g = 0; g < KV_GROUPS_MAX; g++) {
        n_pages[g] = 0;
        if (g < cache->options.n_groups)
            for (uint32_t b = from / KV_PAGE_TOKENS; b < kv_blocks_of(to); b++)
                n_pages[g] += needs_page(cache, seq, g, b);
    }
}

bool kv_seq_reserve(struct kv_cache *cache, struct kv_seq *seq, uint32_t from, uint32_t to) {
    if (to > cache->options.ctx_len)
        return false;
    if (to <= from)
        return true;
    uint32_t need[KV_GROUPS_MAX];
    kv_seq_need(cache, seq, from, to, need);
    for (uint32_t g = 0; g < cache->options.n_groups; g++)
        if (need[g] > cache->groups[g].n_free)
            return false;
    uint32_t first = from / KV_PAGE_TOKENS, end = kv_blocks_of(to);
    for (uint32_t g = 0; g < cache->options.n_groups; g++) {
        for (uint32_t b = first; b < end; b++) {
            if (!needs_page(cache, seq, g, b))
                continue;
            uint32_t old = seq->table[g][b];
            uint32_t page = kv_cache_take(cache, g);
            // Only the first block can hold positions before `from` that must survive.
            if (old != KV_PAGE_NONE) {
                if (b == first && from % KV_PAGE_TOKENS)
                    cache->options.copy(cache->options.user, g, old, page);
                kv_cache_release(cache, g, old);
            }
            seq->table[g][b] = page;
        }
    }
    seq->n_blocks = max_u32(seq->n_blocks, end);
    return true;
}

void kv_seq_truncate(struct kv_cache *cache, struct kv_seq *seq, uint32_t n_tokens) {
    uint32_t keep = kv_blocks_of(n_tokens);
    if (keep >= seq->n_blocks)
        return;
    for (uint32_t g = 0; g < cache->options.n_groups; g++)
        drop(cache, seq, g, keep, seq->n_blocks);
    seq->n_blocks = keep;
}

void kv_seq_slide(struct kv_cache *cache, struct kv_seq *seq, uint32_t n_tokens) {
    for (uint32_t g = 0; g < cache->options.n_groups; g++) {
        uint32_t window = cache->groups[g].window;
        if (window == 0 || n_tokens < window)
            continue;
        // A query at n_tokens sees positions above n_tokens - window.
        uint32_t first = min_u32((n_tokens - window + 1) / KV_PAGE_TOKENS, seq->n_blocks);
        if (first > seq->first_block[g]) {
            drop(cache, seq, g, seq->first_block[g], first);
            seq->first_block[g] = first;
        }
    }
}

void kv_seq_share(struct kv_cache *cache, struct kv_seq *to, const struct kv_seq *from,
                  uint32_t n_tokens) {
    assert(to->n_blocks == 0 && kv_blocks_of(n_tokens) <= from->n_blocks);
    uint32_t n = kv_blocks_of(n_tokens);
    for (uint32_t g = 0; g < cache->options.n_groups; g++) {
        for (uint32_t b = 0; b < n; b++) {
            to->table[g][b] = from->table[g][b];
            if (to->table[g][b] != KV_PAGE_NONE)
                kv_cache_acquire(cache, g, to->table[g][b]);
        }
        to->first_block[g] = min_u32(from->first_block[g], n);
    }
    to->n_blocks = n;
}
