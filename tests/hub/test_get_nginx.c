// Downloads from a real server in the hub's URL shape: interrupted by kill -9, by a full disk, shared by
// two processes. LOAM_TEST_KILLS sets how often the download is killed (default 25).
#include "hub/fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

struct scene {
    struct fixture_repo repos[2]; // org/name; org/gated
    struct nginx nginx;
    char *folder;
    struct hub_env env;
    struct hub_get_options options;
};

static struct scene scene;

static int start(void **state) {
    (void)state;
    fixture_repo_init(&scene.repos[0], "org/name", 'a');
    fixture_add_model(&scene.repos[0], 5 << 20);
    for (unsigned i = 0; i < 12; i++) {
        char path[40];
        snprintf(path, sizeof path, "small/%u.json", i);
        fixture_add(&scene.repos[0], path, false, 1000 + 777 * i, i);
    }
    fixture_repo_init(&scene.repos[1], "org/gated", 'b');
    fixture_add_model(&scene.repos[1], 20000);
    // A request gets the first 4 MiB at once and the rest at 4 MiB/s: chunks are fast, streams slow.
    nginx_start(&scene.nginx, scene.repos, 2, 4 << 10);
    return 0;
}

static int stop(void **state) {
    (void)state;
    nginx_stop(&scene.nginx);
    for (size_t i = 0; i < 2; i++)
        fixture_repo_deinit(&scene.repos[i]);
    return 0;
}

static int setup(void **state) {
    (void)state;
    scene.folder = fixture_folder(NULL);
    scene.env = fixture_env(scene.folder, "127.0.0.1", scene.nginx.port);
    scene.options = fixture_options(&scene.repos[0]);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    fixture_remove(scene.folder);
    return 0;
}

static void need_nginx(void) {
    if (scene.nginx.pid <= 0) {
        print_message("skipped: /usr/sbin/nginx is not there\n");
        skip();
    }
}

static void get_must_succeed(struct hub_get_result *result) {
    struct err err = {0};
    check_ok(hub_get(&scene.env, &scene.options, result, &err), &err);
    fixture_check_complete(&scene.env, &scene.repos[0]);
}

static void fetches_through_redirects_without_taking_the_token_along(void **state) {
    (void)state;
    need_nginx();
    snprintf(scene.env.token, sizeof scene.env.token, "secret"); // 127.0.0.2 answers 400 if it comes
    get_must_succeed(NULL);
}

