// Matrix products of the CPU backend: against the formats' definitions in double precision, and bit for
// bit between levels, row counts and thread counts.
#include "check.h"

#include <math.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/roofline.h"
#include "base/half.h"

// ---- Random matrices --------------------------------------------------------------------------------
static uint64_t rng_state = 0x9E3779B97F4A7C15u;
static uint32_t rng(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}
static float uniform(float low, float high) { return low + (high - low) * (float)(rng() >> 8) * 0x1p-24f; }

struct matrix {
    struct weight_desc desc;
    uint8_t *data, *scales, *biases;
    double *values; // [n_out, n_in]
};

static uint32_t desc_bits(const struct weight_desc *d) {
    static const uint32_t BITS[] = {32, 16, 16, 0, 4, 8, 4};
    return d->format == WEIGHT_AFFINE ? d->bits : BITS[d->format];
}
static uint32_t desc_group(const struct weight_desc *d) {
    static const uint32_t GROUP[] = {1, 1, 1, 0, 32, 32, 16};
    return d->format == WEIGHT_AFFINE ? d->group : GROUP[d->format];
}

static void put_float(uint8_t *at, enum dtype dtype, size_t i, float v) {
    uint16_t h = dtype == DTYPE_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
    if (dtype == DTYPE_F32)
        memcpy(at + 4 * i, &v, 4);
    else
        memcpy(at + 2 * i, &h, 2);
}
static double get_float(const uint8_t *at, enum dtype dtype, size_t i) {
    float f;
    uint16_t h;
    if (dtype == DTYPE_F32) {
        memcpy(&f, at + 4 * i, 4);
        return f;
    }
    memcpy(&h, at + 2 * i, 2);
    return dtype == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

// Exactly sized blocks, so that a sanitizer sees a read past their ends.
static struct matrix matrix_random(struct weight_desc d) {
    uint32_t bits = desc_bits(&d), group = desc_group(&d);
    size_t n = (size_t)d.n_out * d.n_in, n_bytes = n * bits / 8, n_groups = n / group;
    struct matrix m = {.data = malloc(n_bytes), .values = malloc(n * sizeof(double))};
    enum dtype dense = d.format == WEIGHT_F32 ? DTYPE_F32 : d.format == WEIGHT_F16 ? DTYPE_F16 : DTYPE_BF16;
    if (d.format <= WEIGHT_BF16) {
        for (size_t i = 0; i < n; i++) {
            put_float(m.data, dense, i, uniform(-1, 1));
            m.values[i] = get_float(m.data, dense, i);
        }
        d.data = m.data;
        m.desc = d;
        return m;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        m.data[i] = (uint8_t)rng();
        if (d.format == WEIGHT_MXFP8 && (m.data[i] & 0x7F) == 0x7F)
            m.data[i] ^= 1; // no NaN
    }
    if (d.format == WEIGHT_AFFINE) {
        m.scales = malloc(n_groups * dtype_bytes(d.scale_dtype));
        m.biases = malloc(n_groups * dtype_bytes(d.scale_dtype));
        for (size_t i = 0; i < n_groups; i++) {
            float scale = uniform(-2, 2) / (float)(1u << bits);
            put_float(m.scales, d.scale_dtype, i, scale);
            put_float(m.biases, d.scale_dtype, i, -scale * (float)(1u << (bits - 1)) + uniform(-.1f, .1f));
        }
    } else {
        m.scales = malloc(n_groups);
        for (size_t i = 0; i < n_groups; i++)
            m.scales[i] = (uint8_t)(d.format == WEIGHT_NVFP4 ? 0x28 + rng() % 24 : 118 + rng() % 8);
    }
    for (size_t i = 0; i < n; i++) {
        size_t row = i / d.n_in, g = i / group, bit = i % d.n_in * bits;
        const uint8_t *src = m.data + row * (d.n_in * bits / 8);
        uint32_t code = 0;
        for (uint32_t b = 0; b < bits; b++)
            code |= (uint32_t)(src[(bit + b) / 8] >> (bit + b) % 8 & 1) << b;
        switch (d.format) {
        case WEIGHT_AFFINE:
            m.values[i] = get_float(m.scales, d.scale_dtype, g) * code + get_float(m.biases, d.scale_dtype, g);
            break;
        case WEIGHT_MXFP8:
            m.values[i] = (double)f8e4m3_to_f32((uint8_t)code) * f8e8m0_to_f32(m.scales[g]);
            break;
        case WEIGHT_MXFP4:
            m.values[i] = (double)F4E2M1_VALUES[code] * f8e8m0_to_f32(m.scales[g]);
            break;
        default:
            m.values[i] = (double)F4E2M1_VALUES[code] * f8e4m3_to_f32(m.scales[g]);
            break;
        }
    }
    d.data = m.data;
    d.scales = m.scales;
    d.biases = m.biases;
    m.desc = d;
    return m;
}
static void matrix_free(struct matrix *m) {
    free(m->data);
    free(m->scales);
    free(m->biases);
    free(m->values);
}

static struct mat mat_random(uint32_t n_rows, uint32_t n_cols, uint32_t stride) {
    struct mat m = {malloc((size_t)n_rows * stride * sizeof(float)), n_rows, n_cols, stride};
    for (size_t i = 0; i < (size_t)n_rows * stride; i++)
        ((float *)m.data)[i] = uniform(-1, 1) * (rng() % 64 ? 1.0f : 10.0f);
    return m;
}
static struct mat mat_copy(struct mat m) {
    struct mat c = m;
    c.data = malloc((size_t)m.n_rows * m.stride * sizeof(float));
    memcpy(c.data, m.data, (size_t)m.n_rows * m.stride * sizeof(float));
    return c;
}
static float *at(struct mat m, size_t r) { return (float *)m.data + r * m.stride; }

// ---- Backends ---------------------------------------------------------------------------------------
enum { D_MAX = 2080, N_TOKENS = 700, N_EXPERTS = 6, N_USED = 3, D_EXPERT = 192 };

static struct backend *open_cpu(enum backend_math math, const char *level, uint32_t n_threads) {
    struct err err = {0};
    struct backend_options options = {.n_threads = n_threads, .math = math, .cpu_level = level};
    struct backend *be = cpu_backend_ops.open(&options, &err);
    check_ok(be, &err);
    struct backend_limits limits = {.n_tokens = N_TOKENS,
                                    .n_rows = 8,
                                    .n_logits = 8,
                                    .ctx_len = 1024,
                                    .n_cols_max = D_MAX,
                                    .n_vocab = 300,
                                    .n_heads = 4,
                                    .head_dim = 64,
                                    .n_experts = N_EXPERTS,
                                    .n_experts_used = N_USED,
                                    .d_expert = D_EXPERT};
    check_ok(be->ops->reserve(be, &limits, &err), &err);
    return be;
}

static struct weight *take(struct backend *be, const struct matrix *m) {
    struct err err = {0};
    struct weight *w = be->ops->weight_create(be, &m->desc, &err);
    check_ok(w, &err);
    return w;
}

static void linear1(struct backend *be, struct mat x, const struct weight *w, struct mat y) {
    struct linear_args args = {.x = x, .n_outputs = 1, .scale = 1};
    args.outputs[0] = (struct linear_output){.weight = w, .y = y};
    be->ops->linear(be, &args);
}

static const struct {
    const char *name;
    enum weight_format format;
    uint32_t bits, group;
    enum dtype scale_dtype;
} FORMATS[] = {
    {"f32", WEIGHT_F32, 0, 0, 0},
    {"f16", WEIGHT_F16, 0, 0, 0},
    {"bf16", WEIGHT_BF16, 0, 0, 0},
    {"affine 2 g32 bf16", WEIGHT_AFFINE, 2, 32, DTYPE_BF16},
    {"affine 2 g64 f16", WEIGHT_AFFINE, 2, 64, DTYPE_F16},
    {"affine 3 g32 f32", WEIGHT_AFFINE, 3, 32, DTYPE_F32},
    {"affine 3 g64 bf16", WEIGHT_AFFINE, 3, 64, DTYPE_BF16},
    {"affine 3 g128 bf16", WEIGHT_AFFINE, 3, 128, DTYPE_BF16},
    {"affine 4 g32 f16", WEIGHT_AFFINE, 4, 32, DTYPE_F16},
    {"affine 4 g64 bf16", WEIGHT_AFFINE, 4, 64, DTYPE_BF16},
    {"affine 4 g64 f32", WEIGHT_AFFINE, 4, 64, DTYPE_F32},
    {"affine 4 g128 f16", WEIGHT_AFFINE, 4, 128, DTYPE_F16},
    {"affine 5 g32 bf16", WEIGHT_AFFINE, 5, 32, DTYPE_BF16},
    {"affine 5 g64 bf16", WEIGHT_AFFINE, 5, 64, DTYPE_BF16},
    {"affine 5 g128 f32", WEIGHT_AFFINE, 5, 128, DTYPE_F32},
    {"affine 6 g32 f16", WEIGHT_AFFINE, 6, 32, DTYPE_F16},
    {"affine 6 g64 bf16", WEIGHT_AFFINE, 6, 64, DTYPE_BF16},
    {"affine 6 g128 bf16", WEIGHT_AFFINE, 6, 128, DTYPE_BF16},
    {"affine 8 g32 bf16", WEIGHT_AFFINE, 8, 32, DTYPE_BF16},
    {"affine 8 g64 f16", WEIGHT_AFFINE, 8, 64, DTYPE_F16},
    {"affine 8 g128 f32", WEIGHT_AFFINE, 8, 128, DTYPE_F32},
    {"mxfp4", WEIGHT_MXFP4, 0, 0, 0},
    {"mxfp8", WEIGHT_MXFP8, 0, 0, 0},
    {"nvfp4", WEIGHT_NVFP4, 0, 0, 0},
};
enum { N_FORMATS = sizeof FORMATS / sizeof FORMATS[0] };

static struct weight_desc format_desc(int i, uint32_t n_out, uint32_t n_in) {
    struct weight_desc d = {.format = FORMATS[i].format,
                            .n_out = n_out,
                            .n_in = n_in,
                            .bits = FORMATS[i].bits,
                            .group = FORMATS[i].group,
                            .scale_dtype = FORMATS[i].scale_dtype};
    uint32_t group = desc_group(&d);
    d.n_in = (n_in + group - 1) / group * group; // 120 and the like are for dense ones
    return d;
}

static const char *const LEVELS[] = {"scalar", "avx2", "avx512", "amx", "neon"};
static bool has_level(const char *name) {
    enum cpu_level level;
    assert_true(cpu_level_parse(name, &level));
    enum cpu_level best = cpu_features_detect().level;
    return level <= best && (level == CPU_LEVEL_SCALAR || (level == CPU_LEVEL_NEON) == (best == CPU_LEVEL_NEON));
}

// The most that rounding x to int8 by groups can change output (row, out).
static double fast_bound(const struct matrix *m, const float *x, size_t out) {
    uint32_t group = desc_group(&m->desc);
    double bound = 0;
    for (uint32_t g = 0; g < m->desc.n_in / group; g++) {
        double absmax = 0, sum = 0;
        for (uint32_t i = g * group; i < (g + 1) * group; i++) {
            absmax = fmax(absmax, fabs(x[i]));
            sum += fabs(m->values[out * m->desc.n_in + i]);
        }
        bound += sum * absmax / 127 * 0.5001;
    }
    return bound;
}

static void check_product(const struct matrix *m, struct mat x, struct mat y, bool rounded, const char *name) {
    for (uint32_t r = 0; r < x.n_rows; r++) {
        for (uint32_t o = 0; o < m->desc.n_out; o++) {
            double want = 0, size = 0;
            for (uint32_t i = 0; i < m->desc.n_in; i++) {
                double p = at(x, r)[i] * m->values[(size_t)o * m->desc.n_in + i];
                want += p;
                size += fabs(p);
            }
            // Of an affine weight scale * q and the bias may cancel: both round.
            double bound = size * 2e-6 + m->desc.n_in * 2e-6 + (rounded ? fast_bound(m, at(x, r), o) : 0);
            if (!(fabs(at(y, r)[o] - want) <= bound))
                fail_msg("%s %ux%u row %u output %u: %.9g, not %.9g (bound %.3g)", name, m->desc.n_out,
                         m->desc.n_in, r, o, (double)at(y, r)[o], want, bound);
        }
    }
}

static void check_same(struct mat a, struct mat b, const char *what, const char *name) {
    for (uint32_t r = 0; r < a.n_rows; r++)
        for (uint32_t i = 0; i < a.n_cols; i++)
            if (memcmp(at(a, r) + i, at(b, r) + i, sizeof(float)) != 0)
                fail_msg("%s: %s differ in row %u column %u: %.9g and %.9g", name, what, r, i,
                         (double)at(a, r)[i], (double)at(b, r)[i]);
}

// ---- Tests ------------------------------------------------------------------------------------------
static void every_format_is_multiplied_by_its_definition(void **state) {
    (void)state;
    static const struct {
        uint32_t n_out, n_in, n_rows;
    } SHAPES[] = {{1, 128, 1}, {17, 96, 3}, {50, 256, 7}, {33, 120, 2}, {130, 1152, 5}, {16, 2080, 33}};
    for (int math = MATH_FAST; math <= MATH_EXACT; math++) {
        struct backend *be = open_cpu(math, NULL, 2);
        for (int f = 0; f < N_FORMATS; f++) {
            for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++) {
                struct weight_desc d = format_desc(f, SHAPES[s].n_out, SHAPES[s].n_in);
                if (d.n_in > D_MAX)
                    continue;
                struct matrix m = matrix_random(d);
                struct weight *w = take(be, &m);
                struct mat x = mat_random(SHAPES[s].n_rows, m.desc.n_in, m.desc.n_in);
                struct mat y = mat_random(SHAPES[s].n_rows, m.desc.n_out, m.desc.n_out + 3);
                linear1(be, x, w, y);
                bool rounded = math == MATH_FAST && d.format > WEIGHT_BF16 && d.format != WEIGHT_MXFP8;
                check_product(&m, x, y, rounded, FORMATS[f].name);
                be->ops->weight_destroy(be, w);
                matrix_free(&m);
                free(x.data);
                free(y.data);
            }
        }
        be->ops->close(be);
    }
}

