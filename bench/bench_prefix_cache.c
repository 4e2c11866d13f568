// What the prompt cache's bookkeeping costs: prompts of four pages that begin with the same 40 tokens and part within
// the first page, as chats of one system prompt do. Prints microseconds a lookup and a keep, by how many are kept.
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/prefix_cache.h"

enum { N_MAX = 32768, N_PAGES_EACH = 4, N_TOKENS = N_PAGES_EACH * KV_PAGE_TOKENS, N_COMMON = 40, N_LOOK = 2000 };

static void make_prompt(uint32_t n, int32_t *ids) {
    for (int32_t i = 0; i < N_TOKENS; i++)
        ids[i] = i < N_COMMON ? i : (int32_t)((n * 2654435761u >> (i % 8)) % 50000);
}

static void copy(void *user, uint32_t group, uint32_t from, uint32_t to) {
    (void)user, (void)group, (void)from, (void)to;
}

int main(void) {
    struct err err = {0};
    struct kv_cache_options kv_options = {
        .n_groups = 1, .n_pages = {N_MAX * N_PAGES_EACH + 64}, .ctx_len = 2 * N_TOKENS, .copy = copy};
    struct kv_cache *kv = kv_cache_create(&kv_options, &err);
    struct prefix_cache_options options = {.device = {.kv = kv, .page_bytes = {1024}}, .bytes_max = UINT64_MAX};
    struct prefix_cache *cache = kv ? prefix_cache_create(&options, &err) : NULL;
    if (!cache) {
        fprintf(stderr, "bench_prefix_cache: %s\n", err.message);
        return 1;
    }
    int32_t ids[N_TOKENS];
    uint64_t start = clock_ns();
    uint32_t n_since = 0;
    for (uint32_t n = 0; n < N_MAX; n++, n_since++) {
        struct kv_seq seq;
        make_prompt(n, ids);
        if (!kv_seq_init(kv, &seq, &err) || !kv_seq_reserve(kv, &seq, 0, N_TOKENS))
            return 1;
        prefix_cache_insert(cache, 0, ids, N_TOKENS, &seq, UINT32_MAX);
        kv_seq_clear(kv, &seq);
        if (((n + 1) & n) == 0 && n >= 127) {
            double keep_us = (double)(clock_ns() - start) / 1e3 / (n_since + 1);
            uint64_t look = clock_ns();
            for (uint32_t i = 0; i < N_LOOK; i++) {
                make_prompt((i * 7919) % (n + 1), ids);
                prefix_cache_find(cache, 0, ids, N_TOKENS - 1, &seq);
                kv_seq_clear(kv, &seq);
            }
            printf("%6u prompts: keep %8.2f us, look up %8.2f us\n", n + 1, keep_us,
                   (double)(clock_ns() - look) / 1e3 / N_LOOK);
            start = clock_ns();
            n_since = 0;
        }
        kv_seq_deinit(kv, &seq);
    }
    prefix_cache_destroy(cache);
    kv_cache_destroy(kv);
    return 0;
}
