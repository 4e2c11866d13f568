// Every kernel of every level that this machine has, against the scalar reference: random lengths and
// tails, unaligned starts, extremes and values that are no numbers. What is a chain of fused
// multiply-adds must match to the bit; the rest within bounds derived beside each test.
#include "check.h"
#include "kernel_cases.h"
#include "base/half.h"

enum { N_MAX = 700, ROUNDS = 300 };

static struct cpu_kernels ref;

static struct cpu_kernels table_of(const char *level) {
    struct cpu_features features = cpu_features_detect();
    struct cpu_kernels k;
    enum cpu_level cap = CPU_LEVEL_SCALAR;
    assert_true(cpu_level_parse(level, &cap));
    cpu_kernels_fill(&k, &features, cap);
    return k;
}

// A float that tests like to see: mostly ordinary, some extreme, some not finite.
static float odd_float(struct rng *r, bool finite) {
    static const float ODD[] = {0.0f,  -0.0f, 1e-45f, -1e-40f, 1e-30f, 3e38f, -3e38f, 1e20f,
                                88.7f, -88.0f, 104.0f, -104.5f, 0.625f, -0.625f, 1.0f, -1.0f};
    uint32_t kind = rng_below(r, 16);
    if (kind == 0 && !finite) {
        static const uint32_t BITS[] = {0x7F800000, 0xFF800000, 0x7FC00000};
        return f32_from_bits(BITS[rng_below(r, 3)]);
    }
    if (kind <= 2)
        return ODD[rng_below(r, sizeof ODD / sizeof *ODD)];
    if (kind == 3)
        return 30.0f * rng_float(r);
    return rng_float(r);
}

// A buffer at an odd address, with marks before and behind that no kernel may touch.
enum { MARGIN = 32 };
struct buffer {
    float memory[MARGIN + N_MAX * 2 + MARGIN + 16];
    float *x;
    size_t n;
};
static const float MARK = 12345.678f;

static void buffer_init(struct buffer *b, struct rng *r, size_t n) {
    b->x = b->memory + MARGIN + rng_below(r, 16);
    b->n = n;
    for (size_t i = 0; i < sizeof b->memory / sizeof *b->memory; i++)
        b->memory[i] = MARK;
}
static void buffer_check(const struct buffer *b, const char *what) {
    const float *end = b->memory + sizeof b->memory / sizeof *b->memory;
    for (const float *p = b->memory; p < end; p++)
        if ((p < b->x || p >= b->x + b->n) && f32_bits(*p) != f32_bits(MARK))
            fail_msg("%s wrote %td elements from its start, length %zu", what, p - b->x, b->n);
}

// got is want within rel * |want| + abs; values that are no numbers must be alike.
static bool close_to(float got, float want, float rel, float abs) {
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return got == want || (fabsf(want) > 3e38f && fabsf(got) > 3e38f);
    return fabsf(got - want) <= rel * fabsf(want) + abs;
}

static bool same_bits(float a, float b) {
    return f32_bits(a) == f32_bits(b) || (isnan(a) && isnan(b));
}

// ---- e^x ------------------------------------------------------------------------------------------
static void exp_is_within_two_ulp(void **state) {
    (void)state;
    for (uint32_t level = 0; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        double worst = 0;
        for (int i = 0; i < 2000000; i++) {
            float x = -104.0f + (float)i * (192.7f / 2000000);
            double want = exp((double)x);
            float got = k.exp(x), nearest = (float)want;
            double ulp = nearest < 0x1p-126f ? 0x1p-149 : (double)(nextafterf(nearest, INFINITY) - nearest);
            double error = fabs((double)got - want) / ulp;
            worst = error > worst ? error : worst;
        }
        if (!(worst <= 2))
            fail_msg("%s: exp is %g ulp off", level_at(level), worst);
        assert_true(k.exp(0.0f) == 1.0f && k.exp(-0.0f) == 1.0f);
        assert_true(k.exp(-INFINITY) == 0.0f && k.exp(-200.0f) == 0.0f);
        assert_true(k.exp(INFINITY) == INFINITY && k.exp(89.0f) == INFINITY);
        assert_true(isnan(k.exp(NAN)));
    }
}

