#include "check.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/thread_pool.h"

struct job {
    _Atomic uint32_t taken[512];
    uint32_t n_threads;
};

static void take(void *user, uint32_t tile_idx, uint32_t thread_idx) {
    struct job *job = user;
    assert_true(thread_idx < job->n_threads);
    atomic_fetch_add(&job->taken[tile_idx], 1);
}

static void every_tile_runs_exactly_once(void **state) {
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
        struct err err = {0};
        struct thread_pool *pool = thread_pool_create(n_threads, false, &err);
        check_ok(pool, &err);
        assert_int_equal(thread_pool_n_threads(pool), n_threads);
        // Varying sizes back to back: a late worker must never run a tile of the wrong job.
        for (uint32_t round = 0; round < 3000; round++) {
            uint32_t n_tiles = round * 7 % 61;
            struct job job = {.n_threads = n_threads};
            thread_pool_run(pool, take, &job, n_tiles);
            for (uint32_t i = 0; i < 64; i++)
                assert_int_equal(job.taken[i], i < n_tiles ? 1 : 0);
        }
        thread_pool_destroy(pool);
    }
}

enum { ORDER_THREADS = 3, ORDER_TILES = 90, ORDER_EACH = ORDER_TILES / ORDER_THREADS };
struct order {
    uint32_t own[ORDER_THREADS][ORDER_EACH], n[ORDER_THREADS]; // a thread's own tiles as it took them
};

static void note_order(void *user, uint32_t tile_idx, uint32_t thread_idx) {
    struct order *order = user;
    if (tile_idx / ORDER_EACH == thread_idx)
        order->own[thread_idx][order->n[thread_idx]++] = tile_idx;
}

static void a_thread_goes_through_its_neighbouring_tiles(void **state) {
    (void)state;
    struct err err = {0};
    struct thread_pool *pool = thread_pool_create(ORDER_THREADS, false, &err);
    check_ok(pool, &err);
    for (uint32_t round = 0; round < 1000; round++) {
        struct order order = {0};
        thread_pool_run(pool, note_order, &order, ORDER_TILES);
        for (uint32_t t = 0; t < ORDER_THREADS; t++)
            for (uint32_t i = 0; i < order.n[t]; i++)
                assert_int_equal(order.own[t][i], t * ORDER_EACH + i);
    }
    thread_pool_destroy(pool);
}

static double cpu_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void idle_pool_sleeps(void **state) {
    (void)state;
    struct err err = {0};
    struct thread_pool *pool = thread_pool_create(4, false, &err);
    struct job job = {.n_threads = 4};
    thread_pool_run(pool, take, &job, 100);
    usleep(50000);
    double before = cpu_seconds();
    usleep(300000);
    // A spinning worker would burn 0.3 s; sleeping ones burn nothing measurable.
    assert_true(cpu_seconds() - before < 0.05);
    thread_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_runs_exactly_once),
        cmocka_unit_test(a_thread_goes_through_its_neighbouring_tiles),
        cmocka_unit_test(idle_pool_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
