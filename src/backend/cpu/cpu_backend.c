#include "backend/cpu/cpu_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/elementwise.h"
#include "backend/cpu/index.h"
#include "backend/cpu/kv_pool.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/qkv.h"
#include "backend/cpu/recurrent.h"
#include "backend/cpu/route.h"
#include "backend/cpu/state_pool.h"
#include "base/checked.h"

// ---- Memory -------------------------------------------------------------------------------------
// A block begins with its own length, on a cache line of its own.
enum { HEADER_BYTES = CPU_ALIGN, HUGE_BYTES = 2 << 20 };

void *cpu_alloc(size_t n_bytes) {
    size_t total;
    if (!add_size(n_bytes, HEADER_BYTES, &total) || !round_up_size(total, CPU_ALIGN, &total))
        return NULL;
    char *block;
    if (total >= HUGE_BYTES) {
        block = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            return NULL;
        madvise(block, total, MADV_HUGEPAGE);
    } else {
        block = aligned_alloc(CPU_ALIGN, total);
        if (!block)
            return NULL;
        memset(block, 0, total);
    }
    memcpy(block, &total, sizeof total);
    return block + HEADER_BYTES;
}

void cpu_free(void *p) {
    if (!p)
        return;
    char *block = (char *)p - HEADER_BYTES;
    size_t total;
    memcpy(&total, block, sizeof total);
    if (total >= HUGE_BYTES)
        munmap(block, total);
    else
        free(block);
}

static void *backend_alloc(struct backend *be, size_t n_bytes, struct err *err) {
    (void)be;
    void *p = cpu_alloc(n_bytes);
    if (!p)
        err_set(err, ERR_NOMEM, "out of memory for %zu bytes", n_bytes);
    return p;
}

static void backend_free(struct backend *be, void *p) {
    (void)be;
    cpu_free(p);
}

static void copy_in(struct backend *be, void *to, const void *from, size_t n_bytes) {
    (void)be;
    memcpy(to, from, n_bytes);
}

// MemAvailable of /proc/meminfo, which counts what the page cache can give back.
static uint64_t available_bytes(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024u;
}

static void memory(const struct backend *be, struct backend_memory *out) {
    (void)be;
    *out = (struct backend_memory){
        .total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
        .free_bytes = available_bytes(),
        .is_host = true,
    };
}

// ---- Life ---------------------------------------------------------------------------------------
static void free_scratch(struct cpu_backend *cb) {
    for (uint32_t i = 0; cb->thread_scratch && i < cb->n_threads; i++) {
        cpu_free(cb->thread_scratch[i]);
        cb->thread_scratch[i] = NULL;
    }
    cpu_free(cb->shared_scratch);
    cpu_free(cb->logits);
    cb->shared_scratch = NULL;
    cb->logits = NULL;
    cpu_rope_cache_free(&cb->rope);
}

static void cpu_close(struct backend *be) {
    if (!be)
        return;
    struct cpu_backend *cb = cpu_backend(be);
    free_scratch(cb);
    free(cb->thread_scratch);
    thread_pool_destroy(cb->pool);
    free(cb);
}

static struct backend *cpu_open(const struct backend_options *options, struct err *err) {
    enum cpu_level cap = (enum cpu_level)(CPU_LEVEL_N - 1);
    const char *wanted = options->cpu_level;
    if (wanted && !cpu_level_parse(wanted, &cap)) {
        err_set(err, ERR_INVALID, "\"%s\" is no CPU level: use scalar, avx2, avx512, amx or neon", wanted);
        return NULL;
    }
    struct cpu_backend *cb = calloc(1, sizeof *cb);
    if (!cb) {
        err_set(err, ERR_NOMEM, "out of memory for the CPU backend");
        return NULL;
    }
    cb->base = (struct backend){.ops = &cpu_backend_ops, .act_bytes = sizeof(float)};
    cb->math = options->math;
    cb->features = cpu_features_detect();
    cb->level = cb->features.level < cap ? cb->features.level : cap;
    cpu_kernels_fill(&cb->kernels, &cb->features, cb->level);
    cb->pool = thread_pool_create(options->n_threads, options->pin_threads, err);
    if (!cb->pool) {
        cpu_close(&cb->base);
        return NULL;
    }
    cb->n_threads = thread_pool_n_threads(cb->pool);
    cb->thread_scratch = calloc(cb->n_threads, sizeof *cb->thread_scratch);
    if (!cb->thread_scratch) {
        err_set(err, ERR_NOMEM, "out of memory for the CPU backend");
        cpu_close(&cb->base);
        return NULL;
    }
    return &cb->base;
}