static void bits_depend_neither_on_level_nor_rows_nor_threads(void **state) {
    (void)state;
    for (int math = MATH_FAST; math <= MATH_EXACT; math++) {
        struct backend *scalar = open_cpu(math, "scalar", 2);
        for (size_t l = 0; l < sizeof LEVELS / sizeof LEVELS[0]; l++) {
            if (!has_level(LEVELS[l]))
                continue;
            struct backend *two = open_cpu(math, LEVELS[l], 2), *one = open_cpu(math, LEVELS[l], 1);
            for (int f = 0; f < N_FORMATS; f++) {
                uint32_t n_rows = f % 3 ? 21 : 37;
                struct matrix m = matrix_random(format_desc(f, 45 + rng() % 200, f % 2 ? 1120 : 96 + 32 * (rng() % 6)));
                struct weight *w = take(two, &m);
                uint32_t n = m.desc.n_in;
                struct mat x = mat_random(n_rows, n, n + 5), want = mat_random(n_rows, m.desc.n_out, m.desc.n_out);
                linear1(scalar, x, w, want);
                struct mat y = mat_copy(want);
                memset(y.data, 0xFF, (size_t)n_rows * y.stride * 4);
                linear1(two, x, w, y);
                check_same(y, want, LEVELS[l], FORMATS[f].name);
                memset(y.data, 0xFF, (size_t)n_rows * y.stride * 4);
                for (uint32_t r = 0, k; r < n_rows; r += k) { // the same rows in pieces, on another thread count
                    k = r < 4 ? 1 : 1 + rng() % 9;
                    k = k < n_rows - r ? k : n_rows - r;
                    linear1(one, mat_rows(one, x, r, k), w, mat_rows(one, y, r, k));
                }
                check_same(y, want, "pieces", FORMATS[f].name);
                two->ops->weight_destroy(two, w);
                matrix_free(&m);
                free(x.data);
                free(y.data);
                free(want.data);
            }
            one->ops->close(one);
            two->ops->close(two);
        }
        scalar->ops->close(scalar);
    }
}