// ---- Elementwise ----------------------------------------------------------------------------------
// 1 + erf differs by 2e-7 from Abramowitz & Stegun's formula and 1 ulp or two from roundings; sigmoid and
// tanh by a few ulp of exp, division and addition: 1e-6 relative covers them. What cancels (xIELU near
// zero, gelu's 1 + erf) errs by that much of the input instead.
static void glu_matches(void **state) {
    (void)state;
    static struct buffer gate, up, y, want;
    struct rng r = {11};
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS * 4; round++) {
            size_t n = rng_below(&r, N_MAX);
            enum glu_kind kind = (enum glu_kind)(round % (GLU_SIGMOID + 1));
            buffer_init(&gate, &r, n), buffer_init(&up, &r, n), buffer_init(&y, &r, n), buffer_init(&want, &r, n);
            for (size_t i = 0; i < n; i++) {
                gate.x[i] = odd_float(&r, round % 2);
                up.x[i] = odd_float(&r, round % 2);
            }
            ref.glu(kind, gate.x, up.x, want.x, n, 1.702f, 7.0f);
            k.glu(kind, gate.x, up.x, y.x, n, 1.702f, 7.0f);
            buffer_check(&y, "glu");
            for (size_t i = 0; i < n; i++) {
                float slack = 1e-6f * fabsf(gate.x[i]) * fabsf(up.x[i]);
                if (isinf(slack) || isnan(slack) || fabsf(gate.x[i]) > 1e12f) // products may overflow apart
                    continue;
                if (!close_to(y.x[i], want.x[i], 2e-6f, slack + 1e-37f))
                    fail_msg("%s: glu %d of %g, %g is %g, not %g", level_at(level), kind, (double)gate.x[i],
                             (double)up.x[i], (double)y.x[i], (double)want.x[i]);
            }
            for (size_t i = 0; i < n; i++) { // alone: the same bits
                float one;
                k.glu(kind, gate.x + i, up.x + i, &one, 1, 1.702f, 7.0f);
                assert_true(same_bits(one, y.x[i]));
            }
        }
    }
}

static void unary_matches(void **state) {
    (void)state;
    static struct buffer x, y, want;
    struct rng r = {12};
    const float cap[4] = {30.0f}, xielu[4] = {0.8f, 1.1f, 0.5f, -1e-6f};
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS * 4; round++) {
            size_t n = rng_below(&r, N_MAX);
            enum unary_kind kind = (enum unary_kind)(round % (UNARY_XIELU + 1));
            const float *p = kind == UNARY_XIELU ? xielu : cap;
            buffer_init(&x, &r, n), buffer_init(&y, &r, n), buffer_init(&want, &r, n);
            for (size_t i = 0; i < n; i++)
                x.x[i] = odd_float(&r, false);
            ref.unary(kind, p, x.x, want.x, n);
            k.unary(kind, p, x.x, y.x, n);
            buffer_check(&y, "unary");
            for (size_t i = 0; i < n; i++) {
                if (fabsf(x.x[i]) > 1e12f && isfinite(x.x[i]) && kind != UNARY_TANH_CAP)
                    continue; // x^2, x^3 overflow at different places
                if (isinf(x.x[i]) && (kind == UNARY_XIELU || kind == UNARY_GELU || kind == UNARY_GELU_TANH))
                    continue; // 0 * infinity in some orders
                if (!close_to(y.x[i], want.x[i], 2e-6f, 1e-6f * fminf(fabsf(x.x[i]), 1e12f) + 1e-37f))
                    fail_msg("%s: unary %d of %g is %g, not %g", level_at(level), kind, (double)x.x[i],
                             (double)y.x[i], (double)want.x[i]);
            }
            for (size_t i = 0; i < n; i++) {
                float one;
                k.unary(kind, p, x.x + i, &one, 1);
                assert_true(same_bits(one, y.x[i]));
            }
            k.unary(kind, p, x.x, x.x, n); // in place
            for (size_t i = 0; i < n; i++)
                assert_true(same_bits(x.x[i], y.x[i]));
        }
    }
}

