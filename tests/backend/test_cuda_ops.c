// Every operation of the CUDA backend against plain double-precision loops, on random shapes with tails.
// A program by itself, without cmocka, so that it runs on a bare machine with a GPU; without one it skips
// (exit code 77). Its argument is the plugin.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/half.h"
#include "test_cuda.h"

static struct backend *be;
static const struct backend_ops *ops;
static int n_checks, n_failed;

// ---- Helpers ------------------------------------------------------------------------------------------
static uint64_t rng_state = 0x1234567;
static uint64_t rng(void) {
    uint64_t z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static uint32_t below(uint32_t n) { return (uint32_t)(rng() % n); }
static float normal(void) {
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)(rng() >> 40) * 0x1p-24f;
    return (sum - 3.0f) * 1.41421356f;
}
static void *xmalloc(size_t n) {
    void *p = calloc(1, n ? n : 1);
    if (!p)
        abort();
    return p;
}
static float *randoms(size_t n, float scale) {
    float *x = xmalloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * normal();
    return x;
}
// The same, with values that bf16 holds.
static float *bf16_randoms(size_t n, float scale) {
    float *x = randoms(n, scale);
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(bf16_from_f32(x[i]));
    return x;
}
static void must(bool ok, const struct err *err, const char *what) {
    if (!ok) {
        printf("FAILED %s: %s\n", what, err->message);
        exit(1);
    }
}

static struct mat mat_new(uint32_t n_rows, uint32_t n_cols, uint32_t pad) {
    struct err err = {0};
    struct mat m = {NULL, n_rows, n_cols, n_cols + pad};
    m.data = ops->alloc(be, (size_t)n_rows * m.stride * 2 + 64, &err);
    must(m.data, &err, "alloc");
    // What is not written must show.
    uint16_t *poison = xmalloc((size_t)n_rows * m.stride * 2);
    for (size_t i = 0; i < (size_t)n_rows * m.stride; i++)
        poison[i] = 0x7FC0;
    ops->upload(be, m.data, poison, (size_t)n_rows * m.stride * 2);
    free(poison);
    return m;
}
static void mat_put(struct mat m, const float *x) {
    uint16_t *h = xmalloc((size_t)m.n_rows * m.stride * 2);
    for (size_t r = 0; r < m.n_rows; r++)
        for (size_t c = 0; c < m.stride; c++)
            h[r * m.stride + c] = c < m.n_cols ? bf16_from_f32(x[r * m.n_cols + c]) : 0x7FC0;
    ops->upload(be, m.data, h, (size_t)m.n_rows * m.stride * 2);
    free(h);
}
static struct mat mat_of(uint32_t n_rows, uint32_t n_cols, uint32_t pad, const float *x) {
    struct mat m = mat_new(n_rows, n_cols, pad);
    mat_put(m, x);
    return m;
}
static float *mat_get(struct mat m) {
    uint16_t *h = xmalloc((size_t)m.n_rows * m.stride * 2);
    float *x = xmalloc((size_t)m.n_rows * m.n_cols * sizeof *x);
    ops->download(be, h, m.data, (size_t)m.n_rows * m.stride * 2);
    for (size_t r = 0; r < m.n_rows; r++)
        for (size_t c = 0; c < m.n_cols; c++)
            x[r * m.n_cols + c] = bf16_to_f32(h[r * m.stride + c]);
    free(h);
    return x;
}
static void mat_free(struct mat m) { ops->free(be, m.data); }
static float *device_f32(const float *x, size_t n) {
    struct err err = {0};
    float *p = ops->alloc(be, n * sizeof *p, &err);
    must(p, &err, "alloc");
    ops->upload(be, p, x, n * sizeof *p);
    return p;
}

// Relative error of the whole, and no single value far off.
static void compare(const char *name, const float *got, const double *want, size_t n, double tol) {
    double diff = 0, norm = 0, worst = 0;
    bool nan = false;
    for (size_t i = 0; i < n; i++) {
        double d = got[i] - want[i];
        nan = nan || isnan(got[i]);
        diff += d * d;
        norm += want[i] * want[i];
        worst = fmax(worst, fabs(d));
    }
    double rms = sqrt(norm / (double)n), rel = sqrt(diff / (norm > 0 ? norm : 1));
    n_checks++;
    if (nan || !(rel <= tol) || !(worst <= 40 * tol * (rms + 1e-6))) {
        n_failed++;
        printf("FAILED %s: relative error %.2e, worst %.2e of rms %.2e%s (allowed %.1e)\n", name, rel, worst,
               rms, nan ? ", NaN" : "", tol);
        if (n_failed < 4)
            for (size_t i = 0; i < n && i < 8; i++)
                printf("   [%zu] got %g want %g\n", i, got[i], want[i]);
    }
}
static void check(const char *name, bool ok) {
    n_checks++;
    if (!ok) {
        n_failed++;
        printf("FAILED %s\n", name);
    }
}

// ---- Steps ----------------------------------------------------------------------------------------------
enum { TOKENS_MAX = 640, ROWS_MAX = 40, BLOCKS_MAX = 40 };
struct test_step {
    struct step step;
    struct step_row rows[ROWS_MAX];
    int32_t ids[TOKENS_MAX];
    uint32_t positions[TOKENS_MAX], token_row[TOKENS_MAX], logit_tokens[TOKENS_MAX];
    uint32_t tables[ROWS_MAX][BLOCKS_MAX];
};
static void step_init(struct test_step *s) {
    memset(s, 0, sizeof *s);
    s->step.token_ids = s->ids, s->step.positions = s->positions, s->step.token_row = s->token_row;
    s->step.rows = s->rows, s->step.logit_tokens = s->logit_tokens;
}
// Row r's pages are r * BLOCKS_MAX + a permutation.
static void step_add(struct test_step *s, uint32_t sequence, uint32_t pos0, uint32_t n_tokens) {
    uint32_t r = s->step.n_rows++, off = s->step.n_tokens;
    s->rows[r] = (struct step_row){off, n_tokens, pos0, sequence, 0, {s->tables[r], s->tables[r]}, BLOCKS_MAX};
    for (uint32_t b = 0; b < BLOCKS_MAX; b++)
        s->tables[r][b] = sequence * BLOCKS_MAX + (b * 7 + 3) % BLOCKS_MAX;
    for (uint32_t i = 0; i < n_tokens; i++) {
        s->positions[off + i] = pos0 + i;
        s->token_row[off + i] = r;
        s->ids[off + i] = (int32_t)below(40);
    }
    s->step.n_tokens += n_tokens;
}
static void begin(struct test_step *s) {
    struct err err = {0};
    must(ops->step_begin(be, &s->step, &err), &err, "step_begin");
}
static void end(const char *what) {
    struct err err = {0};
    must(ops->step_end(be, &err), &err, what);
}
static void begin_plain(uint32_t n_tokens) {
    static struct test_step s;
    step_init(&s);
    step_add(&s, 0, 0, n_tokens);
    begin(&s);
}

