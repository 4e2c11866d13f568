#include "hub/fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file_map.h"
#include "base/nearest.h"
#include "hub/blob.h"
#include "hub/http.h"

static void clear_env(void) {
    static const char *const NAMES[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_TOKEN",
                                        "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        unsetenv(NAMES[i]);
}

static void environment_is_read_as_huggingface_hub_reads_it(void **state) {
    (void)state;
    struct hub_env env;
    struct err err = {0};
    char *folder = fixture_folder(NULL), path[PATH_MAX];
    clear_env();
    setenv("HOME", folder, 1);
    check_ok(hub_env_read(&env, &err), &err);
    fixture_path(path, "%s/.cache/huggingface/hub", folder);
    assert_string_equal(env.cache, path);
    assert_string_equal(env.endpoint, "https://huggingface.co");
    assert_string_equal(env.token, "");
    assert_false(env.offline);

    setenv("XDG_CACHE_HOME", "/x", 1);
    check_ok(hub_env_read(&env, &err), &err);
    assert_string_equal(env.cache, "/x/huggingface/hub");

    fixture_path(path, "%s/hf", folder);
    setenv("HF_HOME", "~/hf", 1);
    fixture_path(path, "%s/hf/token", folder);
    fixture_write(path, "hf_secret\n", 10);
    setenv("HF_ENDPOINT", "http://mirror:81/", 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    check_ok(hub_env_read(&env, &err), &err);
    fixture_path(path, "%s/hf/hub", folder);
    assert_string_equal(env.cache, path);
    assert_string_equal(env.endpoint, "http://mirror:81");
    assert_string_equal(env.token, "hf_secret");
    assert_true(env.offline);

    setenv("HF_HUB_CACHE", "/data/models/", 1);
    setenv("HF_TOKEN", " other ", 1);
    check_ok(hub_env_read(&env, &err), &err);
    assert_string_equal(env.cache, "/data/models");
    assert_string_equal(env.token, "other");

    setenv("HF_TOKEN", "a\r\nHost: evil", 1);
    assert_false(hub_env_read(&env, &err));
    check_message(&err, "HF_TOKEN");
    setenv("HF_TOKEN", "a", 1);
    setenv("HF_ENDPOINT", "ftp://x", 1);
    assert_false(hub_env_read(&env, &err));
    check_message(&err, "HF_ENDPOINT");
    clear_env();
    fixture_remove(folder);
}

static void names_that_could_leave_the_cache_are_refused(void **state) {
    (void)state;
    static const char *const GOOD[] = {"org/name", "gpt2", "mlx-community/Qwen3-0.6B-4bit", "a/b_c.d"};
    static const char *const BAD[] = {"", "/", "a/", "/b", "a/b/c", "../x", "a/..", "a--b/c", "a/b..c",
                                      "a b/c", "a/b\n", "-a/b", "a/.b", "a/b@main"};
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        assert_true(hub_repo_check(GOOD[i], NULL));
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        if (hub_repo_check(BAD[i], NULL))
            fail_msg("accepted \"%s\"", BAD[i]);
    assert_true(hub_revision_check("refs/pr/1", NULL));
    assert_false(hub_revision_check("../../x", NULL));
    assert_false(hub_revision_check("/x", NULL));
    assert_false(hub_revision_check("", NULL));
    static const char *const BAD_FILES[] = {"", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a\\b",
                                            "a\nb"};
    for (size_t i = 0; i < sizeof BAD_FILES / sizeof *BAD_FILES; i++)
        if (hub_file_path_check(str_from(BAD_FILES[i]), "x", NULL))
            fail_msg("accepted \"%s\"", BAD_FILES[i]);
    assert_true(hub_file_path_check(STR("a folder/b+c.txt"), "x", NULL));
}

static void repository_names_map_to_folders_and_back(void **state) {
    (void)state;
    struct hub_env env = {.cache = "/c"};
    char folder[PATH_MAX], repo[HUB_REPO_BYTES];
    assert_true(hub_repo_folder(&env, "org/na-me", folder, NULL));
    assert_string_equal(folder, "/c/models--org--na-me");
    assert_true(hub_repo_of_folder("models--org--na-me", repo));
    assert_string_equal(repo, "org/na-me");
    assert_true(hub_repo_of_folder("models--gpt2", repo));
    assert_string_equal(repo, "gpt2");
    assert_false(hub_repo_of_folder("datasets--org--x", repo));
    assert_false(hub_repo_of_folder("models--a--b--c", repo));
}

// Trees as other tools leave them: links, refs without newline, or plain files and no blobs (Windows).
static void finds_snapshots_of_trees_by_other_tools(void **state) {
    (void)state;
    char *folder = fixture_folder(NULL), path[PATH_MAX], found[PATH_MAX];
    struct hub_env env = fixture_env(folder, "127.0.0.1", 1);
    struct err err = {0};
    static const char A[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", B[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    fixture_path(path, "%s/models--org--linked/refs/main", env.cache);
    fixture_write(path, A, 40);
    fixture_path(path, "%s/models--org--linked/blobs/x1", env.cache);
    fixture_write(path, "{}", 2);
    fixture_path(path, "%s/models--org--linked/snapshots/%s", env.cache, A);
    check_ok(path_make_folders(path, &err), &err);
    strcat(path, "/config.json");
    assert_int_equal(symlink("../../blobs/x1", path), 0);
    fixture_path(path, "%s/models--org--plain/snapshots/%s/config.json", env.cache, B);
    fixture_write(path, "{}", 2);

    check_ok(hub_snapshot_find(&env, "org/linked", NULL, found, &err), &err);
    assert_string_equal(strrchr(found, '/') + 1, A);
    check_ok(hub_snapshot_find(&env, "org/plain", NULL, found, &err), &err);
    assert_string_equal(strrchr(found, '/') + 1, B);
    check_ok(hub_snapshot_find(&env, "org/plain", B, found, &err), &err);
    assert_false(hub_snapshot_find(&env, "org/plain", "v2", found, &err));
    check_message(&err, "loam get org/plain@v2");
    assert_false(hub_snapshot_find(&env, "org/absent", NULL, found, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);

    // A ref with a newline (edited by hand) and one that is damaged.
    char commit[HUB_COMMIT_BYTES];
    fixture_path(path, "%s/models--org--linked", env.cache);
    check_ok(hub_ref_write(path, "refs/pr/1", A, &err), &err);
    assert_true(hub_ref_read(path, "refs/pr/1", commit));
    strcat(path, "/refs/odd");
    fixture_write(path, "../../../etc", 12);
    fixture_path(path, "%s/models--org--linked", env.cache);
    assert_false(hub_ref_read(path, "odd", commit));

    char **names;
    size_t n;
    check_ok(hub_list_repos(&env, &names, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "org/linked");
    hub_names_free(names, n);
    fixture_remove(folder);
}

static void links_are_relative_and_replace_what_was_there(void **state) {
    (void)state;
    char *folder = fixture_folder(NULL), path[PATH_MAX], target[PATH_MAX];
    struct err err = {0};
    check_ok(hub_snapshot_link(folder, "c0", "sub/dir/file", "hash1", &err), &err);
    check_ok(hub_snapshot_link(folder, "c0", "sub/dir/file", "hash2", &err), &err);
    fixture_path(path, "%s/snapshots/c0/sub/dir/file", folder);
    ssize_t n = readlink(path, target, sizeof target - 1);
    assert_true(n > 0);
    target[n] = '\0';
    assert_string_equal(target, "../../../../blobs/hash2");
    fixture_remove(folder);
}

static void listing_names_the_entry_that_is_wrong(void **state) {
    (void)state;
#define SHA "\"sha\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""
#define BLOB "\"blobId\": \"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\""
    static const struct {
        const char *json, *message;
    } CASES[] = {
        {"[]", "no JSON object"},
        {"{}", "\"sha\""},
        {"{" SHA "}", "siblings"},
        {"{" SHA ", \"siblings\": [3]}", "no object"},
        {"{" SHA ", \"siblings\": [{\"rfilename\": \"../x\", \"size\": 1, " BLOB "}]}", "../x"},
        {"{" SHA ", \"siblings\": [{\"rfilename\": \"x\", " BLOB "}]}", "size"},
        {"{" SHA ", \"siblings\": [{\"rfilename\": \"x\", \"size\": -4, " BLOB "}]}", "size"},
        {"{" SHA ", \"siblings\": [{\"rfilename\": \"x\", \"size\": 1, \"blobId\": \"../../etc\"}]}", "hash"},
        {"{" SHA ", \"siblings\": [{\"rfilename\": \"x\", \"size\": 1, " BLOB ", \"lfs\": {\"size\": 1}}]}",
         "sha256"},
        {"{" SHA ", \"siblings\": [{\"rfilename\": \"x\", \"size\": 1, " BLOB "}, "
         "{\"rfilename\": \"x\", \"size\": 1, " BLOB "}]}",
         "twice"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct hub_listing listing;
        struct err err = {0};
        assert_false(hub_listing_parse(&listing, str_from(CASES[i].json), "list", &err));
        check_message(&err, CASES[i].message);
    }
    struct hub_listing listing;
    struct err err = {0};
    check_ok(hub_listing_parse(&listing,
                               STR("{" SHA ", \"siblings\": [{\"rfilename\": \"b\", \"size\": 9, " BLOB
                                   ", \"lfs\": {\"oid\": \"sha256:"
                                   "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc\","
                                   " \"size\": 7}}, {\"rfilename\": \"a\", \"size\": 1, " BLOB "}]}"),
                               "list", &err),
             &err);
    assert_int_equal(listing.n_files, 2);
    assert_string_equal(listing.files[0].path, "a");
    assert_true(listing.files[1].is_lfs);
    assert_int_equal(listing.files[1].n_bytes, 7);
    assert_int_equal(strlen(listing.files[1].hash), 64);
    hub_listing_deinit(&listing);
}

static void filter_skips_foreign_weights_unless_asked(void **state) {
    (void)state;
    struct hub_filter none = {0};
    static const char *const SKIPPED[] = {"pytorch_model.bin", "m.gguf", "onnx/model.json", "a/onnx/x", "x.pth",
                                          "original/params.json"};
    static const char *const KEPT[] = {"config.json", "model.safetensors", "sub/x.txt", "bin/readme"};
    for (size_t i = 0; i < sizeof SKIPPED / sizeof *SKIPPED; i++)
        assert_false(hub_filter_wants(&none, SKIPPED[i]));
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++)
        assert_true(hub_filter_wants(&none, KEPT[i]));
    const char *include[] = {"*.bin", "sub/"}, *exclude[] = {"sub/secret*"};
    struct hub_filter asked = {include, exclude, 2, 1};
    assert_true(hub_filter_wants(&asked, "a/model.bin"));
    assert_true(hub_filter_wants(&asked, "sub/x"));
    assert_false(hub_filter_wants(&asked, "sub/secret.txt"));
    assert_false(hub_filter_wants(&asked, "config.json"));
}

static void http_values_are_parsed_strictly(void **state) {
    (void)state;
    struct http_head head = {0};
    assert_true(http_parse_content_range(STR("bytes 5-9/100"), &head));
    assert_int_equal(head.range_from, 5);
    assert_int_equal(head.range_to, 10);
    assert_int_equal(head.range_total, 100);
    static const char *const BAD[] = {"",  "bytes", "bytes 5-4/9", "bytes 0-9/9", "bytes */9", "bytes 0-1/*",
                                      "bytes 0-1/2 ", "bytes 99999999999999999999999-1/2"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        if (http_parse_content_range(str_from(BAD[i]), &head))
            fail_msg("accepted \"%s\"", BAD[i]);
    assert_int_equal(http_parse_retry_after(STR("3")), 3000);
    assert_int_equal(http_parse_retry_after(STR("999999999")), 600000);
    assert_int_equal(http_parse_retry_after(STR("soon")), 0);
    char date[64];
    time_t at = time(NULL) + 100;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&at));
    uint32_t ms = http_parse_retry_after(str_from(date));
    assert_true(ms > 90000 && ms <= 100000);
    assert_true(http_same_origin("https://Hub.co/a", "https://hub.co:443/b"));
    assert_false(http_same_origin("https://hub.co/a", "http://hub.co/a"));
    assert_false(http_same_origin("http://hub.co:80/a", "http://hub.co:81/a"));
    assert_false(http_same_origin("http://hub.co/", "http://hub.co@evil/"));
}

static void nearest_name_is_found_or_none(void **state) {
    (void)state;
    const char *names[] = {"org/alpha", NULL, "mlx-community/Qwen3-0.6B-4bit"};
    assert_string_equal(text_nearest("mlx-comunity/Qwen3-0.6b-4bit", names, 3), names[2]);
    assert_null(text_nearest("zzzzzz", names, 3));
}

// ---- Locks --------------------------------------------------------------------------------------

static void lock_of_a_killed_process_is_free_at_once(void **state) {
    (void)state;
    char *folder = fixture_folder(NULL), repo[PATH_MAX];
    snprintf(repo, sizeof repo, "%s/models--a--b", folder);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct blob_lock mine;
        long owner;
        bool ok = blob_lock_try(&mine, folder, repo, "h", &owner, NULL) == BLOB_LOCKED;
        if (write(ready[1], ok ? "y" : "n", 1) == 1)
            pause();
        _exit(1);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    struct blob_lock lock;
    long owner = 0;
    struct err err = {0};
    assert_int_equal(blob_lock_try(&lock, folder, repo, "h", &owner, &err), BLOB_LOCK_BUSY);
    assert_int_equal(owner, child);
    assert_int_equal(blob_lock_try(&lock, folder, repo, "other", &owner, &err), BLOB_LOCKED);
    blob_lock_release(&lock);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(blob_lock_try(&lock, folder, repo, "h", &owner, &err), BLOB_LOCKED);
    blob_lock_release(&lock);
    close(ready[0]);
    close(ready[1]);
    fixture_remove(folder);
}

static void pid_file_lock_is_taken_from_the_dead_and_the_very_old(void **state) {
    (void)state;
    char *folder = fixture_folder(NULL), path[PATH_MAX];
    fixture_path(path, "%s/x.lock.pid", folder);
    struct blob_lock lock, second;
    long owner = 0;
    struct err err = {0};
    assert_int_equal(blob_lock_try_pid_file(&lock, path, &owner, &err), BLOB_LOCKED);
    assert_int_equal(blob_lock_try_pid_file(&second, path, &owner, &err), BLOB_LOCK_BUSY);
    assert_int_equal(owner, getpid());
    blob_lock_release(&lock);
    assert_false(path_exists(path));

    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    char text[32];
    fixture_write(path, text, (size_t)snprintf(text, sizeof text, "%d 1\n", (int)child));
    assert_int_equal(blob_lock_try_pid_file(&lock, path, &owner, &err), BLOB_LOCKED);
    blob_lock_release(&lock);

    fixture_write(path, text, (size_t)snprintf(text, sizeof text, "%d 1\n", (int)getppid()));
    assert_int_equal(blob_lock_try_pid_file(&lock, path, &owner, &err), BLOB_LOCK_BUSY);
    struct timespec old[2] = {{.tv_sec = time(NULL) - 4000}, {.tv_sec = time(NULL) - 4000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(blob_lock_try_pid_file(&lock, path, &owner, &err), BLOB_LOCKED);
    blob_lock_release(&lock);
    fixture_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_is_read_as_huggingface_hub_reads_it),
        cmocka_unit_test(names_that_could_leave_the_cache_are_refused),
        cmocka_unit_test(repository_names_map_to_folders_and_back),
        cmocka_unit_test(finds_snapshots_of_trees_by_other_tools),
        cmocka_unit_test(links_are_relative_and_replace_what_was_there),
        cmocka_unit_test(listing_names_the_entry_that_is_wrong),
        cmocka_unit_test(filter_skips_foreign_weights_unless_asked),
        cmocka_unit_test(http_values_are_parsed_strictly),
        cmocka_unit_test(nearest_name_is_found_or_none),
        cmocka_unit_test(lock_of_a_killed_process_is_free_at_once),
        cmocka_unit_test(pid_file_lock_is_taken_from_the_dead_and_the_very_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
