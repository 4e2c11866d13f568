#include "base/thread_pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/checked.h"

// How long a worker looks for the next job before it sleeps, and the caller for the last tile.
// About 20 microseconds on current cores: longer than the gap between two operations of a step,
// short enough that a noisy neighbour gets the core.
enum { SPIN_TURNS = 400 };

// The tiles of a job are cut into one run of neighbours a thread. A thread takes its own from the front,
// so that what it prefetches behind one tile is what it needs next; when they are gone it helps the others
// from the back of theirs. What is left of a run is one word, next tile in the high half and end in the low
// half, and taking a tile is one compare-and-swap of it. A late worker may thus take a tile of a newer job
// than it woke for, never one of an older: it reads fn and job after it holds the tile, and the job does
// not end before that tile is done.
struct run {
    _Alignas(64) _Atomic uint64_t left; // publishes fn, job, n_tiles; pairs with take()
};

struct thread_pool {
    uint32_t n_threads;
    bool pin;
    pthread_t *threads;    // [n_threads - 1]
    struct worker *workers; // [n_threads - 1]
    struct run *runs;       // [n_runs]
    uint32_t n_runs;        // threads asked for, fixed before the first worker starts

    thread_pool_fn *fn; // written before the runs are released, read after one is acquired
    void *job;
    uint32_t n_tiles;

    _Alignas(64) _Atomic uint32_t wake;   // futex: bumped with every job and at the end
    _Atomic uint32_t n_sleeping;          // workers in (or on their way into) the futex wait
    _Atomic bool stop;
    _Alignas(64) _Atomic uint32_t n_done; // tiles finished; futex that the caller waits on
    _Atomic uint32_t caller_sleeps;
};

struct worker {
    struct thread_pool *pool;
    uint32_t thread_idx;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// A tile from the front or the back of a run, if one is left.
static bool take(struct run *run, bool front, uint32_t *tile_idx) {
    uint64_t left = atomic_load_explicit(&run->left, memory_order_acquire);
    for (;;) {
        uint32_t next = (uint32_t)(left >> 32), end = (uint32_t)left;
        if (next == end)
            return false;
        uint64_t rest = front ? left + ((uint64_t)1 << 32) : left - 1;
        if (atomic_compare_exchange_weak_explicit(&run->left, &left, rest, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *tile_idx = front ? next : end - 1;
            return true;
        }
    }
}

// Take tiles until none is left. The job's fields are read only after a tile is held: then the job
// cannot end before our tiles are counted, so they cannot change under us. They are counted together: a
// count a tile would be a line that all threads fight for.
static void work(struct thread_pool *pool, uint32_t thread_idx) {
    uint32_t n_mine = 0, n_tiles = 0;
    for (uint32_t i = 0; i < pool->n_runs; i++) {
        uint32_t owner = (thread_idx + i) % pool->n_runs, tile_idx;
        while (take(&pool->runs[owner], i == 0, &tile_idx)) {
            n_tiles = pool->n_tiles;
            pool->fn(pool->job, tile_idx, thread_idx);
            n_mine++;
        }
    }
    if (n_mine == 0)
        return;
    uint32_t done = atomic_fetch_add_explicit(&pool->n_done, n_mine, memory_order_seq_cst) + n_mine;
    if (done == n_tiles && atomic_load_explicit(&pool->caller_sleeps, memory_order_seq_cst))
        futex_wake(&pool->n_done, 1);
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    struct thread_pool *pool = worker->pool;
    uint32_t seen = 0;
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        work(pool, worker->thread_idx);
        for (int turn = 0; turn < SPIN_TURNS; turn++) {
            if (atomic_load_explicit(&pool->wake, memory_order_acquire) != seen)
                break;
            cpu_relax();
        }
        uint32_t now = atomic_load_explicit(&pool->wake, memory_order_acquire);
        if (now == seen) {
            atomic_fetch_add_explicit(&pool->n_sleeping, 1, memory_order_seq_cst);
            futex_wait(&pool->wake, seen);
            atomic_fetch_sub_explicit(&pool->n_sleeping, 1, memory_order_seq_cst);
            now = atomic_load_explicit(&pool->wake, memory_order_acquire);
        }
        seen = now;
    }
    return NULL;
}

void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job, uint32_t n_tiles) {
    if (n_tiles == 0)
        return;
    if (pool->n_threads == 1 || n_tiles == 1) {
        for (uint32_t i = 0; i < n_tiles; i++)
            fn(job, i, 0);
        return;
    }
    pool->fn = fn;
    pool->job = job;
    pool->n_tiles = n_tiles;
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < pool->n_runs; i++) {
        uint64_t next = (uint64_t)n_tiles * i / pool->n_runs, end = (uint64_t)n_tiles * (i + 1) / pool->n_runs;
        atomic_store_explicit(&pool->runs[i].left, next << 32 | end, memory_order_release);
    }
    // seq_cst on both sides: either we see the sleeper, or it sees the new value and does not sleep.
    atomic_fetch_add_explicit(&pool->wake, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->n_sleeping, memory_order_seq_cst))
        futex_wake(&pool->wake, (int)min_u32(n_tiles - 1, pool->n_threads - 1));
    work(pool, 0);
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (atomic_load_explicit(&pool->n_done, memory_order_acquire) == n_tiles)
            return;
        cpu_relax();
    }
    atomic_store_explicit(&pool->caller_sleeps, 1, memory_order_seq_cst);
    for (;;) {
        uint32_t done = atomic_load_explicit(&pool->n_done, memory_order_seq_cst);
        if (done == n_tiles)
            break;
        futex_wait(&pool->n_done, done);
    }
    atomic_store_explicit(&pool->caller_sleeps, 0, memory_order_relaxed);
}