// ---- Weights ----------------------------------------------------------------------------------------------
struct test_weight {
    struct weight *weight;
    double *w; // [n_out, n_in]
    void *data, *scales, *biases;
    uint32_t n_out, n_in;
};
struct format_case {
    const char *name;
    enum weight_format format;
    uint32_t bits, group;
    enum dtype scale_dtype;
};
static const struct format_case FORMATS[] = {
    {"f32", WEIGHT_F32, 32, 0, 0},
    {"f16", WEIGHT_F16, 16, 0, 0},
    {"bf16", WEIGHT_BF16, 16, 0, 0},
    {"q4 g64", WEIGHT_AFFINE, 4, 64, DTYPE_BF16},
    {"q4 g32 f16", WEIGHT_AFFINE, 4, 32, DTYPE_F16},
    {"q4 g128 f32", WEIGHT_AFFINE, 4, 128, DTYPE_F32},
    {"q4 g128", WEIGHT_AFFINE, 4, 128, DTYPE_BF16},
    {"q8 g64", WEIGHT_AFFINE, 8, 64, DTYPE_BF16},
    {"q8 g32", WEIGHT_AFFINE, 8, 32, DTYPE_F16},
    {"q8 g128", WEIGHT_AFFINE, 8, 128, DTYPE_F16},
    {"q2 g64", WEIGHT_AFFINE, 2, 64, DTYPE_BF16},
    {"q3 g64", WEIGHT_AFFINE, 3, 64, DTYPE_BF16},
    {"q3 g32", WEIGHT_AFFINE, 3, 32, DTYPE_F32},
    {"q5 g32", WEIGHT_AFFINE, 5, 32, DTYPE_BF16},
    {"q5 g128", WEIGHT_AFFINE, 5, 128, DTYPE_BF16},
    {"q6 g64", WEIGHT_AFFINE, 6, 64, DTYPE_F16},
    {"mxfp4", WEIGHT_MXFP4, 4, 32, 0},
    {"mxfp8", WEIGHT_MXFP8, 8, 32, 0},
    {"nvfp4", WEIGHT_NVFP4, 4, 16, 0},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

static float put_scale(void *to, size_t i, enum dtype dtype, float v) {
    if (dtype == DTYPE_BF16) {
        ((uint16_t *)to)[i] = bf16_from_f32(v);
        return bf16_to_f32(((uint16_t *)to)[i]);
    }
    if (dtype == DTYPE_F16) {
        ((uint16_t *)to)[i] = f16_from_f32(v);
        return f16_to_f32(((uint16_t *)to)[i]);
    }
    ((float *)to)[i] = v;
    return v;
}

static struct test_weight weight_new(const struct format_case *f, uint32_t n_out, uint32_t n_in) {
    struct test_weight t = {.n_out = n_out, .n_in = n_in};
    size_t n = (size_t)n_out * n_in, n_groups = f->group ? n / f->group : 0;
    t.w = xmalloc(n * sizeof *t.w);
    uint8_t *data = t.data = xmalloc(n * f->bits / 8 + 8);
    t.scales = xmalloc(n_groups * 4);
    t.biases = xmalloc(n_groups * 4);
    for (size_t i = 0; i < n; i++) {
        size_t g = f->group ? i / f->group : 0;
        uint32_t code = (uint32_t)rng();
        switch (f->format) {
        case WEIGHT_F32:
            t.w[i] = ((float *)t.data)[i] = 0.05f * normal();
            break;
        case WEIGHT_F16:
            ((uint16_t *)t.data)[i] = f16_from_f32(0.05f * normal());
            t.w[i] = f16_to_f32(((uint16_t *)t.data)[i]);
            break;
        case WEIGHT_BF16:
            ((uint16_t *)t.data)[i] = bf16_from_f32(0.05f * normal());
            t.w[i] = bf16_to_f32(((uint16_t *)t.data)[i]);
            break;
        case WEIGHT_AFFINE: {
            static float s, b;
            if (i % f->group == 0) {
                s = put_scale(t.scales, g, f->scale_dtype, 0.2f / (float)(1 << f->bits) * (0.5f + (float)below(100) / 100));
                b = put_scale(t.biases, g, f->scale_dtype, -s * (float)(1 << f->bits) * 0.5f + 0.01f * normal());
            }
            code &= (1u << f->bits) - 1;
            for (uint32_t k = 0; k < f->bits; k++)
                data[(i * f->bits + k) / 8] |= (uint8_t)((code >> k & 1) << (i * f->bits + k) % 8);
            t.w[i] = (double)s * code + b;
            break;
        }
        case WEIGHT_MXFP4:
        case WEIGHT_NVFP4:
            if (i % f->group == 0)
                ((uint8_t *)t.scales)[g] = (uint8_t)(f->format == WEIGHT_MXFP4 ? 118 + below(8) : 0x10 + below(0x30));
            code &= 15;
            data[i / 2] |= (uint8_t)(code << i % 2 * 4);
            t.w[i] = (double)F4E2M1_VALUES[code] * (f->format == WEIGHT_MXFP4 ? f8e8m0_to_f32(((uint8_t *)t.scales)[g])
                                                                             : f8e4m3_to_f32(((uint8_t *)t.scales)[g]));
            break;
        default: // WEIGHT_MXFP8
            if (i % f->group == 0)
                ((uint8_t *)t.scales)[g] = (uint8_t)(116 + below(8));
            code &= 255;
            if ((code & 127) == 127)
                code--;
            data[i] = (uint8_t)code;
            t.w[i] = (double)f8e4m3_to_f32((uint8_t)code) * f8e8m0_to_f32(((uint8_t *)t.scales)[g]);
        }
    }
    struct weight_desc desc = {f->format, n_out, n_in, f->bits, f->group, f->scale_dtype, t.data, t.scales, t.biases};
    struct err err = {0};
    t.weight = ops->weight_create(be, &desc, &err);
    must(t.weight, &err, "weight_create");
    must(ops->weights_ready(be, &err), &err, "weights_ready");
    return t;
}
static void weight_free(struct test_weight *t) {
    ops->weight_destroy(be, t->weight);
    free(t->w), free(t->data), free(t->scales), free(t->biases);
}
static double dot(const struct test_weight *t, uint32_t row, const float *x) {
    double s = 0;
    for (uint32_t k = 0; k < t->n_in; k++)
        s += t->w[(size_t)row * t->n_in + k] * x[k];
    return s;
}

// ---- Linear -----------------------------------------------------------------------------------------------
static void test_linear(const struct format_case *f, uint32_t n_out, uint32_t n_in, uint32_t n, bool add, bool bias) {
    char name[128];
    snprintf(name, sizeof name, "linear %s [%u, %u] x %u%s%s", f->name, n_out, n_in, n, add ? " add" : "",
             bias ? " bias" : "");
    struct test_weight w = weight_new(f, n_out, n_in);
    float *x = bf16_randoms((size_t)n * n_in, 1), *b = randoms(n_out, 1), *y0 = bf16_randoms((size_t)n * n_out, 1);
    struct mat mx = mat_of(n, n_in, below(2) * 8, x), my = mat_of(n, n_out, 8, y0);
    float *db = device_f32(b, n_out);
    begin_plain(n);
    struct linear_args args = {mx, 1, {{w.weight, bias ? db : NULL, my}}, add ? LINEAR_ADD : LINEAR_STORE, 0.5f};
    ops->linear(be, &args);
    end(name);
    double *want = xmalloc((size_t)n * n_out * sizeof *want);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < n_out; c++)
            want[r * n_out + c] = 0.5 * (dot(&w, c, x + (size_t)r * n_in) + (bias ? b[c] : 0)) +
                                  (add ? y0[r * n_out + c] : 0);
    float *got = mat_get(my);
    compare(name, got, want, (size_t)n * n_out, n > 16 ? 8e-3 : 5e-3); // for many rows weights are rounded to bf16, too
    free(got), free(want), free(x), free(b), free(y0);
    mat_free(mx), mat_free(my), ops->free(be, db), weight_free(&w);
}

static double act_ref(enum glu_kind kind, double g, double u, double alpha, double limit) {
    switch (kind) {
    case GLU_SILU: return u * g / (1 + exp(-g));
    case GLU_GELU: return u * 0.5 * g * (1 + erf(g / sqrt(2)));
    case GLU_GELU_TANH: return u * 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
    case GLU_RELU: return u * (g > 0 ? g : 0);
    case GLU_CLAMPED_SWIGLU:
        g = fmin(g, limit), u = fmax(fmin(u, limit), -limit);
        return (u + 1) * g / (1 + exp(-alpha * g));
    default: return u / (1 + exp(-g));
    }
}

static void test_linear_glu(const struct format_case *f, const struct format_case *f2, uint32_t n_out, uint32_t n_in, uint32_t n) {
    char name[128];
    snprintf(name, sizeof name, "linear_glu %s %s [%u, %u] x %u", f->name, f2->name, n_out, n_in, n);
    struct test_weight w = weight_new(f, n_out, n_in), u = weight_new(f2, n_out, n_in);
    float *x = bf16_randoms((size_t)n * n_in, 1);
    struct mat mx = mat_of(n, n_in, 0, x), my = mat_new(n, n_out, 0);
    begin_plain(n);
    ops->linear_glu(be, mx, w.weight, u.weight, GLU_SILU, my);
    end(name);
    double *want = xmalloc((size_t)n * n_out * sizeof *want);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < n_out; c++)
            want[r * n_out + c] = act_ref(GLU_SILU, dot(&w, c, x + (size_t)r * n_in), dot(&u, c, x + (size_t)r * n_in), 0, 0);
    float *got = mat_get(my);
    compare(name, got, want, (size_t)n * n_out, 1.2e-2);
    free(got), free(want), free(x);
    mat_free(mx), mat_free(my), weight_free(&w), weight_free(&u);
}

