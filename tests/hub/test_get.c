// Downloads from a server that misbehaves.
#include "hub/fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_map.h"

struct scene {
    struct fixture_repo repo;
    char *listing, *folder;
    struct fault_server *server, *other; // other: on 127.0.0.2
    struct hub_env env;
    struct hub_get_options options;
    // What goes wrong, for requests whose target contains `part`:
    const char *part;
    uint32_t n_faults;           // the first so many of them; UINT32_MAX = all
    struct fault_reply fault;    // status 0 keeps the good one and changes only the members that are set
    const char *location;        // redirect there (target appended)
    bool ignore_range, corrupt;
    atomic_uint n_hit, n_other_with_token, n_other, n_ranges;
};

static void answer(void *user, const struct fault_request *request, struct fault_reply *reply) {
    struct scene *s = user;
    struct fault_request r = *request;
    atomic_fetch_add(&s->n_ranges, request->has_range);
    bool hit = s->part && strstr(request->target, s->part) && atomic_fetch_add(&s->n_hit, 1) < s->n_faults;
    if (hit && s->ignore_range)
        r.has_range = false;
    fixture_hub(&s->repo, &r, reply, s->listing);
    if (!hit)
        return;
    if (s->location) {
        reply->status = 302;
        reply->n_body = 0;
        snprintf(reply->headers, sizeof reply->headers, "Location: %s%.900s\r\n", s->location,
                 request->target);
    }
    if (s->fault.status) {
        reply->status = s->fault.status;
        snprintf(reply->headers, sizeof reply->headers, "%s", s->fault.headers);
        reply->n_body = 0;
    }
    if (s->fault.n_sent)
        reply->n_sent = s->fault.n_sent;
    if (s->fault.content_bytes)
        reply->content_bytes = s->fault.content_bytes;
    if (s->corrupt) {
        static const uint8_t WRONG[4 << 20] = "wrong";
        reply->body = WRONG;
    }
    reply->end = s->fault.end;
    reply->trickle_ms = s->fault.trickle_ms;
    reply->trickle_bytes = s->fault.trickle_bytes;
}

static void answer_other(void *user, const struct fault_request *request, struct fault_reply *reply) {
    struct scene *s = user;
    atomic_fetch_add(&s->n_other, 1);
    atomic_fetch_add(&s->n_other_with_token, request->authorization[0] != '\0');
    fixture_hub(&s->repo, request, reply, s->listing);
}

static int setup(void **state) {
    struct scene *s = calloc(1, sizeof *s);
    fixture_repo_init(&s->repo, "org/name", 'a');
    fixture_add_model(&s->repo, 3 << 20);
    s->listing = fixture_listing(&s->repo);
    s->folder = fixture_folder(NULL);
    s->server = fault_server_start("127.0.0.1", 0, answer, s);
    s->other = fault_server_start("127.0.0.2", 0, answer_other, s);
    s->env = fixture_env(s->folder, "127.0.0.1", fault_server_port(s->server));
    s->options = fixture_options(&s->repo);
    *state = s;
    return 0;
}

static int teardown(void **state) {
    struct scene *s = *state;
    fault_server_stop(s->server);
    fault_server_stop(s->other);
    free(s->listing);
    fixture_repo_deinit(&s->repo);
    fixture_remove(s->folder);
    free(s);
    return 0;
}

static void get_must_succeed(struct scene *s, struct hub_get_result *result) {
    struct err err = {0};
    check_ok(hub_get(&s->env, &s->options, result, &err), &err);
    fixture_check_complete(&s->env, &s->repo);
}

static bool partial_path(struct scene *s, size_t file, char path[PATH_MAX]) {
    return hub_path(path, NULL, "%s/models--org--name/blobs/%s.incomplete", s->env.cache,
                    s->repo.files[file].hash);
}

enum { TOKENIZER = 3, SHARD_1 = 5, SHARD_2 = 6 }; // of fixture_add_model

