// Attention of the CPU backend: right against a plain computation in double, and the same bits whatever
// the cut of the prompt, the company in the step, and the number of threads.
#include "check.h"
#include "kernel_cases.h"

struct shape {
    const char *name;
    uint32_t n_heads, n_kv_heads, k_dim, v_dim;
    bool v_in_k;
    enum kv_kind kind;
    uint32_t window;
    float softcap;
    bool sinks, bidirectional;
    uint32_t n_tokens;
};

enum { MAX_PAGES = 64 };

// A sequence's inputs, made once.
struct sequence {
    const struct shape *shape;
    float *q, *k, *v; // [n_tokens, ...]
    float *sinks;
};

static struct sequence sequence_make(const struct shape *s, uint64_t seed) {
    struct rng r = {seed};
    struct sequence seq = {.shape = s};
    size_t q = (size_t)s->n_tokens * s->n_heads * s->k_dim, k = (size_t)s->n_tokens * s->n_kv_heads * s->k_dim,
           v = (size_t)s->n_tokens * s->n_kv_heads * s->v_dim;
    seq.q = malloc(q * sizeof(float));
    seq.k = malloc(k * sizeof(float));
    seq.v = malloc(v * sizeof(float));
    seq.sinks = malloc(s->n_heads * sizeof(float));
    rng_fill(&r, seq.q, q);
    rng_fill(&r, seq.k, k);
    rng_fill(&r, seq.v, v);
    rng_fill(&r, seq.sinks, s->n_heads);
    return seq;
}

static void sequence_free(struct sequence *seq) {
    free(seq->q);
    free(seq->k);
    free(seq->v);
    free(seq->sinks);
}

// One backend with a pool for `n_seq` sequences, whose pages are interleaved.
struct rig {
    struct backend *be;
    struct kv_pool *pool;
    const struct shape *shape;
    uint32_t n_seq;
    uint32_t tables[4][MAX_PAGES];
};

static struct rig rig_make(const char *level, uint32_t n_threads, const struct shape *s, uint32_t n_seq) {
    struct err err = {0};
    struct rig rig = {.be = open_cpu(level, n_threads), .shape = s, .n_seq = n_seq};
    const struct backend_ops *ops = rig.be->ops;
    struct backend_limits limits = {.n_tokens = s->n_tokens * n_seq, .n_rows = n_seq, .n_logits = 1,
                                    .ctx_len = s->n_tokens, .n_cols_max = 1, .n_vocab = 1,
                                    .n_heads = s->n_heads, .head_dim = s->k_dim > s->v_dim ? s->k_dim : s->v_dim};
    check_ok(ops->reserve(rig.be, &limits, &err), &err);
    uint32_t n_pages = n_seq * (s->n_tokens / KV_PAGE_TOKENS + 1);
    struct kv_layer_desc desc = {0, s->n_kv_heads, s->k_dim, s->v_dim, s->v_in_k, s->kind};
    rig.pool = ops->kv_create(rig.be, &desc, 1, &n_pages, 1, &err);
    check_ok(rig.pool, &err);
    for (uint32_t i = 0; i < n_seq; i++)
        for (uint32_t b = 0; b < MAX_PAGES; b++)
            rig.tables[i][b] = b * n_seq + i < n_pages ? b * n_seq + i : KV_PAGE_NONE;
    return rig;
}

static void rig_free(struct rig *rig) {
    rig->be->ops->kv_destroy(rig->be, rig->pool);
    rig->be->ops->close(rig->be);
}

