#include "backend/cpu/qkv.h"

#include <assert.h>
#include <math.h>

#include "backend/cpu/kv_pool.h"
#include "base/checked.h"

// ---- Rope angles --------------------------------------------------------------------------------
size_t cpu_rope_cache_bytes(const struct backend_limits *limits) {
    // n_dims / 2 cosines and as many sines a token, n_dims <= head_dim.
    size_t n;
    return mul_size((size_t)limits->n_tokens * sizeof(float) * ROPE_CACHE_TABLES, limits->head_dim, &n) ? n
                                                                                                       : SIZE_MAX;
}

bool cpu_rope_cache_reserve(struct rope_cache *cache, const struct backend_limits *limits) {
    size_t n = cpu_rope_cache_bytes(limits);
    if (n == SIZE_MAX)
        return false;
    cache->memory = cpu_alloc(n);
    for (uint32_t i = 0; cache->memory && i < ROPE_CACHE_TABLES; i++) {
        cache->tables[i].cos = cache->memory + (size_t)limits->n_tokens * limits->head_dim * i;
        cache->tables[i].sin = cache->tables[i].cos + (size_t)limits->n_tokens * (limits->head_dim / 2);
    }
    return cache->memory != NULL;
}

void cpu_rope_cache_free(struct rope_cache *cache) {
    cpu_free(cache->memory);
    *cache = (struct rope_cache){0};
}

struct angles_job {
    const struct step *step;
    const struct rope_angles *angles;
};

// As transformers: the angle is a float32 product.
static void angles_tile(void *arg, uint32_t token, uint32_t thread_idx) {
    (void)thread_idx;
    const struct angles_job *job = arg;
    const struct rope_table *table = job->angles->table;
    uint32_t variant = job->step->rows[job->step->token_row[token]].rope_variant, n = table->n_dims / 2;
    float *cos = job->angles->cos + (size_t)token * n, *sin = job->angles->sin + (size_t)token * n;
    for (uint32_t j = 0; j < n; j++) {
        float angle = (float)job->step->positions[token] * table->inv_freq[variant][j];
        cos[j] = cosf(angle) * table->scale[variant];
        sin[j] = sinf(angle) * table->scale[variant];
    }
}

static const struct rope_angles *rope_angles(struct cpu_backend *cb, const struct rope_table *table) {
    struct rope_cache *cache = &cb->rope;
    assert(table->n_dims <= cb->limits.head_dim && table->n_dims % 2 == 0);
    for (uint32_t i = 0; i < cache->n_used; i++)
        if (cache->tables[i].table == table)
            return &cache->tables[i];
    uint32_t slot = cache->n_used < ROPE_CACHE_TABLES ? cache->n_used++ : cache->n_next++ % ROPE_CACHE_TABLES;
    struct rope_angles *angles = &cache->tables[slot];
    angles->table = table;
    struct angles_job job = {cb->step, angles};
    cpu_run(cb, angles_tile, &job, cb->step->n_tokens, (uint64_t)cb->step->n_tokens * table->n_dims * 64);
    return angles;
}

// ---- The operation ------------------------------------------------------------------------------
enum { TILE_ELEMENTS = 4096 };

struct job {
    const struct cpu_backend *cb;
    const struct qkv_args *args;
    const struct kv_layer *layer;      // NULL without a pool
    const struct rope_angles *angles; // NULL without rope
    uint32_t tokens_a_tile;
};

static void norm_piece(const struct job *job, float *x, const float *w, const float *b, uint32_t n) {
    const struct cpu_kernels *k = &job->cb->kernels;
    if (job->args->norm_kind == NORM_RMS)
        k->norm_rms(x, w, job->args->norm_eps, x, n);
    else
        k->norm_layer(x, w, b, job->args->norm_eps, x, n);
}

static void norm_heads(const struct job *job, float *x, uint32_t n_heads, const float *w, const float *b) {
    const struct qkv_args *a = job->args;
    if (!w)
        return;
    if (a->norm_whole)
        norm_piece(job, x, w, b, n_heads * a->head_dim);
    else
        for (uint32_t h = 0; h < n_heads; h++)
            norm_piece(job, x + (size_t)h * a->head_dim, w, b, a->head_dim);
}

static void rope_heads(const struct job *job, float *x, uint32_t n_heads, uint32_t token) {
    if (!job->angles)
        return;
    const struct rope_table *table = job->angles->table;
    size_t off = (size_t)token * (table->n_dims / 2);
    for (uint32_t h = 0; h < n_heads; h++)
        job->cb->kernels.rope(x + (size_t)h * job->args->head_dim + job->args->rope_off, job->angles->cos + off,
                              job->angles->sin + off, table->n_dims / 2, table->interleaved);
}

static void heads(const struct job *job, float *x, uint32_t n_heads, const float *w, const float *b,
                  uint32_t token) {
    if (!job->args->norm_after_rope)
        norm_heads(job, x, n_heads, w, b);
    rope_heads(job, x, n_heads, token);
    if (job->args->norm_after_rope)
        norm_heads(job, x, n_heads, w, b);
}

static void token_run(const struct job *job, uint32_t token) {
    const struct qkv_args *a = job->args;
    heads(job, mat_row(a->q, token), a->n_heads, a->q_norm, a->q_norm_bias, token);
    if (!job->layer)
        return;
    const struct step *step = job->cb->step;
    const struct step_row *row = &step->rows[step->token_row[token]];
    uint32_t pos = step->positions[token], page = row->block_table[job->layer->group][pos / KV_PAGE_TOKENS];
    assert(page != KV_PAGE_NONE);
    const struct kv_layout *layout = &job->layer->layout;
    float *k = mat_row(a->k, token), *v = layout->v_in_k || layout->v_dim == 0 ? NULL : mat_row(a->v, token);
    heads(job, k, a->n_kv_heads, a->k_norm, a->k_norm_bias, token);
    for (uint32_t h = 0; h < a->n_kv_heads; h++) {
        float *v_head = v ? v + (size_t)h * a->v_dim : NULL;
        if (a->v_norm && v_head)
            job->cb->kernels.norm_rms(v_head, NULL, a->norm_eps, v_head, a->v_dim);
        kv_store_token(layout, kv_block(job->layer, page, h), pos % KV_PAGE_TOKENS,
                       k + (size_t)h * a->head_dim, v_head);
    }
}

static void tile_run(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct job *job = arg;
    uint32_t from = tile_idx * job->tokens_a_tile;
    for (uint32_t t = from; t < min_u32(from + job->tokens_a_tile, job->cb->step->n_tokens); t++)
        token_run(job, t);
}

void cpu_qkv(struct backend *be, const struct qkv_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    struct job job = {.cb = cb, .args = args};
    if (args->pool) {
        job.layer = &args->pool->layers[args->layer];
        assert(job.layer->n_heads == args->n_kv_heads && job.layer->layout.k_dim == args->head_dim);
    }
    if (args->rope)
        job.angles = rope_angles(cb, args->rope);
    uint32_t n_tokens = cb->step->n_tokens, token_elements = (args->n_heads + 2 * args->n_kv_heads) * args->head_dim;
    job.tokens_a_tile = max_u32(1, TILE_ELEMENTS / token_elements);
    cpu_run(cb, tile_run, &job, (n_tokens + job.tokens_a_tile - 1) / job.tokens_a_tile,
            (uint64_t)n_tokens * token_elements * 8);
}