static void row_arithmetic_matches_to_the_bit(void **state) {
    (void)state;
    static struct buffer x, y, want;
    struct rng r = {13};
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS; round++) {
            size_t n = rng_below(&r, N_MAX);
            float a = odd_float(&r, true), b = odd_float(&r, true);
            buffer_init(&x, &r, n), buffer_init(&y, &r, n), buffer_init(&want, &r, n);
            for (size_t i = 0; i < n; i++) {
                x.x[i] = odd_float(&r, false);
                want.x[i] = y.x[i] = odd_float(&r, false);
            }
            switch (round % 4) {
            case 0: k.axpby(a, x.x, b, y.x, n), ref.axpby(a, x.x, b, want.x, n); break;
            case 1: k.mul(x.x, y.x, n), ref.mul(x.x, want.x, n); break;
            case 2: k.scale(a, y.x, n), ref.scale(a, want.x, n); break;
            case 3: k.attention_merge(a, y.x, b, x.x, n), ref.attention_merge(a, want.x, b, x.x, n); break;
            }
            buffer_check(&y, "row arithmetic");
            for (size_t i = 0; i < n; i++)
                if (!same_bits(y.x[i], want.x[i]))
                    fail_msg("%s, case %d: element %zu is %a, not %a", level_at(level), round % 4, i,
                             (double)y.x[i], (double)want.x[i]);
        }
    }
}

static void rope_matches_to_the_bit(void **state) {
    (void)state;
    static struct buffer x, want, angles;
    struct rng r = {14};
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS; round++) {
            size_t n = rng_below(&r, N_MAX / 2);
            bool interleaved = round % 2;
            buffer_init(&x, &r, 2 * n), buffer_init(&want, &r, 2 * n), buffer_init(&angles, &r, 2 * n);
            for (size_t i = 0; i < 2 * n; i++) {
                want.x[i] = x.x[i] = odd_float(&r, true);
                angles.x[i] = rng_float(&r);
            }
            k.rope(x.x, angles.x, angles.x + n, n, interleaved);
            ref.rope(want.x, angles.x, angles.x + n, n, interleaved);
            buffer_check(&x, "rope");
            for (size_t i = 0; i < 2 * n; i++)
                assert_true(same_bits(x.x[i], want.x[i]));
        }
    }
}

// ---- Norms and softmax ----------------------------------------------------------------------------
// A sum of n rounded terms in any order errs by less than n ulp of the sum of magnitudes; here all terms
// are positive, and the root halves it. Layer norm's mean cancels: relative to the largest element.
static void norms_match(void **state) {
    (void)state;
    static struct buffer x, y, want, w, b;
    struct rng r = {15};
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS; round++) {
            size_t n = 1 + rng_below(&r, N_MAX - 1);
            float scale = round % 3 == 0 ? 1e-4f : round % 3 == 1 ? 1.0f : 1e6f, rel = (float)n * 0x1p-23f;
            buffer_init(&x, &r, n), buffer_init(&y, &r, n), buffer_init(&want, &r, n);
            buffer_init(&w, &r, n), buffer_init(&b, &r, n);
            for (size_t i = 0; i < n; i++) {
                x.x[i] = scale * rng_float(&r);
                w.x[i] = rng_float(&r);
                b.x[i] = rng_float(&r);
            }
            const float *weight = round % 5 ? w.x : NULL, *bias = round % 7 ? b.x : NULL;
            k.norm_rms(x.x, weight, 1e-6f, y.x, n);
            ref.norm_rms(x.x, weight, 1e-6f, want.x, n);
            buffer_check(&y, "norm_rms");
            for (size_t i = 0; i < n; i++)
                if (!close_to(y.x[i], want.x[i], rel + 1e-6f, 0))
                    fail_msg("%s: norm_rms gives %g, not %g", level_at(level), (double)y.x[i], (double)want.x[i]);
            k.norm_layer(x.x, weight, bias, 1e-5f, y.x, n);
            ref.norm_layer(x.x, weight, bias, 1e-5f, want.x, n);
            buffer_check(&y, "norm_layer");
            for (size_t i = 0; n > 8 && i < n; i++) // of few elements the deviation may vanish
                if (!close_to(y.x[i], want.x[i], rel + 1e-6f, 4 * rel + 1e-5f))
                    fail_msg("%s: norm_layer gives %g, not %g", level_at(level), (double)y.x[i], (double)want.x[i]);
            k.softmax(x.x, y.x, n);
            ref.softmax(x.x, want.x, n);
            buffer_check(&y, "softmax");
            for (size_t i = 0; i < n; i++)
                assert_true(close_to(y.x[i], want.x[i], rel + 1e-6f, 1e-38f));
            x.x[rng_below(&r, (uint32_t)n)] = NAN;
            k.norm_rms(x.x, weight, 1e-6f, y.x, n);
            for (size_t i = 0; i < n; i++)
                assert_true(isnan(y.x[i]));
        }
    }
}

