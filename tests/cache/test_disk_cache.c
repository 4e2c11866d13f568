#include "check.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "cache/disk_cache.h"

enum { BLOB_BYTES = 5000, FILE_BYTES = BLOB_BYTES + 128 };

static char folder[PATH_MAX];

static struct disk_cache *open_cache(const char *identity, uint64_t bytes_max) {
    struct err err = {0};
    struct disk_cache *cache = disk_cache_create(
        &(struct disk_cache_options){.folder = folder, .identity = identity, .bytes_max = bytes_max}, &err);
    check_ok(cache, &err);
    return cache;
}

static struct disk_key key_of(uint64_t n) { return disk_key_root(n); }

static void write_blob(struct disk_cache *cache, uint64_t n, uint32_t depth) {
    struct disk_key key = key_of(n);
    char *blob = disk_blob_create(BLOB_BYTES);
    memset(blob, (int)(n % 251), BLOB_BYTES);
    disk_cache_write(cache, DISK_PAGE, &key, depth, blob, BLOB_BYTES);
}

static void settle(struct disk_cache *cache) {
    assert_true(disk_cache_wait(cache, clock_ns() + 20000000000u));
}

static bool has(struct disk_cache *cache, uint64_t n) {
    struct disk_key key = key_of(n);
    return disk_cache_has(cache, DISK_PAGE, &key);
}

// Read it back; false if it does not come.
static bool read_blob(struct disk_cache *cache, uint64_t n) {
    struct disk_key key = key_of(n);
    struct disk_answer answer;
    uint64_t deadline = clock_ns() + 20000000000u;
    assert_true(disk_cache_read(cache, DISK_PAGE, &key, BLOB_BYTES, n));
    while (!disk_cache_next(cache, &answer))
        assert_true(clock_ns() < deadline);
    assert_int_equal(answer.tag, n);
    for (int i = 0; answer.blob && i < BLOB_BYTES; i++)
        assert_int_equal(((unsigned char *)answer.blob)[i], n % 251);
    disk_blob_free(answer.blob);
    return answer.blob != NULL;
}

// Run `command` with $D, the only identity's folder.
static void shell(const char *command) {
    char line[2 * PATH_MAX];
    snprintf(line, sizeof line, "cd '%s'/loam-kv-1 && D=$(ls -d */ | head -1) && %s", folder, command);
    assert_int_equal(system(line), 0);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s/loam-disk-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
    (void)state;
    char line[PATH_MAX + 16];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    return system(line);
}

static void what_was_written_is_read_also_by_the_next_process(void **state) {
    (void)state;
    struct disk_cache_stats stats;
    struct disk_cache *cache = open_cache("a", 0);
    assert_false(has(cache, 1));
    assert_false(read_blob(cache, 1));
    for (uint64_t n = 0; n < 200; n++)
        write_blob(cache, n, (uint32_t)n);
    write_blob(cache, 7, 7); // again: nothing happens
    settle(cache);
    for (uint64_t n = 0; n < 200; n++)
        assert_true(has(cache, n) && read_blob(cache, n));
    struct disk_key key = key_of(1);
    assert_false(disk_cache_has(cache, DISK_STATE, &key)); // another kind
    disk_cache_destroy(cache);
    cache = open_cache("a", 0);
    disk_cache_stats(cache, &stats);
    assert_int_equal(stats.n_entries, 200);
    assert_int_equal(stats.bytes, 200 * FILE_BYTES);
    for (uint64_t n = 0; n < 200; n++)
        assert_true(has(cache, n) && read_blob(cache, n));
    disk_cache_destroy(cache);
    cache = open_cache("b", 0); // another model
    assert_false(has(cache, 1));
    disk_cache_stats(cache, &stats);
    assert_int_equal(stats.n_entries, 0);
    assert_int_equal(stats.bytes, 200 * FILE_BYTES);
    disk_cache_destroy(cache);
}

