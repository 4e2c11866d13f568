// cache/kv_cache.h - who holds which KV page: one pool of page ids per group, reference counts, and each
// sequence's block tables. The pages' memory is the backend's. Owned by the engine thread.
//
//   sequence A   table[g] = [ 7 | 3 | 9 ]      a page holds KV_PAGE_TOKENS positions of every layer of
//   sequence B   table[g] = [ 7 | 3 | 4 ]      its group; pages 7 and 3 are shared (2 references each)
//
// A page that is shared is never written: the last, partial page is copied when a sequence that shares it
// goes on (copy-on-write). Pages wholly behind a group's sliding window are given back at once, and their
// table entry becomes KV_PAGE_NONE.
#ifndef LOAM_CACHE_KV_CACHE_H
#define LOAM_CACHE_KV_CACHE_H
#include "backend/backend.h"

struct kv_cache;

// Pages that n_tokens positions take in a block table.
static inline uint32_t kv_blocks_of(uint64_t n_tokens) {
    return (uint32_t)((n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

// How pages are copied in the backend: from `from` to `to`, of one group.
typedef void kv_cache_copy_fn(void *user, uint32_t group, uint32_t from, uint32_t to);

struct kv_cache_options {
    uint32_t n_groups;
    uint32_t group_window[KV_GROUPS_MAX]; // 0 = all positions
    uint32_t n_pages[KV_GROUPS_MAX];
    uint32_t ctx_len; // longest sequence: sizes the block tables
    kv_cache_copy_fn *copy;
    void *user;
};
struct kv_cache *kv_cache_create(const struct kv_cache_options *options, struct err *err);
void kv_cache_destroy(struct kv_cache *cache);

// A sequence's pages. Zero-initialise with kv_seq_init; the tables are owned and sized once.
struct kv_seq {
    uint32_t *table[KV_GROUPS_MAX]; // [ctx_len pages]
    uint32_t n_blocks;              // entries in use, the same for every group
    uint32_t first_block[KV_GROUPS_MAX]; // entries before it are KV_PAGE_NONE
};
bool kv_seq_init(struct kv_cache *cache, struct kv_seq *seq, struct err *err);
// Give every page back and free the tables. A zeroed sequence is allowed.
void kv_seq_deinit(struct kv_cache *cache, struct kv_seq *seq);
// Give every page back, keep the tables.
void kv_seq_clear(struct kv_cache *cache, struct kv_seq *seq);

// Make positions [from, to) writable: pages exist for all of them and none that holds one is shared.
// All or nothing: false (nothing taken) if the pool lacks pages, or to > ctx_len.
bool kv_seq_reserve(struct kv_cache *cache, struct kv_seq *seq, uint32_t from, uint32_t to);
// How many pages of each group kv_seq_reserve would take.
void kv_seq_need(const struct kv_cache *cache, const struct kv_seq *seq, uint32_t from, uint32_t to,
                 uint32_t n_pages[KV_GROUPS_MAX]);
// Forget positions from n_tokens on (draft rejected, request over): pages wholly beyond go back.
void kv_seq_truncate(struct kv_cache *cache, struct kv_seq *seq, uint32_t n_tokens);
// Positions below n_tokens are in; give back what no query at n_tokens or later can see.
void kv_seq_slide(struct kv_cache *cache, struct kv_seq *seq, uint32_t n_tokens);
// `to` (initialised, empty) shares the pages that hold the first n_tokens positions of `from`.
void kv_seq_share(struct kv_cache *cache, struct kv_seq *to, const struct kv_seq *from,
                  uint32_t n_tokens);

// ---- Pages by hand, for those who keep pages without a sequence (prefix cache) -------------------
uint32_t kv_cache_n_free(const struct kv_cache *cache, uint32_t group);
uint32_t kv_cache_n_pages(const struct kv_cache *cache, uint32_t group);
uint32_t kv_cache_n_groups(const struct kv_cache *cache);
uint32_t kv_cache_n_tokens_max(const struct kv_cache *cache); // of a sequence
uint32_t kv_cache_window(const struct kv_cache *cache, uint32_t group);
uint32_t kv_cache_take(struct kv_cache *cache, uint32_t group); // KV_PAGE_NONE if there is none
void kv_cache_acquire(struct kv_cache *cache, uint32_t group, uint32_t page);
void kv_cache_release(struct kv_cache *cache, uint32_t group, uint32_t page);
uint32_t kv_cache_references(const struct kv_cache *cache, uint32_t group, uint32_t page);
#endif