static void more_rows_than_fit_at_once_keep_their_bits(void **state) {
    (void)state;
    struct backend *be = open_cpu(MATH_FAST, NULL, 2);
    for (int f = 2; f < N_FORMATS; f += 7) {
        struct matrix m = matrix_random(format_desc(f, 40, 256));
        struct weight *w = take(be, &m);
        struct mat x = mat_random(N_TOKENS, m.desc.n_in, m.desc.n_in), y = mat_random(N_TOKENS, 40, 40);
        struct mat one = mat_random(1, 40, 40);
        linear1(be, x, w, y);
        for (uint32_t r = 0; r < N_TOKENS; r += 69) {
            linear1(be, mat_rows(be, x, r, 1), w, one);
            check_same(mat_rows(be, y, r, 1), one, "rows", FORMATS[f].name);
        }
        be->ops->weight_destroy(be, w);
        matrix_free(&m);
        free(x.data);
        free(y.data);
        free(one.data);
    }
    be->ops->close(be);
}

// q, k, v of different formats share x; bias, scale and adding come behind.
static void outputs_share_their_input(void **state) {
    (void)state;
    static const int MIX[4] = {9, 16, 2, 21};
    struct backend *be = open_cpu(MATH_FAST, NULL, 2);
    struct matrix m[4];
    struct weight *w[4];
    struct mat alone[4], y[4], x = mat_random(6, 256, 256);
    float bias[4][64];
    struct linear_args args = {.x = x, .n_outputs = 4, .store = LINEAR_ADD, .scale = 0.5f};
    for (int i = 0; i < 4; i++) {
        m[i] = matrix_random(format_desc(MIX[i], 64 - 5 * (uint32_t)i, 256));
        w[i] = take(be, &m[i]);
        alone[i] = mat_random(6, m[i].desc.n_out, 64);
        linear1(be, x, w[i], alone[i]);
        y[i] = mat_random(6, m[i].desc.n_out, 64);
        for (int j = 0; j < 64; j++)
            bias[i][j] = uniform(-1, 1);
        args.outputs[i] = (struct linear_output){.weight = w[i], .bias = i % 2 ? bias[i] : NULL, .y = y[i]};
        for (uint32_t r = 0; r < 6; r++)
            for (uint32_t o = 0; o < m[i].desc.n_out; o++) {
                float v = 0.5f * (at(alone[i], r)[o] + (i % 2 ? bias[i][o] : 0.0f));
                at(alone[i], r)[o] = at(y[i], r)[o] + v;
            }
    }
    be->ops->linear(be, &args);
    for (int i = 0; i < 4; i++) {
        check_same(y[i], alone[i], "together and alone", FORMATS[MIX[i]].name);
        be->ops->weight_destroy(be, w[i]);
        matrix_free(&m[i]);
        free(y[i].data);
        free(alone[i].data);
    }
    free(x.data);
    be->ops->close(be);
}