static void damaged_and_foreign_files_are_removed_and_counted(void **state) {
    (void)state;
    static const char *const HARM[] = {
        "for f in $D*; do truncate -s -1 $f; done",                                    // cut short
        "for f in $D*; do : > $f; done",                                               // empty
        "for f in $D*; do printf x >> $f; done",                                       // longer
        "for f in $D*; do printf x | dd of=$f bs=1 seek=3000 conv=notrunc 2>/dev/null; done", // a byte of the blob
        "for f in $D*; do printf x | dd of=$f bs=1 seek=20 conv=notrunc 2>/dev/null; done",   // a byte of the header
        "for f in $D*; do head -c 5128 /dev/zero > $f; done",                          // of the right length
        "A=$(ls $D | head -1); for f in $D*; do cp $D$A t; mv t $f; done; printf x >> $D$A", // another's blob
        "for f in $D*; do rm $f; mkdir $f; rmdir $f; done",                            // gone
    };
    for (size_t i = 0; i < sizeof HARM / sizeof *HARM; i++) {
        struct disk_cache *cache = open_cache("a", 0);
        for (uint64_t n = 0; n < 4; n++)
            write_blob(cache, n, 1);
        settle(cache);
        if (i % 2 == 0) { // between two runs, or below a running one
            disk_cache_destroy(cache);
            shell(HARM[i]);
            cache = open_cache("a", 0);
        } else {
            shell(HARM[i]);
        }
        for (uint64_t n = 0; n < 4; n++)
            if (read_blob(cache, n))
                fail_msg("harm %zu: blob %d is still believed", i, (int)n);
        struct disk_cache_stats stats;
        disk_cache_stats(cache, &stats);
        assert_int_equal(stats.n_entries, 0);
        assert_int_equal(stats.bytes, 0);
        assert_int_equal(stats.n_damaged, i == 7 ? 0 : 4);
        shell("[ -z \"$(ls $D)\" ]");
        write_blob(cache, 1, 1); // and it can be written again
        settle(cache);
        assert_true(read_blob(cache, 1));
        disk_cache_destroy(cache);
        shell("rm -f $D*");
    }
    // What is not ours stays: other names, folders, links.
    shell("touch $D/notes.txt; mkdir $D/sub; ln -s /etc/hostname $D/00000001-$(printf 0%.0s $(seq 64)).page");
    struct disk_cache *cache = open_cache("a", 1);
    disk_cache_destroy(cache);
    shell("[ -f $D/notes.txt ] && [ -d $D/sub ] && [ -e /etc/hostname ]");
}

static void what_was_used_longest_ago_makes_room(void **state) {
    (void)state;
    struct disk_cache_stats stats;
    struct disk_cache *cache = open_cache("other", 0);
    for (uint64_t n = 100; n < 110; n++)
        write_blob(cache, n, 1);
    settle(cache);
    disk_cache_destroy(cache);
    cache = open_cache("a", 30 * FILE_BYTES);
    for (uint64_t n = 0; n < 20; n++)
        write_blob(cache, n, 1);
    settle(cache);
    disk_cache_stats(cache, &stats);
    assert_int_equal(stats.n_evicted, 0);
    write_blob(cache, 20, 1); // the other model's are oldest
    settle(cache);
    struct disk_key first = key_of(0);
    disk_cache_touch(cache, DISK_PAGE, &first);
    for (uint64_t n = 21; n < 40; n++) {
        write_blob(cache, n, 1);
        settle(cache);
        uint64_t deadline = clock_ns() + 20000000000u;
        do // it evicts behind
            disk_cache_stats(cache, &stats);
        while (stats.bytes > stats.bytes_max && clock_ns() < deadline);
        assert_true(stats.bytes <= stats.bytes_max);
    }
    assert_true(stats.n_evicted > 10 && stats.n_entries <= 30);
    assert_true(has(cache, 0) && has(cache, 39));
    assert_false(has(cache, 1));
    disk_cache_destroy(cache);
    cache = open_cache("a", 10 * FILE_BYTES); // a lower limit; the order of use is still known
    uint64_t deadline = clock_ns() + 20000000000u;
    do
        disk_cache_stats(cache, &stats);
    while (stats.bytes > 10 * FILE_BYTES && clock_ns() < deadline);
    assert_true(stats.bytes <= 10 * FILE_BYTES);
    assert_true(has(cache, 39));
    disk_cache_destroy(cache);
    cache = open_cache("tiny", 100); // no file fits: nothing is written, nothing is thrown out for it
    write_blob(cache, 1, 1);
    settle(cache);
    disk_cache_stats(cache, &stats);
    assert_int_equal(stats.n_written, 0);
    disk_cache_destroy(cache);
}