// CPU time that the cgroup grants, in whole cores rounded up; 0 if it sets no limit.
static uint32_t cgroup_cores(void) {
    long quota = 0, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        if (fscanf(f, "%ld %ld", &quota, &period) != 2)
            quota = 0;
        fclose(f);
    } else {
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
        if (f) {
            if (fscanf(f, "%ld", &quota) != 1)
                quota = 0;
            fclose(f);
        }
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
        if (f) {
            if (fscanf(f, "%ld", &period) != 1)
                period = 0;
            fclose(f);
        }
    }
    return quota > 0 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

// True if `cpu` is the first of its core's hardware threads that we may use.
static bool first_of_core(int cpu, const cpu_set_t *allowed) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f)
        return true;
    bool first = true;
    int low, high;
    while (fscanf(f, "%d", &low) == 1) { // "0,64" or "0-1"
        high = low;
        int c = fgetc(f);
        if (c == '-') {
            if (fscanf(f, "%d", &high) != 1)
                break;
            c = fgetc(f);
        }
        for (int sibling = low; sibling <= high && sibling < cpu; sibling++)
            if (CPU_ISSET((size_t)sibling, allowed))
                first = false;
        if (c != ',')
            break;
    }
    fclose(f);
    return first;
}

uint32_t thread_pool_default_threads(void) {
    cpu_set_t allowed;
    uint32_t n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((size_t)cpu, &allowed) && first_of_core(cpu, &allowed))
                n++;
    }
    uint32_t quota = cgroup_cores();
    if (quota && quota < n)
        n = quota;
    return n ? n : 1;
}

// The idx-th core that this process may use.
static void pin_to(pthread_t thread, uint32_t idx) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    uint32_t seen = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &allowed) || !first_of_core(cpu, &allowed) || seen++ != idx)
            continue;
        CPU_ZERO(&one);
        CPU_SET((size_t)cpu, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
}

struct thread_pool *thread_pool_create(uint32_t n_threads, bool pin, struct err *err) {
    if (n_threads == 0)
        n_threads = thread_pool_default_threads();
    struct thread_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool)
        goto nomem;
    memset(pool, 0, sizeof *pool);
    pool->n_threads = 1; // grows as threads start, so that destroy joins what runs
    pool->pin = pin;
    pool->threads = calloc(n_threads, sizeof *pool->threads);
    pool->workers = calloc(n_threads, sizeof *pool->workers);
    pool->runs = aligned_alloc(64, n_threads * sizeof *pool->runs);
    if (!pool->threads || !pool->workers || !pool->runs)
        goto nomem;
    memset(pool->runs, 0, n_threads * sizeof *pool->runs);
    pool->n_runs = n_threads;
    for (uint32_t i = 1; i < n_threads; i++) {
        struct worker *worker = &pool->workers[i - 1];
        *worker = (struct worker){pool, i};
        int rc = pthread_create(&pool->threads[i - 1], NULL, worker_main, worker);
        if (rc != 0) {
            err_errno(err, rc, "cannot start compute thread %u of %u", i + 1, n_threads);
            thread_pool_destroy(pool);
            return NULL;
        }
        pool->n_threads = i + 1;
        if (pin)
            pin_to(pool->threads[i - 1], i);
    }
    return pool;
nomem:
    err_set(err, ERR_NOMEM, "out of memory for a pool of %u threads", n_threads);
    thread_pool_destroy(pool);
    return NULL;
}

void thread_pool_destroy(struct thread_pool *pool) {
    if (!pool)
        return;
    atomic_store_explicit(&pool->stop, true, memory_order_release);
    atomic_fetch_add_explicit(&pool->wake, 1, memory_order_seq_cst);
    futex_wake(&pool->wake, (int)pool->n_threads);
    for (uint32_t i = 1; i < pool->n_threads; i++)
        pthread_join(pool->threads[i - 1], NULL);
    free(pool->threads);
    free(pool->workers);
    free(pool->runs);
    free(pool);
}

uint32_t thread_pool_n_threads(const struct thread_pool *pool) {
    return pool->n_threads;
}