static void test_outputs(void) {
    // Three products of one input, the middle one in another format.
    const struct format_case *f[3] = {&FORMATS[3], &FORMATS[7], &FORMATS[3]};
    const uint32_t n_out[3] = {96, 40, 33}, n_in = 256, n = 5;
    struct test_weight w[3];
    struct linear_args args = {.n_outputs = 3, .scale = 1};
    float *x = bf16_randoms(n * n_in, 1);
    args.x = mat_of(n, n_in, 0, x);
    for (int i = 0; i < 3; i++) {
        w[i] = weight_new(f[i], n_out[i], n_in);
        args.outputs[i] = (struct linear_output){w[i].weight, NULL, mat_new(n, n_out[i], 0)};
    }
    begin_plain(n);
    ops->linear(be, &args);
    end("outputs");
    for (int i = 0; i < 3; i++) {
        double *want = xmalloc(n * n_out[i] * sizeof *want);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t c = 0; c < n_out[i]; c++)
                want[r * n_out[i] + c] = dot(&w[i], c, x + r * n_in);
        float *got = mat_get(args.outputs[i].y);
        compare("linear of three outputs", got, want, n * n_out[i], 5e-3);
        free(got), free(want), mat_free(args.outputs[i].y), weight_free(&w[i]);
    }
    free(x), mat_free(args.x);
}

static void test_logits_embed_gather(const struct format_case *f) {
    const uint32_t n_vocab = 200, d = 128, n = 7;
    struct test_weight w = weight_new(f, n_vocab, d);
    struct test_step s;
    step_init(&s);
    step_add(&s, 0, 0, n);
    s.step.n_logits = 2, s.logit_tokens[0] = 2, s.logit_tokens[1] = 6;
    struct mat y = mat_new(n, d, 0), last = mat_new(2, d, 0), other = mat_new(3, d, 0), ids_y = mat_new(2, d, 0);
    begin(&s);
    ops->embed(be, w.weight, NULL, 2.0f, y);
    ops->gather(be, y, NULL, last);
    const uint32_t rows[3] = {5, 0, 5};
    const int32_t ids[2] = {199, 0};
    ops->gather(be, y, rows, other);
    ops->embed(be, w.weight, ids, 1.0f, ids_y);
    const float *logits = ops->logits(be, last, w.weight, NULL, 3.0f, 5.0f);
    end("logits");
    float *ey = mat_get(y), *gl = mat_get(last), *go = mat_get(other), *gi = mat_get(ids_y);
    double *want = xmalloc(n * d * sizeof *want), *wl = xmalloc(2 * n_vocab * sizeof *wl);
    for (uint32_t i = 0; i < n * d; i++)
        want[i] = 2.0 * w.w[(uint32_t)s.ids[i / d] * d + i % d];
    compare("embed", ey, want, n * d, 4e-3);
    bool same = true;
    for (uint32_t i = 0; i < d; i++)
        same = same && gl[i] == ey[2 * d + i] && gl[d + i] == ey[6 * d + i] && go[i] == ey[5 * d + i] && go[d + i] == ey[i];
    check("gather", same);
    for (uint32_t i = 0; i < 2 * d; i++)
        want[i] = w.w[(uint32_t)ids[i / d] * d + i % d];
    compare("embed of given ids", gi, want, 2 * d, 4e-3);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t c = 0; c < n_vocab; c++)
            wl[r * n_vocab + c] = 5 * tanh(3 * dot(&w, c, gl + r * d) / 5);
    char name[64];
    snprintf(name, sizeof name, "logits %s", f->name);
    compare(name, logits, wl, 2 * n_vocab, 1e-4);
    free(ey), free(gl), free(go), free(gi), free(want), free(wl);
    mat_free(y), mat_free(last), mat_free(other), mat_free(ids_y), weight_free(&w);
}

// ---- Elementwise --------------------------------------------------------------------------------------------
static void test_norm(enum norm_kind kind, uint32_t n, uint32_t n_cols, uint32_t width, bool residual) {
    float *x = bf16_randoms(n * n_cols, 2), *r = bf16_randoms(n * n_cols, 1), *w = randoms(width, 1), *b = randoms(width, 1);
    struct mat mx = mat_of(n, n_cols, 8, x), my = mat_new(n, n_cols, 0), mr = mat_of(n, n_cols, 0, r);
    float *dw = device_f32(w, width), *db = device_f32(b, width);
    struct norm_args args = {kind, 1e-5f, dw, kind == NORM_LAYER ? db : NULL, width, mx, my, residual ? &mr : NULL, 0.5f};
    begin_plain(n);
    ops->norm(be, &args);
    end("norm");
    double *want = xmalloc(n * n_cols * sizeof *want), *sum = xmalloc(n * n_cols * sizeof *sum);
    for (uint32_t i = 0; i < n * n_cols; i++)
        sum[i] = x[i] + (residual ? 0.5 * r[i] : 0);
    for (uint32_t p = 0; p < n * n_cols / width; p++) {
        double mean = 0, var = 0;
        for (uint32_t i = 0; i < width; i++)
            mean += kind == NORM_LAYER ? sum[p * width + i] / width : 0;
        for (uint32_t i = 0; i < width; i++)
            var += pow(sum[p * width + i] - mean, 2) / width;
        for (uint32_t i = 0; i < width; i++)
            want[p * width + i] = (sum[p * width + i] - mean) / sqrt(var + 1e-5) * w[i] + (kind == NORM_LAYER ? b[i] : 0);
    }
    float *gx = mat_get(mx), *gy = mat_get(my);
    char name[64];
    snprintf(name, sizeof name, "norm %d [%u, %u] width %u%s", kind, n, n_cols, width, residual ? " residual" : "");
    compare(name, gy, want, n * n_cols, 6e-3);
    compare("norm's x", gx, sum, n * n_cols, 4e-3);
    free(x), free(r), free(w), free(b), free(want), free(sum), free(gx), free(gy);
    mat_free(mx), mat_free(my), mat_free(mr), ops->free(be, dw), ops->free(be, db);
}

static void test_elementwise(uint32_t n, uint32_t d) {
    float *a = bf16_randoms(n * d, 1.5f), *b = bf16_randoms(n * d, 1.5f), *row = bf16_randoms(d, 1), *col = bf16_randoms(n, 1);
    struct mat ma = mat_of(n, d, 0, a), mb = mat_of(n, d, 8, b), my = mat_new(n, d, 0), mrow = mat_of(1, d, 0, row),
               mcol = mat_of(n, 1, 7, col);
    double *want = xmalloc(n * d * sizeof *want);
    float *got;
    for (enum glu_kind k = GLU_SILU; k <= GLU_SIGMOID; k++) {
        begin_plain(n);
        struct glu_args args = {k, ma, mb, my, 1.702f, 1.0f};
        ops->glu(be, &args);
        end("glu");
        for (uint32_t i = 0; i < n * d; i++)
            want[i] = act_ref(k, a[i], b[i], 1.702, 1.0);
        got = mat_get(my);
        compare("glu", got, want, n * d, 5e-3);
        free(got);
    }
    for (enum unary_kind k = UNARY_SILU; k <= UNARY_XIELU; k++) {
        const float p[4] = {k == UNARY_XIELU ? 0.8f : 2.0f, 0.7f, 0.5f, -1e-6f};
        begin_plain(n);
        ops->unary(be, k, p, ma, my);
        end("unary");
        for (uint32_t i = 0; i < n * d; i++) {
            double x = a[i];
            want[i] = k == UNARY_SILU ? x / (1 + exp(-x))
                      : k == UNARY_GELU ? act_ref(GLU_GELU, x, 1, 0, 0)
                      : k == UNARY_GELU_TANH ? act_ref(GLU_GELU_TANH, x, 1, 0, 0)
                      : k == UNARY_RELU ? fmax(x, 0)
                      : k == UNARY_RELU2 ? pow(fmax(x, 0), 2)
                      : k == UNARY_SIGMOID ? 1 / (1 + exp(-x))
                      : k == UNARY_TANH_CAP ? 2 * tanh(x / 2)
                      : x > 0 ? 0.8 * x * x + 0.5 * x
                              : (expm1(fmin(x, -1e-6)) - x) * (double)0.7f + 0.5 * x;
        }
        got = mat_get(my);
        compare("unary", got, want, n * d, 5e-3);
        free(got);
    }
    for (int kind = 0; kind < 6; kind++) {
        mat_put(my, b);
        begin_plain(n);
        if (kind == 0)
            ops->axpby(be, 2, ma, 0.5f, my);
        else if (kind == 1)
            ops->axpby(be, 2, mrow, 1, my);
        else if (kind == 2)
            ops->axpby(be, 1, ma, 0, my);
        else
            ops->mul(be, kind == 3 ? ma : kind == 4 ? mrow : mcol, my);
        end("axpby, mul");
        for (uint32_t i = 0; i < n * d; i++)
            want[i] = kind == 0   ? 2.0 * a[i] + 0.5 * b[i]
                      : kind == 1 ? 2.0 * row[i % d] + b[i]
                      : kind == 2 ? a[i]
                                  : (double)b[i] * (kind == 3 ? a[i] : kind == 4 ? row[i % d] : col[i / d]);
        got = mat_get(my);
        compare("axpby, mul", got, want, n * d, 5e-3);
        free(got);
    }
    free(a), free(b), free(row), free(col), free(want);
    mat_free(ma), mat_free(mb), mat_free(my), mat_free(mrow), mat_free(mcol);
}