static void of_what_was_used_together_the_deepest_goes_first(void **state) {
    (void)state;
    struct disk_cache *cache = open_cache("a", 0);
    for (uint64_t n = 0; n < 40; n++)
        write_blob(cache, n, (uint32_t)n);
    settle(cache);
    disk_cache_destroy(cache);
    shell("touch -d '2020-01-01' $D*");
    cache = open_cache("a", 20 * FILE_BYTES);
    struct disk_cache_stats stats;
    uint64_t deadline = clock_ns() + 20000000000u;
    do
        disk_cache_stats(cache, &stats);
    while (stats.n_entries > 19 && clock_ns() < deadline);
    assert_int_equal(stats.n_entries, 19); // a 20th less than the limit
    for (uint64_t n = 0; n < 40; n++)
        assert_true(has(cache, n) == (n < 19));
    disk_cache_destroy(cache);
}

// A disk that takes no more: a limit on the size of files stands for it, root or not.
static void a_full_disk_is_survived(void **state) {
    (void)state;
    struct disk_cache *cache = open_cache("a", 0);
    write_blob(cache, 1, 1);
    settle(cache);
    struct rlimit before, low;
    getrlimit(RLIMIT_FSIZE, &before);
    low = before;
    low.rlim_cur = FILE_BYTES - 1000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &low);
    write_blob(cache, 2, 1);
    write_blob(cache, 3, 1);
    settle(cache);
    setrlimit(RLIMIT_FSIZE, &before);
    struct disk_cache_stats stats;
    disk_cache_stats(cache, &stats);
    assert_int_equal(stats.n_failed, 2);
    assert_int_equal(stats.n_entries, 1);
    assert_false(has(cache, 2) || read_blob(cache, 2));
    assert_true(read_blob(cache, 1));
    assert_false(disk_cache_has_room(cache, 1)); // it pauses
    shell("[ $(ls $D | wc -l) = 1 ]");           // no half of a file is left
    disk_cache_destroy(cache);
    // Nor where the folder is gone altogether.
    cache = open_cache("a", 0);
    shell("rm -rf $D");
    write_blob(cache, 4, 1);
    settle(cache);
    assert_false(read_blob(cache, 1));
    disk_cache_destroy(cache);
}

static void a_folder_that_cannot_be_is_refused(void **state) {
    (void)state;
    struct err err = {0};
    assert_null(disk_cache_create(&(struct disk_cache_options){.folder = "/dev/null/x", .identity = "a"}, &err));
    assert_int_equal(err.code, ERR_IO);
    assert_non_null(strstr(err.message, "/dev/null/x"));
}

// A writer that is killed at any moment leaves whole files and at most one temporary, which the next one removes.
static void killed_writers_leave_whole_files(void **state) {
    (void)state;
    for (int round = 0; round < 12; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct disk_cache *cache = open_cache("a", 40 * FILE_BYTES);
            for (uint64_t n = 0;; n++) {
                while (!disk_cache_has_room(cache, 20 * BLOB_BYTES))
                    ;
                write_blob(cache, n % 300, (uint32_t)(n % 7));
            }
        }
        usleep(3000u * (unsigned)(round + 1));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    struct disk_cache *cache = open_cache("a", 0);
    struct disk_cache_stats stats;
    uint32_t n_found = 0;
    for (uint64_t n = 0; n < 300; n++) {
        bool there = has(cache, n);
        n_found += there;
        assert_true(!there || read_blob(cache, n));
    }
    disk_cache_stats(cache, &stats);
    assert_int_equal(stats.n_damaged, 0);
    assert_int_equal(stats.n_entries, n_found);
    assert_true(n_found > 0);
    shell("[ -z \"$(ls $D | grep -v page$)\" ]");
    disk_cache_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_read_also_by_the_next_process, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(damaged_and_foreign_files_are_removed_and_counted, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_was_used_longest_ago_makes_room, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(of_what_was_used_together_the_deepest_goes_first, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_full_disk_is_survived, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(killed_writers_leave_whole_files, make_folder, remove_folder),
        cmocka_unit_test(a_folder_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
