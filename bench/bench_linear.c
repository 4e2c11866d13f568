// Matrix products of the CPU backend at the shapes of real models, against the memory's read rate
// measured in the same run.
//   bench_linear [--threads N] [--level L] [--exact] [--model NAME] [--format NAME] [--rows 1,8,128,512] [--repeats N]
// A line is all linears of a model's layers, one after the other, as a step does them: median time, the
// processor time of all threads, the bytes of weights read a second, and twice the multiplications a second.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/thread_pool.h"

static const struct model {
    const char *name;
    uint32_t d, q, kv, ff, n_layers;
    uint32_t n_experts, n_used; // ff is one expert's
} MODELS[] = {
    {"qwen3-0.6b", 1024, 2048, 1024, 3072, 28, 0, 0},
    {"llama-3.2-1b", 2048, 2048, 512, 8192, 16, 0, 0},
    {"qwen3-4b", 2560, 4096, 1024, 9728, 6, 0, 0},
    {"qwen3-30b-a3b", 2048, 4096, 512, 768, 2, 128, 8},
};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0] };

static const struct format {
    const char *name;
    enum weight_format format;
    uint32_t bits, group;
} FORMATS[] = {
    {"affine4", WEIGHT_AFFINE, 4, 64}, {"affine8", WEIGHT_AFFINE, 8, 64}, {"bf16", WEIGHT_BF16, 16, 0},
    {"f16", WEIGHT_F16, 16, 0},        {"f32", WEIGHT_F32, 32, 0},        {"affine4g32", WEIGHT_AFFINE, 4, 32},
    {"affine4g128", WEIGHT_AFFINE, 4, 128},
    {"affine2", WEIGHT_AFFINE, 2, 64}, {"affine3", WEIGHT_AFFINE, 3, 64}, {"affine5", WEIGHT_AFFINE, 5, 64},
    {"affine6", WEIGHT_AFFINE, 6, 64}, {"mxfp4", WEIGHT_MXFP4, 4, 32},    {"mxfp8", WEIGHT_MXFP8, 8, 32},
    {"nvfp4", WEIGHT_NVFP4, 4, 16},
};
enum { N_FORMATS = sizeof FORMATS / sizeof FORMATS[0], ROWS_LIST_MAX = 16, REPEATS_MAX = 64 };

struct layer {
    struct weight *q, *k, *v, *o, *gate, *up, *down;
    struct weight **gates, **ups, **downs; // experts
};

static double now_s(void) { return (double)clock_ns() * 1e-9; }

// Of all threads together: what the work costs, however many others want the cores.
static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "bench_linear: %s\n", what);
    exit(2);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, compare_doubles);
    return v[n / 2];
}

static uint64_t bytes_made;

static struct weight *make_weight(struct backend *be, const struct format *f, uint32_t n_out, uint32_t n_in) {
    struct err err = {0};
    size_t n = (size_t)n_out * n_in, n_bytes = n * f->bits / 8;
    struct weight_desc d = {.format = f->format,
                            .n_out = n_out,
                            .n_in = n_in,
                            .bits = f->bits,
                            .group = f->group,
                            .scale_dtype = DTYPE_BF16};
    uint8_t *data = be->ops->alloc(be, n_bytes, &err); // lives as long as the process
    if (!data)
        die(err.message);
    uint64_t s = n_bytes + 1;
    for (size_t i = 0; i + 8 <= n_bytes; i += 8) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        uint64_t v = f->format == WEIGHT_AFFINE || f->bits == 4 ? s : s & 0x3F3F3F3F3F3F3F3Fu; // of floats: finite ones
        memcpy(data + i, &v, 8);
    }
    d.data = data;
    bytes_made += n_bytes;
    if (f->group) {
        size_t n_groups = n / f->group, scale_bytes = f->format == WEIGHT_AFFINE ? 2 : 1;
        uint8_t *scales = be->ops->alloc(be, n_groups * scale_bytes, &err);
        uint8_t *biases = be->ops->alloc(be, n_groups * scale_bytes, &err);
        if (!scales || !biases)
            die(err.message);
        for (size_t i = 0; i < n_groups; i++) {
            uint16_t h = bf16_from_f32(0.01f), b = bf16_from_f32(-0.08f);
            if (scale_bytes == 2) {
                memcpy(scales + 2 * i, &h, 2);
                memcpy(biases + 2 * i, &b, 2);
            } else {
                scales[i] = f->format == WEIGHT_NVFP4 ? 0x30 : 120;
            }
        }
        d.scales = scales;
        d.biases = f->format == WEIGHT_AFFINE ? biases : NULL;
        bytes_made += n_groups * scale_bytes * (f->format == WEIGHT_AFFINE ? 2 : 1);
    }
    struct weight *w = be->ops->weight_create(be, &d, &err);
    if (!w)
        die(err.message);
    return w;
}