static void fetches_in_chunks_over_several_connections(void **state) {
    struct scene *s = *state;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_skipped, 1);
    assert_int_equal(result.n_files, 8);
    assert_int_equal(result.bytes_received, result.bytes_total);
    assert_true(atomic_load(&s->n_ranges) >= 6); // two shards of three chunks and more
    // A second time there is nothing to fetch.
    check_ok(hub_get(&s->env, &s->options, &result, &(struct err){0}), &(struct err){0});
    assert_int_equal(result.bytes_received, 0);
}

static void one_connection_asks_for_no_ranges(void **state) {
    struct scene *s = *state;
    s->options.n_connections = 1;
    get_must_succeed(s, NULL);
    assert_int_equal(atomic_load(&s->n_ranges), 0);
}

static void resets_are_resumed(void **state) {
    struct scene *s = *state;
    s->part = "safetensors";
    s->n_faults = 6;
    s->fault.n_sent = 400000;
    s->fault.end = FAULT_RESET;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_true(result.n_retries > 0);
}

static void short_reads_are_resumed_and_not_fetched_again(void **state) {
    struct scene *s = *state;
    s->options.n_connections = 1;
    s->part = "model-00001";
    s->n_faults = 2;
    s->fault.n_sent = 1000000;
    s->fault.end = FAULT_CLOSE;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_retries, 2);
    assert_int_equal(result.bytes_received, result.bytes_total);
    assert_int_equal(atomic_load(&s->n_ranges), 2);
}

static void stalls_are_dropped(void **state) {
    struct scene *s = *state;
    s->part = "model-00002";
    s->n_faults = 1;
    s->fault.n_sent = 100000;
    s->fault.end = FAULT_STALL;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_retries, 1);
}

static void slow_trickle_still_makes_progress(void **state) {
    struct scene *s = *state;
    s->part = "tokenizer.json";
    s->n_faults = 3; // then the server recovers
    s->fault.trickle_bytes = 100;
    s->fault.trickle_ms = 200; // 500 B/s: below what a connection may
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_retries, 3);
}

static void ignored_range_is_noticed(void **state) {
    struct scene *s = *state;
    s->part = "safetensors";
    s->n_faults = UINT32_MAX;
    s->ignore_range = true;
    get_must_succeed(s, NULL);
}

static void ignored_range_with_resets_still_ends(void **state) {
    struct scene *s = *state;
    s->part = "model-00001";
    s->n_faults = 5;
    s->ignore_range = true;
    s->fault.n_sent = 2500000;
    s->fault.end = FAULT_RESET;
    get_must_succeed(s, NULL);
}

static void ignored_range_on_resume_keeps_what_is_there(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    assert_true(partial_path(s, SHARD_1, path));
    fixture_write(path, s->repo.files[SHARD_1].data, 2000000);
    s->part = "model-00001";
    s->n_faults = UINT32_MAX;
    s->ignore_range = true;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.bytes_received, result.bytes_total - 2000000);
}

static void good_prefix_is_resumed(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    assert_true(partial_path(s, SHARD_2, path));
    fixture_write(path, s->repo.files[SHARD_2].data, 1500001);
    assert_true(partial_path(s, SHARD_1, path)); // complete but never renamed
    fixture_write(path, s->repo.files[SHARD_1].data, s->repo.files[SHARD_1].n);
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.bytes_received,
                     result.bytes_total - 1500001 - s->repo.files[SHARD_1].n);
}

static void damaged_prefix_is_thrown_away(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    assert_true(partial_path(s, SHARD_2, path));
    fixture_write(path, "not what the hub has", 20);
    assert_true(partial_path(s, TOKENIZER, path)); // longer than the file
    uint8_t *junk = calloc(1, 100000);
    fixture_write(path, junk, 100000);
    free(junk);
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_retries, 1);
}

static void wrong_bytes_fail_and_are_deleted(void **state) {
    struct scene *s = *state;
    s->part = "tokenizer.json";
    s->n_faults = UINT32_MAX;
    s->corrupt = true;
    struct err err = {0};
    char path[PATH_MAX];
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_FORMAT);
    check_message(&err, "tokenizer.json");
    check_message(&err, s->repo.files[TOKENIZER].hash);
    assert_true(partial_path(s, TOKENIZER, path));
    assert_false(path_exists(path));
    fixture_check_nothing_false(&s->env, &s->repo);
    s->corrupt = false;
    s->n_faults = 0;
    get_must_succeed(s, NULL);
}