// Run tokens [from[i], from[i] + n[i]) of each sequence as one step; out[i] is [n_tokens, heads * v_dim].
static void rig_step(struct rig *rig, const struct sequence *seqs, const uint32_t *from, const uint32_t *n,
                     float *const *out) {
    const struct shape *s = rig->shape;
    const struct backend_ops *ops = rig->be->ops;
    struct err err = {0};
    uint32_t total = 0;
    for (uint32_t i = 0; i < rig->n_seq; i++)
        total += n[i];
    uint32_t q_w = s->n_heads * s->k_dim, k_w = s->n_kv_heads * s->k_dim, v_w = s->n_kv_heads * s->v_dim,
             o_w = s->n_heads * s->v_dim;
    float *q = malloc(sizeof(float) * total * q_w), *k = malloc(sizeof(float) * total * k_w),
          *v = malloc(sizeof(float) * total * v_w), *o = malloc(sizeof(float) * total * o_w);
    uint32_t *positions = calloc(total, 4), *token_row = calloc(total, 4);
    struct step_row rows[4] = {0};
    uint32_t n_rows = 0, t = 0, row_seq[4];
    for (uint32_t i = 0; i < rig->n_seq; i++) {
        if (n[i] == 0)
            continue;
        rows[n_rows] = (struct step_row){.token_off = t, .n_tokens = n[i], .pos0 = from[i], .n_blocks = MAX_PAGES,
                                         .block_table = {rig->tables[i]}};
        row_seq[n_rows] = i;
        for (uint32_t j = 0; j < n[i]; j++, t++) {
            memcpy(q + (size_t)t * q_w, seqs[i].q + (size_t)(from[i] + j) * q_w, q_w * sizeof(float));
            memcpy(k + (size_t)t * k_w, seqs[i].k + (size_t)(from[i] + j) * k_w, k_w * sizeof(float));
            memcpy(v + (size_t)t * v_w, seqs[i].v + (size_t)(from[i] + j) * v_w, v_w * sizeof(float));
            positions[t] = from[i] + j;
            token_row[t] = n_rows;
        }
        n_rows++;
    }
    struct step step = {.n_tokens = total, .n_rows = n_rows, .positions = positions, .token_row = token_row, .rows = rows};
    check_ok(ops->step_begin(rig->be, &step, &err), &err);
    ops->qkv(rig->be, &(struct qkv_args){.pool = rig->pool, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads,
                                         .head_dim = s->k_dim, .v_dim = s->v_dim,
                                         .q = {q, total, q_w, q_w}, .k = {k, total, k_w, k_w},
                                         .v = {v, total, v_w, v_w}});
    ops->attention(rig->be, &(struct attention_args){.pool = rig->pool, .n_heads = s->n_heads,
                                                     .q = {q, total, q_w, q_w}, .out = {o, total, o_w, o_w},
                                                     .scale = 1.0f / sqrtf((float)s->k_dim), .window = s->window,
                                                     .softcap = s->softcap, .sinks = s->sinks ? seqs[0].sinks : NULL,
                                                     .bidirectional = s->bidirectional});
    check_ok(ops->step_end(rig->be, &err), &err);
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(out[row_seq[i]] + (size_t)rows[i].pos0 * o_w, o + (size_t)rows[i].token_off * o_w,
               (size_t)rows[i].n_tokens * o_w * sizeof(float));
    free(q), free(k), free(v), free(o), free(positions), free(token_row);
}

// A sequence alone, in chunks of `chunk` tokens.
static float *run_alone(const char *level, uint32_t n_threads, const struct sequence *seq, uint32_t chunk) {
    const struct shape *s = seq->shape;
    struct rig rig = rig_make(level, n_threads, s, 1);
    float *out = calloc((size_t)s->n_tokens * s->n_heads * s->v_dim, sizeof *out);
    for (uint32_t from = 0; from < s->n_tokens; from += chunk) {
        uint32_t n = s->n_tokens - from < chunk ? s->n_tokens - from : chunk;
        rig_step(&rig, seq, &from, &n, &out);
    }
    rig_free(&rig);
    return out;
}

