// base/thread_pool.h - threads created once that run the tiles of one job together.
// One thread at a time may call thread_pool_run(); it works along. A dispatch allocates nothing.
// Workers spin briefly after a job, because the next one usually follows within microseconds, and
// then sleep in the kernel: an idle pool uses no CPU.
#ifndef LOAM_BASE_THREAD_POOL_H
#define LOAM_BASE_THREAD_POOL_H
#include <stdint.h>

#include "base/err.h"

struct thread_pool;

// Do tile `tile_idx` of a job. `thread_idx` in [0, n_threads) names the scratch that may be used.
typedef void thread_pool_fn(void *job, uint32_t tile_idx, uint32_t thread_idx);

// n_threads counts the caller (1 = no worker at all); 0 = physical cores that this process may use
// (affinity and cgroup quota). `pin` fixes each worker to a core. ERR_NOMEM, ERR_IO.
struct thread_pool *thread_pool_create(uint32_t n_threads, bool pin, struct err *err);
void thread_pool_destroy(struct thread_pool *pool);
uint32_t thread_pool_n_threads(const struct thread_pool *pool);

// Run fn for every tile in [0, n_tiles), in any order on any thread, and return when all are done.
// A thread goes through neighbouring tiles while it has some of its own, so a tile may prefetch for the next.
// Which thread takes a tile is not fixed: a tile's result must not depend on it.
void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job, uint32_t n_tiles);

// What 0 means above.
uint32_t thread_pool_default_threads(void);
#endif