static void wrong_bytes_once_are_fetched_again(void **state) {
    struct scene *s = *state;
    s->part = "model-00001";
    s->n_faults = 1;
    s->corrupt = true;
    get_must_succeed(s, NULL);
}

static void wrong_length_is_refused_before_a_byte_is_kept(void **state) {
    struct scene *s = *state;
    s->part = "tokenizer.json";
    s->n_faults = UINT32_MAX;
    s->fault.content_bytes = 10;
    s->fault.end = FAULT_CLOSE;
    struct err err = {0};
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    check_message(&err, "10 bytes, the hub lists 70000");
    fixture_check_nothing_false(&s->env, &s->repo);
}

static void retry_after_is_honoured(void **state) {
    struct scene *s = *state;
    s->part = "tokenizer.json";
    s->n_faults = 1;
    s->fault.status = 429;
    snprintf(s->fault.headers, sizeof s->fault.headers, "Retry-After: 1\r\n");
    uint64_t start = clock_ns();
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_retries, 1);
    assert_true(clock_ms_since(start) >= 1000);
}

static void keep_notes(void *user, const struct hub_progress *p) {
    char *notes = user; // [1000]
    size_t n = strlen(notes);
    if (p->note)
        snprintf(notes + n, 1000 - n, "%s\n", p->note);
}

static void listing_is_retried_too_and_says_so(void **state) {
    struct scene *s = *state;
    char notes[1000] = "";
    s->part = "/api/";
    s->n_faults = 2;
    s->fault.status = 503;
    s->options.progress = keep_notes;
    s->options.user = notes;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.n_retries, 2);
    const char *first = strstr(notes, "cannot list the files of org/name: 127.0.0.1 answered 503; trying again in");
    assert_non_null(first);
    assert_non_null(strstr(first + 1, "cannot list the files of org/name"));
}

static void slow_listing_is_not_silent(void **state) {
    struct scene *s = *state;
    char notes[1000] = "";
    s->part = "/api/";
    s->n_faults = 1;
    s->fault.n_sent = 1; // sends the head and one byte at once, then holds its breath
    s->fault.trickle_bytes = 1;
    s->fault.end = FAULT_STALL;
    s->options.progress = keep_notes;
    s->options.user = notes;
    s->options.stall_ms = 4000;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_non_null(strstr(notes, "waiting for http://127.0.0.1"));
    assert_non_null(strstr(notes, "trying again"));
}

static void gives_up_after_failures_without_progress(void **state) {
    struct scene *s = *state;
    s->options.n_failures_max = 2;
    s->part = "model-00002";
    s->n_faults = UINT32_MAX;
    s->fault.status = 500;
    struct err err = {0};
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_IO);
    check_message(&err, "model-00002");
    check_message(&err, "500");
    fixture_check_nothing_false(&s->env, &s->repo);
}

static void token_stays_with_its_host(void **state) {
    struct scene *s = *state;
    char location[100];
    snprintf(location, sizeof location, "http://127.0.0.2:%d", fault_server_port(s->other));
    s->location = location;
    s->part = "safetensors";
    s->n_faults = UINT32_MAX;
    snprintf(s->env.token, sizeof s->env.token, "secret");
    get_must_succeed(s, NULL);
    assert_true(atomic_load(&s->n_other) > 0);
    assert_int_equal(atomic_load(&s->n_other_with_token), 0);
}

static void other_port_of_the_same_host_is_another_origin(void **state) {
    struct scene *s = *state;
    struct fault_server *same_host = fault_server_start("127.0.0.1", 0, answer_other, s);
    char location[100];
    snprintf(location, sizeof location, "http://127.0.0.1:%d", fault_server_port(same_host));
    s->location = location;
    s->part = "tokenizer.json";
    s->n_faults = UINT32_MAX;
    snprintf(s->env.token, sizeof s->env.token, "secret");
    get_must_succeed(s, NULL);
    assert_int_equal(atomic_load(&s->n_other), 1);
    assert_int_equal(atomic_load(&s->n_other_with_token), 0);
    fault_server_stop(same_host);
}