// The definition, in double, over what the cache holds.
static float *plain_attention(const struct sequence *seq) {
    const struct shape *s = seq->shape;
    struct kv_layout layout = kv_layout_make(s->kind, s->k_dim, s->v_dim, s->v_in_k);
    uint32_t n_blocks = s->n_tokens / KV_PAGE_TOKENS + 1, o_w = s->n_heads * s->v_dim;
    float *out = calloc((size_t)s->n_tokens * o_w, sizeof *out);
    char *blocks = calloc(n_blocks, layout.block_bytes);
    double *p = malloc(s->n_tokens * sizeof *p), *acc = malloc(s->v_dim * sizeof *acc);
    for (uint32_t h = 0; h < s->n_heads; h++) {
        uint32_t kv = h / (s->n_heads / s->n_kv_heads);
        for (uint32_t t = 0; t < s->n_tokens; t++)
            kv_store_token(&layout, blocks + t / 64 * layout.block_bytes, t % 64,
                           seq->k + ((size_t)t * s->n_kv_heads + kv) * s->k_dim,
                           seq->v + ((size_t)t * s->n_kv_heads + kv) * s->v_dim);
        for (uint32_t t = 0; t < s->n_tokens; t++) {
            double top = s->sinks ? seq->sinks[h] : -INFINITY, sum = 0;
            for (uint32_t j = 0; j < s->n_tokens; j++) {
                bool seen = s->bidirectional ? true : j <= t;
                if (s->window)
                    seen = seen && (j > t ? j - t : t - j) < s->window;
                double dot = 0;
                for (uint32_t d = 0; d < s->k_dim; d++)
                    dot += (double)seq->q[((size_t)t * s->n_heads + h) * s->k_dim + d] *
                           (double)kv_key_at(&layout, blocks + j / 64 * layout.block_bytes, j % 64, d);
                dot /= sqrt(s->k_dim);
                if (s->softcap > 0)
                    dot = s->softcap * tanh(dot / s->softcap);
                p[j] = seen ? dot : -INFINITY;
                top = p[j] > top ? p[j] : top;
            }
            memset(acc, 0, s->v_dim * sizeof *acc);
            for (uint32_t j = 0; j < s->n_tokens; j++) {
                double e = exp(p[j] - top);
                sum += e;
                for (uint32_t d = 0; d < s->v_dim; d++)
                    acc[d] += e * (double)kv_value_at(&layout, blocks + j / 64 * layout.block_bytes, j % 64, d);
            }
            if (s->sinks)
                sum += exp(seq->sinks[h] - top);
            for (uint32_t d = 0; d < s->v_dim; d++)
                out[(size_t)t * o_w + h * s->v_dim + d] = (float)(acc[d] / sum);
        }
    }
    free(blocks), free(p), free(acc);
    return out;
}

static const struct shape SHAPES[] = {
    {"gqa bf16", 4, 2, 64, 64, false, KV_BF16, 0, 0, false, false, 200},
    {"gqa f32, two splits", 3, 1, 32, 32, false, KV_F32, 0, 0, false, false, 700},
    {"f16, odd head", 2, 2, 72, 40, false, KV_F16, 0, 0, false, false, 150},
    {"bf16, odd head", 5, 1, 33, 19, false, KV_BF16, 0, 0, false, false, 150},
    {"q8", 4, 2, 128, 128, false, KV_Q8, 0, 0, false, false, 180},
    {"q8, short group", 2, 1, 80, 96, false, KV_Q8, 0, 0, false, false, 130},
    {"q4", 4, 2, 128, 64, false, KV_Q4, 0, 0, false, false, 180},
    {"q4, odd head", 2, 1, 37, 45, false, KV_Q4, 0, 0, false, false, 100},
    {"window", 4, 2, 64, 64, false, KV_BF16, 50, 0, false, false, 300},
    {"window of one", 2, 1, 16, 16, false, KV_F32, 1, 0, false, false, 70},
    {"softcap", 4, 2, 64, 64, false, KV_BF16, 0, 2.5f, false, false, 100},
    {"sinks", 8, 1, 64, 64, false, KV_BF16, 100, 0, true, false, 200},
    {"bidirectional", 2, 2, 64, 64, false, KV_F32, 0, 0, false, true, 130},
    {"bidirectional window", 2, 2, 64, 64, false, KV_F32, 20, 0, false, true, 130},
    {"mla bf16", 10, 1, 96, 80, true, KV_BF16, 0, 0, false, false, 150},
    {"mla f32", 4, 1, 72, 64, true, KV_F32, 0, 0, false, false, 100},
    {"mla q8", 4, 1, 96, 64, true, KV_Q8, 0, 0, false, false, 100},
    {"mla q4", 4, 1, 75, 61, true, KV_Q4, 0, 0, false, false, 100},
    {"many heads", 100, 1, 16, 16, false, KV_BF16, 0, 0, false, false, 70},
    {"head of 256", 2, 1, 256, 256, false, KV_BF16, 0, 0, false, false, 90},
};
enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES };

// The levels, and AMX in MATH_FAST after them.
static const char *variant_at(uint32_t i) {
    if (level_at(i))
        return level_at(i);
    return i > 0 && level_at(i - 1) && strcmp(level_at(i - 1), "amx") == 0 ? "amx fast" : NULL;
}