// ---- Attention ------------------------------------------------------------------------------------------------
struct attn_case {
    const char *name;
    uint32_t n_heads, n_kv, k_dim, v_dim;
    bool v_in_k;
    enum kv_kind kind;
    uint32_t window;
    float softcap;
    bool sinks, bidirectional, norm, interleaved, norm_after;
    uint32_t rope_dims, rope_off;
    double tol;
};
static const struct attn_case ATTENTION[] = {
    {"128", 8, 2, 128, 128, false, KV_BF16, 0, 0, false, false, false, false, false, 128, 0, 1.2e-2},
    {"64 norm", 4, 4, 64, 64, false, KV_BF16, 0, 0, false, false, true, false, false, 64, 0, 1.2e-2},
    {"64 window sinks", 8, 1, 64, 64, false, KV_BF16, 100, 0, true, false, false, false, false, 64, 0, 1.2e-2},
    {"256 softcap", 4, 2, 256, 256, false, KV_BF16, 0, 20, false, false, true, false, true, 64, 0, 1.2e-2},
    {"80 interleaved", 6, 2, 80, 80, false, KV_BF16, 0, 0, false, false, false, true, false, 32, 0, 1.2e-2},
    {"32", 4, 2, 32, 32, false, KV_BF16, 16, 0, false, false, true, false, false, 32, 0, 1.2e-2},
    {"f16", 4, 2, 128, 128, false, KV_F16, 0, 0, false, false, false, false, false, 128, 0, 1.2e-2},
    {"f32", 4, 2, 64, 64, false, KV_F32, 0, 0, false, false, false, false, false, 64, 0, 1.2e-2},
    {"q8", 8, 2, 128, 128, false, KV_Q8, 0, 0, false, false, false, false, false, 128, 0, 1.5e-2},
    {"q8 96", 4, 2, 96, 96, false, KV_Q8, 50, 0, false, false, false, false, false, 96, 0, 1.5e-2},
    {"q4", 8, 2, 128, 128, false, KV_Q4, 0, 0, false, false, false, false, false, 128, 0, 2e-1},
    {"q4 256", 4, 2, 256, 256, false, KV_Q4, 0, 0, false, false, false, false, false, 128, 0, 2e-1},
    {"odd 20", 6, 3, 20, 20, false, KV_BF16, 0, 0, false, false, false, false, false, 20, 0, 1.2e-2},
    {"512", 4, 1, 512, 512, false, KV_BF16, 0, 0, false, false, true, false, false, 128, 0, 1.2e-2},
    {"mla", 8, 1, 192, 128, true, KV_BF16, 0, 0, false, false, false, true, false, 64, 128, 1.2e-2},
    {"mla q8", 8, 1, 192, 128, true, KV_Q8, 0, 0, false, false, false, true, false, 64, 128, 2e-2},
    {"bidirectional", 4, 4, 64, 64, false, KV_BF16, 0, 0, false, true, false, false, false, 64, 0, 1.2e-2},
    {"bidirectional window", 4, 2, 64, 64, false, KV_BF16, 24, 0, false, true, false, false, false, 64, 0, 1.2e-2},
};
enum { N_ATTENTION = sizeof ATTENTION / sizeof *ATTENTION, SEQ_MAX = 1100 };