static void gate_and_up_are_one_pass_over_x(void **state) {
    (void)state;
    static const int PAIRS[][2] = {{9, 9}, {2, 2}, {9, 16}, {16, 2}, {21, 9}, {22, 23}};
    struct backend *be = open_cpu(MATH_FAST, NULL, 2);
    for (size_t p = 0; p < sizeof PAIRS / sizeof PAIRS[0]; p++) {
        struct matrix gate = matrix_random(format_desc(PAIRS[p][0], 210, 192));
        struct matrix up = matrix_random(format_desc(PAIRS[p][1], 210, 192));
        struct weight *wg = take(be, &gate), *wu = take(be, &up);
        struct mat x = mat_random(19, 192, 192), g = mat_random(19, 210, 210), u = mat_copy(g), y = mat_copy(g);
        linear1(be, x, wg, g);
        linear1(be, x, wu, u);
        be->ops->linear_glu(be, x, wg, wu, GLU_SILU, y);
        for (uint32_t r = 0; r < 19; r++)
            for (uint32_t i = 0; i < 210; i++) {
                double gv = at(g, r)[i], want = gv / (1 + exp(-gv)) * at(u, r)[i];
                assert_true(fabs(at(y, r)[i] - want) <= 1e-5 * (1 + fabs(want)));
            }
        struct mat one = mat_random(1, 210, 210);
        for (uint32_t r = 0; r < 19; r += 6) {
            be->ops->linear_glu(be, mat_rows(be, x, r, 1), wg, wu, GLU_SILU, one);
            check_same(mat_rows(be, y, r, 1), one, "rows", FORMATS[PAIRS[p][0]].name);
        }
        be->ops->weight_destroy(be, wg);
        be->ops->weight_destroy(be, wu);
        matrix_free(&gate);
        matrix_free(&up);
        free(x.data);
        free(g.data);
        free(u.data);
        free(y.data);
        free(one.data);
    }
    be->ops->close(be);
}

