// The CPU backend's operations other than matrix products and attention itself: against plain
// computations in double, and the same bits however a sequence is cut into steps.
#include "check.h"
#include "kernel_cases.h"

enum { CTX = 400 };

// ---- Steps ----------------------------------------------------------------------------------------
// One or two rows of tokens; sequence i owns pages i, i + 2, i + 4 ... and state slot i.
struct stage {
    struct backend *be;
    struct step step;
    struct step_row rows[2];
    uint32_t positions[2 * CTX], token_row[2 * CTX], tables[2][CTX / KV_PAGE_TOKENS + 2];
};

static struct stage *stage_make(const char *level, uint32_t n_threads) {
    struct err err = {0};
    struct stage *s = calloc(1, sizeof *s);
    s->be = open_cpu(level, n_threads);
    struct backend_limits limits = {.n_tokens = 2 * CTX, .n_rows = 2, .n_logits = 1, .ctx_len = CTX, .n_cols_max = 512,
                                    .n_vocab = 1, .n_heads = 8, .head_dim = 128, .n_experts = 64, .n_experts_used = 8};
    check_ok(s->be->ops->reserve(s->be, &limits, &err), &err);
    for (uint32_t b = 0; b < CTX / KV_PAGE_TOKENS + 2; b++)
        s->tables[0][b] = 2 * b, s->tables[1][b] = 2 * b + 1;
    return s;
}

static void stage_free(struct stage *s) {
    s->be->ops->close(s->be);
    free(s);
}

static void stage_begin(struct stage *s, uint32_t from0, uint32_t n0, uint32_t from1, uint32_t n1) {
    struct err err = {0};
    uint32_t from[2] = {from0, from1}, n[2] = {n0, n1}, t = 0;
    s->step = (struct step){.positions = s->positions, .token_row = s->token_row, .rows = s->rows};
    for (uint32_t i = 0; i < 2; i++) {
        if (n[i] == 0)
            continue;
        s->rows[s->step.n_rows] = (struct step_row){.token_off = t, .n_tokens = n[i], .pos0 = from[i], .state_slot = i,
                                                    .rope_variant = i, .block_table = {s->tables[i]},
                                                    .n_blocks = CTX / KV_PAGE_TOKENS + 2};
        for (uint32_t j = 0; j < n[i]; j++, t++)
            s->positions[t] = from[i] + j, s->token_row[t] = s->step.n_rows;
        s->step.n_rows++;
    }
    s->step.n_tokens = t;
    check_ok(s->be->ops->step_begin(s->be, &s->step, &err), &err);
}

static void stage_end(struct stage *s) {
    struct err err = {0};
    check_ok(s->be->ops->step_end(s->be, &err), &err);
}

static float *random_floats(struct rng *r, size_t n) {
    float *x = malloc(n * sizeof *x);
    rng_fill(r, x, n);
    return x;
}

static struct kv_pool *pool_make(struct stage *s, struct kv_layer_desc desc) {
    struct err err = {0};
    uint32_t n_pages = 2 * (CTX / KV_PAGE_TOKENS + 2);
    struct kv_pool *pool = s->be->ops->kv_create(s->be, &desc, 1, &n_pages, 1, &err);
    check_ok(pool, &err);
    return pool;
}

static struct mat mat_of(float *x, uint32_t rows, uint32_t cols) {
    return (struct mat){x, rows, cols, cols};
}

static void check_near(const char *what, double got, double want, double bound) {
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: %.9g, not %.9g", what, got, want);
}

// ---- Queries, keys and values -----------------------------------------------------------------------
struct qkv_case {
    const char *name;
    uint32_t n_heads, n_kv_heads, head_dim, v_dim, rope_dims, rope_off;
    bool interleaved, norm, whole, after, layer_norm, v_norm;
};

static void plain_norm(double *x, const float *w, const float *b, uint32_t n, bool layer) {
    double mean = 0, sum = 0;
    for (uint32_t i = 0; layer && i < n; i++)
        mean += x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean) / n;
    for (uint32_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) / sqrt(sum + 1e-6) * (double)(w ? w[i] : 1.0f) + (double)(layer && b ? b[i] : 0.0f);
}

static void plain_heads(const struct qkv_case *c, double *x, uint32_t n_heads, const float *w, const float *b,
                        const struct rope_table *rope, uint32_t pos, uint32_t variant) {
    for (int pass = 0; pass < 2; pass++) {
        if (c->norm && pass == c->after) {
            if (c->whole)
                plain_norm(x, w, b, n_heads * c->head_dim, c->layer_norm);
            for (uint32_t h = 0; !c->whole && h < n_heads; h++)
                plain_norm(x + h * c->head_dim, w, b, c->head_dim, c->layer_norm);
        }
        if (pass == (c->after ? 0 : 1) && rope) {
            for (uint32_t h = 0; h < n_heads; h++) {
                double *at = x + h * c->head_dim + c->rope_off;
                for (uint32_t j = 0; j < c->rope_dims / 2; j++) {
                    float angle = (float)pos * rope->inv_freq[variant][j];
                    double cs = cos((double)angle) * (double)rope->scale[variant],
                           sn = sin((double)angle) * (double)rope->scale[variant];
                    double *p = c->interleaved ? at + 2 * j : at + j, *q = c->interleaved ? p + 1 : at + j + c->rope_dims / 2;
                    double a = *p, d = *q;
                    *p = a * cs - d * sn;
                    *q = d * cs + a * sn;
                }
            }
        }
    }
}