static void describe(const struct backend *be, char *out, size_t n) {
    const struct cpu_backend *cb = (const struct cpu_backend *)be;
    char line[256], model[128] = "CPU";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %127[^\n]", model) == 1)
            break;
    if (f)
        fclose(f);
    snprintf(out, n, "%s, %u thread%s, %s", model, cb->n_threads, cb->n_threads == 1 ? "" : "s",
             cpu_level_name(cb->level));
}

// What each operation needs at once; they take turns in the same memory.
static struct cpu_scratch_bytes scratch_of(const struct cpu_backend *cb, const struct backend_limits *limits) {
    struct cpu_scratch_bytes parts[] = {
        cpu_linear_scratch(cb, limits),
        cpu_attention_scratch(cb, limits),
        cpu_route_scratch(cb, limits),
        cpu_index_scratch(cb, limits),
    };
    struct cpu_scratch_bytes most = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        most.thread = max_size(most.thread, parts[i].thread);
        most.shared = max_size(most.shared, parts[i].shared);
    }
    return most;
}

static uint64_t scratch_bytes(const struct backend *be, const struct backend_limits *limits) {
    const struct cpu_backend *cb = (const struct cpu_backend *)be;
    struct cpu_scratch_bytes scratch = scratch_of(cb, limits);
    return (uint64_t)scratch.thread * cb->n_threads + scratch.shared +
           (uint64_t)limits->n_logits * sizeof(float) * limits->n_vocab +
           (uint64_t)cpu_rope_cache_bytes(limits);
}

static bool reserve(struct backend *be, const struct backend_limits *limits, struct err *err) {
    struct cpu_backend *cb = cpu_backend(be);
    free_scratch(cb);
    cb->limits = *limits;
    struct cpu_scratch_bytes scratch = scratch_of(cb, limits);
    cb->thread_scratch_bytes = scratch.thread;
    cb->shared_scratch_bytes = scratch.shared;
    size_t logits_bytes;
    bool ok = mul_size((size_t)limits->n_logits * sizeof(float), limits->n_vocab, &logits_bytes);
    for (uint32_t i = 0; ok && i < cb->n_threads; i++)
        ok = (cb->thread_scratch[i] = cpu_alloc(cb->thread_scratch_bytes)) != NULL;
    ok = ok && (cb->shared_scratch = cpu_alloc(cb->shared_scratch_bytes)) != NULL;
    ok = ok && (cb->logits = cpu_alloc(logits_bytes)) != NULL;
    ok = ok && cpu_rope_cache_reserve(&cb->rope, limits);
    if (!ok) {
        free_scratch(cb);
        return err_set(err, ERR_NOMEM, "out of memory for the scratch of steps of %u tokens: lower the step size",
                       limits->n_tokens);
    }
    return true;
}

static bool step_begin(struct backend *be, const struct step *step, struct err *err) {
    (void)err;
    struct cpu_backend *cb = cpu_backend(be);
    cb->step = step;
    cb->rope.n_used = 0;
    return true;
}

static bool step_end(struct backend *be, struct err *err) {
    (void)err;
    cpu_backend(be)->step = NULL;
    return true;
}

const struct backend_ops cpu_backend_ops = {
    .abi_version = BACKEND_ABI_VERSION,
    .ops_bytes = sizeof(struct backend_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = describe,
    .memory = memory,
    .reserve = reserve,
    .scratch_bytes = scratch_bytes,
    .alloc = backend_alloc,
    .free = backend_free,
    .upload = copy_in,
    .download = copy_in,
    .weight_create = cpu_weight_create,
    .weight_destroy = cpu_weight_destroy,
    .weights_ready = cpu_weights_ready,
    .kv_create = cpu_kv_create,
    .kv_destroy = cpu_kv_destroy,
    .kv_copy_page = cpu_kv_copy_page,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_read_page = cpu_kv_read_page,
    .kv_write_page = cpu_kv_write_page,
    .state_create = cpu_state_create,
    .state_destroy = cpu_state_destroy,
    .state_clear = cpu_state_clear,
    .state_copy = cpu_state_copy,
    .state_slot_bytes = cpu_state_slot_bytes,
    .state_read = cpu_state_read,
    .state_write = cpu_state_write,
    .step_begin = step_begin,
    .step_end = step_end,
    .embed = cpu_embed,
    .linear = cpu_linear,
    .norm = cpu_norm,
    .qkv = cpu_qkv,
    .attention = cpu_attention,
    .glu = cpu_glu,
    .unary = cpu_unary,
    .axpby = cpu_axpby,
    .mul = cpu_mul,
    .gather = cpu_gather,
    .logits = cpu_logits,
    .linear_glu = cpu_linear_glu,
    .route = cpu_route,
    .experts = cpu_experts,
    .conv = cpu_conv,
    .delta = cpu_delta,
    .index = cpu_index,
};