// What a speed is a fraction of. 300 by 128: bytes by hand from the formats' definitions.
static void work_is_counted_by_the_formats_definition(void **state) {
    (void)state;
    static const struct {
        int format;
        enum backend_math math;
        uint64_t bytes;
        bool is_int;
    } CASES[] = {
        {0, MATH_FAST, 300 * 128 * 4, false},
        {2, MATH_FAST, 300 * 128 * 2, false},
        {9, MATH_FAST, 300 * (64 + 2 * 2 * 2), true}, // 2 groups a row, each a scale and a bias of 2 bytes
        {9, MATH_EXACT, 300 * (64 + 2 * 2 * 2), false},
        {20, MATH_FAST, 300 * (128 + 1 * 2 * 4), true},
        {21, MATH_FAST, 300 * (64 + 4), true},
        {22, MATH_FAST, 300 * (128 + 4), false},
        {23, MATH_FAST, 300 * (64 + 8), true},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct backend *be = open_cpu(CASES[i].math, NULL, 1);
        struct matrix m = matrix_random(format_desc(CASES[i].format, 300, 128));
        struct weight *w = take(be, &m);
        struct mat x = mat_random(3, 128, 128), y = mat_random(3, 300, 300);
        assert_int_equal(cpu_work_done(be).weight_bytes, 0);
        linear1(be, x, w, y);
        be->ops->linear_glu(be, x, w, w, GLU_SILU, y);
        struct cpu_work work = cpu_work_done(be);
        assert_int_equal(work.weight_bytes, 3 * CASES[i].bytes);
        assert_int_equal(work.int8_ops, CASES[i].is_int ? 3 * 2 * 3 * 300 * 128 : 0);
        assert_int_equal(work.float_ops, CASES[i].is_int ? 0 : 3 * 2 * 3 * 300 * 128);
        assert_int_equal(work.kv_bytes, 0);
        be->ops->weight_destroy(be, w);
        matrix_free(&m);
        free(x.data);
        free(y.data);
        be->ops->close(be);
    }
}