static void redirects_end(void **state) {
    struct scene *s = *state;
    static const struct {
        const char *location, *message;
    } CASES[] = {{"file:///etc", "not http"}, {"", "more than 5"}};
    s->part = "tokenizer.json";
    s->n_faults = UINT32_MAX;
    for (size_t i = 0; i < 2; i++) {
        s->location = CASES[i].location;
        struct err err = {0};
        assert_false(hub_get(&s->env, &s->options, NULL, &err));
        check_message(&err, CASES[i].message);
    }
}

static void refusals_name_the_cure(void **state) {
    struct scene *s = *state;
    struct err err = {0};
    get_must_succeed(s, NULL); // so that there is something near
    s->part = "/api/";
    s->n_faults = UINT32_MAX;
    s->fault.status = 401;
    snprintf(s->fault.headers, sizeof s->fault.headers, "X-Error-Code: GatedRepo\r\n");
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_INVALID);
    check_message(&err, "licence");
    check_message(&err, "/org/name");
    check_message(&err, "HF_TOKEN");
    s->fault.headers[0] = '\0';
    err_clear(&err);
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    check_message(&err, "set HF_TOKEN");
    s->fault.status = 404;
    s->options.repo = "orgg/nam";
    err_clear(&err);
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    check_message(&err, "orgg/nam");
    check_message(&err, "nearest that is downloaded is org/name");
    snprintf(s->fault.headers, sizeof s->fault.headers, "X-Error-Code: RevisionNotFound\r\n");
    s->options.revision = "v9";
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    check_message(&err, "no revision \"v9\"");
}

static void dead_server_is_named(void **state) {
    struct scene *s = *state;
    struct err err = {0};
    s->options.n_failures_max = 1;
    snprintf(s->env.endpoint, sizeof s->env.endpoint, "http://127.0.0.1:1");
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_IO);
    check_message(&err, "http://127.0.0.1:1");
}

static void patterns_choose_files(void **state) {
    struct scene *s = *state;
    const char *include[] = {"*.json", "*.bin"}, *exclude[] = {"tok*"};
    s->options.filter = (struct hub_filter){include, exclude, 2, 1};
    struct hub_get_result result;
    struct err err = {0};
    check_ok(hub_get(&s->env, &s->options, &result, &err), &err);
    assert_true(fixture_exists("%s/config.json", result.snapshot));
    assert_true(fixture_exists("%s/pytorch_model.bin", result.snapshot));
    assert_false(fixture_exists("%s/tokenizer.json", result.snapshot));
    assert_false(fixture_exists("%s/README.md", result.snapshot));
    const char *nothing[] = {"*.zip"};
    s->options.filter = (struct hub_filter){nothing, NULL, 1, 0};
    assert_false(hub_get(&s->env, &s->options, &result, &err));
    check_message(&err, "--include");
}

static void repository_without_readable_weights_is_refused(void **state) {
    struct scene *s = *state;
    fixture_repo_deinit(&s->repo);
    fixture_repo_init(&s->repo, "org/name", 'a');
    fixture_add_text(&s->repo, "config.json", "{}");
    fixture_add(&s->repo, "model.gguf", true, 100, 1);
    free(s->listing);
    s->listing = fixture_listing(&s->repo);
    struct err err = {0};
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    check_message(&err, "model.gguf");
}

static void same_content_twice_is_fetched_once(void **state) {
    struct scene *s = *state;
    fixture_add_text(&s->repo, "copy.md", "---\nlicense: mit\n---\n");
    free(s->listing);
    s->listing = fixture_listing(&s->repo);
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_int_equal(result.bytes_received, result.bytes_total);
}

static void plain_files_of_a_tree_without_links_count(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    const struct fixture_file *shard = &s->repo.files[SHARD_1];
    fixture_path(path, "%s/models--org--name/snapshots/%s/%s", s->env.cache, s->repo.commit,
             shard->path);
    fixture_write(path, shard->data, shard->n);
    struct hub_get_result result;
    struct err err = {0};
    check_ok(hub_get(&s->env, &s->options, &result, &err), &err);
    assert_int_equal(result.bytes_received, result.bytes_total - shard->n);
}