static void norms_rotates_and_stores_heads(void **state) {
    (void)state;
    static const struct qkv_case CASES[] = {
        {"plain", 4, 2, 64, 64, 0, 0, false, false, false, false, false, false},
        {"rope", 4, 2, 64, 64, 64, 0, false, false, false, false, false, false},
        {"partial rope", 4, 2, 64, 48, 20, 0, false, false, false, false, false, false},
        {"interleaved, last dims", 4, 1, 96, 96, 32, 64, true, false, false, false, false, false},
        {"head norm", 4, 2, 64, 64, 64, 0, false, true, false, false, false, false},
        {"norm of the projection", 4, 2, 40, 40, 40, 0, false, true, true, false, false, false},
        {"norm after rope, V normed", 4, 2, 64, 64, 64, 0, false, true, false, true, false, true},
        {"layer norm", 3, 3, 32, 32, 32, 0, true, true, false, false, true, false},
    };
    struct rng r = {21};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const struct qkv_case *c = &CASES[i];
        uint32_t q_w = c->n_heads * c->head_dim, k_w = c->n_kv_heads * c->head_dim, v_w = c->n_kv_heads * c->v_dim;
        enum { N0 = 70, N1 = 9, FROM1 = 130, N = N0 + N1 };
        float *q = random_floats(&r, N * q_w), *k = random_floats(&r, N * k_w), *v = random_floats(&r, N * v_w);
        float *w = random_floats(&r, 512), *b = random_floats(&r, 512), freq[2][64];
        for (uint32_t j = 0; j < 64; j++)
            freq[0][j] = powf(1e4f, -(float)j / 32), freq[1][j] = 0.5f * freq[0][j];
        struct rope_table rope = {{freq[0], freq[1]}, {1.0f, 1.25f}, c->rope_dims, c->interleaved};
        for (uint32_t level = 0; level_at(level); level++) {
            struct stage *s = stage_make(level_at(level), 2);
            struct kv_pool *pool = pool_make(s, (struct kv_layer_desc){0, c->n_kv_heads, c->head_dim, c->v_dim, false, KV_F32});
            float *q2 = malloc(N * q_w * 4), *k2 = malloc(N * k_w * 4), *v2 = malloc(N * v_w * 4);
            memcpy(q2, q, N * q_w * 4), memcpy(k2, k, N * k_w * 4), memcpy(v2, v, N * v_w * 4);
            stage_begin(s, 0, N0, FROM1, N1);
            s->be->ops->qkv(s->be, &(struct qkv_args){
                .pool = pool, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
                .v_dim = c->v_dim, .q = mat_of(q2, N, q_w), .k = mat_of(k2, N, k_w), .v = mat_of(v2, N, v_w),
                .q_norm = c->norm ? w : NULL, .k_norm = c->norm ? w : NULL, .q_norm_bias = b, .k_norm_bias = b,
                .norm_whole = c->whole, .norm_kind = c->layer_norm ? NORM_LAYER : NORM_RMS,
                .norm_after_rope = c->after, .v_norm = c->v_norm, .norm_eps = 1e-6f,
                .rope = c->rope_dims ? &rope : NULL, .rope_off = c->rope_off});
            stage_end(s);
            for (uint32_t t = 0; t < N; t++) {
                double dq[512], dk[512], dv[512];
                uint32_t row = t >= N0, pos = row ? FROM1 + t - N0 : t;
                for (uint32_t j = 0; j < q_w; j++)
                    dq[j] = (double)q[t * q_w + j];
                for (uint32_t j = 0; j < k_w; j++)
                    dk[j] = (double)k[t * k_w + j];
                for (uint32_t j = 0; j < v_w; j++)
                    dv[j] = (double)v[t * v_w + j];
                plain_heads(c, dq, c->n_heads, w, b, c->rope_dims ? &rope : NULL, pos, row);
                plain_heads(c, dk, c->n_kv_heads, w, b, c->rope_dims ? &rope : NULL, pos, row);
                for (uint32_t h = 0; c->v_norm && h < c->n_kv_heads; h++)
                    plain_norm(dv + h * c->v_dim, NULL, NULL, c->v_dim, false);
                for (uint32_t j = 0; j < q_w; j++)
                    check_near(c->name, (double)q2[t * q_w + j], dq[j], 1e-5);
                const struct kv_layer *layer = &pool->layers[0];
                for (uint32_t h = 0; h < c->n_kv_heads; h++) {
                    void *block = kv_block(layer, s->tables[row][pos / KV_PAGE_TOKENS], h);
                    for (uint32_t d = 0; d < c->head_dim; d++)
                        check_near(c->name, (double)kv_key_at(&layer->layout, block, pos % KV_PAGE_TOKENS, d),
                                   dk[h * c->head_dim + d], 1e-5);
                    for (uint32_t d = 0; d < c->v_dim; d++)
                        check_near(c->name, (double)kv_value_at(&layer->layout, block, pos % KV_PAGE_TOKENS, d),
                                   dv[h * c->v_dim + d], 1e-5);
                }
            }
            free(q2), free(k2), free(v2);
            s->be->ops->kv_destroy(s->be, pool);
            stage_free(s);
        }
        free(q), free(k), free(v), free(w), free(b);
    }
}