static void head_ref(const struct attn_case *c, const float *in, double *out, uint32_t dim, const float *norm,
                     const double *inv_freq, uint32_t position) {
    for (uint32_t i = 0; i < dim; i++)
        out[i] = in[i];
    for (int stage = 0; stage < 2; stage++) {
        if (norm && stage == (c->norm_after ? 1 : 0)) {
            double sum = 0;
            for (uint32_t i = 0; i < dim; i++)
                sum += out[i] * out[i] / dim;
            for (uint32_t i = 0; i < dim; i++)
                out[i] = out[i] / sqrt(sum + 1e-6) * norm[i];
        }
        if (stage == (c->norm_after ? 0 : 1))
            for (uint32_t j = 0; j < c->rope_dims / 2; j++) {
                double angle = position * inv_freq[j], cs = cos(angle) * 1.25, sn = sin(angle) * 1.25;
                uint32_t i0 = c->rope_off + (c->interleaved ? 2 * j : j),
                         i1 = i0 + (c->interleaved ? 1 : c->rope_dims / 2);
                double x0 = out[i0], x1 = out[i1];
                out[i0] = x0 * cs - x1 * sn, out[i1] = x1 * cs + x0 * sn;
            }
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = bf16_to_f32(bf16_from_f32((float)out[i]));
}

// Two sequences grow through steps of several shapes; each step's output is compared.
static void test_attention(const struct attn_case *c) {
    struct err err = {0};
    struct kv_layer_desc layers[2] = {{1, 1, 8, 8, false, KV_BF16},
                                      {0, c->n_kv, c->k_dim, c->v_dim, c->v_in_k, c->kind}};
    const uint32_t pages[2] = {3 * BLOCKS_MAX, 1};
    struct kv_pool *pool = ops->kv_create(be, layers, 2, pages, 2, &err);
    must(pool, &err, "kv_create");
    float inv32[128];
    double inv[128];
    for (uint32_t j = 0; j < c->rope_dims / 2; j++)
        inv[j] = inv32[j] = (float)pow(10000, -2.0 * j / c->rope_dims);
    struct rope_table rope = {{inv32, NULL}, {1.25f, 0}, c->rope_dims, c->interleaved};
    float *norm = randoms(c->k_dim, 1), *sinks = randoms(c->n_heads, 1);
    float *d_norm = device_f32(norm, c->k_dim), *d_sinks = device_f32(sinks, c->n_heads);
    const uint32_t group = c->n_heads / c->n_kv;
    // What the reference remembers: [sequence][position][kv head][dim].
    double *keys = xmalloc(sizeof(double) * 3 * SEQ_MAX * c->n_kv * c->k_dim);
    double *values = xmalloc(sizeof(double) * 3 * SEQ_MAX * c->n_kv * c->v_dim);
    uint32_t n_past[3] = {0};
    static const uint32_t PLAN[][3] = {{70, 5, 0}, {1, 1, 0}, {130, 1, 0}, {300, 40, 17}, {1, 1, 1}, {3, 3, 3}, {1, 1, 1}, {400, 1, 0}, {1, 1, 1}};
    for (uint32_t step = 0; step < sizeof PLAN / sizeof *PLAN; step++) {
        struct test_step s;
        step_init(&s);
        for (uint32_t q = 0; q < 3; q++)
            if (PLAN[step][q])
                step_add(&s, q, n_past[q], PLAN[step][q]);
        const uint32_t n = s.step.n_tokens, dq = c->n_heads * c->k_dim, dk = c->n_kv * c->k_dim, dv = c->n_kv * c->v_dim;
        float *q = bf16_randoms(n * dq, 1), *k = bf16_randoms(n * dk, 1), *v = bf16_randoms(n * dv, 1);
        struct mat mq = mat_of(n, dq, 8, q), mk = mat_of(n, dk, 0, k), mv = mat_of(n, dv, 0, v);
        struct mat out = mat_new(n, c->n_heads * c->v_dim, 0);
        struct qkv_args args = {.layer = 1, .pool = pool, .n_heads = c->n_heads, .n_kv_heads = c->n_kv,
                                .head_dim = c->k_dim, .v_dim = c->v_dim, .q = mq, .k = mk, .v = mv,
                                .q_norm = c->norm ? d_norm : NULL, .k_norm = c->norm ? d_norm : NULL,
                                .norm_kind = NORM_RMS, .norm_after_rope = c->norm_after, .norm_eps = 1e-6f,
                                .rope = &rope, .rope_off = c->rope_off};
        const float scale = 1.0f / sqrtf((float)c->k_dim);
        struct attention_args attn = {.layer = 1, .pool = pool, .n_heads = c->n_heads, .q = mq, .out = out, .scale = scale,
                                      .window = c->window, .softcap = c->softcap, .sinks = c->sinks ? d_sinks : NULL,
                                      .bidirectional = c->bidirectional};
        begin(&s);
        ops->qkv(be, &args);
        ops->attention(be, &attn);
        end(c->name);
        double *want = xmalloc(n * c->n_heads * c->v_dim * sizeof *want), *qr = xmalloc(n * dq * sizeof *qr);
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t seq = s.rows[s.token_row[t]].state_slot, p = s.positions[t];
            for (uint32_t h = 0; h < c->n_heads; h++)
                head_ref(c, q + t * dq + h * c->k_dim, qr + t * dq + h * c->k_dim, c->k_dim, c->norm ? norm : NULL, inv, p);
            for (uint32_t h = 0; h < c->n_kv; h++) {
                double *key = keys + ((seq * SEQ_MAX + p) * (size_t)c->n_kv + h) * c->k_dim;
                head_ref(c, k + t * dk + h * c->k_dim, key, c->k_dim, c->norm ? norm : NULL, inv, p);
                for (uint32_t i = 0; i < c->v_dim; i++)
                    values[((seq * SEQ_MAX + p) * (size_t)c->n_kv + h) * c->v_dim + i] = c->v_in_k ? key[i] : v[t * dv + h * c->v_dim + i];
            }
        }
        for (uint32_t t = 0; t < n; t++) {
            const struct step_row *row = &s.rows[s.token_row[t]];
            const uint32_t p = s.positions[t], seq = row->state_slot;
            uint32_t lo = c->window && p + 1 > c->window ? p + 1 - c->window : 0, hi = c->bidirectional ? row->pos0 + row->n_tokens : p + 1;
            if (c->bidirectional && c->window && hi - p > c->window)
                hi = p + c->window;
            for (uint32_t h = 0; h < c->n_heads; h++) {
                static double prob[SEQ_MAX];
                double top = c->sinks ? sinks[h] : -1e300, sum = 0;
                for (uint32_t j = lo; j < hi; j++) {
                    const double *key = keys + ((seq * SEQ_MAX + j) * (size_t)c->n_kv + h / group) * c->k_dim;
                    double d = 0;
                    for (uint32_t i = 0; i < c->k_dim; i++)
                        d += qr[t * dq + h * c->k_dim + i] * key[i];
                    d *= scale;
                    prob[j] = c->softcap > 0 ? c->softcap * tanh(d / c->softcap) : d;
                    top = fmax(top, prob[j]);
                }
                double *o = want + ((size_t)t * c->n_heads + h) * c->v_dim;
                for (uint32_t j = lo; j < hi; j++) {
                    double e = exp(prob[j] - top);
                    sum += e;
                    for (uint32_t i = 0; i < c->v_dim; i++)
                        o[i] += e * values[((seq * SEQ_MAX + j) * (size_t)c->n_kv + h / group) * c->v_dim + i];
                }
                if (c->sinks)
                    sum += exp(sinks[h] - top);
                for (uint32_t i = 0; i < c->v_dim; i++)
                    o[i] /= sum;
            }
        }
        for (uint32_t qn = 0; qn < 3; qn++)
            n_past[qn] += PLAN[step][qn];
        float *got = mat_get(out), *gq = mat_get(mq);
        char name[96];
        snprintf(name, sizeof name, "qkv %s, step %u", c->name, step);
        compare(name, gq, qr, n * dq, 6e-3);
        snprintf(name, sizeof name, "attention %s, step %u", c->name, step);
        compare(name, got, want, (size_t)n * c->n_heads * c->v_dim, c->tol);
        free(q), free(k), free(v), free(want), free(qr), free(got), free(gq);
        mat_free(mq), mat_free(mk), mat_free(mv), mat_free(out);
    }
    // Pages move out and in again.
    size_t page_bytes = ops->kv_page_bytes(pool, 0);
    uint8_t *one = xmalloc(page_bytes), *two = xmalloc(page_bytes);
    ops->kv_read_page(be, pool, 0, 3, one);
    ops->kv_copy_page(be, pool, 0, 3, 2);
    ops->kv_read_page(be, pool, 0, 2, two);
    check("kv_copy_page", memcmp(one, two, page_bytes) == 0);
    memset(two, 7, page_bytes);
    ops->kv_write_page(be, pool, 0, 2, one);
    ops->kv_read_page(be, pool, 0, 2, two);
    check("kv_write_page", memcmp(one, two, page_bytes) == 0);
    free(one), free(two), free(keys), free(values), free(norm), free(sinks);
    ops->free(be, d_norm), ops->free(be, d_sinks), ops->kv_destroy(be, pool);
}

static void test_index(void) {
    struct err err = {0};
    const uint32_t n = 300, heads = 4, dim = 32, n_selected = 64, d = heads * dim, pages = 3 * BLOCKS_MAX;
    struct kv_layer_desc layers[2] = {{0, 1, dim, 0, true, KV_BF16}, {0, 1, 64, 48, true, KV_BF16}};
    struct kv_pool *pool = ops->kv_create(be, layers, 2, &pages, 1, &err);
    must(pool, &err, "kv_create");
    float *q = bf16_randoms(n * d, 1), *k = bf16_randoms(n * dim, 1), *w = bf16_randoms(n * heads, 1);
    float *k2 = bf16_randoms(n * 64, 1), *q2 = bf16_randoms(n * 64, 1);
    struct mat mq = mat_of(n, d, 0, q), mk = mat_of(n, dim, 0, k), mw = mat_of(n, heads, 4, w), mk2 = mat_of(n, 64, 0, k2),
               mq2 = mat_of(n, 64, 0, q2), out = mat_new(n, 48, 0);
    uint32_t *selected = ops->alloc(be, n * n_selected * 4, &err);
    struct test_step s;
    step_init(&s);
    step_add(&s, 1, 0, n);
    begin(&s);
    struct qkv_args put = {.layer = 0, .pool = pool, .n_heads = heads, .n_kv_heads = 1, .head_dim = dim, .v_dim = 0, .q = mq, .k = mk};
    struct qkv_args put2 = {.layer = 1, .pool = pool, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .v_dim = 48, .q = mq2, .k = mk2};
    ops->qkv(be, &put);
    ops->qkv(be, &put2);
    struct index_args args = {0, pool, heads, dim, mq, mw, 0.25f, n_selected, selected};
    ops->index(be, &args);
    struct attention_args attn = {.layer = 1, .pool = pool, .n_heads = 1, .q = mq2, .out = out, .scale = 0.125f, .selected = selected, .n_selected = n_selected};
    ops->attention(be, &attn);
    end("index");
    uint32_t *got = xmalloc(n * n_selected * 4);
    ops->download(be, got, selected, n * n_selected * 4);
    uint32_t bad = 0;
    double *want = xmalloc(n * 48 * sizeof *want);
    for (uint32_t t = 0; t < n; t++) {
        static double score[400];
        for (uint32_t p = 0; p <= t; p++) {
            score[p] = 0;
            for (uint32_t h = 0; h < heads; h++) {
                double x = 0;
                for (uint32_t i = 0; i < dim; i++)
                    x += (double)q[t * d + h * dim + i] * k[p * dim + i];
                score[p] += w[t * heads + h] * (x > 0 ? x : 0);
            }
        }
        double total = 0;
        for (uint32_t i = 0; i < n_selected; i++) {
            uint32_t p = got[t * n_selected + i];
            if (i >= t + 1) {
                bad += p != UINT32_MAX;
                continue;
            }
            bad += p > t || (i && p <= got[t * n_selected + i - 1]);
            // Fewer than n_selected may be clearly better.
            uint32_t better = 0;
            for (uint32_t o = 0; o <= t; o++)
                better += score[o] > score[p] + 1e-3;
            bad += better >= n_selected;
            double dotp = 0;
            for (uint32_t j = 0; j < 64; j++)
                dotp += (double)q2[t * 64 + j] * k2[p * 64 + j];
            double e = exp(dotp * 0.125);
            total += e;
            for (uint32_t j = 0; j < 48; j++)
                want[t * 48 + j] += e * k2[p * 64 + j];
        }
        for (uint32_t j = 0; j < 48; j++)
            want[t * 48 + j] /= total;
    }
    check("index", bad == 0);
    float *o = mat_get(out);
    compare("sparse attention", o, want, n * 48, 1.2e-2);
    free(q), free(k), free(w), free(k2), free(q2), free(got), free(o), free(want);
    mat_free(mq), mat_free(mk), mat_free(mw), mat_free(mk2), mat_free(mq2), mat_free(out);
    ops->free(be, selected), ops->kv_destroy(be, pool);
}

