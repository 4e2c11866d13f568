#include "check.h"

#include "cache/prefix_cache.h"

static uint32_t n_copies;
static void copy(void *user, uint32_t group, uint32_t from, uint32_t to) {
    (void)user;
    (void)group;
    (void)from;
    (void)to;
    n_copies++;
}

enum { PAGE_BYTES = 100000, N_PAGES = 16 };

struct fixture {
    struct kv_cache *kv;
    struct prefix_cache *cache;
    int32_t ids[1024]; // 0, 1, 2 ...
};

static void make(struct fixture *f, uint64_t bytes_max) {
    struct err err = {0};
    struct kv_cache_options kv = {.n_groups = 1, .n_pages = {N_PAGES}, .ctx_len = 1024, .copy = copy};
    f->kv = kv_cache_create(&kv, &err);
    check_ok(f->kv, &err);
    struct prefix_cache_options options = {.device = {.kv = f->kv, .page_bytes = {PAGE_BYTES}},
                                           .bytes_max = bytes_max};
    f->cache = prefix_cache_create(&options, &err);
    check_ok(f->cache, &err);
    for (int32_t i = 0; i < 1024; i++)
        f->ids[i] = i;
    n_copies = 0;
}

static void drop(struct fixture *f) {
    prefix_cache_destroy(f->cache);
    assert_int_equal(kv_cache_n_free(f->kv, 0), N_PAGES);
    kv_cache_destroy(f->kv);
}

// A sequence of n tokens computes and is kept.
static void keep(struct fixture *f, uint64_t space, const int32_t *ids, uint32_t n) {
    struct err err;
    struct kv_seq seq;
    assert_true(kv_seq_init(f->kv, &seq, &err));
    assert_true(kv_seq_reserve(f->kv, &seq, 0, n));
    prefix_cache_insert(f->cache, space, ids, n, &seq, UINT32_MAX);
    kv_seq_deinit(f->kv, &seq);
}

static uint32_t find(struct fixture *f, uint64_t space, const int32_t *ids, uint32_t n_max) {
    struct err err;
    struct kv_seq seq;
    assert_true(kv_seq_init(f->kv, &seq, &err));
    uint32_t n = prefix_cache_find(f->cache, space, ids, n_max, &seq).n_tokens;
    assert_int_equal(seq.n_blocks, (n + 63) / 64);
    kv_seq_deinit(f->kv, &seq);
    return n;
}

static void finds_the_longest_common_beginning(void **state) {
    (void)state;
    struct fixture f;
    make(&f, 1 << 30);
    assert_int_equal(find(&f, 0, f.ids, 200), 0);
    keep(&f, 0, f.ids, 150);
    assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES - 3);
    assert_int_equal(find(&f, 0, f.ids, 200), 150);
    assert_int_equal(find(&f, 0, f.ids, 149), 149);
    assert_int_equal(find(&f, 0, f.ids, 200), 150); // looking up consumes nothing
    assert_int_equal(find(&f, 1, f.ids, 200), 0);   // another space
    int32_t other[1024];
    memcpy(other, f.ids, sizeof other);
    other[70] = 5;
    assert_int_equal(find(&f, 0, other, 200), 70); // parts within a page
    keep(&f, 0, other, 128);                       // page 0 is shared, page 1 a sibling
    assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES - 4);
    assert_int_equal(find(&f, 0, other, 200), 128);
    assert_int_equal(find(&f, 0, f.ids, 200), 150);
    keep(&f, 0, f.ids, 192); // the partial page grows
    assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES - 4);
    assert_int_equal(find(&f, 0, f.ids, 200), 192);
    keep(&f, 0, f.ids, 140); // known already
    assert_int_equal(find(&f, 0, f.ids, 200), 192);
    drop(&f);
}

static void a_sequence_that_goes_on_copies_the_shared_page(void **state) {
    (void)state;
    struct fixture f;
    struct err err;
    struct kv_seq seq;
    make(&f, 1 << 30);
    keep(&f, 0, f.ids, 100);
    assert_true(kv_seq_init(f.kv, &seq, &err));
    assert_int_equal(prefix_cache_find(f.cache, 0, f.ids, 90, &seq).n_tokens, 90);
    uint32_t shared = seq.table[0][1];
    assert_true(kv_seq_reserve(f.kv, &seq, 90, 95));
    assert_int_equal(n_copies, 1);
    assert_int_not_equal(seq.table[0][1], shared);
    assert_int_equal(kv_cache_references(f.kv, 0, shared), 1);
    assert_int_equal(kv_cache_references(f.kv, 0, seq.table[0][0]), 2);
    prefix_cache_clear(f.cache); // the sequence keeps its own
    assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES - 2);
    kv_seq_deinit(f.kv, &seq);
    drop(&f);
}

