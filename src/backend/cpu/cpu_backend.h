// backend/cpu/cpu_backend.h - what the CPU backend's parts share: threads, kernel table, scratch and the
// step. Private to src/backend/cpu. One thread (the engine's) calls operations; they run to their end
// before they return, spread over the pool.
#ifndef LOAM_BACKEND_CPU_CPU_BACKEND_H
#define LOAM_BACKEND_CPU_CPU_BACKEND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/roofline.h"
#include "base/thread_pool.h"

enum {
    CPU_ALIGN = 64,
    // Element-operations that are worth waking the workers for: about five microseconds of vector code.
    CPU_DISPATCH_WORK = 32768,
};

// Cosines and sines of a step's positions, computed once for each rope table that the step uses.
enum { ROPE_CACHE_TABLES = 4 };
struct rope_cache {
    uint32_t n_used;  // tables of this step; step_begin sets it to 0
    uint32_t n_next;  // which one goes when all are used
    struct rope_angles {
        const struct rope_table *table;
        float *cos, *sin; // [n_tokens, n_dims / 2], borrowed from `memory`
    } tables[ROPE_CACHE_TABLES];
    float *memory;
};

struct cpu_backend {
    struct backend base;
    struct thread_pool *pool;
    uint32_t n_threads;
    enum backend_math math;
    struct cpu_features features;
    enum cpu_level level; // of `kernels`
    struct cpu_kernels kernels;

    struct backend_limits limits;
    // Scratch of one operation: nothing in it outlives the call. Sized by reserve from what each part
    // asks for (cpu_*_scratch_bytes below).
    void **thread_scratch; // [n_threads], each private to a pool thread
    void *shared_scratch;  // written by tiles that own parts of it
    size_t thread_scratch_bytes, shared_scratch_bytes;
    float *logits; // [limits.n_logits, limits.n_vocab]

    struct rope_cache rope;
    const struct step *step; // between step_begin and step_end
    struct cpu_work work;    // done so far
};

static inline struct cpu_backend *cpu_backend(struct backend *be) { return (struct cpu_backend *)be; }

static inline float *mat_row(struct mat m, size_t row) { return (float *)m.data + row * m.stride; }

// Run the tiles on the pool, or on the caller alone when `work` (element-operations in all of them
// together) is too little to share.
static inline void cpu_run(struct cpu_backend *cb, thread_pool_fn *fn, void *job, uint32_t n_tiles,
                           uint64_t work) {
    if (work >= CPU_DISPATCH_WORK)
        thread_pool_run(cb->pool, fn, job, n_tiles);
    else
        for (uint32_t i = 0; i < n_tiles; i++)
            fn(job, i, 0);
}

// 64-byte aligned zeroed memory, from the kernel directly (huge pages advised) when it is large.
void *cpu_alloc(size_t n_bytes);
void cpu_free(void *p);

// What a part needs of the scratches for steps within the limits.
struct cpu_scratch_bytes {
    size_t thread, shared;
};
#endif