// ---- Stored precision -------------------------------------------------------------------------------
// 16-bit floats round to nearest; q8 and q4 err by half a step, plus the f16 rounding of bias and scale.
static void stored_values_are_as_near_as_their_kind_allows(void **state) {
    (void)state;
    struct rng r = {22};
    for (int kind = KV_F32; kind <= KV_Q4; kind++) {
        struct kv_layout layout = kv_layout_make((enum kv_kind)kind, 100, 70, false);
        char *block = calloc(1, layout.block_bytes);
        for (uint32_t t = 0; t < KV_PAGE_TOKENS; t++) {
            float k[100], v[70];
            rng_fill(&r, k, 100), rng_fill(&r, v, 70);
            kv_store_token(&layout, block, t, k, v);
            for (uint32_t d = 0; d < 100; d++) {
                static const float REL[] = {0, 0x1p-11f, 0x1p-8f, 0, 0}, ABS[] = {0, 0, 0, 0.02f, 0.3f};
                check_near("key", (double)kv_key_at(&layout, block, t, d), (double)k[d],
                           (double)(REL[kind] * fabsf(k[d]) + ABS[kind]));
                if (d < 70)
                    check_near("value", (double)kv_value_at(&layout, block, t, d), (double)v[d],
                               (double)(REL[kind] * fabsf(v[d]) + ABS[kind]));
            }
        }
        free(block);
    }
}

static void pages_and_slots_move_whole(void **state) {
    (void)state;
    struct err err = {0};
    struct rng r = {23};
    struct stage *s = stage_make("scalar", 1);
    const struct backend_ops *ops = s->be->ops;
    struct kv_layer_desc layers[] = {{0, 2, 64, 64, false, KV_BF16}, {1, 1, 32, 32, false, KV_F32}, {0, 1, 72, 72, false, KV_Q4}};
    uint32_t n_pages[] = {3, 2};
    struct kv_pool *pool = ops->kv_create(s->be, layers, 3, n_pages, 2, &err);
    check_ok(pool, &err);
    size_t n = ops->kv_page_bytes(pool, 0);
    assert_true(n >= 2 * 64 * 128 * 2 + 64 * 72 && ops->kv_page_bytes(pool, 1) == 64 * 32 * 4 * 2);
    char *page = malloc(n), *back = calloc(1, n);
    for (size_t i = 0; i < n; i++)
        page[i] = (char)rng_next(&r);
    ops->kv_write_page(s->be, pool, 0, 1, page);
    ops->kv_copy_page(s->be, pool, 0, 1, 2);
    ops->kv_read_page(s->be, pool, 0, 2, back);
    assert_memory_equal(page, back, n);
    ops->kv_read_page(s->be, pool, 0, 0, back); // a neighbour stays as it was
    for (size_t i = 0; i < n; i++)
        assert_true(back[i] == 0);
    free(page), free(back);
    ops->kv_destroy(s->be, pool);
    ops->kv_destroy(s->be, NULL);

    size_t n_floats[] = {5, 100};
    struct state_pool *states = ops->state_create(s->be, n_floats, 2, 3, &err);
    check_ok(states, &err);
    n = ops->state_slot_bytes(states);
    float *slot = random_floats(&r, n / 4), *again = malloc(n);
    ops->state_write(s->be, states, 0, slot);
    ops->state_copy(s->be, states, 0, 2);
    ops->state_clear(s->be, states, 0);
    ops->state_read(s->be, states, 2, again);
    assert_memory_equal(slot, again, n);
    ops->state_read(s->be, states, 0, again);
    for (size_t i = 0; i < n / 4; i++)
        assert_true(again[i] == 0);
    free(slot), free(again);
    ops->state_destroy(s->be, states);
    struct kv_layer_desc wide = {0, 1, 5000, 64, false, KV_BF16};
    assert_true(ops->kv_create(s->be, &wide, 1, n_pages, 1, &err) == NULL);
    check_message(&err, "5000");
    stage_free(s);
}

