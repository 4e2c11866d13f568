#include "check.h"

#include "cache/kv_cache.h"

static uint32_t n_copies, copied_from, copied_to;
static void copy(void *user, uint32_t group, uint32_t from, uint32_t to) {
    (void)user;
    (void)group;
    n_copies++;
    copied_from = from;
    copied_to = to;
}

static struct kv_cache *make(uint32_t n_groups, uint32_t window, uint32_t n_pages) {
    struct err err = {0};
    struct kv_cache_options options = {.n_groups = n_groups, .ctx_len = 4096, .copy = copy};
    for (uint32_t g = 0; g < n_groups; g++) {
        options.n_pages[g] = n_pages;
        options.group_window[g] = g ? window : 0;
    }
    n_copies = 0;
    return kv_cache_create(&options, &err);
}

static void reserve_takes_all_pages_or_none(void **state) {
    (void)state;
    struct kv_cache *cache = make(1, 0, 4);
    struct kv_seq a, b;
    struct err err;
    assert_true(kv_seq_init(cache, &a, &err) && kv_seq_init(cache, &b, &err));
    assert_true(kv_seq_reserve(cache, &a, 0, 129)); // three pages
    assert_int_equal(kv_cache_n_free(cache, 0), 1);
    assert_false(kv_seq_reserve(cache, &b, 0, 65)); // needs two
    assert_int_equal(kv_cache_n_free(cache, 0), 1);
    assert_true(kv_seq_reserve(cache, &a, 129, 192)); // still inside page three
    assert_int_equal(kv_cache_n_free(cache, 0), 1);
    assert_false(kv_seq_reserve(cache, &a, 192, 5000)); // beyond the context
    kv_seq_truncate(cache, &a, 64);
    assert_int_equal(kv_cache_n_free(cache, 0), 3);
    kv_seq_deinit(cache, &a);
    kv_seq_deinit(cache, &b);
    assert_int_equal(kv_cache_n_free(cache, 0), 4);
    kv_cache_destroy(cache);
}

static void shared_pages_are_copied_before_writing(void **state) {
    (void)state;
    struct kv_cache *cache = make(1, 0, 8);
    struct kv_seq a, b;
    struct err err;
    assert_true(kv_seq_init(cache, &a, &err) && kv_seq_init(cache, &b, &err));
    assert_true(kv_seq_reserve(cache, &a, 0, 100));
    kv_seq_share(cache, &b, &a, 100);
    assert_int_equal(kv_cache_n_free(cache, 0), 6);
    uint32_t shared = a.table[0][1];
    assert_true(kv_seq_reserve(cache, &b, 100, 101)); // writes into the shared, partial page
    assert_int_equal(n_copies, 1);
    assert_int_equal(copied_from, shared);
    assert_int_equal(b.table[0][1], copied_to);
    assert_int_equal(a.table[0][1], shared);
    assert_int_equal(a.table[0][0], b.table[0][0]);
    assert_true(kv_seq_reserve(cache, &a, 100, 101)); // alone now: no copy
    assert_int_equal(n_copies, 1);
    kv_seq_clear(cache, &a);
    assert_int_equal(kv_cache_references(cache, 0, b.table[0][0]), 1);
    // Sharing whole pages only: going on at a page border copies nothing.
    kv_seq_share(cache, &a, &b, 64);
    assert_true(kv_seq_reserve(cache, &a, 64, 70));
    assert_int_equal(n_copies, 1);
    kv_seq_deinit(cache, &a);
    kv_seq_deinit(cache, &b);
    assert_int_equal(kv_cache_n_free(cache, 0), 8);
    kv_cache_destroy(cache);
}

static void pages_behind_the_window_go_back(void **state) {
    (void)state;
    struct kv_cache *cache = make(2, 100, 64);
    struct kv_seq a;
    struct err err;
    assert_true(kv_seq_init(cache, &a, &err));
    assert_true(kv_seq_reserve(cache, &a, 0, 640)); // ten pages
    kv_seq_slide(cache, &a, 162); // a query at 162 sees 63..: page 0 still holds 63
    assert_int_equal(kv_cache_n_free(cache, 1), 54);
    kv_seq_slide(cache, &a, 163); // sees 64..
    assert_int_equal(kv_cache_n_free(cache, 1), 55);
    kv_seq_slide(cache, &a, 640); // sees 541..: page 8 on
    assert_int_equal(kv_cache_n_free(cache, 1), 62);
    assert_int_equal(kv_cache_n_free(cache, 0), 54); // the full group keeps all
    assert_int_equal(a.table[1][7], KV_PAGE_NONE);
    assert_int_not_equal(a.table[1][8], KV_PAGE_NONE);
    kv_seq_deinit(cache, &a);
    assert_int_equal(kv_cache_n_free(cache, 1), 64);
    kv_cache_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserve_takes_all_pages_or_none),
        cmocka_unit_test(shared_pages_are_copied_before_writing),
        cmocka_unit_test(pages_behind_the_window_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