static struct mat make_mat(struct backend *be, uint32_t n_rows, uint32_t n_cols) {
    struct err err = {0};
    struct mat m = {be->ops->alloc(be, (size_t)n_rows * n_cols * sizeof(float), &err), n_rows, n_cols, n_cols};
    if (!m.data)
        die(err.message);
    for (size_t i = 0; i < (size_t)n_rows * n_cols; i++)
        ((float *)m.data)[i] = (float)(i * 2654435761u % 2001) * 0.001f - 1.0f;
    return m;
}

struct bufs {
    struct mat x, q, k, v, h, y;
    uint32_t *experts;
    float *weights;
};

static void run_layer(struct backend *be, const struct model *m, const struct layer *l, const struct bufs *b,
                      uint32_t n) {
    struct mat x = mat_rows(be, b->x, 0, n), q = mat_rows(be, b->q, 0, n), y = mat_rows(be, b->y, 0, n);
    struct linear_args qkv = {.x = x, .n_outputs = 3, .scale = 1};
    qkv.outputs[0] = (struct linear_output){.weight = l->q, .y = q};
    qkv.outputs[1] = (struct linear_output){.weight = l->k, .y = mat_rows(be, b->k, 0, n)};
    qkv.outputs[2] = (struct linear_output){.weight = l->v, .y = mat_rows(be, b->v, 0, n)};
    be->ops->linear(be, &qkv);
    struct linear_args o = {.x = q, .n_outputs = 1, .scale = 1};
    o.outputs[0] = (struct linear_output){.weight = l->o, .y = y};
    be->ops->linear(be, &o);
    if (m->n_experts) {
        struct experts_args e = {.x = x, .y = y, .n_experts = m->n_experts, .n_used = m->n_used,
                                 .experts = b->experts, .weights = b->weights, .gate = l->gates, .up = l->ups,
                                 .down = l->downs, .glu = GLU_SILU, .scale = 1};
        be->ops->experts(be, &e);
        return;
    }
    struct mat h = mat_rows(be, b->h, 0, n);
    be->ops->linear_glu(be, x, l->gate, l->up, GLU_SILU, h);
    struct linear_args down = {.x = h, .n_outputs = 1, .scale = 1};
    down.outputs[0] = (struct linear_output){.weight = l->down, .y = y};
    be->ops->linear(be, &down);
}

// ---- Read rate ------------------------------------------------------------------------------------
struct read_job {
    const uint64_t *data;
    size_t n_words; // of a tile
    uint64_t sums[1024];
};
static void read_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    struct read_job *j = job;
    const uint64_t *p = j->data + tile_idx * j->n_words;
    uint64_t s[8] = {0};
    for (size_t i = 0; i < j->n_words; i += 8) {
        __builtin_prefetch(p + i + 256);
        for (size_t k = 0; k < 8; k++)
            s[k] += p[i + k];
    }
    j->sums[thread_idx % 1024] += s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}