// ---- Row arithmetic ---------------------------------------------------------------------------------
static void row_operations_follow_their_shapes(void **state) {
    (void)state;
    struct rng r = {24};
    enum { ROWS = 33, COLS = 5000, STRIDE = 5003 };
    float *x = random_floats(&r, ROWS * STRIDE), *y0 = random_floats(&r, ROWS * STRIDE), *y = malloc(ROWS * STRIDE * 4),
          *w = random_floats(&r, COLS);
    for (uint32_t level = 0; level_at(level); level++) {
        struct stage *s = stage_make(level_at(level), 3);
        const struct backend_ops *ops = s->be->ops;
        struct mat mx = {x, ROWS, COLS, STRIDE}, my = {y, ROWS, COLS, STRIDE}, one_row = {x, 1, COLS, STRIDE},
                   one_col = {x, ROWS, 1, STRIDE};
#define EACH(want)                                                                                             \
    for (uint32_t i = 0; i < ROWS; i++) {                                                                      \
        for (uint32_t j = 0; j < STRIDE; j++) {                                                                \
            float a = x[i * STRIDE + j], b = y0[i * STRIDE + j], top = x[j], left = x[i * STRIDE];            \
            (void)a, (void)top, (void)left;                                                                    \
            check_near("row operation", (double)y[i * STRIDE + j], (double)(j < COLS ? (want) : b), 1e-5);     \
        }                                                                                                      \
    }
        memcpy(y, y0, ROWS * STRIDE * 4);
        ops->axpby(s->be, 2.0f, mx, -0.5f, my);
        EACH(2.0f * a - 0.5f * b)
        memcpy(y, y0, ROWS * STRIDE * 4);
        ops->axpby(s->be, 2.0f, one_row, 1.0f, my);
        EACH(2.0f * top + b)
        memcpy(y, y0, ROWS * STRIDE * 4);
        ops->mul(s->be, mx, my);
        EACH(a * b)
        memcpy(y, y0, ROWS * STRIDE * 4);
        ops->mul(s->be, one_row, my);
        EACH(top * b)
        memcpy(y, y0, ROWS * STRIDE * 4);
        ops->mul(s->be, one_col, my);
        EACH(left * b)
        uint32_t rows[ROWS];
        for (uint32_t i = 0; i < ROWS; i++)
            rows[i] = ROWS - 1 - i;
        memcpy(y, y0, ROWS * STRIDE * 4);
        ops->gather(s->be, mx, rows, my);
        for (uint32_t i = 0; i < ROWS; i++)
            assert_memory_equal(y + i * STRIDE, x + (ROWS - 1 - i) * STRIDE, COLS * 4);
        // A norm of pieces of 250, after adding a residual.
        float *sum = malloc(ROWS * STRIDE * 4);
        memcpy(sum, x, ROWS * STRIDE * 4);
        struct mat residual = {y0, ROWS, COLS, STRIDE};
        ops->norm(s->be, &(struct norm_args){.kind = NORM_RMS, .eps = 1e-6f, .weight = w, .width = 250,
                                             .x = {sum, ROWS, COLS, STRIDE}, .y = my, .residual = &residual,
                                             .residual_scale = 0.25f});
        for (uint32_t i = 0; i < ROWS; i++) {
            for (uint32_t j = 0; j < COLS; j += 250) {
                double piece[250];
                for (uint32_t d = 0; d < 250; d++) {
                    piece[d] = (double)(x[i * STRIDE + j + d] + 0.25f * y0[i * STRIDE + j + d]);
                    check_near("residual", (double)sum[i * STRIDE + j + d], piece[d], 1e-6);
                }
                plain_norm(piece, w, NULL, 250, false);
                for (uint32_t d = 0; d < 250; d++)
                    check_near("norm", (double)y[i * STRIDE + j + d], piece[d], 1e-5);
            }
        }
        free(sum);
        stage_free(s);
    }
    free(x), free(y0), free(y), free(w);
}

// ---- Recurrent --------------------------------------------------------------------------------------
// Runs a sequence of CTX tokens in steps of `chunk`, beside a second one that moves at another pace.
typedef void recurrent_fn(struct stage *s, void *user, uint32_t from0, uint32_t n0, uint32_t from1, uint32_t n1);

static void in_chunks(struct stage *s, recurrent_fn *fn, void *user, uint32_t chunk) {
    for (uint32_t from = 0, other = 0; from < CTX; from += chunk) {
        uint32_t n = CTX - from < chunk ? CTX - from : chunk, n1 = from == 0 ? 3 : other < CTX;
        stage_begin(s, from, n, other, n1);
        fn(s, user, from, n, other, n1);
        stage_end(s);
        other += n1;
    }
}

struct conv_run {
    struct state_pool *pool;
    float *x, *y, *w, *bias;
    uint32_t n_channels, kernel;
};

static void conv_step(struct stage *s, void *user, uint32_t from0, uint32_t n0, uint32_t from1, uint32_t n1) {
    struct conv_run *c = user;
    uint32_t n = c->n_channels;
    float *x = malloc((n0 + n1) * n * 4);
    memcpy(x, c->x + from0 * n, n0 * n * 4);
    memcpy(x + n0 * n, c->x + from1 * n, n1 * n * 4);
    struct mat m = mat_of(x, n0 + n1, n);
    s->be->ops->conv(s->be, &(struct conv_args){.pool = c->pool, .x = m, .y = m, .weight = c->w, .bias = c->bias,
                                                .kernel = c->kernel, .silu = true});
    memcpy(c->y + from0 * n, x, n0 * n * 4);
    free(x);
}