static void too_little_space_is_said_before_the_first_byte(void **state) {
    struct scene *s = *state;
    s->options.reserve_bytes = (uint64_t)1 << 60;
    struct err err = {0};
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    check_message(&err, "HF_HUB_CACHE");
    assert_int_equal(atomic_load(&s->n_ranges), 0);
    // What is there is credited: nothing is missing, nothing is needed.
    s->options.reserve_bytes = 0;
    get_must_succeed(s, NULL);
    s->options.reserve_bytes = (uint64_t)1 << 60;
    get_must_succeed(s, NULL);
}

static void offline_uses_what_is_there(void **state) {
    struct scene *s = *state;
    s->env.offline = true;
    struct err err = {0};
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    check_message(&err, "HF_HUB_OFFLINE");
    s->env.offline = false;
    get_must_succeed(s, NULL);
    s->env.offline = true;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_string_equal(result.commit, s->repo.commit);
}

struct watcher {
    atomic_bool cancel;
    uint64_t bytes_done;
    uint32_t n_calls;
    bool finished, went_back;
};

static void watch(void *user, const struct hub_progress *p) {
    struct watcher *w = user;
    w->went_back = w->went_back || p->bytes_done < w->bytes_done;
    w->bytes_done = p->bytes_done;
    w->n_calls++;
    w->finished = p->finished;
    if (p->bytes_received > 1000000 && !p->finished)
        atomic_store(&w->cancel, true);
}

static void cancelling_keeps_what_is_there(void **state) {
    struct scene *s = *state;
    struct watcher w = {0};
    s->part = "safetensors";
    s->n_faults = UINT32_MAX;
    s->fault.trickle_bytes = 50000;
    s->fault.trickle_ms = 20;
    s->options.progress = watch;
    s->options.user = &w;
    s->options.cancel = &w.cancel;
    struct err err = {0};
    assert_false(hub_get(&s->env, &s->options, NULL, &err));
    assert_int_equal(err.code, ERR_CANCELLED);
    assert_true(w.n_calls > 1 && w.finished && !w.went_back);
    fixture_check_nothing_false(&s->env, &s->repo);
    s->n_faults = 0;
    s->options.cancel = NULL;
    struct hub_get_result result;
    get_must_succeed(s, &result);
    assert_true(result.bytes_received < result.bytes_total - 500000);
    assert_int_equal(w.bytes_done, result.bytes_total);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(fetches_in_chunks_over_several_connections),
        CASE(one_connection_asks_for_no_ranges),
        CASE(resets_are_resumed),
        CASE(short_reads_are_resumed_and_not_fetched_again),
        CASE(stalls_are_dropped),
        CASE(slow_trickle_still_makes_progress),
        CASE(ignored_range_is_noticed),
        CASE(ignored_range_with_resets_still_ends),
        CASE(ignored_range_on_resume_keeps_what_is_there),
        CASE(good_prefix_is_resumed),
        CASE(damaged_prefix_is_thrown_away),
        CASE(wrong_bytes_fail_and_are_deleted),
        CASE(wrong_bytes_once_are_fetched_again),
        CASE(wrong_length_is_refused_before_a_byte_is_kept),
        CASE(retry_after_is_honoured),
        CASE(listing_is_retried_too_and_says_so),
        CASE(slow_listing_is_not_silent),
        CASE(gives_up_after_failures_without_progress),
        CASE(token_stays_with_its_host),
        CASE(other_port_of_the_same_host_is_another_origin),
        CASE(redirects_end),
        CASE(refusals_name_the_cure),
        CASE(dead_server_is_named),
        CASE(patterns_choose_files),
        CASE(repository_without_readable_weights_is_refused),
        CASE(same_content_twice_is_fetched_once),
        CASE(plain_files_of_a_tree_without_links_count),
        CASE(too_little_space_is_said_before_the_first_byte),
        CASE(offline_uses_what_is_there),
        CASE(cancelling_keeps_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
