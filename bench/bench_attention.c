// bench/bench_attention.c - attention and its neighbours on random data: what a decode step reads a second
// and what a prefill computes, by KV kind and level.
//   bench_attention [level] [threads] [context] [kind]
// Times are processor time of all threads, least of the repeats, so that a busy machine disturbs little.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"

enum { HEADS = 16, KV_HEADS = 8, DIM = 128, LAYERS = 6, PREFILL = 512, REPEATS = 5 };

struct setup {
    struct backend *be;
    struct kv_pool *pool;
    float *q, *k, *v, *out;
    uint32_t *table, *positions, *token_row;
    uint32_t ctx;
};

static double processor_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void step_run(struct setup *s, uint32_t from, uint32_t n, bool append, bool attend) {
    struct err err = {0};
    struct step_row row = {.n_tokens = n, .pos0 = from, .block_table = {s->table}, .n_blocks = s->ctx / 64 + 1};
    for (uint32_t i = 0; i < n; i++)
        s->positions[i] = from + i;
    struct step step = {.n_tokens = n, .n_rows = 1, .positions = s->positions, .token_row = s->token_row, .rows = &row};
    s->be->ops->step_begin(s->be, &step, &err);
    struct mat q = {s->q, n, HEADS * DIM, HEADS * DIM}, k = {s->k, n, KV_HEADS * DIM, KV_HEADS * DIM},
               v = {s->v, n, KV_HEADS * DIM, KV_HEADS * DIM}, out = {s->out, n, HEADS * DIM, HEADS * DIM};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        if (append)
            s->be->ops->qkv(s->be, &(struct qkv_args){.layer = layer, .pool = s->pool, .n_heads = HEADS,
                                                      .n_kv_heads = KV_HEADS, .head_dim = DIM, .v_dim = DIM, .q = q,
                                                      .k = k, .v = v});
        if (attend)
            s->be->ops->attention(s->be, &(struct attention_args){.layer = layer, .pool = s->pool, .n_heads = HEADS,
                                                                  .q = q, .out = out, .scale = 0.088f});
    }
    s->be->ops->step_end(s->be, &err);
}

// Milliseconds of a layer.
static double measure(struct setup *s, uint32_t from, uint32_t n, bool append, bool attend) {
    double least = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        double start = processor_ms();
        step_run(s, from, n, append, attend);
        double ms = (processor_ms() - start) / LAYERS;
        least = ms < least ? ms : least;
    }
    return least;
}

int main(int argc, char **argv) {
    const char *level = argc > 1 ? argv[1] : NULL;
    uint32_t n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 0, ctx = argc > 3 ? (uint32_t)atoi(argv[3]) : 4096;
    static const char *const KINDS[] = {"f32", "f16", "bf16", "q8", "q4"};
    for (int kind = KV_F32; kind <= KV_Q4; kind++) {
        if (argc > 4 && strcmp(argv[4], KINDS[kind]) != 0)
            continue;
        struct err err = {0};
        struct setup s = {.ctx = ctx};
        struct backend_options options = {.cpu_level = level, .n_threads = n_threads};
        s.be = cpu_backend_ops.open(&options, &err);
        if (!s.be) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        if (kind == KV_F32 || argc > 4) {
            char line[256];
            s.be->ops->describe(s.be, line, sizeof line);
            printf("%s; %d query heads, %d KV heads of %d, context %u\n", line, HEADS, KV_HEADS, DIM, ctx);
        }
        struct backend_limits limits = {.n_tokens = PREFILL, .n_rows = 1, .n_logits = 1, .ctx_len = ctx, .n_cols_max = HEADS * DIM,
                                        .n_vocab = 1, .n_heads = HEADS, .head_dim = DIM};
        struct kv_layer_desc layers[LAYERS];
        for (int i = 0; i < LAYERS; i++)
            layers[i] = (struct kv_layer_desc){0, KV_HEADS, DIM, DIM, false, (enum kv_kind)kind};
        uint32_t n_pages = ctx / KV_PAGE_TOKENS + 1;
        s.pool = s.be->ops->kv_create(s.be, layers, LAYERS, &n_pages, 1, &err);
        if (!s.pool || !s.be->ops->reserve(s.be, &limits, &err)) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        s.q = malloc(sizeof(float) * PREFILL * HEADS * DIM);
        s.out = malloc(sizeof(float) * PREFILL * HEADS * DIM);
        s.k = malloc(sizeof(float) * PREFILL * KV_HEADS * DIM);
        s.v = malloc(sizeof(float) * PREFILL * KV_HEADS * DIM);
        s.positions = calloc(PREFILL, sizeof(uint32_t));
        s.token_row = calloc(PREFILL, sizeof(uint32_t));
        s.table = calloc(n_pages, sizeof(uint32_t));
        for (int i = 0; i < PREFILL * HEADS * DIM; i++)
            s.q[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
        for (int i = 0; i < PREFILL * KV_HEADS * DIM; i++)
            s.k[i] = s.v[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
        for (uint32_t i = 0; i < n_pages; i++)
            s.table[i] = i;
        for (uint32_t from = 0; from + PREFILL <= ctx; from += PREFILL)
            step_run(&s, from, PREFILL, true, false);
        double decode = measure(&s, ctx - 1, 1, false, true), append1 = measure(&s, ctx - 1, 1, true, false);
        double prefill = measure(&s, 0, PREFILL, false, true), append = measure(&s, 0, PREFILL, true, false);
        double deep = ctx >= 2 * PREFILL ? measure(&s, ctx - PREFILL, PREFILL, false, true) : 0;
        double bytes = (double)s.be->ops->kv_page_bytes(s.pool, 0) / LAYERS * ctx / KV_PAGE_TOKENS;
        double flops = 4.0 * HEADS * DIM * PREFILL * (PREFILL + 1) / 2, flops_deep = 4.0 * HEADS * DIM * PREFILL * (ctx - PREFILL / 2.0);
        printf("%-4s decode %7.3f ms/layer %5.1f GB/s | prefill %d: %7.2f ms %6.1f GFLOP/s | its last at %u: %7.2f ms %6.1f GFLOP/s | append 1: "
               "%.1f us, %d: %.2f ms\n",
               KINDS[kind], decode, bytes / decode / 1e6, PREFILL, prefill, flops / prefill / 1e6, ctx, deep,
               deep > 0 ? flops_deep / deep / 1e6 : 0, append1 * 1e3, PREFILL, append);
        s.be->ops->kv_destroy(s.be, s.pool);
        s.be->ops->close(s.be);
        free(s.q), free(s.k), free(s.v), free(s.out), free(s.positions), free(s.token_row), free(s.table);
    }
    return 0;
}