static void convolution_carries_its_state(void **state) {
    (void)state;
    struct rng r = {25};
    for (uint32_t level = 0; level_at(level); level++) {
        for (uint32_t kernel = 1; kernel <= 4; kernel += 3) {
            struct err err = {0};
            struct conv_run c = {.n_channels = 150, .kernel = kernel};
            size_t n_floats = (kernel - 1) * c.n_channels;
            c.x = random_floats(&r, CTX * c.n_channels);
            c.w = random_floats(&r, c.n_channels * kernel);
            c.bias = random_floats(&r, c.n_channels);
            float *whole = NULL;
            static const uint32_t CHUNKS[] = {CTX, 1, 2, 7, 64};
            for (size_t i = 0; i < 5; i++) {
                struct stage *s = stage_make(level_at(level), 1 + (uint32_t)i % 3);
                c.pool = s->be->ops->state_create(s->be, &n_floats, 1, 2, &err);
                check_ok(c.pool, &err);
                c.y = calloc(CTX * c.n_channels, 4);
                in_chunks(s, conv_step, &c, CHUNKS[i]);
                s->be->ops->state_destroy(s->be, c.pool);
                stage_free(s);
                if (i == 0) {
                    whole = c.y;
                    continue;
                }
                assert_memory_equal(c.y, whole, CTX * c.n_channels * 4);
                free(c.y);
            }
            for (uint32_t t = 0; t < CTX; t++) {
                for (uint32_t ch = 0; ch < c.n_channels; ch++) {
                    double sum = (double)c.bias[ch];
                    for (uint32_t k = 0; k < kernel; k++)
                        if (t + k + 1 >= kernel)
                            sum += (double)c.w[ch * kernel + k] * (double)c.x[(t + k + 1 - kernel) * c.n_channels + ch];
                    check_near("conv", (double)whole[t * c.n_channels + ch], sum / (1 + exp(-sum)), 1e-5);
                }
            }
            free(whole), free(c.x), free(c.w), free(c.bias);
        }
    }
}

struct delta_run {
    struct state_pool *pool;
    float *q, *k, *v, *a, *b, *out, *a_log, *dt_bias;
};
enum { K_HEADS = 2, V_HEADS = 4, K_DIM = 48, V_DIM = 72 };

static void delta_step(struct stage *s, void *user, uint32_t from0, uint32_t n0, uint32_t from1, uint32_t n1) {
    struct delta_run *d = user;
    (void)from1;
    uint32_t n = n0 + n1, kw = K_HEADS * K_DIM, vw = V_HEADS * V_DIM;
    float *q = calloc(n * kw, 4), *k = calloc(n * kw, 4), *v = calloc(n * vw, 4), *a = calloc(n * V_HEADS, 4),
          *b = calloc(n * V_HEADS, 4), *out = calloc(n * vw, 4);
    memcpy(q, d->q + from0 * kw, n0 * kw * 4), memcpy(k, d->k + from0 * kw, n0 * kw * 4);
    memcpy(v, d->v + from0 * vw, n0 * vw * 4), memcpy(a, d->a + from0 * V_HEADS, n0 * V_HEADS * 4);
    memcpy(b, d->b + from0 * V_HEADS, n0 * V_HEADS * 4);
    s->be->ops->delta(s->be, &(struct delta_args){.pool = d->pool, .n_k_heads = K_HEADS, .n_v_heads = V_HEADS,
                                                  .k_dim = K_DIM, .v_dim = V_DIM, .q = mat_of(q, n, kw),
                                                  .k = mat_of(k, n, kw), .v = mat_of(v, n, vw),
                                                  .a = mat_of(a, n, V_HEADS), .b = mat_of(b, n, V_HEADS),
                                                  .a_log = d->a_log, .dt_bias = d->dt_bias, .out = mat_of(out, n, vw)});
    memcpy(d->out + from0 * vw, out, n0 * vw * 4);
    free(q), free(k), free(v), free(a), free(b), free(out);
}

static void delta_rule_is_its_recurrence(void **state) {
    (void)state;
    struct rng r = {26};
    size_t kw = K_HEADS * K_DIM, vw = V_HEADS * V_DIM, n_floats = V_HEADS * K_DIM * V_DIM;
    struct delta_run d = {.q = random_floats(&r, CTX * kw), .k = random_floats(&r, CTX * kw),
                          .v = random_floats(&r, CTX * vw), .a = random_floats(&r, CTX * V_HEADS),
                          .b = random_floats(&r, CTX * V_HEADS), .a_log = random_floats(&r, V_HEADS),
                          .dt_bias = random_floats(&r, V_HEADS)};
    for (uint32_t level = 0; level_at(level); level++) {
        float *whole = NULL;
        static const uint32_t CHUNKS[] = {CTX, 1, 7, 64};
        for (size_t i = 0; i < 4; i++) {
            struct err err = {0};
            struct stage *s = stage_make(level_at(level), 1 + (uint32_t)i % 3);
            d.pool = s->be->ops->state_create(s->be, &n_floats, 1, 2, &err);
            check_ok(d.pool, &err);
            d.out = calloc(CTX * vw, 4);
            in_chunks(s, delta_step, &d, CHUNKS[i]);
            s->be->ops->state_destroy(s->be, d.pool);
            stage_free(s);
            if (i == 0) {
                whole = d.out;
                continue;
            }
            assert_memory_equal(d.out, whole, CTX * vw * 4);
            free(d.out);
        }
        for (uint32_t h = 0; h < V_HEADS; h++) {
            static double S[K_DIM][V_DIM];
            memset(S, 0, sizeof S);
            for (uint32_t t = 0; t < CTX; t++) {
                const float *q = d.q + t * kw + h / 2 * K_DIM, *k = d.k + t * kw + h / 2 * K_DIM;
                double nq = 1e-6, nk = 1e-6, x = (double)(d.a[t * V_HEADS + h] + d.dt_bias[h]);
                for (uint32_t i = 0; i < K_DIM; i++)
                    nq += (double)q[i] * (double)q[i], nk += (double)k[i] * (double)k[i];
                double decay = exp(-exp((double)d.a_log[h]) * log1p(exp(x))), beta = 1 / (1 + exp(-(double)d.b[t * V_HEADS + h]));
                for (uint32_t j = 0; j < V_DIM; j++) {
                    double held = 0, out = 0;
                    for (uint32_t i = 0; i < K_DIM; i++)
                        held += (S[i][j] *= decay) * (double)k[i] / sqrt(nk);
                    double u = beta * ((double)d.v[t * vw + h * V_DIM + j] - held);
                    for (uint32_t i = 0; i < K_DIM; i++) {
                        S[i][j] += u * (double)k[i] / sqrt(nk);
                        out += S[i][j] * (double)q[i] / sqrt(nq) / sqrt(K_DIM);
                    }
                    check_near("delta", (double)whole[t * vw + h * V_DIM + j], out, 1e-5);
                }
            }
        }
        free(whole);
    }
    free(d.q), free(d.k), free(d.v), free(d.a), free(d.b), free(d.a_log), free(d.dt_bias);
}