// ---- Experts ----------------------------------------------------------------------------------------------
static void test_moe(const struct format_case *f, const struct format_case *f_up, enum route_kind kind, uint32_t n, bool bias) {
    enum { E = 16, USED = 4, D = 128, DE = 64 };
    struct test_weight gate[E], up[E], down[E];
    struct weight *g[E], *u[E], *dn[E];
    for (int e = 0; e < E; e++) {
        gate[e] = weight_new(f, DE, D), up[e] = weight_new(f_up, DE, D), down[e] = weight_new(f, D, DE);
        g[e] = gate[e].weight, u[e] = up[e].weight, dn[e] = down[e].weight;
    }
    struct err err = {0};
    float *x = bf16_randoms(n * D, 1), *logits = bf16_randoms(n * E, 1), *corr = randoms(E, 0.3f), *y0 = bf16_randoms(n * D, 1);
    float *gb = randoms(E * DE, 0.5f), *ub = randoms(E * DE, 0.5f), *db = randoms(E * D, 0.5f);
    float *d_corr = device_f32(corr, E), *d_gb = device_f32(gb, E * DE), *d_ub = device_f32(ub, E * DE), *d_db = device_f32(db, E * D);
    struct mat mx = mat_of(n, D, 0, x), ml = mat_of(n, E, 0, logits), my = mat_of(n, D, 0, y0);
    uint32_t *experts = ops->alloc(be, n * USED * 4, &err);
    float *weights = ops->alloc(be, n * USED * 4, &err);
    const bool sigmoid = kind == ROUTE_SIGMOID;
    struct route_args r = {kind, ml, USED, true, 1.5f, sigmoid ? d_corr : NULL, sigmoid ? 4 : 0, sigmoid ? 2 : 0, NULL, experts, weights};
    struct experts_args a = {mx, my, LINEAR_ADD, E, USED, experts, weights, g, u, dn, bias ? d_gb : NULL, bias ? d_ub : NULL,
                             bias ? d_db : NULL, bias ? GLU_CLAMPED_SWIGLU : GLU_SILU, 1.702f, 2.0f, 0.5f};
    begin_plain(n);
    ops->route(be, &r);
    ops->experts(be, &a);
    end("experts");
    uint32_t *ge = xmalloc(n * USED * 4);
    float *gw = xmalloc(n * USED * 4);
    ops->download(be, ge, experts, n * USED * 4);
    ops->download(be, gw, weights, n * USED * 4);
    double *want = xmalloc(n * D * sizeof *want), *ww = xmalloc(n * USED * sizeof *ww);
    uint32_t wrong = 0;
    for (uint32_t t = 0; t < n; t++) {
        double score[E], choice[E], sum = 0, total = 0, top = -1e9;
        for (int e = 0; e < E; e++)
            top = fmax(top, logits[t * E + e]);
        for (int e = 0; e < E; e++)
            sum += exp(logits[t * E + e] - top);
        for (int e = 0; e < E; e++) {
            double l = logits[t * E + e];
            score[e] = sigmoid ? 1 / (1 + exp(-l)) : exp(l - top) / sum;
            choice[e] = score[e] + (sigmoid ? corr[e] : 0);
        }
        if (sigmoid) {
            double best[4];
            for (int q = 0; q < 4; q++) {
                double b1 = -1e9, b2 = -1e9;
                for (int e = q * 4; e < q * 4 + 4; e++)
                    if (choice[e] > b1)
                        b2 = b1, b1 = choice[e];
                    else if (choice[e] > b2)
                        b2 = choice[e];
                best[q] = b1 + b2;
            }
            for (int q = 0; q < 4; q++) {
                int better = 0;
                for (int o = 0; o < 4; o++)
                    better += best[o] > best[q];
                if (better >= 2)
                    for (int e = q * 4; e < q * 4 + 4; e++)
                        choice[e] = -1e9;
            }
        }
        for (int j = 0; j < USED; j++) {
            int b = 0;
            for (int e = 0; e < E; e++)
                if (choice[e] > choice[b])
                    b = e;
            wrong += ge[t * USED + j] != (uint32_t)b && fabs(choice[b] - choice[ge[t * USED + j] % E]) > 1e-5;
            b = (int)(ge[t * USED + j] % E);
            choice[b] = -1e10;
            ww[t * USED + j] = score[b];
            total += score[b];
        }
        for (int j = 0; j < USED; j++) {
            ww[t * USED + j] *= 1.5 / total;
            int e = (int)(ge[t * USED + j] % E);
            float h[DE];
            for (int i = 0; i < DE; i++)
                h[i] = (float)act_ref(a.glu, dot(&gate[e], i, x + t * D) + (bias ? gb[e * DE + i] : 0),
                                      dot(&up[e], i, x + t * D) + (bias ? ub[e * DE + i] : 0), 1.702, 2.0);
            for (int i = 0; i < D; i++)
                want[t * D + i] += 0.5 * ww[t * USED + j] * (dot(&down[e], i, h) + (bias ? db[e * D + i] : 0));
        }
        for (int i = 0; i < D; i++)
            want[t * D + i] += y0[t * D + i];
    }
    char name[96];
    snprintf(name, sizeof name, "route %d", kind);
    check(name, wrong == 0);
    compare(name, gw, ww, n * USED, 1e-4);
    snprintf(name, sizeof name, "experts %s %s x %u%s", f->name, f_up->name, n, bias ? " bias" : "");
    float *got = mat_get(my);
    compare(name, got, want, n * D, 8e-3);
    for (int e = 0; e < E; e++)
        weight_free(&gate[e]), weight_free(&up[e]), weight_free(&down[e]);
    free(x), free(logits), free(corr), free(y0), free(gb), free(ub), free(db), free(ge), free(gw), free(want), free(ww), free(got);
    ops->free(be, d_corr), ops->free(be, d_gb), ops->free(be, d_ub), ops->free(be, d_db), ops->free(be, experts), ops->free(be, weights);
    mat_free(mx), mat_free(ml), mat_free(my);
}