static void logits_are_scaled_and_capped(void **state) {
    (void)state;
    struct backend *be = open_cpu(MATH_FAST, NULL, 2);
    struct matrix m = matrix_random(format_desc(9, 300, 128));
    struct weight *w = take(be, &m);
    struct mat x = mat_random(3, 128, 128), y = mat_random(3, 300, 300);
    linear1(be, x, w, y);
    float *plain = be->ops->logits(be, x, w, NULL, 1.0f, 0.0f);
    assert_memory_equal(plain, y.data, 3 * 300 * sizeof(float));
    float *capped = be->ops->logits(be, x, w, NULL, 0.5f, 3.0f);
    for (uint32_t i = 0; i < 900; i++) {
        double want = 3 * tanh(0.5 * ((float *)y.data)[i] / 3);
        assert_true(fabs(capped[i] - want) <= 1e-5);
    }
    be->ops->weight_destroy(be, w);
    matrix_free(&m);
    free(x.data);
    free(y.data);
    be->ops->close(be);
}

static void embeddings_are_rows_of_any_format(void **state) {
    (void)state;
    struct backend *be = open_cpu(MATH_FAST, NULL, 2);
    static const int32_t IDS[5] = {0, 16, 3, 3, 7};
    for (int f = 0; f < N_FORMATS; f++) {
        struct matrix m = matrix_random(format_desc(f, 17, 96));
        struct weight *w = take(be, &m);
        uint32_t n = m.desc.n_in;
        struct mat y = mat_random(5, n, n + 1);
        be->ops->embed(be, w, IDS, 2.0f, y);
        for (uint32_t r = 0; r < 5; r++)
            for (uint32_t i = 0; i < n; i++) {
                double want = 2 * m.values[(size_t)IDS[r] * n + i];
                if (!(fabs(at(y, r)[i] - want) <= 1e-6))
                    fail_msg("%s: row %u element %u is %.9g, not %.9g", FORMATS[f].name, r, i, (double)at(y, r)[i], want);
            }
        be->ops->weight_destroy(be, w);
        matrix_free(&m);
        free(y.data);
    }
    be->ops->close(be);
}