// ---- Attention ------------------------------------------------------------------------------------
static const struct {
    uint32_t k_dim, v_dim;
    bool v_in_k;
} DIMS[] = {{64, 64, false}, {128, 128, false}, {33, 19, false}, {80, 96, false},
            {72, 40, false}, {1, 1, false},     {2, 5, false},   {256, 256, false},
            {37, 45, false}, {96, 80, true},    {75, 61, true},  {130, 70, true}};

// A block of random tokens, and its layout.
static char *block_make(struct rng *r, struct kv_layout *layout, enum kv_kind kind, size_t shape) {
    *layout = kv_layout_make(kind, DIMS[shape].k_dim, DIMS[shape].v_dim, DIMS[shape].v_in_k);
    char *block = aligned_alloc(64, layout->block_bytes + 64);
    memset(block, 0, layout->block_bytes + 64);
    float k[KV_DIM_MAX], v[KV_DIM_MAX];
    for (uint32_t t = 0; t < KV_PAGE_TOKENS; t++) {
        rng_fill(r, k, layout->k_dim);
        rng_fill(r, v, layout->v_dim);
        kv_store_token(layout, block, t, k, v);
    }
    return block;
}

static void check_equal(const char *level, const char *what, const struct kv_layout *layout, const float *got,
                        const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!same_bits(got[i], want[i]))
            fail_msg("%s, %s, kind %d, %u/%u dims: element %zu is %a, not %a", level, what, layout->kind,
                     layout->k_dim, layout->v_dim, i, (double)got[i], (double)want[i]);
}

