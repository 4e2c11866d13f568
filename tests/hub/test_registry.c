#include "hub/fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "hub/registry.h"
#include "hub/resolve.h"
#include "model/model.h"

struct scene {
    char *folder;
    char db[PATH_MAX];
    struct hub_env env;
};

static int setup(void **state) {
    struct scene *s = calloc(1, sizeof *s);
    s->folder = fixture_folder(NULL);
    s->env = fixture_env(s->folder, "127.0.0.1", 1);
    fixture_path(s->db, "%s/registry.sqlite", s->folder);
    *state = s;
    return 0;
}

static int teardown(void **state) {
    struct scene *s = *state;
    fixture_remove(s->folder);
    free(s);
    return 0;
}

// Open, update, list, close: as one process does it.
static struct registry_update read_models(struct scene *s, struct hub_models *list) {
    struct registry_update update;
    struct err err = {0};
    struct registry *r = registry_open(s->db, &err);
    check_ok(r != NULL, &err);
    check_ok(registry_update(r, &s->env, false, &update, &err), &err);
    check_ok(registry_list(r, &s->env, list, &err), &err);
    registry_close(r);
    return update;
}

static const struct hub_model *find(const struct hub_models *list, const char *repo) {
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->models[i].repo, repo) == 0)
            return &list->models[i];
    return NULL;
}

static void snapshot_is_described_from_its_headers(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    fixture_snapshot(&s->env, "org/name", 'a', true);
    struct registry_update update = read_models(s, &list);
    assert_int_equal(update.n_scanned, 1);
    assert_int_equal(list.n, 1);
    const struct hub_model *m = &list.models[0];
    assert_string_equal(m->problem, "");
    assert_string_equal(m->repo, "org/name");
    assert_string_equal(m->model_type, "llama");
    assert_string_equal(m->architecture, "LlamaForCausalLM");
    assert_string_equal(m->license, "house-rules");
    assert_int_equal(m->n_params, 100);
    assert_int_equal(m->weight_bytes, 400);
    assert_int_equal(m->ctx_len_max, 4096);
    assert_int_equal(m->kv_token_bytes, 2 * 2 * (2 * 16 * 2)); // layers, K and V, heads * dim * bf16
    assert_true(m->has_tools && m->is_canonical && !m->has_vision);
    hub_models_deinit(&list);
}

static void only_what_changed_is_read_again(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    char path[PATH_MAX];
    fixture_snapshot(&s->env, "org/one", 'a', true);
    fixture_snapshot(&s->env, "org/two", 'b', true);
    assert_int_equal(read_models(s, &list).n_scanned, 2);
    hub_models_deinit(&list);
    assert_int_equal(read_models(s, &list).n_scanned, 0);
    hub_models_deinit(&list);
    fixture_snapshot(&s->env, "org/three", 'c', true);
    fixture_snapshot(&s->env, "org/two", 'd', true); // a new revision
    struct registry_update update = read_models(s, &list);
    assert_int_equal(update.n_scanned, 2);
    assert_int_equal(list.n, 4);
    for (size_t i = 0; i < list.n; i++)
        assert_int_equal(list.models[i].is_canonical, list.models[i].commit[0] != 'b');
    hub_models_deinit(&list);
    // A folder that is gone takes its row along; another cache's rows stay, unseen.
    fixture_path(path, "%s/models--org--one", s->env.cache);
    char elsewhere[PATH_MAX];
    fixture_path(elsewhere, "%s/elsewhere", s->folder);
    assert_int_equal(rename(path, elsewhere), 0);
    update = read_models(s, &list);
    assert_int_equal(update.n_removed, 1);
    assert_null(find(&list, "org/one"));
    hub_models_deinit(&list);
    struct scene other = *s;
    fixture_path(other.env.cache, "%s/other-hub", s->folder);
    fixture_snapshot(&other.env, "org/other", 'e', true);
    update = read_models(&other, &list);
    assert_int_equal(update.n_removed, 0);
    assert_int_equal(list.n, 1);
    hub_models_deinit(&list);
}

static void incomplete_snapshots_say_what_is_missing(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    char path[PATH_MAX];
    fixture_snapshot(&s->env, "org/name", 'a', true);
    fixture_path(path, "%s/models--org--name/snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/"
                       "model.safetensors", s->env.cache);
    assert_int_equal(unlink(path), 0);
    read_models(s, &list);
    assert_int_equal(list.n, 1);
    assert_non_null(strstr(list.models[0].problem, "weights"));
    hub_models_deinit(&list);
    fixture_snapshot(&s->env, "org/name", 'a', true); // the download is completed
    read_models(s, &list);
    assert_string_equal(list.models[0].problem, "");
    hub_models_deinit(&list);
}