static double read_rate(struct backend *be, uint32_t n_threads, uint32_t repeats) {
    enum { TILE_WORDS = 16384, N_TILES = 4096 }; // 512 MiB
    struct err err = {0};
    static struct read_job job;
    static uint64_t *data;
    if (!data) {
        data = be->ops->alloc(be, (size_t)8 * TILE_WORDS * N_TILES, &err);
        if (!data)
            die(err.message);
        memset(data, 1, (size_t)8 * TILE_WORDS * N_TILES);
    }
    job = (struct read_job){.data = data, .n_words = TILE_WORDS};
    struct thread_pool *pool = thread_pool_create(n_threads, false, &err);
    if (!pool)
        die(err.message);
    double times[REPEATS_MAX];
    for (uint32_t i = 0; i < repeats; i++) {
        double t = now_s();
        thread_pool_run(pool, read_tile, &job, N_TILES);
        times[i] = now_s() - t;
    }
    thread_pool_destroy(pool);
    return 8.0 * TILE_WORDS * N_TILES / median(times, repeats) * 1e-9;
}

// ---- One line ------------------------------------------------------------------------------------
static void bench(const struct backend_options *options, const struct model *m, const struct format *f,
                  const uint32_t *rows, uint32_t n_rows_list, uint32_t repeats) {
    struct err err = {0};
    struct backend *be = cpu_backend_ops.open(options, &err);
    if (!be)
        die(err.message);
    uint32_t most = 1;
    for (uint32_t i = 0; i < n_rows_list; i++)
        most = rows[i] > most ? rows[i] : most;
    uint32_t widest = m->ff > m->q ? m->ff : m->q;
    widest = widest > m->d ? widest : m->d;
    struct backend_limits limits = {.n_tokens = most, .n_rows = 1, .n_logits = 1, .ctx_len = 1,
                                    .n_cols_max = widest, .n_vocab = 16, .n_heads = 1, .head_dim = 64,
                                    .n_experts = m->n_experts, .n_experts_used = m->n_used,
                                    .d_expert = m->n_experts ? m->ff : 0};
    if (!be->ops->reserve(be, &limits, &err))
        die(err.message);
    struct layer *layers = calloc(m->n_layers, sizeof *layers);
    bytes_made = 0;
    double macs = 0, expert_bytes = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        struct layer *l = &layers[i];
        l->q = make_weight(be, f, m->q, m->d);
        l->k = make_weight(be, f, m->kv, m->d);
        l->v = make_weight(be, f, m->kv, m->d);
        l->o = make_weight(be, f, m->d, m->q);
        macs += (double)m->d * (2 * m->q + 2 * m->kv);
        if (m->n_experts) {
            uint64_t before = bytes_made;
            l->gates = calloc(m->n_experts * 3, sizeof *l->gates);
            l->ups = l->gates + m->n_experts;
            l->downs = l->ups + m->n_experts;
            for (uint32_t e = 0; e < m->n_experts; e++) {
                l->gates[e] = make_weight(be, f, m->ff, m->d);
                l->ups[e] = make_weight(be, f, m->ff, m->d);
                l->downs[e] = make_weight(be, f, m->d, m->ff);
            }
            expert_bytes += (double)(bytes_made - before);
            macs += 3.0 * m->ff * m->d * m->n_used;
        } else {
            l->gate = make_weight(be, f, m->ff, m->d);
            l->up = make_weight(be, f, m->ff, m->d);
            l->down = make_weight(be, f, m->d, m->ff);
            macs += 3.0 * m->ff * m->d;
        }
    }
    struct bufs b = {.x = make_mat(be, most, m->d),
                     .q = make_mat(be, most, m->q),
                     .k = make_mat(be, most, m->kv),
                     .v = make_mat(be, most, m->kv),
                     .h = make_mat(be, most, m->ff),
                     .y = make_mat(be, most, m->d)};
    if (m->n_experts) {
        b.experts = calloc((size_t)most * m->n_used, sizeof *b.experts);
        b.weights = calloc((size_t)most * m->n_used, sizeof *b.weights);
        for (uint32_t i = 0; i < most * m->n_used; i++) {
            b.experts[i] = (i % m->n_used * 16 + i / m->n_used * 7) % m->n_experts;
            b.weights[i] = 0.125f;
        }
    }
    for (uint32_t i = 0; i < n_rows_list; i++) {
        double times[REPEATS_MAX], cpu[REPEATS_MAX];
        uint32_t n = repeats;
        for (uint32_t rep = 0; rep < n; rep++) {
            double t = now_s(), c = cpu_s();
            for (uint32_t l = 0; l < m->n_layers; l++)
                run_layer(be, m, &layers[l], &b, rows[i]);
            times[rep] = now_s() - t;
            cpu[rep] = cpu_s() - c;
        }
        double t = median(times, n), bytes = (double)bytes_made;
        if (m->n_experts) {
            double touched = fmin(1.0, (double)rows[i] * m->n_used / m->n_experts);
            bytes += expert_bytes * (touched - 1);
        }
        printf("%-14s %-11s %5u %9.2f %9.2f %8.2f %9.1f\n", m->name, f->name, rows[i], t * 1e3,
               median(cpu, n) * 1e3, bytes / t * 1e-9,
               2 * macs * rows[i] / t * 1e-9);
        fflush(stdout);
    }
    be->ops->close(be); // the matrices go with the process
}