static void attention_blocks_match_to_the_bit(void **state) {
    (void)state;
    struct rng r = {16};
    enum { Q_MAX = 13, FLOATS = KV_PAGE_TOKENS * 300 };
    static float q[(Q_MAX + ATTENTION_PANEL) * 300], p[Q_MAX * KV_PAGE_TOKENS], got[FLOATS], want[FLOATS], got_v[FLOATS], want_v[FLOATS];
    for (uint32_t level = 1; level_at(level); level++) {
        const char *name = level_at(level);
        struct cpu_kernels k = table_of(name);
        for (int kind = KV_F32; kind <= KV_Q4; kind++) {
            for (size_t shape = 0; shape < sizeof DIMS / sizeof *DIMS; shape++) {
                struct kv_layout layout;
                char *block = block_make(&r, &layout, (enum kv_kind)kind, shape);
                uint32_t k_dim = layout.k_dim, v_dim = layout.v_dim;
                memset(got, 0, sizeof got), memset(want, 0, sizeof want);
                k.kv_load_k(&layout, block, got);
                ref.kv_load_k(&layout, block, want);
                check_equal(name, "kv_load_k", &layout, got, want, (size_t)k_dim * KV_PAGE_TOKENS);
                k.kv_load_v(&layout, block, got_v);
                ref.kv_load_v(&layout, block, want_v);
                check_equal(name, "kv_load_v", &layout, got_v, want_v, (size_t)v_dim * KV_PAGE_TOKENS);
                for (uint32_t n_q = 1; n_q <= Q_MAX; n_q++) {
                    uint32_t n_keys = 1 + rng_below(&r, KV_PAGE_TOKENS), from = rng_below(&r, KV_PAGE_TOKENS),
                             to = from + 1 + rng_below(&r, KV_PAGE_TOKENS - from);
                    float a[Q_MAX], b[Q_MAX], s_got[Q_MAX * KV_PAGE_TOKENS], s_want[Q_MAX * KV_PAGE_TOKENS],
                        o_got[Q_MAX * 300], o_want[Q_MAX * 300];
                    rng_fill(&r, q, (n_q + ATTENTION_PANEL) * k_dim);
                    rng_fill(&r, p, n_q * KV_PAGE_TOKENS);
                    rng_fill(&r, a, n_q);
                    rng_fill(&r, b, n_q);
                    rng_fill(&r, o_got, Q_MAX * 300);
                    ref.attention_scores_f32(want, k_dim, q, n_q, KV_PAGE_TOKENS, s_want);
                    k.attention_scores_f32(want, k_dim, q, n_q, n_keys, s_got);
                    for (uint32_t i = 0; i < n_q; i++)
                        check_equal(name, "scores_f32", &layout, s_got + i * KV_PAGE_TOKENS,
                                    s_want + i * KV_PAGE_TOKENS, n_keys);
                    if (!layout.v_in_k) {
                        k.attention_scores(&layout, block, q, n_q, n_keys, 4096, s_got);
                        for (uint32_t i = 0; i < n_q; i++)
                            check_equal(name, "scores", &layout, s_got + i * KV_PAGE_TOKENS,
                                        s_want + i * KV_PAGE_TOKENS, n_keys);
                    }
                    size_t o_stride = v_dim + rng_below(&r, 9);
                    memcpy(o_want, o_got, sizeof o_got);
                    ref.attention_values_f32(want_v, v_dim, p, n_q, from, to, a, b, o_want, o_stride);
                    k.attention_values_f32(want_v, v_dim, p, n_q, from, to, a, b, o_got, o_stride);
                    check_equal(name, "values_f32", &layout, o_got, o_want, Q_MAX * 300);
                    if (!layout.v_in_k) {
                        ref.attention_values_f32(want_v, v_dim, p, n_q, from, to, a, b, o_want, o_stride);
                        k.attention_values(&layout, block, p, n_q, from, to, -512, a, b, o_got, o_stride);
                        check_equal(name, "values", &layout, o_got, o_want, Q_MAX * 300);
                    }
                }
                uint8_t tokens[KV_PAGE_TOKENS];
                uint32_t n = 0;
                for (uint32_t t = 0; t < KV_PAGE_TOKENS; t++)
                    if (rng_below(&r, 3) == 0)
                        tokens[n++] = (uint8_t)t;
                memset(got, 0, sizeof got), memset(want, 0, sizeof want);
                k.kv_gather(&layout, block, tokens, n, got, got_v);
                ref.kv_gather(&layout, block, tokens, n, want, want_v);
                check_equal(name, "kv_gather keys", &layout, got, want, FLOATS);
                check_equal(name, "kv_gather values", &layout, got_v, want_v, (size_t)n * v_dim);
                free(block);
            }
        }
    }
}