// Against linear and GLU done one token and expert at a time.
static void experts_are_products_of_sorted_tokens(void **state) {
    (void)state;
    enum { D = 160, T = 41 };
    static const int KINDS[] = {9, 2, 19, 21, 22};
    for (size_t kind = 0; kind < sizeof KINDS / sizeof KINDS[0]; kind++) {
        struct backend *be = open_cpu(MATH_FAST, NULL, 2), *one = open_cpu(MATH_FAST, "scalar", 1);
        struct matrix m[3][N_EXPERTS];
        struct weight *w[3][N_EXPERTS];
        uint32_t d = format_desc(KINDS[kind], 1, D).n_in;
        float bias[3][N_EXPERTS * D_EXPERT * 2];
        for (int i = 0; i < 3; i++) {
            for (int e = 0; e < N_EXPERTS; e++) {
                m[i][e] = matrix_random(i < 2 ? format_desc(KINDS[kind], D_EXPERT, d)
                                              : format_desc(KINDS[kind], d, D_EXPERT));
                w[i][e] = take(be, &m[i][e]);
            }
            for (size_t j = 0; j < sizeof bias[i] / sizeof bias[i][0]; j++)
                bias[i][j] = uniform(-1, 1);
        }
        struct mat x = mat_random(T, d, d), y = mat_random(T, d, d), y1 = mat_copy(y), want = mat_copy(y);
        uint32_t experts[T * N_USED];
        float weights[T * N_USED];
        for (uint32_t t = 0; t < T; t++) {
            uint32_t first = rng() % N_EXPERTS;
            for (uint32_t k = 0; k < N_USED; k++) {
                experts[t * N_USED + k] = (first + 5 * k) % N_EXPERTS;
                weights[t * N_USED + k] = uniform(0, 1);
            }
        }
        struct experts_args args = {.x = x, .y = y, .store = LINEAR_ADD, .n_experts = N_EXPERTS, .n_used = N_USED,
                                    .experts = experts, .weights = weights, .gate = w[0], .up = w[1], .down = w[2],
                                    .gate_bias = bias[0], .up_bias = bias[1], .down_bias = bias[2],
                                    .glu = GLU_CLAMPED_SWIGLU, .alpha = 1.702f, .limit = 7.0f, .scale = 0.25f};
        be->ops->experts(be, &args);
        struct mat gate = mat_random(1, D_EXPERT, D_EXPERT), up = mat_copy(gate), down = mat_random(1, d, d);
        for (uint32_t t = 0; t < T; t++) {
            for (uint32_t k = 0; k < N_USED; k++) {
                uint32_t e = experts[t * N_USED + k];
                linear1(one, mat_rows(one, x, t, 1), w[0][e], gate);
                linear1(one, mat_rows(one, x, t, 1), w[1][e], up);
                for (uint32_t i = 0; i < D_EXPERT; i++) {
                    double g = at(gate, 0)[i] + bias[0][e * D_EXPERT + i], u = at(up, 0)[i] + bias[1][e * D_EXPERT + i];
                    g = fmin(g, 7);
                    u = fmax(fmin(u, 7), -7);
                    at(gate, 0)[i] = (float)((u + 1) * g / (1 + exp(-1.702f * g)));
                }
                linear1(one, gate, w[2][e], down);
                for (uint32_t i = 0; i < d; i++)
                    at(want, t)[i] += 0.25f * weights[t * N_USED + k] * (at(down, 0)[i] + bias[2][e * d + i]);
            }
            for (uint32_t i = 0; i < d; i++) // a rounding of h may fall the other way
                if (!(fabsf(at(y, t)[i] - at(want, t)[i]) <= 0.05f + 2e-3f * fabsf(at(want, t)[i])))
                    fail_msg("%s: token %u element %u is %.9g, not %.9g", FORMATS[KINDS[kind]].name, t, i,
                             (double)at(y, t)[i], (double)at(want, t)[i]);
        }
        for (uint32_t t = 0; t < T; t++) { // alone
            struct experts_args a = args;
            a.x = mat_rows(be, x, t, 1);
            a.y = mat_rows(be, y1, t, 1);
            a.experts += t * N_USED;
            a.weights += t * N_USED;
            be->ops->experts(be, &a);
        }
        check_same(y1, y, "alone and together", FORMATS[KINDS[kind]].name);
        for (int i = 0; i < 3; i++)
            for (int e = 0; e < N_EXPERTS; e++) {
                be->ops->weight_destroy(be, w[i][e]);
                matrix_free(&m[i][e]);
            }
        free(x.data);
        free(y.data);
        free(y1.data);
        free(want.data);
        free(gate.data);
        free(up.data);
        free(down.data);
        be->ops->close(be);
        one->ops->close(one);
    }
}

