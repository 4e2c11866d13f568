// Times of the CUDA backend on the shape of Llama-3.1-8B, with random weights, through the interface that
// models use; and of its products alone. Beside them the ceilings of the same run. Not a test: a program
// run by hand on a machine with a GPU. The first argument is the plugin, others name what to run (all).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/half.h"
#include "test_cuda.h"

static struct backend *be;
static const struct backend_ops *ops;
static double copy_rate; // bytes/s, read plus written

enum { D = 4096, FF = 14336, HEADS = 32, KV_HEADS = 8, DIM = 128, LAYERS = 32, VOCAB = 128256, TIMES_MAX = 512 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static uint64_t rng_state = 99;
static uint64_t rng(void) {
    uint64_t z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static void must(bool ok, const struct err *err, const char *what) {
    if (!ok) {
        printf("FAILED %s: %s\n", what, err->message);
        exit(1);
    }
}
static int by_value(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}
static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

struct kind {
    const char *name;
    enum weight_format format;
    uint32_t bits, group;
};
static const struct kind Q4 = {"4-bit g64", WEIGHT_AFFINE, 4, 64}, Q8 = {"8-bit g64", WEIGHT_AFFINE, 8, 64},
                         B16 = {"bf16", WEIGHT_BF16, 16, 0}, Q6 = {"6-bit g64", WEIGHT_AFFINE, 6, 64},
                         Q3 = {"3-bit g64", WEIGHT_AFFINE, 3, 64}, MX4 = {"mxfp4", WEIGHT_MXFP4, 4, 32},
                         NV4 = {"nvfp4", WEIGHT_NVFP4, 4, 16}, MX8 = {"mxfp8", WEIGHT_MXFP8, 8, 32},
                         Q4G32 = {"4-bit g32", WEIGHT_AFFINE, 4, 32}, Q4G128 = {"4-bit g128", WEIGHT_AFFINE, 4, 128};

// Random bytes that make finite weights of a sensible size, shared by all matrices.
static uint8_t *codes;
static uint16_t *floats, *scales, *biases;
static uint8_t *exponents;
static void make_bytes(void) {
    const size_t n = (size_t)VOCAB * D;
    codes = malloc(n), floats = malloc(n * 2), scales = malloc(n / 16), biases = malloc(n / 16), exponents = malloc(n / 16);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = rng();
        memcpy(codes + i, &r, 8);
        for (int k = 0; k < 8; k++) {
            floats[i + k] = bf16_from_f32(((float)(r >> k * 8 & 255) - 127.5f) * 0.0002f);
            codes[i + k] = (uint8_t)(codes[i + k] & 0x77); // no NaN of E4M3
        }
    }
    for (size_t i = 0; i < n / 32; i++) {
        scales[i] = bf16_from_f32(0.002f), biases[i] = bf16_from_f32(-0.015f);
        exponents[2 * i] = exponents[2 * i + 1] = 0x75; // 2^-10 as E8M0
    }
}
static uint64_t weight_bytes(const struct kind *k, uint64_t n_out, uint64_t n_in) {
    uint64_t n = n_out * n_in;
    return n * k->bits / 8 + (k->format == WEIGHT_AFFINE ? n / k->group * 4 : k->group ? n / k->group : 0);
}
static struct weight *weight_new(const struct kind *k, uint32_t n_out, uint32_t n_in) {
    struct err err = {0};
    struct weight_desc desc = {k->format, n_out, n_in, k->bits, k->group, DTYPE_BF16,
                               k->format == WEIGHT_BF16 ? (void *)floats : codes,
                               k->format == WEIGHT_AFFINE ? (void *)scales : exponents, biases};
    struct weight *w = ops->weight_create(be, &desc, &err);
    must(w, &err, "weight");
    return w;
}
static struct mat mat_new(uint32_t n_rows, uint32_t n_cols) {
    struct err err = {0};
    struct mat m = {ops->alloc(be, (size_t)n_rows * n_cols * 2, &err), n_rows, n_cols, n_cols};
    must(m.data, &err, "alloc");
    ops->upload(be, m.data, floats, (size_t)n_rows * n_cols * 2);
    return m;
}

// ---- Steps ------------------------------------------------------------------------------------------------
enum { ROWS_MAX = 128, CTX_MAX = 8192 + 256 };
static struct step_row rows[ROWS_MAX];
static int32_t ids[4096];
static uint32_t positions[4096], token_row[4096], logit_tokens[ROWS_MAX], tables[ROWS_MAX][CTX_MAX / 64 + 1];
static struct step step_of(uint32_t n_rows, uint32_t n_tokens, uint32_t pos0, uint32_t pages) {
    struct step s = {n_rows * n_tokens, n_rows, ids, positions, token_row, rows, n_rows, logit_tokens};
    const uint32_t n_blocks = (pos0 + n_tokens + 63) / 64;
    for (uint32_t r = 0; r < n_rows; r++) {
        rows[r] = (struct step_row){r * n_tokens, n_tokens, pos0, 0, 0, {tables[r]}, n_blocks};
        for (uint32_t b = 0; b < n_blocks; b++)
            tables[r][b] = (r * n_blocks + b) % pages;
        for (uint32_t i = 0; i < n_tokens; i++) {
            ids[r * n_tokens + i] = (int32_t)(rng() % VOCAB);
            positions[r * n_tokens + i] = pos0 + i;
            token_row[r * n_tokens + i] = r;
        }
        logit_tokens[r] = (r + 1) * n_tokens - 1;
    }
    return s;
}

// ---- Products alone ---------------------------------------------------------------------------------------
// Times of a product, over enough matrices that they do not stay in L2, `chain` of them in one step that is
// recorded and replayed.
static void bench_linear(const struct kind *k, uint32_t n_in, uint32_t n_out, uint32_t n) {
    struct err err = {0};
    const uint64_t n_bytes = weight_bytes(k, n_out, n_in);
    uint32_t n_weights = (uint32_t)(400e6 / (double)n_bytes) + 2;
    if (n_weights > 64)
        n_weights = 64;
    struct weight *w[64];
    for (uint32_t i = 0; i < n_weights; i++)
        w[i] = weight_new(k, n_out, n_in);
    must(ops->weights_ready(be, &err), &err, "ready");
    struct mat x = mat_new(n, n_in), y = mat_new(n, n_out);
    static uint64_t key = 1000;
    key++;
    double times[40];
    for (int rep = 0; rep < 12; rep++) {
        struct step s = step_of(1, n, 0, 1);
        if (n > 128) // one row of many tokens is not replayed with a key of decode
            s.n_rows = 1;
        must(ops->step_begin(be, &s, &err), &err, "begin");
        double t = now();
        if (!ops->step_replay(be, key))
            for (uint32_t i = 0; i < n_weights; i++) {
                struct linear_args args = {x, 1, {{w[i], NULL, y}}, LINEAR_STORE, 1};
                ops->linear(be, &args);
            }
        must(ops->step_end(be, &err), &err, "linear");
        times[rep] = now() - t;
    }
    double t = median(times + 3, 9) / n_weights;
    double flops = 2.0 * n * n_in * (double)n_out;
    printf("  %-10s [%5u, %5u] x %4u: %7.2f us  %5.2f TB/s (%3.0f%% of copy)  %6.1f TFLOP/s\n", k->name, n_out, n_in, n, t * 1e6,
           (double)n_bytes / t * 1e-12, 100 * (double)n_bytes / t / copy_rate, flops / t * 1e-12);
    fflush(stdout);
    for (uint32_t i = 0; i < n_weights; i++)
        ops->weight_destroy(be, w[i]);
    ops->free(be, x.data), ops->free(be, y.data);
}

// ---- The model ----------------------------------------------------------------------------------------------
struct layer {
    struct weight *q, *k, *v, *o, *gate, *up, *down;
    float *norm1, *norm2;
};
struct model {
    struct weight *embed, *head;
    struct layer layers[LAYERS];
    struct kv_pool *pool;
    uint32_t n_pages;
    struct mat h, x, q, k, v, a, t, g;
    float inv_freq[DIM / 2];
    uint64_t bytes_a_token; // of weights
};
static struct model *model_new(const struct kind *kind, uint32_t n_max) {
    struct model *m = calloc(1, sizeof *m);
    struct err err = {0};
    double t0 = now();
    m->embed = weight_new(kind, VOCAB, D), m->head = weight_new(kind, VOCAB, D);
    m->bytes_a_token = weight_bytes(kind, VOCAB, D);
    float *ones = malloc(D * sizeof *ones);
    for (int i = 0; i < D; i++)
        ones[i] = 1;
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &m->layers[i];
        l->q = weight_new(kind, D, D), l->k = weight_new(kind, KV_HEADS * DIM, D), l->v = weight_new(kind, KV_HEADS * DIM, D);
        l->o = weight_new(kind, D, D), l->gate = weight_new(kind, FF, D), l->up = weight_new(kind, FF, D), l->down = weight_new(kind, D, FF);
        m->bytes_a_token += weight_bytes(kind, D, 2 * D + 2 * KV_HEADS * DIM) + weight_bytes(kind, FF, 3 * D);
        l->norm1 = ops->alloc(be, D * 4, &err), l->norm2 = ops->alloc(be, D * 4, &err);
        ops->upload(be, l->norm1, ones, D * 4), ops->upload(be, l->norm2, ones, D * 4);
    }
    must(ops->weights_ready(be, &err), &err, "ready");
    double t1 = now();
    printf("%s: %.2f GB uploaded at %.1f GB/s; %.2f GB of weights a token\n", kind->name,
           1e-9 * (double)(m->bytes_a_token + weight_bytes(kind, VOCAB, D)),
           1e-9 * (double)(m->bytes_a_token + weight_bytes(kind, VOCAB, D)) / (t1 - t0), 1e-9 * (double)m->bytes_a_token);
    struct kv_layer_desc layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (struct kv_layer_desc){0, KV_HEADS, DIM, DIM, false, KV_BF16};
    m->n_pages = 600;
    m->pool = ops->kv_create(be, layers, LAYERS, &m->n_pages, 1, &err);
    must(m->pool, &err, "kv");
    m->h = mat_new(n_max, D), m->x = mat_new(n_max, D), m->q = mat_new(n_max, D), m->a = mat_new(n_max, D), m->t = mat_new(n_max, D);
    m->k = mat_new(n_max, KV_HEADS * DIM), m->v = mat_new(n_max, KV_HEADS * DIM), m->g = mat_new(n_max, FF);
    for (int i = 0; i < DIM / 2; i++)
        m->inv_freq[i] = powf(500000, -(float)i / (DIM / 2));
    return m;
}
static void model_walk(struct model *m, uint32_t n, uint32_t n_logits, int without) {
    struct mat h = mat_rows(be, m->h, 0, n), x = mat_rows(be, m->x, 0, n), q = mat_rows(be, m->q, 0, n), k = mat_rows(be, m->k, 0, n),
               v = mat_rows(be, m->v, 0, n), a = mat_rows(be, m->a, 0, n), t = mat_rows(be, m->t, 0, n), g = mat_rows(be, m->g, 0, n);
    ops->embed(be, m->embed, NULL, 1, h);
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &m->layers[i];
        struct norm_args norm = {NORM_RMS, 1e-5f, l->norm1, NULL, D, h, x, i ? &t : NULL, 1};
        struct linear_args qkv = {x, 3, {{l->q, NULL, q}, {l->k, NULL, k}, {l->v, NULL, v}}, LINEAR_STORE, 1};
        struct rope_table rope = {{m->inv_freq, NULL}, {1, 1}, DIM, false};
        struct qkv_args qa = {.layer = (uint32_t)i, .pool = m->pool, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .v_dim = DIM, .q = q, .k = k, .v = v, .rope = &rope};
        struct attention_args aa = {.layer = (uint32_t)i, .pool = m->pool, .n_heads = HEADS, .q = q, .out = a, .scale = 0.088f};
        struct linear_args o = {a, 1, {{l->o, NULL, t}}, LINEAR_STORE, 1}, down = {g, 1, {{l->down, NULL, t}}, LINEAR_STORE, 1};
        if (!(without & 1))
            ops->norm(be, &norm);
        if (!(without & 2))
            ops->linear(be, &qkv);
        if (!(without & 4))
            ops->qkv(be, &qa);
        if (!(without & 8))
            ops->attention(be, &aa);
        if (!(without & 2))
            ops->linear(be, &o);
        norm.weight = l->norm2, norm.residual = &t;
        if (!(without & 1))
            ops->norm(be, &norm);
        if (!(without & 16))
            ops->linear_glu(be, x, l->gate, l->up, GLU_SILU, g);
        if (!(without & 32))
            ops->linear(be, &down);
    }
    struct norm_args norm = {NORM_RMS, 1e-5f, m->layers[0].norm1, NULL, D, h, x, &t, 1};
    ops->norm(be, &norm);
    struct mat last = mat_rows(be, m->a, 0, n_logits);
    ops->gather(be, x, NULL, last);
    ops->logits(be, last, m->head, NULL, 1, 0);
}
static void bench_model(struct model *m, const char *what, uint32_t n_rows, uint32_t n_tokens, uint32_t pos0, int without) {
    struct err err = {0};
    static uint64_t key = 1;
    key++;
    double times[64];
    const int reps = n_tokens > 1 ? 7 : 24;
    uint32_t n_logits = n_tokens > 1 ? 1 : n_rows;
    for (int rep = 0; rep < reps; rep++) {
        struct step s = step_of(n_rows, n_tokens, pos0, m->n_pages);
        s.n_logits = n_logits;
        double t = now();
        must(ops->step_begin(be, &s, &err), &err, "begin");
        if (!ops->step_replay(be, n_tokens > 1 ? 0 : key))
            model_walk(m, s.n_tokens, n_logits, without);
        must(ops->step_end(be, &err), &err, what);
        times[rep] = now() - t;
    }
    double t = median(times + 3, reps - 3), n = (double)n_rows * n_tokens;
    double roof = ((double)m->bytes_a_token + (double)n_rows * pos0 * LAYERS * KV_HEADS * DIM * 4) / copy_rate;
    printf("  %-28s %8.3f ms  %9.0f tokens/s  (%3.0f%% of the bandwidth roof)\n", what, t * 1e3, n / t, 100 * roof / t);
    fflush(stdout);
}