static void run(const char *path, const char *sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void schema_of_another_version_is_made_anew(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    fixture_snapshot(&s->env, "org/name", 'a', true);
    run(s->db, "CREATE TABLE models (path TEXT, old INTEGER); INSERT INTO models VALUES ('/x', 1);"
               "PRAGMA user_version = 7");
    assert_int_equal(read_models(s, &list).n_scanned, 1);
    assert_int_equal(list.n, 1);
    hub_models_deinit(&list);
}

static void damaged_file_is_made_anew(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    fixture_snapshot(&s->env, "org/name", 'a', true);
    char junk[5000];
    memset(junk, 'x', sizeof junk);
    fixture_write(s->db, junk, sizeof junk);
    log_set_level(LOG_ERROR);
    assert_int_equal(read_models(s, &list).n_scanned, 1);
    hub_models_deinit(&list);
    assert_int_equal(read_models(s, &list).n_scanned, 0); // it was kept this time
    hub_models_deinit(&list);
    // Where nothing can be written, memory does.
    fixture_path(s->db, "%s/no/such/folder/registry.sqlite", s->folder);
    assert_int_equal(read_models(s, &list).n_scanned, 1);
    assert_int_equal(list.n, 1);
    log_set_level(LOG_WARN);
    hub_models_deinit(&list);
}

static void eight_processes_write_at_once(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    pid_t children[8];
    for (int i = 0; i < 30; i++) {
        char repo[32];
        snprintf(repo, sizeof repo, "org/model%d", i);
        fixture_snapshot(&s->env, repo, 'a', true);
    }
    for (int c = 0; c < 8; c++) {
        children[c] = fork();
        if (children[c])
            continue;
        bool ok = true;
        for (int round = 0; ok && round < 10; round++) {
            struct registry_update update;
            struct err err = {0};
            struct registry *r = registry_open(s->db, &err);
            ok = r && registry_update(r, &s->env, round % 2 == 0, &update, &err) &&
                 registry_list(r, &s->env, &list, &err) && list.n == 30;
            if (!ok)
                fprintf(stderr, "writer %d: %s\n", c, err.message);
            hub_models_deinit(&list);
            registry_close(r);
        }
        _exit(ok ? 0 : 1);
    }
    for (int c = 0; c < 8; c++) {
        int status;
        waitpid(children[c], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(read_models(s, &list).n_scanned, 0);
    assert_int_equal(list.n, 30);
    hub_models_deinit(&list);
}

static void two_hundred_snapshots_are_read_fast(void **state) {
    struct scene *s = *state;
    struct hub_models list;
    for (int i = 0; i < 200; i++) {
        char repo[32];
        snprintf(repo, sizeof repo, "org/model%d", i);
        fixture_snapshot(&s->env, repo, 'a', true);
    }
    double ms[2];
    for (int i = 0; i < 2; i++) {
        uint64_t start = clock_ns();
        assert_int_equal(read_models(s, &list).n_scanned, i == 0 ? 200 : 0);
        ms[i] = clock_ms_since(start);
        assert_int_equal(list.n, 200);
        hub_models_deinit(&list);
    }
    print_message("200 snapshots: %.0f ms new, %.1f ms unchanged\n", ms[0], ms[1]);
    assert_true(ms[0] < 5000 && ms[1] < 500); // 1 s and 50 ms on an idle machine without sanitizers
}

// ---- Real folders -------------------------------------------------------------------------------

static void every_zoo_model_is_counted_as_its_makers_count(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned k_params; // as zoo/README.md tells
        const char *mode;
        unsigned bits;
        bool mixed;
    } CASES[] = {
        {"llama", 377, "", 0, false},          {"llama-mlx-4bit", 377, "affine", 4, false},
        {"qwen3-mlx-3bit", 460, "affine", 3, false}, {"qwen3-mlx-5bit-g32", 460, "affine", 5, false},
        {"qwen3-mlx-nvfp4", 460, "nvfp4", 4, false}, {"qwen3-mlx-mxfp8", 460, "mxfp8", 8, false},
        {"gpt_oss-mxfp4", 366, NULL, 0, false},  {"gpt_oss-mlx-mxfp4-q8", 366, "mxfp4", 4, true},
        {"gemma4-moe-mlx-optiq", 491, "affine", 4, true}, {"mistral", 213, "", 0, false},
        {"llama-odd-mlx-4bit", 231, "affine", 4, false},
    };
    const char *shared = check_shared_folder();
    if (!shared) {
        print_message("skipped: the shared folder is not there\n");
        skip();
    }
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char path[PATH_MAX];
        struct arena arena = {0};
        struct hub_model m = {0};
        struct err err = {0};
        fixture_path(path, "%s/zoo/%s", shared, CASES[i].name);
        check_ok(hub_scan(&m, path, &arena, &err), &err);
        assert_string_equal(m.problem, "");
        if ((m.n_params + 500) / 1000 != CASES[i].k_params)
            fail_msg("%s has %llu parameters, not %uk", CASES[i].name, (unsigned long long)m.n_params,
                     CASES[i].k_params);
        if (CASES[i].mode) {
            assert_string_equal(m.quant_mode, CASES[i].mode);
            assert_int_equal(m.quant_bits, CASES[i].bits);
        }
        assert_int_equal(m.is_quant_mixed, CASES[i].mixed);
        arena_deinit(&arena);
    }
}

// What `ls` tells from config.json is what the loaded model will ask for.
static void cache_bytes_equal_the_loaded_models(void **state) {
    (void)state;
    const char *shared = check_shared_folder();
    if (!shared)
        skip();
    struct err err = {0};
    struct backend *be = backend_open("cpu", &(struct backend_options){.n_threads = 1}, &err);
    check_ok(be != NULL, &err);
    char zoo[PATH_MAX], path[PATH_MAX];
    fixture_path(zoo, "%s/zoo", shared);
    DIR *dir = opendir(zoo);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        fixture_path(path, "%s/%s/config.json", zoo, entry->d_name);
        if (entry->d_name[0] == '.' || !path_exists(path))
            continue;
        fixture_path(path, "%s/%s", zoo, entry->d_name);
        struct model *model = model_open(path, be, &(struct model_options){.kv = KV_BF16}, &err);
        if (!model)
            continue; // a family that this build does not have yet
        struct model_memory memory;
        model_memory(model, &memory);
        uint64_t full = 0, sliding = 0;
        for (uint32_t g = 0; g < memory.n_groups; g++)
            *(memory.group_window[g] ? &sliding : &full) += memory.group_page_bytes[g] / KV_PAGE_TOKENS;
        struct arena arena = {0};
        struct hub_model m = {0};
        check_ok(hub_scan(&m, path, &arena, &err), &err);
        if (m.kv_token_bytes != full || m.kv_window_token_bytes != sliding || m.state_bytes != memory.state_slot_bytes)
            fail_msg("%s: scan says %llu + %llu a token and %llu state, the model %llu + %llu and %llu",
                     entry->d_name, (unsigned long long)m.kv_token_bytes,
                     (unsigned long long)m.kv_window_token_bytes, (unsigned long long)m.state_bytes,
                     (unsigned long long)full, (unsigned long long)sliding,
                     (unsigned long long)memory.state_slot_bytes);
        n++;
        arena_deinit(&arena);
        model_destroy(model);
    }
    closedir(dir);
    be->ops->close(be);
    print_message("%d models\n", n);
    assert_true(n > 20);
}

