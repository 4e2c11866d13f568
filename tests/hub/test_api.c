// The public API, as a program that links the library uses it.
#include "hub/fixture.h"

#include <unistd.h>

#include "hub/pick.h"
#include "loam/loam.h"
#include "loam/loam_hub.h"

static char *folder, *listing;
static struct fixture_repo repo;
static struct fault_server *server;

static void answer(void *user, const struct fault_request *request, struct fault_reply *reply) {
    (void)user;
    fixture_hub(&repo, request, reply, listing);
}

static int start(void **state) {
    (void)state;
    char text[PATH_MAX];
    folder = fixture_folder(NULL);
    fixture_repo_init(&repo, "org/name", 'a');
    fixture_add_model(&repo, 200000);
    listing = fixture_listing(&repo);
    server = fault_server_start("127.0.0.1", 0, answer, NULL);
    fixture_path(text, "%s/hub", folder);
    setenv("HF_HUB_CACHE", text, 1);
    fixture_path(text, "%s/cache", folder);
    setenv("XDG_CACHE_HOME", text, 1);
    fixture_path(text, "http://127.0.0.1:%d", fault_server_port(server));
    setenv("HF_ENDPOINT", text, 1);
    unsetenv("HF_TOKEN");
    unsetenv("HF_HUB_OFFLINE");
    return 0;
}

static int stop(void **state) {
    (void)state;
    fault_server_stop(server);
    fixture_repo_deinit(&repo);
    free(listing);
    fixture_remove(folder);
    return 0;
}

static int count_calls(void *user, const struct loam_hub_progress *progress) {
    assert_true(progress->bytes_done <= progress->bytes_total);
    ++*(int *)user;
    return 0;
}

static void gets_and_resolves(void **state) {
    (void)state;
    int n_calls = 0;
    char path[LOAM_PATH_BYTES], again[LOAM_PATH_BYTES];
    struct loam_error error;
    struct loam_hub_get_options options = {.repo = "org/name", .progress = count_calls, .user = &n_calls};
    assert_int_equal(loam_hub_get(&options, path, &error), LOAM_OK);
    assert_true(n_calls > 0);
    assert_true(fixture_exists("%s/config.json", path));
    assert_int_equal(loam_hub_resolve("nam", again, &error), LOAM_OK);
    assert_string_equal(path, again);
    assert_int_equal(loam_hub_resolve("absent", again, &error), LOAM_NOT_FOUND);
    assert_int_equal(error.code, LOAM_NOT_FOUND);
    assert_non_null(strstr(error.message, "absent"));
    options.repo = "org/other";
    assert_int_equal(loam_hub_get(&options, path, NULL), LOAM_NOT_FOUND);
    assert_int_equal(loam_hub_remove("org/name", &error), LOAM_OK);
    assert_int_equal(loam_hub_resolve("org/name", again, &error), LOAM_NOT_FOUND);
}

static void lists_and_collects(void **state) {
    (void)state;
    struct hub_env env;
    struct loam_error error;
    size_t n = 0;
    uint64_t n_bytes = 1;
    assert_true(hub_env_read(&env, NULL));
    fixture_snapshot(&env, "org/listed", 'b', true);
    assert_int_equal(loam_hub_scan(&n, &error), LOAM_OK);
    assert_int_equal(n, 1);
    struct loam_hub_list *list = loam_hub_list(&error);
    assert_non_null(list);
    assert_int_equal(loam_hub_list_n(list), 1);
    assert_string_equal(loam_hub_list_model(list, 0)->id, "org/listed");
    assert_int_equal(loam_hub_list_model(list, 0)->n_params, 100);
    assert_null(loam_hub_list_model(list, 1));
    loam_hub_list_free(list);
    assert_int_equal(loam_hub_gc(0, 1, &n, &n_bytes, &error), LOAM_OK);
    assert_int_equal(n, 0);
    assert_int_equal(n_bytes, 0);
}

static void fits_a_model(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared)
        skip();
    char path[PATH_MAX];
    struct loam_error error;
    struct loam_fit_report report;
    fixture_path(path, "%s/zoo/llama-mlx-4bit", shared);
    struct loam_fit_options options = {.device = "cpu", .context_length = 1024, .n_sequences = 2, .kv_quant = "8"};
    if (loam_fit(path, &options, &report, &error) != LOAM_OK)
        fail_msg("%s", error.message);
    assert_true(report.fits);
    assert_int_equal(report.context_length, 1024);
    assert_int_equal(report.n_sequences, 2);
    // 2 layers, K and V of 2 heads: 32 bytes and the scale of a group each, a position.
    assert_int_equal(report.kv_bytes_per_token, 2 * 2 * 2 * (32 + 4));
    assert_int_equal(report.kv_bytes, 2 * 1024 * report.kv_bytes_per_token);
    assert_int_equal(report.total_bytes, report.weight_bytes + report.kv_bytes + report.workspace_bytes);
    options.kv_quant = "3";
    assert_int_equal(loam_fit(path, &options, &report, &error), LOAM_INVALID);
    options.kv_quant = "config";
    assert_int_equal(loam_fit(path, &options, &report, &error), LOAM_NOT_FOUND);
    assert_non_null(strstr(error.message, "kv_config.json"));
}

static void picks_the_largest_that_leaves_room(void **state) {
    (void)state;
    struct hub_model models[] = {
        {.repo = "a/small", .problem = "", .is_canonical = true, .weight_bytes = 1000},
        {.repo = "a/embedding", .problem = "", .is_canonical = true, .weight_bytes = 2000, .is_embedding = true},
        {.repo = "a/middle", .problem = "", .is_canonical = true, .weight_bytes = 5000},
        {.repo = "a/old", .problem = "", .is_canonical = false, .weight_bytes = 5100},
        {.repo = "a/large", .problem = "", .is_canonical = true, .weight_bytes = 8000},
    };
    struct hub_models list = {.models = models, .n = 5};
    assert_string_equal(hub_pick_model(&list, 10000)->repo, "a/middle");
    assert_string_equal(hub_pick_model(&list, 100000)->repo, "a/large");
    assert_string_equal(hub_pick_model(&list, 1300)->repo, "a/small"); // more than three fifths, but it fits
    assert_null(hub_pick_model(&list, 1000));
    assert_non_null(strstr(hub_starter((uint64_t)15 << 30)->repo, "8B"));
    assert_non_null(strstr(hub_starter(1)->repo, "0.6B"));
    // Each leaves half of its memory to the KV cache and to others, and each step up is a larger model.
    const struct hub_starter *above = hub_starter(UINT64_MAX), *s;
    for (; above->memory_bytes; above = s) {
        s = hub_starter(above->memory_bytes - 1);
        assert_true(above->download_gb * 1e9 < 0.55 * (double)above->memory_bytes);
        assert_true(s->download_gb < above->download_gb);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gets_and_resolves),
        cmocka_unit_test(lists_and_collects),
        cmocka_unit_test(fits_a_model),
        cmocka_unit_test(picks_the_largest_that_leaves_room),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