static bool wanted(int argc, char **argv, const char *what) {
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], what) == 0)
            return true;
    return argc <= 2;
}

int main(int argc, char **argv) {
    struct err err = {0};
    ops = load_plugin(argc > 1 ? argv[1] : "./libloam-cuda.so");
    struct backend_options options = {.device = -1, .deterministic = getenv("DETERMINISTIC") != NULL};
    be = ops->open(&options, &err);
    if (!be) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    char text[256];
    ops->describe(be, text, sizeof text);
    printf("%s\n", text);
    make_bytes();
    struct backend_limits limits = {.n_tokens = 4096, .n_rows = ROWS_MAX, .n_logits = ROWS_MAX, .ctx_len = CTX_MAX, .n_cols_max = FF,
                                    .n_vocab = VOCAB, .n_heads = HEADS, .head_dim = DIM};
    must(ops->reserve(be, &limits, &err), &err, "reserve");

    // The ceiling: copies of 2 GiB from place to place, as pages of a pool.
    struct kv_layer_desc huge = {0, 4096, 2048, 2048, false, KV_BF16};
    const uint32_t two = 2;
    struct kv_pool *pool = ops->kv_create(be, &huge, 1, &two, 1, &err);
    must(pool, &err, "copy");
    double times[7];
    for (int i = 0; i < 7; i++) {
        struct step s = step_of(1, 1, 0, 1);
        must(ops->step_begin(be, &s, &err), &err, "begin");
        double t = now();
        for (int k = 0; k < 8; k++)
            ops->kv_copy_page(be, pool, 0, k % 2, 1 - k % 2);
        must(ops->step_end(be, &err), &err, "copy");
        times[i] = now() - t;
    }
    copy_rate = 16 * (double)ops->kv_page_bytes(pool, 0) / median(times + 2, 5);
    printf("copy: %.2f TB/s\n", copy_rate * 1e-12);
    ops->kv_destroy(be, pool);

    if (wanted(argc, argv, "products")) {
        const struct kind *kinds[] = {&Q4, &Q8, &B16, &Q4G128, &MX4};
        for (int i = 0; i < 5; i++) {
            bench_linear(kinds[i], 4096, 4096, 1), bench_linear(kinds[i], 4096, 14336, 1), bench_linear(kinds[i], 4096, 28672, 1), bench_linear(kinds[i], 14336, 4096, 1);
            if (i < 3)
                bench_linear(kinds[i], 4096, 4096, 8), bench_linear(kinds[i], 4096, 28672, 8);
            bench_linear(kinds[i], 4096, 28672, 16);
            if (i < 3)
                bench_linear(kinds[i], 4096, 28672, 32), bench_linear(kinds[i], 4096, 28672, 64), bench_linear(kinds[i], 4096, 28672, 128);
        }
        const struct kind *rest[] = {&Q4G32, &Q6, &Q3, &NV4, &MX8};
        for (int i = 0; i < 5; i++)
            bench_linear(rest[i], 4096, 28672, 1);
    }
    if (wanted(argc, argv, "prefill")) {
        const struct kind *kinds[] = {&B16, &Q4};
        for (int i = 0; i < 2; i++)
            bench_linear(kinds[i], 4096, 14336, 256), bench_linear(kinds[i], 4096, 14336, 512), bench_linear(kinds[i], 4096, 14336, 2048), bench_linear(kinds[i], 4096, 4096, 2048);
    }
    const struct kind *kinds[] = {&Q4, &B16};
    for (int i = 0; i < 2; i++) {
        if (!wanted(argc, argv, i ? "bf16" : "q4"))
            continue;
        struct model *m = model_new(kinds[i], 4096);
        bench_model(m, "decode 1 row, short", 1, 1, 100, 0);
        bench_model(m, "decode 1 row, 8k", 1, 1, 8192, 0);
        bench_model(m, "decode 4 rows, short", 4, 1, 128, 0);
        bench_model(m, "decode 16 rows, short", 16, 1, 128, 0);
        bench_model(m, "decode 64 rows, short", 64, 1, 128, 0);
        bench_model(m, "decode 128 rows, short", 128, 1, 128, 0);
        bench_model(m, "prefill 512", 1, 512, 0, 0);
        bench_model(m, "prefill 2048", 1, 2048, 0, 0);
        bench_model(m, "prefill 2048 after 6144", 1, 2048, 6144, 0);
        bench_model(m, "  1 row without norm", 1, 1, 100, 1);
        bench_model(m, "  1 row without qkv", 1, 1, 100, 4);
        bench_model(m, "  1 row without attention", 1, 1, 100, 8);
        bench_model(m, "  1 row only linears", 1, 1, 100, 1 | 4 | 8);
        bench_model(m, "  1 row without linears", 1, 1, 100, 2 | 16 | 32);
        bench_model(m, "  1 row 8k only attention", 1, 1, 8192, 1 | 2 | 4 | 16 | 32);
        bench_model(m, "  64 rows without attention", 64, 1, 128, 8);
        bench_model(m, "  2048 without attention", 1, 2048, 0, 8);
        bench_model(m, "  2048 without linears", 1, 2048, 0, 2 | 16 | 32);
        // Only one model at a time is measured; the process ends soon.
    }
    return 0;
}