// ---- Recurrent layers ---------------------------------------------------------------------------------------
static void test_recurrent(uint32_t k_dim, uint32_t v_dim, uint32_t kernel) {
    enum { KH = 2, VH = 4, CH = 200, SLOTS = 3 };
    struct err err = {0};
    const size_t n_floats[2] = {(kernel - 1) * CH, VH * (size_t)k_dim * v_dim};
    struct state_pool *pool = ops->state_create(be, n_floats, 2, SLOTS, &err);
    must(pool, &err, "state_create");
    float *cw = randoms(CH * kernel, 0.5f), *cb = randoms(CH, 0.5f), *a_log = randoms(VH, 0.5f), *dt = randoms(VH, 0.5f);
    float *d_cw = device_f32(cw, CH * kernel), *d_cb = device_f32(cb, CH), *d_al = device_f32(a_log, VH), *d_dt = device_f32(dt, VH);
    double *hist = xmalloc(SLOTS * (size_t)CH * 400 * sizeof *hist), *S = xmalloc(SLOTS * n_floats[1] * sizeof *S);
    uint32_t past[SLOTS] = {0};
    static const uint32_t PLAN[][3] = {{5, 70, 1}, {1, 1, 1}, {30, 1, 2}, {1, 0, 1}};
    for (int step = 0; step < 4; step++) {
        struct test_step s;
        step_init(&s);
        for (uint32_t q = 0; q < SLOTS; q++)
            if (PLAN[step][q])
                step_add(&s, q, past[q], PLAN[step][q]);
        const uint32_t n = s.step.n_tokens, dk = KH * k_dim, dv = VH * v_dim;
        float *x = bf16_randoms(n * CH, 1), *q = bf16_randoms(n * dk, 1), *k = bf16_randoms(n * dk, 1), *v = bf16_randoms(n * dv, 1),
              *a = bf16_randoms(n * VH, 1), *b = bf16_randoms(n * VH, 1);
        struct mat mx = mat_of(n, CH, 8, x), mq = mat_of(n, dk, 0, q), mk = mat_of(n, dk, 8, k), mv = mat_of(n, dv, 0, v),
                   ma = mat_of(n, VH, 0, a), mb = mat_of(n, VH, 4, b), out = mat_new(n, dv, 0);
        struct conv_args conv = {pool, 0, mx, mx, d_cw, d_cb, kernel, true};
        struct delta_args delta = {pool, 1, KH, VH, k_dim, v_dim, mq, mk, mv, ma, mb, d_al, d_dt, out};
        begin(&s);
        ops->conv(be, &conv);
        ops->delta(be, &delta);
        end("recurrent");
        double *want = xmalloc(n * CH * sizeof *want), *wd = xmalloc(n * dv * sizeof *wd);
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t slot = s.rows[s.token_row[t]].state_slot, p = s.positions[t];
            for (uint32_t c = 0; c < CH; c++) {
                double *h = hist + (slot * (size_t)CH + c) * 400, y = cb[c];
                h[p] = x[t * CH + c];
                for (uint32_t j = 0; j < kernel; j++)
                    y += p + j + 1 >= kernel ? cw[c * kernel + j] * h[p + j + 1 - kernel] : 0;
                want[t * CH + c] = y / (1 + exp(-y));
            }
            for (uint32_t h = 0; h < VH; h++) {
                double *st = S + slot * n_floats[1] + h * (size_t)k_dim * v_dim, nq = 0, nk = 0;
                const float *qq = q + t * dk + h / 2 * k_dim, *kk = k + t * dk + h / 2 * k_dim;
                for (uint32_t i = 0; i < k_dim; i++)
                    nq += (double)qq[i] * qq[i], nk += (double)kk[i] * kk[i];
                nq = 1 / sqrt(nq + 1e-6) / sqrt(k_dim), nk = 1 / sqrt(nk + 1e-6);
                const double g = exp(-exp(a_log[h]) * log1p(exp(a[t * VH + h] + dt[h]))), beta = 1 / (1 + exp(-b[t * VH + h]));
                for (uint32_t c = 0; c < v_dim; c++) {
                    double seen = 0, o = 0;
                    for (uint32_t i = 0; i < k_dim; i++)
                        seen += (st[i * v_dim + c] *= g) * kk[i] * nk;
                    const double upd = beta * (v[t * dv + h * v_dim + c] - seen);
                    for (uint32_t i = 0; i < k_dim; i++)
                        o += (st[i * v_dim + c] += kk[i] * nk * upd) * qq[i] * nq;
                    wd[t * dv + h * v_dim + c] = o;
                }
            }
        }
        float *gx = mat_get(mx), *gd = mat_get(out);
        compare("conv", gx, want, n * CH, 5e-3);
        compare("delta", gd, wd, n * dv, 5e-3);
        for (uint32_t i = 0; i < SLOTS; i++)
            past[i] += PLAN[step][i];
        free(x), free(q), free(k), free(v), free(a), free(b), free(want), free(wd), free(gx), free(gd);
        mat_free(mx), mat_free(mq), mat_free(mk), mat_free(mv), mat_free(ma), mat_free(mb), mat_free(out);
    }
    size_t n_bytes = ops->state_slot_bytes(pool);
    uint8_t *one = xmalloc(n_bytes), *two = xmalloc(n_bytes);
    ops->state_read(be, pool, 1, one);
    ops->state_copy(be, pool, 1, 0);
    ops->state_read(be, pool, 0, two);
    check("state_copy", memcmp(one, two, n_bytes) == 0);
    ops->state_clear(be, pool, 0);
    ops->state_read(be, pool, 0, two);
    bool zero = true;
    for (size_t i = 0; i < n_bytes; i++)
        zero = zero && two[i] == 0;
    check("state_clear", zero);
    ops->state_write(be, pool, 0, one);
    ops->state_read(be, pool, 0, two);
    check("state_write", memcmp(one, two, n_bytes) == 0);
    free(one), free(two), free(cw), free(cb), free(a_log), free(dt), free(hist), free(S);
    ops->free(be, d_cw), ops->free(be, d_cb), ops->free(be, d_al), ops->free(be, d_dt), ops->state_destroy(be, pool);
}

// ---- Replay, repeatability, batch independence ----------------------------------------------------------------
struct tiny {
    struct test_weight embed, qkv[3], o, gate, up, down;
    struct kv_pool *pool;
    struct mat h, n, q, k, v, a, t, g;
    float inv_freq[32];
};
enum { TINY_D = 128, TINY_HEADS = 4, TINY_KV = 2, TINY_DIM = 64, TINY_FF = 256, TINY_VOCAB = 200 };
static struct tiny tiny_new(uint32_t n_max) {
    struct tiny m;
    struct err err = {0};
    const struct format_case *f = &FORMATS[3];
    m.embed = weight_new(f, TINY_VOCAB, TINY_D);
    m.qkv[0] = weight_new(f, TINY_HEADS * TINY_DIM, TINY_D);
    m.qkv[1] = weight_new(f, TINY_KV * TINY_DIM, TINY_D), m.qkv[2] = weight_new(f, TINY_KV * TINY_DIM, TINY_D);
    m.o = weight_new(f, TINY_D, TINY_HEADS * TINY_DIM);
    m.gate = weight_new(f, TINY_FF, TINY_D), m.up = weight_new(f, TINY_FF, TINY_D), m.down = weight_new(f, TINY_D, TINY_FF);
    struct kv_layer_desc layer = {0, TINY_KV, TINY_DIM, TINY_DIM, false, KV_BF16};
    const uint32_t pages = ROWS_MAX * BLOCKS_MAX;
    m.pool = ops->kv_create(be, &layer, 1, &pages, 1, &err);
    must(m.pool, &err, "kv_create");
    m.h = mat_new(n_max, TINY_D, 0), m.n = mat_new(n_max, TINY_D, 0), m.t = mat_new(n_max, TINY_D, 0);
    m.q = mat_new(n_max, TINY_HEADS * TINY_DIM, 0), m.a = mat_new(n_max, TINY_HEADS * TINY_DIM, 0);
    m.k = mat_new(n_max, TINY_KV * TINY_DIM, 0), m.v = mat_new(n_max, TINY_KV * TINY_DIM, 0), m.g = mat_new(n_max, TINY_FF, 0);
    for (int i = 0; i < 32; i++)
        m.inv_freq[i] = powf(10000, -(float)i / 32);
    return m;
}
static const float *tiny_walk(struct tiny *m, uint32_t n, uint32_t n_logits) {
    struct mat h = mat_rows(be, m->h, 0, n), x = mat_rows(be, m->n, 0, n), t = mat_rows(be, m->t, 0, n), q = mat_rows(be, m->q, 0, n),
               a = mat_rows(be, m->a, 0, n), k = mat_rows(be, m->k, 0, n), v = mat_rows(be, m->v, 0, n), g = mat_rows(be, m->g, 0, n);
    ops->embed(be, m->embed.weight, NULL, 1, h);
    struct norm_args norm = {NORM_RMS, 1e-5f, NULL, NULL, TINY_D, h, x, NULL, 0};
    ops->norm(be, &norm);
    struct linear_args l = {x, 3, {{m->qkv[0].weight, NULL, q}, {m->qkv[1].weight, NULL, k}, {m->qkv[2].weight, NULL, v}}, LINEAR_STORE, 1};
    ops->linear(be, &l);
    struct rope_table rope = {{m->inv_freq, NULL}, {1, 1}, TINY_DIM, false};
    struct qkv_args qa = {.pool = m->pool, .n_heads = TINY_HEADS, .n_kv_heads = TINY_KV, .head_dim = TINY_DIM, .v_dim = TINY_DIM, .q = q, .k = k, .v = v, .rope = &rope};
    ops->qkv(be, &qa);
    struct attention_args aa = {.pool = m->pool, .n_heads = TINY_HEADS, .q = q, .out = a, .scale = 0.125f};
    ops->attention(be, &aa);
    struct linear_args lo = {a, 1, {{m->o.weight, NULL, t}}, LINEAR_STORE, 1};
    ops->linear(be, &lo);
    norm.residual = &t, norm.residual_scale = 1;
    ops->norm(be, &norm);
    ops->linear_glu(be, x, m->gate.weight, m->up.weight, GLU_SILU, g);
    struct linear_args ld = {g, 1, {{m->down.weight, NULL, h}}, LINEAR_ADD, 1};
    ops->linear(be, &ld);
    struct mat last = mat_rows(be, m->t, 0, n_logits);
    ops->gather(be, h, NULL, last);
    return ops->logits(be, last, m->embed.weight, NULL, 1, 0);
}
static void tiny_free(struct tiny *m) {
    weight_free(&m->embed), weight_free(&m->o), weight_free(&m->gate), weight_free(&m->up), weight_free(&m->down);
    for (int i = 0; i < 3; i++)
        weight_free(&m->qkv[i]);
    mat_free(m->h), mat_free(m->n), mat_free(m->t), mat_free(m->q), mat_free(m->a), mat_free(m->k), mat_free(m->v), mat_free(m->g);
    ops->kv_destroy(be, m->pool);
}
// Decode R sequences `n_steps` long after prompts of different lengths; logits of the last step.
static void tiny_run(struct tiny *m, const uint32_t *sequences, uint32_t n_rows, uint32_t n_steps, uint64_t key, float *out) {
    const float *logits = NULL;
    for (uint32_t step = 0; step <= n_steps; step++) {
        struct test_step s;
        step_init(&s);
        for (uint32_t r = 0; r < n_rows; r++) {
            const uint32_t seq = sequences[r], prompt = 3 + seq * 40;
            step_add(&s, seq, step ? prompt + step - 1 : 0, step ? 1 : prompt);
            for (uint32_t i = 0; i < s.rows[r].n_tokens; i++)
                s.ids[s.rows[r].token_off + i] = (int32_t)((seq * 31 + (s.rows[r].pos0 + i) * 17) % TINY_VOCAB);
            s.logit_tokens[r] = s.step.n_tokens - 1;
        }
        s.step.n_logits = n_rows;
        begin(&s);
        if (!step || !ops->step_replay(be, key))
            logits = tiny_walk(m, s.step.n_tokens, n_rows);
        end("tiny");
    }
    memcpy(out, logits, n_rows * TINY_VOCAB * sizeof *out);
}
static void test_steps(bool deterministic) {
    struct tiny m = tiny_new(TOKENS_MAX);
    const uint32_t sequences[4] = {3, 0, 5, 2};
    const size_t n = 4 * TINY_VOCAB;
    float *plain = xmalloc(n * 4), *again = xmalloc(n * 4), *replayed = xmalloc(n * 4), *alone = xmalloc(n * 4);
    tiny_run(&m, sequences, 4, 9, 0, plain);
    tiny_run(&m, sequences, 4, 9, 0, again);
    check("the same step twice gives the same bits", memcmp(plain, again, n * 4) == 0);
    tiny_run(&m, sequences, 4, 9, 77, replayed);
    check("replayed steps give the same bits", memcmp(plain, replayed, n * 4) == 0);
    tiny_run(&m, sequences, 4, 3, 77, replayed);
    tiny_run(&m, sequences, 4, 9, 77, replayed);
    check("replays follow new positions", memcmp(plain, replayed, n * 4) == 0);
    bool finite = true, differ = false;
    for (size_t i = 0; i < n; i++)
        finite = finite && isfinite(plain[i]), differ = differ || plain[i] != plain[0];
    check("logits are numbers", finite && differ);
    for (int r = 0; r < 4; r++)
        tiny_run(&m, sequences + r, 1, 9, 0, alone + r * TINY_VOCAB);
    if (deterministic) {
        check("a row's bits do not depend on the batch", memcmp(plain, alone, n * 4) == 0);
    } else {
        double *want = xmalloc(n * sizeof *want);
        for (size_t i = 0; i < n; i++)
            want[i] = plain[i];
        compare("rows alone", alone, want, n, 2e-2);
        free(want);
    }
    free(plain), free(again), free(replayed), free(alone);
    tiny_free(&m);
}