int main(int argc, char **argv) {
    struct backend_options options = {.n_threads = 0, .math = MATH_FAST};
    const char *model = NULL, *format = "affine4";
    uint32_t rows[ROWS_LIST_MAX] = {1, 8, 128, 512}, n_rows = 4, repeats = 5;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(arg, "--exact") == 0) {
            options.math = MATH_EXACT;
            continue;
        }
        if (!value)
            die("an option lacks its value");
        i++;
        if (strcmp(arg, "--threads") == 0) {
            options.n_threads = (uint32_t)atoi(value);
        } else if (strcmp(arg, "--level") == 0) {
            options.cpu_level = value;
        } else if (strcmp(arg, "--model") == 0) {
            model = value;
        } else if (strcmp(arg, "--format") == 0) {
            format = strcmp(value, "all") == 0 ? NULL : value;
        } else if (strcmp(arg, "--repeats") == 0) {
            repeats = (uint32_t)atoi(value);
            if (repeats < 1 || repeats > REPEATS_MAX)
                die("--repeats is from 1 to 64");
        } else if (strcmp(arg, "--rows") == 0) {
            n_rows = 0;
            for (const char *p = value; *p && n_rows < ROWS_LIST_MAX; p += *p == ',') {
                char *end;
                rows[n_rows++] = (uint32_t)strtoul(p, &end, 10);
                if (end == p || rows[n_rows - 1] == 0)
                    die("--rows is a list like 1,8,128");
                p = end;
            }
        } else {
            die("options: --threads N --level L --exact --model NAME --format NAME|all --rows 1,8 --repeats N");
        }
    }
    struct err err = {0};
    struct backend *be = cpu_backend_ops.open(&options, &err);
    if (!be)
        die(err.message);
    char line[256];
    be->ops->describe(be, line, sizeof line);
    printf("%s, %s\n", line, options.math == MATH_EXACT ? "exact" : "fast");
    printf("read: %.1f GB/s on one thread, %.1f on all\n", read_rate(be, 1, repeats),
           read_rate(be, options.n_threads, repeats));
    printf("%-14s %-11s %5s %9s %9s %8s %9s\n", "layers of", "weights", "rows", "ms", "cpu ms", "GB/s", "GOPS");
    be->ops->close(be);
    for (int m = 0; m < N_MODELS; m++)
        for (int f = 0; f < N_FORMATS; f++)
            if ((!model || strcmp(model, MODELS[m].name) == 0) && (!format || strcmp(format, FORMATS[f].name) == 0))
                bench(&options, &MODELS[m], &FORMATS[f], rows, n_rows, repeats);
    return 0;
}
