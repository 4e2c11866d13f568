// tests/backend/kernel_cases.h - what the kernel tests share: random numbers, and sequences run through
// the CPU backend's attention in any cut.
#ifndef LOAM_TESTS_BACKEND_KERNEL_CASES_H
#define LOAM_TESTS_BACKEND_KERNEL_CASES_H
#include <math.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv_pool.h"
#include "check.h"

// splitmix64 (Steele, Lea, Flood 2014).
struct rng {
    uint64_t state;
};
static inline uint64_t rng_next(struct rng *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static inline uint32_t rng_below(struct rng *r, uint32_t n) { return (uint32_t)(rng_next(r) % n); }
// About normal, mean 0, deviation 1.
static inline float rng_float(struct rng *r) {
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)(rng_next(r) >> 40) * 0x1p-24f;
    return (sum - 3.0f) * 1.41421356f;
}
static inline void rng_fill(struct rng *r, float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(r);
}

// The levels that this machine really has, in turn; NULL beyond the last.
static inline const char *level_at(uint32_t i) {
    static const char *const X86[] = {"scalar", "avx2", "avx512", "amx"};
    static enum cpu_level best = CPU_LEVEL_N;
    if (best == CPU_LEVEL_N)
        best = cpu_features_detect().level;
    if (best == CPU_LEVEL_NEON)
        return i == 0 ? "scalar" : i == 1 ? "neon" : NULL;
    return i <= (uint32_t)best ? X86[i] : NULL;
}

// "amx fast" is MATH_FAST, where that level multiplies in bf16; other levels are opened MATH_EXACT.
static inline bool level_is_fast(const char *level) { return strcmp(level, "amx fast") == 0; }

static inline struct backend *open_cpu(const char *level, uint32_t n_threads) {
    struct err err = {0};
    bool fast = level_is_fast(level);
    struct backend_options options = {.n_threads = n_threads, .cpu_level = fast ? "amx" : level,
                                      .math = fast ? MATH_FAST : MATH_EXACT};
    struct backend *be = cpu_backend_ops.open(&options, &err);
    if (!be)
        fail_msg("%s", err.message);
    return be;
}
#endif