// ---- Routing ----------------------------------------------------------------------------------------
static void routes_to_the_best_experts(void **state) {
    (void)state;
    enum { N = 40, EXPERTS = 24, USED = 5 };
    static const struct {
        enum route_kind kind;
        bool normalize, correction;
        uint32_t n_groups, n_groups_used;
    } CASES[] = {{ROUTE_SOFTMAX_TOPK, true, false, 0, 0},  {ROUTE_SOFTMAX_TOPK, false, false, 6, 2},
                 {ROUTE_TOPK_SOFTMAX, false, false, 1, 1}, {ROUTE_SIGMOID, true, true, 4, 2},
                 {ROUTE_SIGMOID, false, false, 0, 0}};
    struct rng r = {27};
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        float *logits = random_floats(&r, N * EXPERTS), *correction = random_floats(&r, EXPERTS),
              *each = random_floats(&r, EXPERTS), weights[N * USED];
        uint32_t experts[N * USED];
        logits[3] = logits[7] = logits[12] = 9.0f; // a tie: the lower index first
        for (uint32_t level = 0; level_at(level); level++) {
            struct stage *s = stage_make(level_at(level), 2);
            s->be->ops->route(s->be, &(struct route_args){
                .kind = CASES[c].kind, .logits = mat_of(logits, N, EXPERTS), .n_used = USED,
                .normalize = CASES[c].normalize, .scale = 2.5f, .correction = CASES[c].correction ? correction : NULL,
                .n_groups = CASES[c].n_groups, .n_groups_used = CASES[c].n_groups_used, .expert_scale = each,
                .experts = experts, .weights = weights});
            for (uint32_t t = 0; t < N; t++) {
                double score[EXPERTS], value[EXPERTS], sum = 0, group[EXPERTS], total = 0;
                for (uint32_t e = 0; e < EXPERTS; e++)
                    sum += exp((double)logits[t * EXPERTS + e]);
                uint32_t n_groups = CASES[c].n_groups > 1 ? CASES[c].n_groups : 1, width = EXPERTS / n_groups;
                for (uint32_t e = 0; e < EXPERTS; e++) {
                    double x = (double)logits[t * EXPERTS + e];
                    score[e] = CASES[c].kind == ROUTE_SIGMOID ? 1 / (1 + exp(-x))
                               : CASES[c].kind == ROUTE_SOFTMAX_TOPK ? exp(x) / sum : x;
                    value[e] = score[e] + (CASES[c].correction ? (double)correction[e] : 0);
                }
                for (uint32_t g = 0; g < n_groups; g++) {
                    double best = -1e9, second = -1e9;
                    for (uint32_t e = g * width; e < (g + 1) * width; e++) {
                        if (value[e] > best)
                            second = best, best = value[e];
                        else if (value[e] > second)
                            second = value[e];
                    }
                    group[g] = CASES[c].kind == ROUTE_SIGMOID ? best + second : best;
                }
                for (uint32_t e = 0; n_groups > 1 && e < EXPERTS; e++) {
                    uint32_t better = 0;
                    for (uint32_t g = 0; g < n_groups; g++)
                        better += group[g] > group[e / width] || (group[g] == group[e / width] && g < e / width);
                    if (better >= CASES[c].n_groups_used)
                        value[e] = -INFINITY;
                }
                double want[USED];
                for (uint32_t i = 0; i < USED; i++) {
                    uint32_t best = 0;
                    for (uint32_t e = 1; e < EXPERTS; e++)
                        if (value[e] > value[best])
                            best = e;
                    if (experts[t * USED + i] != best)
                        fail_msg("case %zu, token %u: expert %u is %u, not %u", c, t, i, experts[t * USED + i], best);
                    value[best] = -INFINITY;
                    want[i] = CASES[c].kind == ROUTE_TOPK_SOFTMAX ? exp(score[best]) : score[best];
                    total += want[i];
                }
                for (uint32_t i = 0; i < USED; i++) {
                    if (CASES[c].normalize || CASES[c].kind == ROUTE_TOPK_SOFTMAX)
                        want[i] /= total;
                    check_near("route", (double)weights[t * USED + i], want[i] * 2.5 * (double)each[experts[t * USED + i]], 1e-5);
                }
            }
            stage_free(s);
        }
        for (uint32_t e = 0; e < EXPERTS; e++)
            logits[e] = NAN; // still different experts, none out of range
        struct stage *s = stage_make("scalar", 1);
        s->be->ops->route(s->be, &(struct route_args){.kind = CASES[c].kind, .logits = mat_of(logits, 1, EXPERTS),
                                                      .n_used = USED, .scale = 1, .experts = experts, .weights = weights});
        for (uint32_t i = 0; i < USED; i++)
            for (uint32_t j = 0; j < i; j++)
                assert_true(experts[i] < EXPERTS && experts[i] != experts[j]);
        stage_free(s);
        free(logits), free(correction), free(each);
    }
}