// Each p errs by 2 ulp of exp and by the rounding of s - m, which is up to |s - m| / 2^24; the sum of
// positive terms by up to 64 ulp.
static void attention_softmax_matches(void **state) {
    (void)state;
    struct rng r = {17};
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS * 10; round++) {
            float got[KV_PAGE_TOKENS], want[KV_PAGE_TOKENS], m_got, m_want, l_got, l_want;
            uint64_t seen = rng_next(&r) | UINT64_C(1) << rng_below(&r, 64);
            if (round % 3 == 0)
                seen = UINT64_MAX;
            for (uint32_t j = 0; j < KV_PAGE_TOKENS; j++) {
                want[j] = got[j] = (round % 2 ? 40.0f : 3.0f) * rng_float(&r);
                if (!(seen >> j & 1) && rng_below(&r, 2))
                    want[j] = got[j] = rng_below(&r, 2) ? NAN : INFINITY; // hidden: must not matter
            }
            float softcap = round % 5 == 0 ? 20.0f : 0.0f;
            k.attention_softmax(got, seen, 0.125f, softcap, &m_got, &l_got);
            ref.attention_softmax(want, seen, 0.125f, softcap, &m_want, &l_want);
            assert_true(close_to(m_got, m_want, 4e-7f, 0));
            assert_true(close_to(l_got, l_want, 2e-5f, 0));
            for (uint32_t j = 0; j < KV_PAGE_TOKENS; j++) {
                if (!close_to(got[j], want[j], 2e-5f, 1e-38f))
                    fail_msg("%s: p is %g, not %g", level_at(level), (double)got[j], (double)want[j]);
                if (!(seen >> j & 1))
                    assert_true(f32_bits(got[j]) == 0);
            }
        }
    }
}

// ---- Recurrent, index -----------------------------------------------------------------------------
static void recurrent_steps_match_to_the_bit(void **state) {
    (void)state;
    struct rng r = {18};
    enum { TAPS = 5, DIM = 100 };
    static float x[TAPS][N_MAX], w[TAPS][N_MAX], bias[N_MAX], got[N_MAX], want[N_MAX];
    static float s_got[DIM * DIM], s_want[DIM * DIM];
    for (uint32_t level = 1; level_at(level); level++) {
        struct cpu_kernels k = table_of(level_at(level));
        for (int round = 0; round < ROUNDS; round++) {
            const float *xs[TAPS], *ws[TAPS];
            uint32_t n = 1 + rng_below(&r, N_MAX - 1), n_taps = 1 + rng_below(&r, TAPS);
            for (uint32_t t = 0; t < TAPS; t++) {
                rng_fill(&r, x[t], n);
                rng_fill(&r, w[t], n);
                xs[t] = x[t];
                ws[t] = w[t];
            }
            rng_fill(&r, bias, n);
            k.conv(xs, ws, n_taps, round % 2 ? bias : NULL, got, n);
            ref.conv(xs, ws, n_taps, round % 2 ? bias : NULL, want, n);
            for (uint32_t i = 0; i < n; i++)
                assert_true(same_bits(got[i], want[i]));
            uint32_t k_dim = 1 + rng_below(&r, DIM - 1), columns = 1 + rng_below(&r, DIM - 1);
            rng_fill(&r, s_got, DIM * DIM);
            memcpy(s_want, s_got, sizeof s_got);
            k.delta(s_got, DIM, x[0], x[1], k_dim, x[2], 0.9f, 0.7f, got, columns);
            ref.delta(s_want, DIM, x[0], x[1], k_dim, x[2], 0.9f, 0.7f, want, columns);
            for (uint32_t i = 0; i < columns; i++)
                assert_true(same_bits(got[i], want[i]));
            for (uint32_t i = 0; i < DIM * DIM; i++)
                assert_true(same_bits(s_got[i], s_want[i]));
        }
        for (int round = 0; round < ROUNDS; round++) {
            uint32_t n_heads = 1 + rng_below(&r, 10);
            rng_fill(&r, s_got, n_heads * KV_PAGE_TOKENS);
            rng_fill(&r, bias, n_heads);
            k.index_reduce(s_got, bias, n_heads, 0.3f, got);
            ref.index_reduce(s_got, bias, n_heads, 0.3f, want);
            for (uint32_t i = 0; i < KV_PAGE_TOKENS; i++)
                assert_true(got[i] == want[i]);
        }
    }
}

int main(void) {
    ref = table_of("scalar");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(glu_matches),
        cmocka_unit_test(unary_matches),
        cmocka_unit_test(row_arithmetic_matches_to_the_bit),
        cmocka_unit_test(rope_matches_to_the_bit),
        cmocka_unit_test(norms_match),
        cmocka_unit_test(attention_blocks_match_to_the_bit),
        cmocka_unit_test(attention_softmax_matches),
        cmocka_unit_test(recurrent_steps_match_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
