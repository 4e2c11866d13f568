#include "hub/fixture.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file_map.h"
#include "hub/blob.h"
#include "hub/gc.h"

struct scene {
    char *folder, repo[PATH_MAX];
    struct hub_env env;
    struct gc_options options;
};

// org/name with an old snapshot 'a' and a new one 'b' that refs/main names. Each has its own weights; the
// other blobs are shared.
static int setup(void **state) {
    struct scene *s = calloc(1, sizeof *s);
    s->folder = fixture_folder(NULL);
    s->env = fixture_env(s->folder, "127.0.0.1", 1);
    fixture_snapshot(&s->env, "org/name", 'a', false);
    fixture_snapshot(&s->env, "org/name", 'b', true);
    fixture_path(s->repo, "%s/models--org--name", s->env.cache);
    s->options = gc_defaults();
    s->options.min_age_s = 0;
    *state = s;
    return 0;
}

static int teardown(void **state) {
    struct scene *s = *state;
    fixture_remove(s->folder);
    free(s);
    return 0;
}

static size_t count(const char *format, const char *folder) {
    char path[PATH_MAX];
    size_t n = 0;
    snprintf(path, sizeof path, format, folder);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

static void plan_and_run(struct scene *s, size_t n_items, size_t n_kept) {
    struct gc_plan plan;
    struct err err = {0};
    check_ok(gc_plan_make(&plan, &s->env, &s->options, &err), &err);
    if (plan.n_items != n_items || plan.n_kept != n_kept)
        fail_msg("planned %zu, kept %zu; expected %zu and %zu", plan.n_items, plan.n_kept, n_items, n_kept);
    check_ok(gc_plan_run(&plan, &s->env, &err), &err);
    gc_plan_deinit(&plan);
}

static void takes_what_no_ref_names_and_no_shared_blob(void **state) {
    struct scene *s = *state;
    struct gc_plan plan;
    struct err err = {0};
    assert_int_equal(count("%s/blobs", s->repo), 5);
    check_ok(gc_plan_make(&plan, &s->env, &s->options, &err), &err);
    assert_int_equal(plan.n_items, 2); // snapshot a and its weights
    assert_int_equal(count("%s/snapshots", s->repo), 2); // a plan changes nothing
    struct file_map map;
    for (size_t i = 0; i < plan.n_items; i++)
        if (plan.items[i].kind == GC_BLOB) {
            check_ok(file_map_open(&map, plan.items[i].path, &err), &err);
            assert_int_equal(plan.n_bytes, map.bytes.n);
            file_map_close(&map);
        }
    check_ok(gc_plan_run(&plan, &s->env, &err), &err);
    gc_plan_deinit(&plan);
    assert_int_equal(count("%s/snapshots", s->repo), 1);
    assert_int_equal(count("%s/blobs", s->repo), 4);
    assert_true(fixture_exists("%s/snapshots/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb/config.json", s->repo));
    plan_and_run(s, 0, 0);
}

static void keeps_all_when_no_ref_resolves(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    fixture_path(path, "%s/refs/main", s->repo);
    fixture_write(path, "cccccccccccccccccccccccccccccccccccccccc", 40); // a snapshot that is not there
    plan_and_run(s, 0, 2);
    s->options.force = true;
    plan_and_run(s, 0, 2);
}

static void keeps_what_other_refs_name(void **state) {
    struct scene *s = *state;
    struct err err = {0};
    check_ok(hub_ref_write(s->repo, "refs/pr/1", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", &err), &err);
    plan_and_run(s, 0, 0);
}

static void keeps_foreign_files_unless_forced(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    fixture_path(path, "%s/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/mine/notes.txt", s->repo);
    fixture_write(path, "mine", 4);
    plan_and_run(s, 0, 1);
    s->options.force = true;
    plan_and_run(s, 2, 0);
    assert_false(path_exists(path));
}

static void never_touches_partial_files(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    fixture_path(path, "%s/blobs/cccccccccccccccccccccccccccccccccccccccc.incomplete", s->repo);
    fixture_write(path, "part", 4);
    plan_and_run(s, 0, 1);
    s->options.force = true;
    plan_and_run(s, 2, 0);
    assert_true(path_exists(path));
}

static void keeps_the_young(void **state) {
    struct scene *s = *state;
    s->options.min_age_s = 3600;
    plan_and_run(s, 0, 1);
}

static void keeps_a_blob_that_another_process_works_on(void **state) {
    struct scene *s = *state;
    struct gc_plan plan;
    struct err err = {0};
    check_ok(gc_plan_make(&plan, &s->env, &s->options, &err), &err);
    const char *blob = NULL;
    for (size_t i = 0; i < plan.n_items; i++)
        if (plan.items[i].kind == GC_BLOB)
            blob = plan.items[i].path;
    assert_non_null(blob);
    struct blob_lock lock;
    long owner;
    assert_int_equal(blob_lock_try(&lock, s->env.cache, s->repo, strrchr(blob, '/') + 1, &owner, &err), BLOB_LOCKED);
    check_ok(gc_plan_run(&plan, &s->env, &err), &err);
    assert_true(path_exists(blob));
    assert_false(hub_remove_repo(&s->env, "org/name", &err));
    assert_int_equal(err.code, ERR_BUSY);
    blob_lock_release(&lock);
    gc_plan_deinit(&plan);
}

static void tree_of_plain_files_is_not_taken(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    static const char C[] = "cccccccccccccccccccccccccccccccccccccccc", D[] = "dddddddddddddddddddddddddddddddddddddddd";
    fixture_path(path, "%s/models--org--plain/snapshots/%s/config.json", s->env.cache, C);
    fixture_write(path, "{}", 2);
    fixture_path(path, "%s/models--org--plain/snapshots/%s/config.json", s->env.cache, D);
    fixture_write(path, "{}", 2);
    fixture_path(path, "%s/models--org--plain/refs/main", s->env.cache);
    fixture_write(path, D, 40);
    s->options.repo = "org/plain";
    plan_and_run(s, 0, 1);
}

static void leftovers_of_a_crashed_deletion_are_finished(void **state) {
    struct scene *s = *state;
    char path[PATH_MAX];
    plan_and_run(s, 2, 0);
    fixture_path(path, "%s/.doomed-models--org--old-77/blobs/x", s->env.cache);
    fixture_write(path, "x", 1);
    plan_and_run(s, 1, 0);
    assert_false(fixture_exists("%s/.doomed-models--org--old-77", s->env.cache));
}

static void rm_of_a_revision_keeps_the_others(void **state) {
    struct scene *s = *state;
    char commit[HUB_COMMIT_BYTES];
    s->options.repo = "org/name";
    s->options.commit = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    plan_and_run(s, 3, 0); // the ref, the snapshot, its weights
    assert_false(hub_ref_read(s->repo, "main", commit));
    assert_true(fixture_exists("%s/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/config.json", s->repo));
    struct gc_plan plan;
    struct err err = {0};
    assert_false(gc_plan_make(&plan, &s->env, &s->options, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void rm_of_a_repository_leaves_nothing(void **state) {
    struct scene *s = *state;
    struct err err = {0};
    assert_true(hub_repo_bytes(&s->env, "org/name") > 800);
    check_ok(hub_remove_repo(&s->env, "org/name", &err), &err);
    assert_false(path_exists(s->repo));
    assert_int_equal(count("%s", s->env.cache), 0);
    assert_false(hub_remove_repo(&s->env, "org/name", &err));
    check_message(&err, "not downloaded");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(takes_what_no_ref_names_and_no_shared_blob),
        CASE(keeps_all_when_no_ref_resolves),
        CASE(keeps_what_other_refs_name),
        CASE(keeps_foreign_files_unless_forced),
        CASE(never_touches_partial_files),
        CASE(keeps_the_young),
        CASE(keeps_a_blob_that_another_process_works_on),
        CASE(tree_of_plain_files_is_not_taken),
        CASE(leftovers_of_a_crashed_deletion_are_finished),
        CASE(rm_of_a_revision_keeps_the_others),
        CASE(rm_of_a_repository_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