// ---- Sparse attention -------------------------------------------------------------------------------
enum { I_HEADS = 3, I_DIM = 32, HEADS = 4, LATENT = 96, VALUE = 80 };

static void append(struct stage *s, struct kv_pool *pool, uint32_t n_kv_heads, uint32_t k_dim, float *k, uint32_t n) {
    float *q = calloc(n * k_dim, 4);
    stage_begin(s, 0, n, 0, 0);
    s->be->ops->qkv(s->be, &(struct qkv_args){.pool = pool, .n_heads = 1, .n_kv_heads = n_kv_heads, .head_dim = k_dim,
                                              .q = mat_of(q, n, k_dim), .k = mat_of(k, n, n_kv_heads * k_dim)});
    stage_end(s);
    free(q);
}

static void index_selects_the_highest_scores(void **state) {
    (void)state;
    struct rng r = {28};
    enum { SELECTED = 50 };
    float *k = random_floats(&r, CTX * I_DIM), *q = random_floats(&r, CTX * I_HEADS * I_DIM), *w = random_floats(&r, CTX * I_HEADS);
    memcpy(k + 20 * I_DIM, k + 10 * I_DIM, I_DIM * 4); // equal scores: the lower position wins
    for (uint32_t level = 0; level_at(level); level++) {
        struct stage *s = stage_make(level_at(level), 2);
        struct kv_pool *pool = pool_make(s, (struct kv_layer_desc){0, 1, I_DIM, 0, false, KV_F32});
        append(s, pool, 1, I_DIM, k, CTX);
        uint32_t *whole = calloc(CTX * SELECTED, 4), *cut = calloc(CTX * SELECTED, 4);
        static const uint32_t CHUNKS[] = {CTX, 1, 33};
        for (size_t c = 0; c < 3; c++) {
            for (uint32_t from = 0; from < CTX; from += CHUNKS[c]) {
                uint32_t n = CTX - from < CHUNKS[c] ? CTX - from : CHUNKS[c];
                stage_begin(s, from, n, 0, 0);
                s->be->ops->index(s->be, &(struct index_args){
                    .pool = pool, .n_heads = I_HEADS, .head_dim = I_DIM, .q = mat_of(q + from * I_HEADS * I_DIM, n, I_HEADS * I_DIM),
                    .weights = mat_of(w + from * I_HEADS, n, I_HEADS), .scale = 0.7f, .n_selected = SELECTED,
                    .selected = (c ? cut : whole) + from * SELECTED});
                stage_end(s);
            }
            if (c)
                assert_memory_equal(cut, whole, CTX * SELECTED * 4);
        }
        for (uint32_t t = 0; t < CTX; t++) {
            const uint32_t *got = whole + t * SELECTED;
            double score[CTX], least_in = INFINITY, most_out = -INFINITY;
            bool in[CTX] = {false};
            uint32_t n_in = 0;
            for (uint32_t i = 0; i < SELECTED && got[i] != UINT32_MAX; i++, n_in++) {
                assert_true(got[i] <= t && (i == 0 || got[i] > got[i - 1]));
                in[got[i]] = true;
            }
            assert_true(n_in == (t + 1 < SELECTED ? t + 1 : SELECTED));
            for (uint32_t j = 0; j <= t; j++) {
                score[j] = 0;
                for (uint32_t h = 0; h < I_HEADS; h++) {
                    double dot = 0;
                    for (uint32_t d = 0; d < I_DIM; d++)
                        dot += (double)q[(t * I_HEADS + h) * I_DIM + d] * (double)k[j * I_DIM + d];
                    score[j] += (double)w[t * I_HEADS + h] * (dot > 0 ? dot : 0);
                }
                if (in[j])
                    least_in = score[j] < least_in ? score[j] : least_in;
                else
                    most_out = score[j] > most_out ? score[j] : most_out;
            }
            assert_true(least_in >= most_out - 1e-4);
            if (t >= 20)
                assert_true(in[10] || !in[20]);
        }
        free(whole), free(cut);
        s->be->ops->kv_destroy(s->be, pool);
        stage_free(s);
    }
    free(k), free(q), free(w);
}