static void is_softmax_of_scores_times_values(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &SHAPES[i];
        struct sequence seq = sequence_make(s, 1000 + i);
        float *want = plain_attention(&seq);
        for (uint32_t level = 0; variant_at(level); level++) {
            float *got = run_alone(variant_at(level), 2, &seq, s->n_tokens);
            for (size_t j = 0; j < (size_t)s->n_tokens * s->n_heads * s->v_dim; j++)
                if (!(fabsf(got[j] - want[j]) <= (level_is_fast(variant_at(level)) ? 0.05f : 2e-5f)))
                    fail_msg("%s, %s: element %zu is %g, not %g", s->name, variant_at(level), j, (double)got[j],
                             (double)want[j]);
            free(got);
        }
        free(want);
        sequence_free(&seq);
    }
}

static void bits_do_not_depend_on_the_cut_or_the_threads(void **state) {
    (void)state;
    static const struct {
        uint32_t chunk, n_threads;
    } CUTS[] = {{1, 1}, {1, 2}, {7, 3}, {64, 2}, {64, 4}, {3, 1}, {UINT32_MAX, 1}};
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &SHAPES[i];
        if (s->bidirectional) // sees the whole span: a chunk is another question
            continue;
        struct sequence seq = sequence_make(s, 2000 + i);
        size_t n_bytes = (size_t)s->n_tokens * s->n_heads * s->v_dim * sizeof(float);
        for (uint32_t level = 0; variant_at(level); level++) {
            float *want = run_alone(variant_at(level), 2, &seq, s->n_tokens);
            for (size_t c = 0; c < sizeof CUTS / sizeof *CUTS; c++) {
                if (level == 0 && (c > 2 || s->n_tokens > 100)) // the reference takes its time
                    continue;
                uint32_t chunk = CUTS[c].chunk < s->n_tokens ? CUTS[c].chunk : s->n_tokens;
                float *got = run_alone(variant_at(level), CUTS[c].n_threads, &seq, chunk);
                if (memcmp(got, want, n_bytes) != 0)
                    fail_msg("%s, %s: chunks of %u on %u threads give other bits", s->name, variant_at(level), chunk,
                             CUTS[c].n_threads);
                free(got);
            }
            free(want);
        }
        sequence_free(&seq);
    }
}

static void bits_do_not_depend_on_the_company(void **state) {
    (void)state;
    struct rng r = {77};
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &SHAPES[i];
        if (s->bidirectional)
            continue;
        struct sequence seqs[3];
        size_t n_floats = (size_t)s->n_tokens * s->n_heads * s->v_dim;
        for (uint32_t j = 0; j < 3; j++) {
            seqs[j] = sequence_make(s, 3000 + 10 * i + j);
            memcpy(seqs[j].sinks, seqs[0].sinks, s->n_heads * sizeof(float));
        }
        for (uint32_t level = s->n_tokens > 100; variant_at(level); level++) {
            struct rig rig = rig_make(variant_at(level), 2, s, 3);
            float *out[3];
            uint32_t from[3] = {0}, n[3];
            for (uint32_t j = 0; j < 3; j++)
                out[j] = calloc(n_floats, sizeof(float));
            for (;;) {
                uint32_t total = 0;
                for (uint32_t j = 0; j < 3; j++) {
                    uint32_t left = s->n_tokens - from[j], wish = rng_below(&r, 3) ? 1 : rng_below(&r, 90);
                    n[j] = wish < left ? wish : left;
                    total += n[j];
                }
                if (total)
                    rig_step(&rig, seqs, from, n, out);
                bool done = true;
                for (uint32_t j = 0; j < 3; j++)
                    done = (from[j] += n[j]) == s->n_tokens && done;
                if (done)
                    break;
            }
            rig_free(&rig);
            for (uint32_t j = 0; j < 3; j++) {
                float *want = run_alone(variant_at(level), 2, &seqs[j], s->n_tokens);
                if (memcmp(out[j], want, n_floats * sizeof(float)) != 0)
                    fail_msg("%s, %s: a sequence among others has other bits", s->name, variant_at(level));
                free(want);
                free(out[j]);
            }
        }
        for (uint32_t j = 0; j < 3; j++)
            sequence_free(&seqs[j]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_softmax_of_scores_times_values),
        cmocka_unit_test(bits_do_not_depend_on_the_cut_or_the_threads),
        cmocka_unit_test(bits_do_not_depend_on_the_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