static void test_refusals(void) {
    struct err err = {0};
    struct weight_desc bad = {WEIGHT_AFFINE, 8, 64, 7, 64, DTYPE_BF16, "", "", ""};
    check("7 bits are refused", !ops->weight_create(be, &bad, &err) && err.code == ERR_UNSUPPORTED && strstr(err.message, "7 bits"));
    check("too much memory is refused", !ops->alloc(be, (size_t)1 << 45, &err) && err.code == ERR_NOMEM);
    struct test_step s;
    step_init(&s);
    s.step.n_tokens = 1u << 20;
    check("a step beyond the reservation is refused", !ops->step_begin(be, &s.step, &err) && strstr(err.message, "reservation"));
    struct backend_options options = {.device = 1000};
    check("a GPU that is not there is refused", !ops->open(&options, &err) && strstr(err.message, "1000"));
}

static void run_all(bool deterministic) {
    for (uint32_t i = 0; i < N_FORMATS; i++) {
        const struct format_case *f = &FORMATS[i];
        static const uint32_t ROWS[] = {1, 3, 8, 9, 17, 33, 130, 257};
        for (uint32_t r = 0; r < 8; r++)
            test_linear(f, 72 + 8 * below(20), 128 * (1 + below(5)), ROWS[r], below(2), below(2));
        test_linear(f, 33, 384, 5, true, true);
        test_linear(f, 1, 128, 2, false, false);
        if (!f->group) {
            test_linear(f, 50, 100, 4, false, true);
            test_linear(f, 31, 37, 20, true, false);
            test_linear(f, 40, 37, 150, true, false);
        } else {
            test_linear(f, 64, f->group, 3, false, true);
            test_linear(f, 64, f->group * 3, 150, false, true);
        }
        test_linear(f, 300, 2048 + f->group, 2, false, false);
        test_linear_glu(f, f, 100, 256, 1);
        test_linear_glu(f, f, 48, 384, 20);
        test_linear_glu(f, f, 96, 384, 140);
        test_linear_glu(f, &FORMATS[(i + 1) % N_FORMATS], 96, 384, 4);
        test_logits_embed_gather(f);
    }
    test_outputs();
    test_norm(NORM_RMS, 5, 256, 256, false), test_norm(NORM_RMS, 3, 4096, 4096, true), test_norm(NORM_RMS, 2, 12288, 12288, true);
    test_norm(NORM_RMS, 7, 96, 24, false), test_norm(NORM_RMS, 2, 37, 37, true), test_norm(NORM_LAYER, 4, 100, 100, true);
    test_norm(NORM_LAYER, 9, 1024, 128, false), test_norm(NORM_LAYER, 1, 9000, 9000, false);
    test_elementwise(5, 64), test_elementwise(3, 37), test_elementwise(1, 8);
    for (uint32_t i = 0; i < N_ATTENTION; i++)
        test_attention(&ATTENTION[i]);
    test_index();
    for (enum route_kind k = ROUTE_SOFTMAX_TOPK; k <= ROUTE_SIGMOID; k++) {
        test_moe(&FORMATS[3], &FORMATS[3], k, 1, false), test_moe(&FORMATS[2], &FORMATS[2], k, 40, true);
        test_moe(&FORMATS[16], &FORMATS[16], k, 7, true), test_moe(&FORMATS[3], &FORMATS[7], k, 5, true);
        test_moe(&FORMATS[0], &FORMATS[0], k, 3, false), test_moe(&FORMATS[3], &FORMATS[3], k, 250, true);
    }
    test_recurrent(128, 128, 4), test_recurrent(64, 40, 4), test_recurrent(256, 32, 3), test_recurrent(32, 100, 2);
    test_steps(deterministic);
    test_refusals();
}

int main(int argc, char **argv) {
    struct err err = {0};
    ops = load_plugin(argc > 1 ? argv[1] : "./libloam-cuda.so");
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        struct backend_options options = {.device = -1, .deterministic = deterministic};
        be = ops->open(&options, &err);
        if (!be) {
            printf("skipped: %s\n", err.message);
            return 77;
        }
        char text[256];
        ops->describe(be, text, sizeof text);
        printf("%s%s\n", text, deterministic ? ", deterministic" : "");
        struct backend_limits limits = {.n_tokens = TOKENS_MAX, .n_rows = ROWS_MAX, .n_logits = ROWS_MAX, .ctx_len = BLOCKS_MAX * 64,
                                        .n_cols_max = 4096, .n_vocab = 512, .n_heads = 8, .head_dim = 512, .n_experts = 16, .n_experts_used = 4, .d_expert = 64};
        must(ops->reserve(be, &limits, &err), &err, "reserve");
        run_all(deterministic);
        ops->close(be);
    }
    printf("%d checks, %d failed\n", n_checks, n_failed);
    return n_failed != 0;
}