// ---- Names --------------------------------------------------------------------------------------

static void model_argument_means_one_folder(void **state) {
    struct scene *s = *state;
    fixture_snapshot(&s->env, "mlx-community/Qwen3-4B-4bit", 'a', true);
    fixture_snapshot(&s->env, "mlx-community/Qwen3-4B", 'b', true);
    fixture_snapshot(&s->env, "google/gemma-4-e4b-it", 'c', true);
    fixture_snapshot(&s->env, "google/gemma-4-e4b-it-assistant", 'd', true);
    fixture_snapshot(&s->env, "org/not-a-model", 'e', true);
    char config[PATH_MAX];
    fixture_path(config, "%s/models--org--not-a-model/snapshots/eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee/config.json",
                 s->env.cache);
    assert_int_equal(unlink(config), 0);
    static const struct {
        const char *argument, *repo, *message; // message: of the failure, repo NULL
    } CASES[] = {
        {"google/gemma-4-e4b-it", "google/gemma-4-e4b-it", NULL},
        {"GOOGLE/Gemma-4-E4B-it", "google/gemma-4-e4b-it", NULL},
        {"gemma", "google/gemma-4-e4b-it", NULL}, // the drafter is not meant by a part
        {"google/gemma-4-e4b-it-assistant", "google/gemma-4-e4b-it-assistant", NULL},
        {"qwen3-4b", "mlx-community/Qwen3-4B", NULL}, // the whole name wins over a part
        {"4B-4bit", "mlx-community/Qwen3-4B-4bit", NULL},
        {"qwen", NULL, "matches 2 downloaded models"},
        {"mlx-community/Qwen3-4B@main", "mlx-community/Qwen3-4B", NULL},
        {"mlx-community/Qwen3-4B@v2", NULL, "loam get mlx-community/Qwen3-4B@v2"},
        {"google/gema-4-e4b-it", NULL, "nearest is google/gemma-4-e4b-it"},
        {"gemma-4-e4b-ti", NULL, "nearest is google/gemma-4-e4b-it"},
        {"zebra/unknown-thing", NULL, "loam get zebra/unknown-thing"},
        {"xyzzy", NULL, "\"loam ls\" lists them"},
        {"not-a-model", NULL, "not-a-model"},
        {"/no/such/folder", NULL, "no folder /no/such/folder"},
        {"/tmp", NULL, "no config.json"},
        {"", NULL, "empty"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct hub_resolved out;
        struct err err = {0};
        bool ok = hub_resolve_model(&s->env, CASES[i].argument, &out, &err);
        if (ok != (CASES[i].repo != NULL))
            fail_msg("%s: %s", CASES[i].argument, ok ? out.repo : err.message);
        if (ok)
            assert_string_equal(out.repo, CASES[i].repo);
        else
            check_message(&err, CASES[i].message);
    }
    // Several matches list the candidates.
    struct hub_resolved out;
    struct err err = {0};
    assert_false(hub_resolve_model(&s->env, "qwen", &out, &err));
    check_message(&err, "mlx-community/Qwen3-4B, mlx-community/Qwen3-4B-4bit");
    // A folder needs neither cache nor registry.
    fixture_path(config, "%s/plain/config.json", s->folder);
    fixture_write(config, "{}", 2);
    *strrchr(config, '/') = '\0';
    s->env.cache[0] = '\0';
    check_ok(hub_resolve_model(&s->env, config, &out, &err), &err);
    assert_string_equal(out.folder, config);
    assert_string_equal(out.repo, "");
}

// ---- Memory limits ------------------------------------------------------------------------------

static void write_text(const char *folder, const char *name, const char *text) {
    char path[PATH_MAX];
    fixture_path(path, "%s/%s", folder, name);
    fixture_write(path, text, strlen(text));
}

static void least_memory_limit_applies(void **state) {
    struct scene *s = *state;
    struct host_memory m;
    write_text(s->folder, "proc/meminfo", "MemTotal:       1000000 kB\nMemFree: 5 kB\nMemAvailable:    600000 kB\n");
    host_memory_read_at(s->folder, &m);
    assert_int_equal(m.physical_bytes, 1024000000);
    assert_int_equal(m.limit_bytes, 1024000000);
    assert_int_equal(m.available_bytes, 614400000);
    assert_string_equal(m.limited_by, "physical memory");
    // cgroup v2: of this process's group and of those above it the least; page cache is not used memory.
    write_text(s->folder, "proc/self/cgroup", "0::/a/b\n");
    write_text(s->folder, "sys/fs/cgroup/a/b/memory.max", "max\n");
    write_text(s->folder, "sys/fs/cgroup/a/memory.max", "500000000\n");
    write_text(s->folder, "sys/fs/cgroup/a/memory.current", "300000000\n");
    write_text(s->folder, "sys/fs/cgroup/a/memory.stat", "anon 1\nfile 100000000\nfile_mapped 7\n");
    host_memory_read_at(s->folder, &m);
    assert_int_equal(m.limit_bytes, 500000000);
    assert_int_equal(m.available_bytes, 300000000);
    assert_string_equal(m.limited_by, "cgroup v2");
    // cgroup v1 beside it, tighter.
    write_text(s->folder, "proc/self/cgroup", "5:cpu,memory:/job\n0::/\n");
    write_text(s->folder, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "200000000\n");
    write_text(s->folder, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "50000000\n");
    write_text(s->folder, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    host_memory_read_at(s->folder, &m);
    assert_int_equal(m.limit_bytes, 200000000);
    assert_int_equal(m.available_bytes, 150000000);
    assert_string_equal(m.limited_by, "cgroup v1");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(snapshot_is_described_from_its_headers),
        CASE(only_what_changed_is_read_again),
        CASE(incomplete_snapshots_say_what_is_missing),
        CASE(schema_of_another_version_is_made_anew),
        CASE(damaged_file_is_made_anew),
        CASE(eight_processes_write_at_once),
        CASE(two_hundred_snapshots_are_read_fast),
        cmocka_unit_test(every_zoo_model_is_counted_as_its_makers_count),
        cmocka_unit_test(cache_bytes_equal_the_loaded_models),
        CASE(model_argument_means_one_folder),
        CASE(least_memory_limit_applies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