static void gated_repository_wants_the_token(void **state) {
    (void)state;
    need_nginx();
    struct err err = {0};
    scene.options.repo = "org/gated";
    assert_false(hub_get(&scene.env, &scene.options, NULL, &err));
    check_message(&err, "HF_TOKEN");
    snprintf(scene.env.token, sizeof scene.env.token, "secret");
    check_ok(hub_get(&scene.env, &scene.options, NULL, &err), &err);
    fixture_check_complete(&scene.env, &scene.repos[1]);
    scene.options.repo = "org/missing";
    assert_false(hub_get(&scene.env, &scene.options, NULL, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

// In a child: exit code 0 when the whole download succeeded.
static pid_t get_in_child(void) {
    pid_t child = fork();
    if (child == 0) {
        struct err err = {0};
        bool ok = hub_get(&scene.env, &scene.options, NULL, &err);
        if (!ok)
            fprintf(stderr, "child: %s\n", err.message);
        _exit(ok ? 0 : 1);
    }
    return child;
}

static void new_cache(void) {
    fixture_remove(scene.folder);
    scene.folder = fixture_folder(NULL);
    scene.env = fixture_env(scene.folder, "127.0.0.1", scene.nginx.port);
}

static void killed_at_any_moment_it_completes_when_run_again(void **state) {
    (void)state;
    need_nginx();
    const char *given = getenv("LOAM_TEST_KILLS");
    int n_kills = given ? atoi(given) : 25;
    static const uint64_t CHUNK_BYTES[] = {1 << 20, 8 << 20}; // split, and streamed whole
    double whole_ms[2];
    for (int i = 0; i < 2; i++) {
        new_cache();
        scene.options.chunk_bytes = CHUNK_BYTES[i];
        uint64_t start_ns = clock_ns();
        get_must_succeed(NULL);
        whole_ms[i] = clock_ms_since(start_ns);
    }
    unsigned seed = (unsigned)clock_ns();
    print_message("seed %u, %d kills within %.0f ms (chunks) and %.0f ms (streams)\n", seed, n_kills,
                  whole_ms[0], whole_ms[1]);
    int n_killed = 0, n_partial = 0;
    for (int i = 0; i < n_kills; i++) {
        new_cache();
        int mode = i % 4 == 3; // streams are slow, and mostly alike
        scene.options.chunk_bytes = CHUNK_BYTES[mode];
        pid_t child = get_in_child();
        usleep((useconds_t)(1000 * whole_ms[mode] * (double)rand_r(&seed) / RAND_MAX));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        n_killed += WIFSIGNALED(status);
        fixture_check_nothing_false(&scene.env, &scene.repos[0]);
        struct hub_get_result result;
        get_must_succeed(&result);
        n_partial += result.bytes_received > 0 && result.bytes_received < result.bytes_total;
    }
    print_message("killed %d, resumed a part %d, all complete and verified\n", n_killed, n_partial);
    assert_true(n_killed >= n_kills / 2);
    assert_true(n_partial > 0);
}

static void two_processes_share_the_work(void **state) {
    (void)state;
    need_nginx();
    pid_t children[2];
    for (int i = 0; i < 2; i++)
        children[i] = get_in_child();
    for (int i = 0; i < 2; i++) {
        int status;
        waitpid(children[i], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    fixture_check_complete(&scene.env, &scene.repos[0]);
}

static void full_disk_is_said_and_survived(void **state) {
    (void)state;
    need_nginx();
    char mount_point[PATH_MAX], filler[PATH_MAX];
    fixture_path(mount_point, "%s/small", scene.folder);
    assert_int_equal(mkdir(mount_point, 0755), 0);
    if (mount("tmpfs", mount_point, "tmpfs", 0, "size=16m") != 0) {
        print_message("skipped: mounting a small tmpfs needs root\n");
        skip();
    }
    struct err err = {0};
    scene.env = fixture_env(mount_point, "127.0.0.1", scene.nginx.port);
    // Enough room when it starts; then something else takes it.
    scene.options.n_connections = 1;
    fixture_path(filler, "%s/filler", mount_point);
    pid_t child = get_in_child();
    usleep(100 * 1000);
    int fd = open(filler, O_RDWR | O_CREAT, 0644);
    for (off_t n = 12 << 20; n > 0; n -= 4096) // as much as there is
        if (fallocate(fd, 0, (12 << 20) - n, 4096) != 0)
            break;
    close(fd);
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    // With the disk full, a start is refused beforehand.
    bool refused = !hub_get(&scene.env, &scene.options, NULL, &err);
    fixture_check_nothing_false(&scene.env, &scene.repos[0]);
    unlink(filler);
    struct hub_get_result result = {0};
    struct err second = {0};
    bool ok = hub_get(&scene.env, &scene.options, &result, &second);
    if (ok)
        fixture_check_complete(&scene.env, &scene.repos[0]);
    umount2(mount_point, MNT_DETACH);
    assert_true(refused);
    check_message(&err, "free some space");
    check_ok(ok, &second);
    assert_true(result.bytes_received < result.bytes_total); // what was there was kept
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(fetches_through_redirects_without_taking_the_token_along),
        CASE(gated_repository_wants_the_token),
        CASE(killed_at_any_moment_it_completes_when_run_again),
        CASE(two_processes_share_the_work),
        CASE(full_disk_is_said_and_survived),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