static void extremes_stay_what_they_are(void **state) {
    (void)state;
    struct backend *be = open_cpu(MATH_FAST, NULL, 1), *scalar = open_cpu(MATH_FAST, "scalar", 1);
    for (int f = 0; f < N_FORMATS; f++) {
        struct matrix m = matrix_random(format_desc(f, 20, 256));
        struct weight *w = take(be, &m);
        struct mat x = mat_random(7, 256, 256), y = mat_random(7, 20, 20), y2 = mat_copy(y);
        memset(at(x, 0), 0, 256 * sizeof(float));
        at(x, 1)[70] = NAN;
        at(x, 2)[3] = INFINITY;
        for (uint32_t i = 0; i < 256; i++) {
            at(x, 3)[i] *= 1e-40f;
            at(x, 4)[i] *= 1e30f;
            at(x, 5)[i] = -1.0f; // every product at its most negative
            at(x, 6)[i] = 1.0f;
        }
        if (desc_bits(&m.desc) <= 8 && m.desc.format != WEIGHT_MXFP8)
            memset(m.data, 0xFF, (size_t)10 * 256 * desc_bits(&m.desc) / 8); // the largest codes
        linear1(be, x, w, y);
        linear1(scalar, x, w, y2);
        for (uint32_t o = 0; o < 20; o++) {
            assert_true(at(y, 0)[o] == 0);
            assert_true(!isfinite(at(y, 1)[o]) && !isfinite(at(y, 2)[o]));
            for (uint32_t r = 3; r < 7; r++)
                assert_true(isfinite(at(y, r)[o]));
        }
        check_same(mat_rows(be, y, 3, 4), mat_rows(be, y2, 3, 4), "levels", FORMATS[f].name);
        be->ops->weight_destroy(be, w);
        matrix_free(&m);
        free(x.data);
        free(y.data);
        free(y2.data);
    }
    be->ops->close(be);
    scalar->ops->close(scalar);
}

static void unknown_formats_are_refused_by_name(void **state) {
    (void)state;
    struct backend *be = open_cpu(MATH_FAST, NULL, 1);
    struct err err = {0};
    struct weight_desc d = {.format = WEIGHT_AFFINE, .n_out = 4, .n_in = 128, .bits = 7, .group = 64};
    assert_null(be->ops->weight_create(be, &d, &err));
    check_message(&err, "7 bits");
    d.bits = 4;
    d.group = 48;
    assert_null(be->ops->weight_create(be, &d, &err));
    check_message(&err, "groups of 48");
    d.group = 64;
    d.n_in = 96;
    assert_null(be->ops->weight_create(be, &d, &err));
    check_message(&err, "96 elements");
    be->ops->close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_multiplied_by_its_definition),
        cmocka_unit_test(bits_depend_neither_on_level_nor_rows_nor_threads),
        cmocka_unit_test(more_rows_than_fit_at_once_keep_their_bits),
        cmocka_unit_test(outputs_share_their_input),
        cmocka_unit_test(gate_and_up_are_one_pass_over_x),
        cmocka_unit_test(work_is_counted_by_the_formats_definition),
        cmocka_unit_test(logits_are_scaled_and_capped),
        cmocka_unit_test(embeddings_are_rows_of_any_format),
        cmocka_unit_test(experts_are_products_of_sorted_tokens),
        cmocka_unit_test(extremes_stay_what_they_are),
        cmocka_unit_test(unknown_formats_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("backend/cpu_linear", tests, NULL, NULL);
}
