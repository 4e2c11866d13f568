// The tokens of a step go in batches of BATCH_TOKENS: first tiles of (a row's part of the batch, a span of
// keys) write scores, then each token chooses. A score is a sum over its own key and query only, so the
// cut changes no bits; the choice is exact, ties to the lower position.
#include "backend/cpu/index.h"

#include <assert.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/kv_pool.h"
#include "base/checked.h"
#include "base/half.h"

enum {
    BATCH_TOKENS = 16,
    BLOCKS_A_TILE = 8,
};

struct job {
    struct cpu_backend *cb;
    const struct index_args *args;
    const struct kv_layer *layer;
    uint32_t t0, n_tokens; // the batch
    float *scores;         // [BATCH_TOKENS, ctx_stride]
    size_t ctx_stride;
};

static size_t ctx_stride(const struct backend_limits *limits) {
    return ((size_t)limits->ctx_len + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
}

struct cpu_scratch_bytes cpu_index_scratch(const struct cpu_backend *cb, const struct backend_limits *limits) {
    (void)cb;
    return (struct cpu_scratch_bytes){
        // Keys, scores, and the queries of a token in whole panels.
        .thread = ((size_t)(limits->n_heads + limits->head_dim) * KV_PAGE_TOKENS +
                   (size_t)(limits->n_heads + ATTENTION_PANEL) * limits->head_dim) *
                  sizeof(float),
        .shared = BATCH_TOKENS * ctx_stride(limits) * sizeof(float),
    };
}

static void score_tile(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    const struct job *job = arg;
    const struct index_args *a = job->args;
    const struct cpu_kernels *k = &job->cb->kernels;
    const struct step *step = job->cb->step;
    uint32_t b0 = tile_idx * BLOCKS_A_TILE;
    float *keys = job->cb->thread_scratch[thread_idx], *s = keys + (size_t)a->head_dim * KV_PAGE_TOKENS;
    float *q = s + (size_t)a->n_heads * KV_PAGE_TOKENS;
    for (uint32_t block = b0; block < b0 + BLOCKS_A_TILE; block++) {
        uint32_t loaded_row = UINT32_MAX, first = block * KV_PAGE_TOKENS;
        for (uint32_t i = 0; i < job->n_tokens; i++) {
            uint32_t token = job->t0 + i, row_idx = step->token_row[token], pos = step->positions[token];
            if (first > pos || pos + 1 <= a->n_selected)
                continue;
            const struct step_row *row = &step->rows[row_idx];
            if (loaded_row != row_idx) {
                uint32_t page = row->block_table[job->layer->group][block];
                assert(page != KV_PAGE_NONE);
                k->kv_load_k(&job->layer->layout, kv_block(job->layer, page, 0), keys);
                loaded_row = row_idx;
            }
            for (uint32_t h = 0; h < a->n_heads; h++)
                attention_pack_query(q, h, a->head_dim, mat_row(a->q, token) + (size_t)h * a->head_dim);
            k->attention_scores_f32(keys, a->head_dim, q, a->n_heads, KV_PAGE_TOKENS, s);
            k->index_reduce(s, mat_row(a->weights, token), a->n_heads, a->scale,
                            job->scores + i * job->ctx_stride + first);
        }
    }
}

// Floats as integers of the same order; NaN counts as the least.
static uint32_t order_key(float x) {
    uint32_t bits = f32_bits(x);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// The n_best positions among [0, n) by score, ascending. Requires n > n_best. A radix selection finds the
// least key that is in, a byte at a time; then one pass collects.
static void choose(const float *scores, uint32_t n, uint32_t n_best, uint32_t *out) {
    uint32_t prefix = 0, mask = 0, wanted = n_best;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0};
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = order_key(scores[i]);
            if ((key & mask) == prefix)
                counts[key >> shift & 255]++;
        }
        uint32_t digit = 255;
        while (counts[digit] < wanted)
            wanted -= counts[digit--];
        prefix |= digit << shift;
        mask |= 255u << shift;
    }
    // All keys above `prefix` are in, and the first `wanted` of those equal to it.
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = order_key(scores[i]);
        if (key > prefix || (key == prefix && wanted > 0 && wanted--))
            out[n_out++] = i;
    }
    assert(n_out == n_best);
}

static void choose_tile(void *arg, uint32_t i, uint32_t thread_idx) {
    (void)thread_idx;
    const struct job *job = arg;
    uint32_t n_best = job->args->n_selected, token = job->t0 + i, n = job->cb->step->positions[token] + 1;
    uint32_t *out = job->args->selected + (size_t)token * n_best;
    if (n > n_best) {
        choose(job->scores + i * job->ctx_stride, n, n_best, out);
        return;
    }
    for (uint32_t j = 0; j < n_best; j++)
        out[j] = j < n ? j : UINT32_MAX;
}

void cpu_index(struct backend *be, const struct index_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    const struct step *step = cb->step;
    struct job job = {.cb = cb,
                      .args = args,
                      .layer = &args->pool->layers[args->layer],
                      .scores = cb->shared_scratch,
                      .ctx_stride = ctx_stride(&cb->limits)};
    assert(args->n_heads <= cb->limits.n_heads && args->head_dim <= cb->limits.head_dim);
    assert(job.layer->n_heads == 1 && job.layer->layout.k_dim == args->head_dim);
    for (job.t0 = 0; job.t0 < step->n_tokens; job.t0 += job.n_tokens) {
        job.n_tokens = min_u32(BATCH_TOKENS, step->n_tokens - job.t0);
        uint32_t longest = 0;
        for (uint32_t i = 0; i < job.n_tokens; i++)
            if (step->positions[job.t0 + i] + 1 > args->n_selected)
                longest = max_u32(longest, step->positions[job.t0 + i] + 1);
        uint32_t tile_keys = BLOCKS_A_TILE * KV_PAGE_TOKENS;
        cpu_run(cb, score_tile, &job, (longest + tile_keys - 1) / tile_keys,
                (uint64_t)longest * job.n_tokens * args->n_heads * args->head_dim);
        cpu_run(cb, choose_tile, &job, job.n_tokens, (uint64_t)longest * job.n_tokens * 8);
    }
}