static void what_was_used_longest_ago_goes_first(void **state) {
    (void)state;
    struct fixture f;
    int32_t b[128], c[64];
    make(&f, 5 * (PAGE_BYTES + 1000));
    for (int32_t i = 0; i < 128; i++)
        b[i] = 1000 + i;
    for (int32_t i = 0; i < 64; i++)
        c[i] = 2000 + i;
    keep(&f, 0, f.ids, 128);
    keep(&f, 0, b, 128);
    assert_int_equal(find(&f, 0, f.ids, 128), 128); // b is the older one now
    keep(&f, 0, c, 64);
    struct prefix_cache_stats stats;
    prefix_cache_stats(f.cache, &stats);
    assert_int_equal(stats.n_nodes, 5);
    assert_true(prefix_cache_give_way(f.cache, 0, N_PAGES - 4));
    assert_int_equal(find(&f, 0, b, 128), 64); // its leaf went, its beginning stays
    assert_int_equal(find(&f, 0, f.ids, 128), 128);
    assert_true(prefix_cache_give_way(f.cache, 0, N_PAGES));
    prefix_cache_stats(f.cache, &stats);
    assert_int_equal(stats.n_nodes, 0);
    assert_int_equal(stats.bytes, 0);
    keep(&f, 0, f.ids, 640); // ten pages: more than the limit
    prefix_cache_stats(f.cache, &stats);
    assert_int_equal(stats.n_nodes, 5);
    assert_true(stats.bytes <= stats.bytes_max);
    assert_int_equal(find(&f, 0, f.ids, 640), 320);
    drop(&f);
}

static void pages_in_use_do_not_give_way(void **state) {
    (void)state;
    struct fixture f;
    struct err err;
    struct kv_seq seq;
    make(&f, 1 << 30);
    keep(&f, 0, f.ids, 256);
    assert_true(kv_seq_init(f.kv, &seq, &err));
    assert_int_equal(prefix_cache_find(f.cache, 0, f.ids, 128, &seq).n_tokens, 128);
    assert_false(prefix_cache_give_way(f.cache, 0, N_PAGES));
    assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES - 2);
    assert_int_equal(find(&f, 0, f.ids, 256), 128);
    kv_seq_deinit(f.kv, &seq);
    drop(&f);
}

// Against the plain definition: the longest beginning that any kept sequence shares. Few different tokens, so that
// sequences part everywhere; some are let go of in between.
static void finds_what_a_list_of_all_would_find(void **state) {
    (void)state;
    enum { N = 600, N_TOKENS = 300, N_PAGES_ALL = N * 5 };
    static int32_t kept[N][N_TOKENS];
    static uint32_t n_kept[N];
    uint32_t seed = 12345;
#define DRAW(n) ((seed = seed * 1664525 + 1013904223) >> 8) % (n)
    for (int round = 0; round < 4; round++) {
        struct err err = {0};
        struct kv_cache_options options = {.n_groups = 1, .n_pages = {N_PAGES_ALL}, .ctx_len = 1024, .copy = copy};
        struct fixture f = {.kv = kv_cache_create(&options, &err)};
        check_ok(f.kv, &err);
        f.cache = prefix_cache_create(&(struct prefix_cache_options){.device = {.kv = f.kv, .page_bytes = {PAGE_BYTES}},
                                                                     .bytes_max = UINT64_MAX}, &err);
        check_ok(f.cache, &err);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t n_same = i ? DRAW(N_TOKENS) : 0, from = i ? DRAW(i) : 0, n = 1 + DRAW(N_TOKENS);
            memcpy(kept[i], kept[from], n_same * sizeof **kept); // whatever lies behind its end is as good
            for (uint32_t k = n_same; k < N_TOKENS; k++)
                kept[i][k] = (int32_t)(DRAW(round % 2 ? 2 : 50));
            uint64_t space = i % 2;
            uint32_t want = 0, n_max = 1 + DRAW(N_TOKENS);
            for (uint32_t k = i % 2; k < i; k += 2) { // of the same space
                uint32_t same = 0;
                while (same < n_max && same < n_kept[k] && kept[k][same] == kept[i][same])
                    same++;
                want = same > want ? same : want;
            }
            uint32_t got = find(&f, space, kept[i], n_max);
            if (got != want)
                fail_msg("seed 12345, round %d, sequence %u: %u of %u tokens, a list has %u", round, i, got, n_max, want);
            keep(&f, space, kept[i], n);
            n_kept[i] = n;
            if (round == 3 && i % 100 == 99) { // all go, leaves first
                prefix_cache_clear(f.cache);
                assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES_ALL);
                memset(n_kept, 0, sizeof n_kept);
            }
        }
        prefix_cache_destroy(f.cache);
        assert_int_equal(kv_cache_n_free(f.kv, 0), N_PAGES_ALL);
        kv_cache_destroy(f.kv);
        memset(n_kept, 0, sizeof n_kept);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_longest_common_beginning),
        cmocka_unit_test(finds_what_a_list_of_all_would_find),
        cmocka_unit_test(a_sequence_that_goes_on_copies_the_shared_page),
        cmocka_unit_test(what_was_used_longest_ago_goes_first),
        cmocka_unit_test(pages_in_use_do_not_give_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