static void sparse_attention_sees_what_is_selected(void **state) {
    (void)state;
    struct rng r = {29};
    static const struct {
        enum kv_kind kind;
        bool v_in_k;
    } CASES[] = {{KV_BF16, true}, {KV_F32, false}, {KV_Q8, true}};
    float *k = random_floats(&r, CTX * LATENT), *v = random_floats(&r, CTX * VALUE), *q = random_floats(&r, CTX * HEADS * LATENT);
    uint32_t *all = malloc(CTX * CTX * 4), *some = malloc(CTX * CTX * 4);
    for (uint32_t t = 0; t < CTX; t++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < CTX; j++) {
            all[t * CTX + j] = j <= t ? j : UINT32_MAX;
            if (j <= t && (j == t || rng_below(&r, 9) == 0))
                some[t * CTX + n++] = j;
        }
        while (n < CTX)
            some[t * CTX + n++] = UINT32_MAX;
    }
    for (uint32_t level = 0; level_at(level); level++) {
        for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
            float *out[4], *q2 = malloc(CTX * HEADS * LATENT * 4);
            memcpy(q2, q, CTX * HEADS * LATENT * 4);
            struct stage *s = stage_make(level_at(level), 2);
            struct kv_pool *pool = pool_make(s, (struct kv_layer_desc){0, 1, LATENT, VALUE, CASES[c].v_in_k, CASES[c].kind});
            stage_begin(s, 0, CTX, 0, 0);
            s->be->ops->qkv(s->be, &(struct qkv_args){.pool = pool, .n_heads = HEADS, .n_kv_heads = 1, .head_dim = LATENT,
                                                      .v_dim = VALUE, .q = mat_of(q2, CTX, HEADS * LATENT),
                                                      .k = mat_of(k, CTX, LATENT), .v = mat_of(v, CTX, VALUE)});
            stage_end(s);
            for (uint32_t run = 0; run < 4; run++) { // dense, all selected, some selected, the same one by one
                out[run] = calloc(CTX * HEADS * VALUE, 4);
                uint32_t chunk = run == 3 ? 1 : CTX;
                for (uint32_t from = 0; from < CTX; from += chunk) {
                    const uint32_t *selected = run == 0 ? NULL : run == 1 ? all : some;
                    stage_begin(s, from, chunk, 0, 0);
                    s->be->ops->attention(s->be, &(struct attention_args){
                        .pool = pool, .n_heads = HEADS, .q = mat_of(q2 + from * HEADS * LATENT, chunk, HEADS * LATENT),
                        .out = mat_of(out[run] + from * HEADS * VALUE, chunk, HEADS * VALUE), .scale = 0.1f,
                        .selected = selected ? selected + from * CTX : NULL, .n_selected = CTX});
                    stage_end(s);
                }
            }
            assert_memory_equal(out[0], out[1], CTX * HEADS * VALUE * 4);
            assert_memory_equal(out[2], out[3], CTX * HEADS * VALUE * 4);
            const struct kv_layer *layer = &pool->layers[0];
            for (uint32_t t = 0; t < CTX; t += 17) {
                for (uint32_t h = 0; h < HEADS; h++) {
                    double sum = 0, acc[VALUE] = {0};
                    for (uint32_t i = 0; i < CTX && some[t * CTX + i] != UINT32_MAX; i++) {
                        uint32_t j = some[t * CTX + i];
                        const void *block = kv_block(layer, s->tables[0][j / 64], 0);
                        double dot = 0;
                        for (uint32_t d = 0; d < LATENT; d++)
                            dot += (double)q[(t * HEADS + h) * LATENT + d] * (double)kv_key_at(&layer->layout, block, j % 64, d);
                        double e = exp(dot * 0.1);
                        sum += e;
                        for (uint32_t d = 0; d < VALUE; d++)
                            acc[d] += e * (double)kv_value_at(&layer->layout, block, j % 64, d);
                    }
                    for (uint32_t d = 0; d < VALUE; d++)
                        check_near("sparse", (double)out[2][(t * HEADS + h) * VALUE + d], acc[d] / sum, 2e-5);
                }
            }
            for (uint32_t run = 0; run < 4; run++)
                free(out[run]);
            free(q2);
            s->be->ops->kv_destroy(s->be, pool);
            stage_free(s);
        }
    }
    free(k), free(v), free(q), free(all), free(some);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_rotates_and_stores_heads),
        cmocka_unit_test(stored_values_are_as_near_as_their_kind_allows),
        cmocka_unit_test(pages_and_slots_move_whole),
        cmocka_unit_test(row_operations_follow_their_shapes),
        cmocka_unit_test(convolution_carries_its_state),
        cmocka_unit_test(delta_rule_is_its_recurrence),
        cmocka_unit_test(routes_to_the_best_experts),
        cmocka_unit_test(index_selects_the_highest_scores),
        cmocka_unit_test(sparse_attention_sees_what_is_selected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
