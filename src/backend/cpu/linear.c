#include "backend/cpu/linear.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum {
    ROWS_MAX = 512,    // of x that are rounded and multiplied at once; more come in pieces
    TILE_OUTS = 128,   // most outputs of a tile
    FLOAT_ROWS = 128,  // rows of x that a block of float weights is multiplied by
    TILE_BYTES = 32768, // of weights, to aim at when there are few rows
    FEW_ROWS = 8,
};

// ---- Weights ------------------------------------------------------------------------------------
static uint32_t format_bits(const struct weight_desc *d) {
    switch (d->format) {
    case WEIGHT_F32:
        return 32;
    case WEIGHT_F16:
    case WEIGHT_BF16:
        return 16;
    case WEIGHT_AFFINE:
        return d->bits;
    case WEIGHT_MXFP8:
        return 8;
    case WEIGHT_MXFP4:
    case WEIGHT_NVFP4:
        return 4;
    }
    return 0;
}

static uint32_t format_group(const struct weight_desc *d) {
    switch (d->format) {
    case WEIGHT_AFFINE:
        return d->group;
    case WEIGHT_MXFP4:
    case WEIGHT_MXFP8:
        return 32;
    case WEIGHT_NVFP4:
        return 16;
    default:
        return 0;
    }
}

static bool check_desc(const struct weight_desc *d, struct err *err) {
    if (d->n_out == 0 || d->n_in == 0)
        return err_set(err, ERR_UNSUPPORTED, "a weight of %u by %u elements is empty", d->n_out, d->n_in);
    if (d->format == WEIGHT_AFFINE) {
        if (d->bits < 2 || d->bits > 8 || d->bits == 7)
            return err_set(err, ERR_UNSUPPORTED, "affine weights of %u bits: 2, 3, 4, 5, 6 and 8 are known",
                           d->bits);
        if (d->group != 32 && d->group != 64 && d->group != 128)
            return err_set(err, ERR_UNSUPPORTED, "affine weights in groups of %u: 32, 64 and 128 are known",
                           d->group);
        if (d->scale_dtype != DTYPE_F32 && d->scale_dtype != DTYPE_F16 && d->scale_dtype != DTYPE_BF16)
            return err_set(err, ERR_UNSUPPORTED, "affine scales of type %s: F32, F16 and BF16 are known",
                           dtype_name(d->scale_dtype));
    }
    uint32_t group = format_group(d);
    if (group && d->n_in % group != 0)
        return err_set(err, ERR_UNSUPPORTED, "a weight row of %u elements does not divide into groups of %u",
                       d->n_in, group);
    return true;
}

struct weight *cpu_weight_create(struct backend *be, const struct weight_desc *desc, struct err *err) {
    (void)be;
    if (!check_desc(desc, err))
        return NULL;
    struct weight *w = calloc(1, sizeof *w);
    if (!w) {
        err_set(err, ERR_NOMEM, "out of memory for a weight");
        return NULL;
    }
    bool is_f4 = desc->format == WEIGHT_MXFP4 || desc->format == WEIGHT_NVFP4;
    uint32_t bits = format_bits(desc), group = format_group(desc);
    *w = (struct weight){
        .desc = *desc,
        .row_bytes = (size_t)desc->n_in * bits / 8,
        .group = group,
        .n_groups = group ? desc->n_in / group : 0,
        .bits = bits,
        .is_int = desc->format == WEIGHT_AFFINE || is_f4,
        .nibbles = bits == 4,
    };
    if (is_f4) {
        w->code_max = 24;
        w->code_zero = 12;
    } else if (w->is_int) {
        w->code_max = (uint8_t)((1u << bits) - 1);
    }
    return w;
}

void cpu_weight_destroy(struct backend *be, struct weight *weight) {
    (void)be;
    free(weight);
}

bool cpu_weights_ready(struct backend *be, struct err *err) {
    (void)be;
    (void)err;
    return true;
}

// ---- Scratch ------------------------------------------------------------------------------------
// What a pool thread works in.
struct tile_scratch {
    union {
        struct {
            _Alignas(CPU_ALIGN) uint8_t codes[PANELS_MAX * PANEL_OUTS * PANEL_K];
            float scales[PANELS_MAX * PANEL_GROUPS * PANEL_OUTS];
            float biases[PANELS_MAX * PANEL_GROUPS * PANEL_OUTS];
        };
        struct {
            float weights[FLOAT_OUTS * FLOAT_K];
            float lanes[FLOAT_ROWS * FLOAT_OUTS * FLOAT_LANES];
        };
    };
    float acc[2][ROWS_MAX * TILE_OUTS]; // [n_rows][TILE_OUTS]; the second for gate and up
};

// The left factor of products: float rows, and the same rounded in the manner of `group`.
struct left {
    const float *x;
    size_t x_stride;
    uint32_t n_in;
    uint32_t group; // 0: not rounded
    bool nibbles;
    int8_t *q;
    float *scales, *sums;
    int32_t *isums;
};

static size_t align_up(size_t n) { return (n + CPU_ALIGN - 1) & ~(size_t)(CPU_ALIGN - 1); }

// Bytes that n_rows rounded rows of up to n_cols take: the codes, and for each group of 16 or more its
// scale and sums.
static size_t left_bytes(size_t n_rows, size_t n_cols) {
    return align_up(n_rows * n_cols) + 3 * align_up(n_rows * (n_cols / 16 + 1) * sizeof(float));
}

static void left_place(struct left *left, void *memory, uint32_t n_rows) {
    size_t n_scales = align_up((size_t)n_rows * (left->n_in / left->group) * sizeof(float));
    left->q = memory;
    left->scales = (float *)((char *)memory + align_up((size_t)n_rows * left->n_in));
    left->sums = (float *)((char *)left->scales + n_scales);
    left->isums = (int32_t *)((char *)left->sums + n_scales);
}

// Tokens that go through their experts at once. Each pair of a token and its expert has a hidden row.
static uint32_t experts_tokens(const struct backend_limits *l) { return min_u32(l->n_tokens, ROWS_MAX); }

static size_t experts_bytes(const struct backend_limits *l) {
    if (!l->n_experts)
        return 0;
    size_t n_pairs = (size_t)experts_tokens(l) * l->n_experts_used;
    return 2 * align_up((l->n_experts + 1) * sizeof(uint32_t)) + 2 * align_up(n_pairs * sizeof(uint32_t)) +
           align_up(n_pairs * l->d_expert * sizeof(float)) + left_bytes(n_pairs, l->d_expert);
}

struct cpu_scratch_bytes cpu_linear_scratch(const struct cpu_backend *cb, const struct backend_limits *limits) {
    (void)cb;
    return (struct cpu_scratch_bytes){
        .thread = sizeof(struct tile_scratch),
        .shared = 2 * left_bytes(ROWS_MAX, limits->n_cols_max) + experts_bytes(limits), // see glu_lefts
    };
}

// ---- Rounding x ---------------------------------------------------------------------------------
struct round_job {
    const struct linear_kernels *kernels;
    struct left *left;
    uint32_t n_rows, rows_a_tile;
};

static void round_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct round_job *j = job;
    const struct left *l = j->left;
    uint32_t from = tile_idx * j->rows_a_tile, n_groups = l->n_in / l->group;
    for (uint32_t r = from; r < min_u32(from + j->rows_a_tile, j->n_rows); r++)
        j->kernels->quantize(l->x + r * l->x_stride, l->n_in, l->group, l->nibbles, l->q + (size_t)r * l->n_in,
                             l->scales + (size_t)r * n_groups, l->sums + (size_t)r * n_groups,
                             l->isums + (size_t)r * n_groups);
}

static bool uses_int(const struct cpu_backend *cb, const struct weight *w) {
    return w->is_int && cb->math == MATH_FAST;
}

// Whether the rounded form of left is the one that w multiplies. The float form is always there.
static bool left_fits(const struct cpu_backend *cb, const struct left *left, const struct weight *w) {
    return uses_int(cb, w) && left->group == w->group && left->nibbles == w->nibbles;
}

// Make left ready for products with w: round n_rows rows into `memory` if that is the form it takes.
static void left_prepare(struct cpu_backend *cb, struct left *left, const struct weight *w, uint32_t n_rows,
                         void *memory) {
    if (!uses_int(cb, w))
        return;
    left->group = w->group;
    left->nibbles = w->nibbles;
    left_place(left, memory, n_rows);
    struct round_job job = {&cb->kernels.linear, left, n_rows, 1};
    job.rows_a_tile = max_u32(1, n_rows / (4 * cb->n_threads));
    cpu_run(cb, round_tile, &job, (n_rows + job.rows_a_tile - 1) / job.rows_a_tile, (uint64_t)n_rows * left->n_in);
}

// ---- A tile of a product --------------------------------------------------------------------------
// acc[r * TILE_OUTS + o] = row r of the left times output out + o, for n_rows <= ROWS_MAX rows from
// `row` on (of idx, if it is given) and n_outs <= TILE_OUTS outputs.
static struct int_rows int_rows_from(const struct left *left, const uint32_t *idx, uint32_t row, uint32_t n_rows,
                                     uint32_t k) {
    size_t n_groups = left->n_in / left->group, skip = idx ? 0 : row, at = skip * n_groups + k / left->group;
    return (struct int_rows){
        .q = left->q + skip * left->n_in + k,
        .q_stride = left->n_in,
        .scales = left->scales + at,
        .sums = left->sums + at,
        .isums = left->isums + at,
        .group_stride = n_groups,
        .idx = idx ? idx + row : NULL,
        .n = n_rows,
    };
}

static bool int_few_tile(const struct linear_kernels *k, const struct weight *w, uint32_t out, uint32_t n_outs,
                         const struct left *left, const uint32_t *idx, uint32_t row, uint32_t n_rows, float *acc) {
    struct int_rows x = int_rows_from(left, idx, row, n_rows, 0);
    for (uint32_t o = 0; o < n_outs; o += PANEL_OUTS)
        if (!k->int_few(w, out + o, &x, acc + o, TILE_OUTS))
            return false;
    return true;
}

static void int_tile(const struct linear_kernels *k, struct tile_scratch *s, const struct weight *w, uint32_t out,
                     uint32_t n_outs, const struct left *left, const uint32_t *idx, uint32_t row,
                     uint32_t n_rows, float *acc) {
    if (n_rows <= k->few_rows && int_few_tile(k, w, out, n_outs, left, idx, row, n_rows, acc))
        return;
    uint32_t n_in = w->desc.n_in;
    uint32_t at_once = n_rows >= k->many_rows ? PANELS_MAX * PANEL_OUTS : PANEL_OUTS;
    bool has_bias = w->desc.format == WEIGHT_AFFINE;
    for (uint32_t r = 0; r < n_rows; r++)
        memset(acc + (size_t)r * TILE_OUTS, 0, (n_outs + PANEL_OUTS - 1) / PANEL_OUTS * PANEL_OUTS * sizeof *acc);
    for (uint32_t o = 0; o < n_outs; o += at_once) {
        uint32_t n_panels = (min_u32(at_once, n_outs - o) + PANEL_OUTS - 1) / PANEL_OUTS;
        for (uint32_t from = 0; from < n_in; from += PANEL_K) {
            uint32_t n_k = min_u32(PANEL_K, n_in - from), n_groups = n_k / w->group;
            for (uint32_t p = 0; p < n_panels; p++) {
                size_t at = (size_t)p * n_groups * PANEL_OUTS;
                uint32_t first = out + o + p * PANEL_OUTS;
                // While one panel is read, the next comes into the cache.
                const char *following = (const char *)w->desc.data + (first + PANEL_OUTS) * w->row_bytes +
                                        (size_t)PANEL_OUTS * from * w->bits / 8;
                k->pack_codes(w, first, from, n_k, following, s->codes + (size_t)p * n_k * PANEL_OUTS);
                k->pack_scales(w, first, from / w->group, n_groups, s->scales + at, has_bias ? s->biases + at : NULL);
            }
            struct int_panels panels = {
                .codes = s->codes,
                .scales = s->scales,
                .biases = has_bias ? s->biases : NULL,
                .n_panels = n_panels,
                .n_k = n_k,
                .group = w->group,
                .code_max = w->code_max,
                .code_zero = w->code_zero,
            };
            struct int_rows x = int_rows_from(left, idx, row, n_rows, from);
            k->int_panels(&panels, &x, acc + o, TILE_OUTS);
        }
    }
}

static void float_rows_tile(const struct linear_kernels *k, struct tile_scratch *s, const struct weight *w,
                            uint32_t out, uint32_t n_outs, const struct float_rows *x, float *acc) {
    uint32_t n_in = w->desc.n_in;
    memset(s->lanes, 0, (size_t)x->n * n_outs * FLOAT_LANES * sizeof(float));
    for (uint32_t from = 0; from < n_in; from += FLOAT_K) {
        uint32_t n_k = min_u32(FLOAT_K, n_in - from), n_padded = (n_k + FLOAT_LANES - 1) & ~(uint32_t)(FLOAT_LANES - 1);
        for (uint32_t o = 0; o < n_outs; o++) {
            float *row = s->weights + (size_t)o * FLOAT_K;
            k->dequantize(w, out + o, from, n_k, row);
            memset(row + n_k, 0, (n_padded - n_k) * sizeof *row);
        }
        struct float_rows part = *x;
        part.x += from;
        k->float_block(s->weights, FLOAT_K, n_outs, &part, n_k, s->lanes);
    }
    for (uint32_t r = 0; r < x->n; r++)
        for (uint32_t o = 0; o < n_outs; o++)
            acc[r * TILE_OUTS + o] = lanes_sum(s->lanes + (r * n_outs + o) * FLOAT_LANES);
}

static void float_tile(const struct linear_kernels *k, struct tile_scratch *s, const struct weight *w,
                       uint32_t out, uint32_t n_outs, const struct left *left, const uint32_t *idx,
                       uint32_t row, uint32_t n_rows, float *acc) {
    uint32_t n_in = w->desc.n_in;
    const float *one = left->x + row_at(idx, row) * left->x_stride;
    if (n_rows == 1 && w->bits >= 16) {
        k->dense_dot(w->desc.format, (const char *)w->desc.data + out * w->row_bytes, w->row_bytes, n_outs, one, n_in,
                     acc);
        return;
    }
    if (n_rows == 1 && n_in <= FLOAT_OUTS * FLOAT_K) {
        uint32_t at_once = min_u32(FLOAT_OUTS, FLOAT_OUTS * FLOAT_K / n_in);
        for (uint32_t o = 0, n; o < n_outs; o += n) {
            n = min_u32(at_once, n_outs - o);
            for (uint32_t i = 0; i < n; i++)
                k->dequantize(w, out + o + i, 0, n_in, s->weights + (size_t)i * n_in);
            k->dense_dot(WEIGHT_F32, s->weights, n_in * sizeof(float), n, one, n_in, acc + o);
        }
        return;
    }
    for (uint32_t r = 0; r < n_rows; r += FLOAT_ROWS) {
        struct float_rows x = {
            .x = left->x + (idx ? 0 : (row + r) * left->x_stride),
            .stride = left->x_stride,
            .idx = idx ? idx + row + r : NULL,
            .n = min_u32(FLOAT_ROWS, n_rows - r),
        };
        for (uint32_t o = 0; o < n_outs; o += FLOAT_OUTS)
            float_rows_tile(k, s, w, out + o, min_u32(FLOAT_OUTS, n_outs - o), &x, acc + r * TILE_OUTS + o);
    }
}

static void product_tile(struct cpu_backend *cb, struct tile_scratch *s, const struct weight *w, uint32_t out,
                         uint32_t n_outs, const struct left *left, const uint32_t *idx, uint32_t row,
                         uint32_t n_rows, float *acc) {
    (left_fits(cb, left, w) ? int_tile : float_tile)(&cb->kernels.linear, s, w, out, n_outs, left, idx, row, n_rows,
                                                     acc);
}

// Count products of n_rows rows in all with each of n_weights weights like w, read once.
static void count_products(struct cpu_backend *cb, const struct weight *w, uint64_t n_weights, uint64_t n_rows) {
    uint64_t scale_bytes = !w->n_groups ? 0 : w->desc.format == WEIGHT_AFFINE ? 2 * dtype_bytes(w->desc.scale_dtype) : 1;
    uint64_t ops = 2 * n_rows * w->desc.n_out * w->desc.n_in;
    cb->work.weight_bytes += n_weights * w->desc.n_out * (w->row_bytes + w->n_groups * scale_bytes);
    *(uses_int(cb, w) ? &cb->work.int8_ops : &cb->work.float_ops) += ops;
}

// How many outputs a tile takes: with few rows enough bytes to be worth taking, and few enough tiles
// that each thread gets several. The bits do not depend on it.
static uint32_t tile_outs(const struct cpu_backend *cb, const struct weight *w, uint32_t n_rows,
                          uint32_t n_products) {
    uint32_t outs = TILE_OUTS, panel = PANEL_OUTS;
    if (n_rows < FEW_ROWS)
        outs = (uint32_t)min_size(outs, TILE_BYTES / w->row_bytes / panel * panel);
    uint32_t fair = w->desc.n_out * n_products / (4 * cb->n_threads) / panel * panel;
    return max_u32(panel, min_u32(outs, fair));
}

static uint32_t n_pieces(uint32_t n, uint32_t piece) { return (n + piece - 1) / piece; }

// ---- Linear and logits ----------------------------------------------------------------------------
struct product {
    const struct weight *weight;
    const float *bias;
    struct mat y;
    uint32_t outs, n_tiles; // outputs a tile takes, tiles of all outputs
};
struct product_job {
    struct cpu_backend *cb;
    struct left left;
    uint32_t row, n_rows; // of y: rows [row, row + n_rows) are those of left
    uint32_t n_products;
    struct product products[LINEAR_OUTPUTS_MAX];
    enum linear_store store;
    float scale, softcap;
};

static void store_tile(const struct product_job *j, const struct product *p, uint32_t out, uint32_t n_outs,
                       float *acc) {
    const struct cpu_kernels *k = &j->cb->kernels;
    for (uint32_t r = 0; r < j->n_rows; r++, acc += TILE_OUTS) {
        float *y = mat_row(p->y, j->row + r) + out;
        if (p->bias)
            k->axpby(1.0f, p->bias + out, 1.0f, acc, n_outs);
        if (j->softcap > 0) {
            k->scale(j->scale, acc, n_outs);
            k->unary(UNARY_TANH_CAP, (const float[4]){j->softcap}, acc, acc, n_outs);
        }
        float scale = j->softcap > 0 ? 1.0f : j->scale;
        if (j->store == LINEAR_ADD) {
            k->axpby(scale, acc, 1.0f, y, n_outs);
            continue;
        }
        memcpy(y, acc, n_outs * sizeof *y);
        if (scale != 1)
            k->scale(scale, y, n_outs);
    }
}

static void product_job_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    const struct product_job *j = job;
    const struct product *p = j->products;
    for (; tile_idx >= p->n_tiles; p++)
        tile_idx -= p->n_tiles;
    struct tile_scratch *s = j->cb->thread_scratch[thread_idx];
    uint32_t out = tile_idx * p->outs, n_outs = min_u32(p->outs, p->weight->desc.n_out - out);
    product_tile(j->cb, s, p->weight, out, n_outs, &j->left, NULL, 0, j->n_rows, s->acc[0]);
    store_tile(j, p, out, n_outs, s->acc[0]);
}

// Whether two weights take the same form of x.
static bool same_form(const struct cpu_backend *cb, const struct weight *a, const struct weight *b) {
    if (!uses_int(cb, a) || !uses_int(cb, b))
        return true; // the float form is always there
    return a->group == b->group && a->nibbles == b->nibbles;
}

// All products of the rows in j->left: one dispatch for each form of x that the weights want, mostly one.
static void products_run(struct cpu_backend *cb, struct product_job *all) {
    bool done[LINEAR_OUTPUTS_MAX] = {0};
    for (uint32_t first = 0; first < all->n_products; first++) {
        if (done[first])
            continue;
        struct product_job job = *all;
        job.n_products = 0;
        const struct weight *form = NULL;
        uint32_t n_tiles = 0;
        uint64_t work = 0;
        for (uint32_t i = first; i < all->n_products; i++) {
            const struct weight *w = all->products[i].weight;
            if (done[i] || (form && !same_form(cb, form, w)))
                continue;
            if (!form || uses_int(cb, w))
                form = w;
            done[i] = true;
            struct product *p = &job.products[job.n_products++];
            *p = all->products[i];
            p->outs = tile_outs(cb, w, job.n_rows, all->n_products);
            p->n_tiles = n_pieces(w->desc.n_out, p->outs);
            n_tiles += p->n_tiles;
            work += (uint64_t)w->desc.n_out * w->desc.n_in * job.n_rows / 4;
            count_products(cb, w, 1, job.n_rows);
        }
        left_prepare(cb, &job.left, form, job.n_rows, cb->shared_scratch);
        cpu_run(cb, product_job_tile, &job, n_tiles, work);
    }
}

static void products_of(struct cpu_backend *cb, struct mat x, struct product_job *job) {
    for (uint32_t row = 0; row < x.n_rows; row += ROWS_MAX) {
        job->row = row;
        job->n_rows = min_u32(ROWS_MAX, x.n_rows - row);
        job->left = (struct left){.x = mat_row(x, row), .x_stride = x.stride, .n_in = x.n_cols};
        products_run(cb, job);
    }
}

void cpu_linear(struct backend *be, const struct linear_args *args) {
    struct product_job job = {.cb = cpu_backend(be), .store = args->store, .scale = args->scale};
    job.n_products = args->n_outputs;
    for (uint32_t i = 0; i < args->n_outputs; i++) {
        const struct linear_output *out = &args->outputs[i];
        assert(out->weight->desc.n_in == args->x.n_cols);
        job.products[i] = (struct product){.weight = out->weight, .bias = out->bias, .y = out->y};
    }
    products_of(job.cb, args->x, &job);
}

float *cpu_logits(struct backend *be, struct mat x, const struct weight *head, const float *bias, float scale,
                  float softcap) {
    struct cpu_backend *cb = cpu_backend(be);
    struct product_job job = {.cb = cb, .n_products = 1, .scale = scale, .softcap = softcap};
    job.products[0] = (struct product){
        .weight = head, .bias = bias, .y = {cb->logits, x.n_rows, head->desc.n_out, head->desc.n_out}};
    products_of(cb, x, &job);
    return cb->logits;
}

// ---- Gate and up ----------------------------------------------------------------------------------
// The forms of x that gate and up want, mostly the same. They take up to two places in the scratch.
static void glu_lefts(struct cpu_backend *cb, struct left lefts[2], const struct weight *gate,
                      const struct weight *up, uint32_t n_rows) {
    left_prepare(cb, &lefts[0], gate, n_rows, cb->shared_scratch);
    if (left_fits(cb, &lefts[0], up))
        lefts[1] = lefts[0];
    else
        left_prepare(cb, &lefts[1], up, n_rows,
                     (char *)cb->shared_scratch + left_bytes(ROWS_MAX, cb->limits.n_cols_max));
}

struct glu_job {
    struct cpu_backend *cb;
    struct left lefts[2];
    uint32_t n_rows, outs;
    const struct weight *gate, *up;
    enum glu_kind kind;
    struct mat y;
};

static void glu_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    const struct glu_job *j = job;
    struct tile_scratch *s = j->cb->thread_scratch[thread_idx];
    uint32_t out = tile_idx * j->outs, n_outs = min_u32(j->outs, j->gate->desc.n_out - out);
    product_tile(j->cb, s, j->gate, out, n_outs, &j->lefts[0], NULL, 0, j->n_rows, s->acc[0]);
    product_tile(j->cb, s, j->up, out, n_outs, &j->lefts[1], NULL, 0, j->n_rows, s->acc[1]);
    for (uint32_t r = 0; r < j->n_rows; r++)
        j->cb->kernels.glu(j->kind, s->acc[0] + r * TILE_OUTS, s->acc[1] + r * TILE_OUTS, mat_row(j->y, r) + out,
                           n_outs, 0.0f, 0.0f);
}

void cpu_linear_glu(struct backend *be, struct mat x, const struct weight *gate, const struct weight *up,
                    enum glu_kind kind, struct mat y) {
    struct cpu_backend *cb = cpu_backend(be);
    assert(gate->desc.n_in == x.n_cols && up->desc.n_in == x.n_cols && gate->desc.n_out == up->desc.n_out);
    for (uint32_t row = 0; row < x.n_rows; row += ROWS_MAX) {
        struct glu_job job = {.cb = cb, .gate = gate, .up = up, .kind = kind};
        job.n_rows = min_u32(ROWS_MAX, x.n_rows - row);
        job.lefts[0] = (struct left){.x = mat_row(x, row), .x_stride = x.stride, .n_in = x.n_cols};
        job.lefts[1] = job.lefts[0];
        job.outs = tile_outs(cb, gate, job.n_rows, 2);
        job.y = mat_rows(be, y, row, job.n_rows);
        glu_lefts(cb, job.lefts, gate, up, job.n_rows);
        count_products(cb, gate, 1, job.n_rows);
        count_products(cb, up, 1, job.n_rows);
        cpu_run(cb, glu_tile, &job, n_pieces(gate->desc.n_out, job.outs),
                (uint64_t)gate->desc.n_out * x.n_cols * job.n_rows / 2);
    }
}

// ---- Experts --------------------------------------------------------------------------------------
// The pairs of a token and one of its experts, sorted by expert: those of an expert are rows of one
// small product. Two jobs: gate, up and the activation give the hidden row of each pair; down walks
// an output tile through all experts in ascending order and adds to the tokens' rows, so that a token's
// sum has one order whoever else is there.
struct experts_job {
    struct cpu_backend *cb;
    const struct experts_args *args;
    uint32_t token, n_tokens; // tokens [token, token + n_tokens) of args
    uint32_t *active, n_active; // experts that have pairs
    uint32_t *first;            // [n_experts + 1] where an expert's pairs begin
    uint32_t *pair_token;       // [n_pairs] from `token` on
    float *pair_weight;         // [n_pairs]
    float *h;                   // [n_pairs, d_expert]
    void *h_rounded;
    struct left lefts[2], hidden;
    uint32_t outs, n_tiles; // of an expert in the first job, of all in the second
};

static void experts_place(struct experts_job *j) {
    const struct backend_limits *l = &j->cb->limits;
    size_t n_pairs = (size_t)experts_tokens(l) * l->n_experts_used;
    size_t experts_n = align_up((l->n_experts + 1) * sizeof(uint32_t)), pairs_n = align_up(n_pairs * sizeof(uint32_t));
    char *p = (char *)j->cb->shared_scratch + 2 * left_bytes(ROWS_MAX, l->n_cols_max);
    j->active = (uint32_t *)p;
    j->first = (uint32_t *)(p += experts_n);
    j->pair_token = (uint32_t *)(p += experts_n);
    j->pair_weight = (float *)(p += pairs_n);
    j->h = (float *)(p += pairs_n);
    j->h_rounded = p + align_up(n_pairs * l->d_expert * sizeof(float));
}

// Counting sort: within an expert the tokens ascend.
static void experts_sort(struct experts_job *j) {
    const struct experts_args *a = j->args;
    uint32_t n_pairs = j->n_tokens * a->n_used;
    const uint32_t *experts = a->experts + (size_t)j->token * a->n_used;
    const float *weights = a->weights + (size_t)j->token * a->n_used;
    memset(j->first, 0, (a->n_experts + 1) * sizeof *j->first);
    for (uint32_t i = 0; i < n_pairs; i++)
        j->first[experts[i] + 1]++;
    j->n_active = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        if (j->first[e + 1])
            j->active[j->n_active++] = e;
        j->first[e + 1] += j->first[e];
    }
    for (uint32_t i = 0; i < n_pairs; i++) {
        uint32_t at = j->first[experts[i]]++;
        j->pair_token[at] = i / a->n_used;
        j->pair_weight[at] = weights[i] * a->scale;
    }
    memmove(j->first + 1, j->first, a->n_experts * sizeof *j->first); // undo the steps of the placing
    j->first[0] = 0;
}

static void experts_add_bias(float *acc, const float *bias, uint32_t n_rows, uint32_t n_outs) {
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t o = 0; o < n_outs; o++)
            acc[r * TILE_OUTS + o] += bias[o];
}

static void experts_hidden_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    const struct experts_job *j = job;
    const struct experts_args *a = j->args;
    struct tile_scratch *s = j->cb->thread_scratch[thread_idx];
    uint32_t expert = j->active[tile_idx / j->n_tiles], out = tile_idx % j->n_tiles * j->outs;
    uint32_t d = a->gate[expert]->desc.n_out, n_outs = min_u32(j->outs, d - out);
    for (uint32_t row = j->first[expert], n; row < j->first[expert + 1]; row += n) {
        n = min_u32(ROWS_MAX, j->first[expert + 1] - row);
        product_tile(j->cb, s, a->gate[expert], out, n_outs, &j->lefts[0], j->pair_token, row, n, s->acc[0]);
        product_tile(j->cb, s, a->up[expert], out, n_outs, &j->lefts[1], j->pair_token, row, n, s->acc[1]);
        if (a->gate_bias)
            experts_add_bias(s->acc[0], a->gate_bias + (size_t)expert * d + out, n, n_outs);
        if (a->up_bias)
            experts_add_bias(s->acc[1], a->up_bias + (size_t)expert * d + out, n, n_outs);
        for (uint32_t r = 0; r < n; r++)
            j->cb->kernels.glu(a->glu, s->acc[0] + r * TILE_OUTS, s->acc[1] + r * TILE_OUTS,
                               j->h + (size_t)(row + r) * d + out, n_outs, a->alpha, a->limit);
    }
}

static void experts_down_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    const struct experts_job *j = job;
    const struct experts_args *a = j->args;
    struct tile_scratch *s = j->cb->thread_scratch[thread_idx];
    uint32_t out = tile_idx * j->outs, n_outs = min_u32(j->outs, a->y.n_cols - out);
    if (a->store == LINEAR_STORE)
        for (uint32_t t = 0; t < j->n_tokens; t++)
            memset(mat_row(a->y, j->token + t) + out, 0, n_outs * sizeof(float));
    for (uint32_t i = 0; i < j->n_active; i++) {
        uint32_t expert = j->active[i];
        for (uint32_t row = j->first[expert], n; row < j->first[expert + 1]; row += n) {
            n = min_u32(ROWS_MAX, j->first[expert + 1] - row);
            product_tile(j->cb, s, a->down[expert], out, n_outs, &j->hidden, NULL, row, n, s->acc[0]);
            if (a->down_bias)
                experts_add_bias(s->acc[0], a->down_bias + (size_t)expert * a->y.n_cols + out, n, n_outs);
            for (uint32_t r = 0; r < n; r++) {
                float *y = mat_row(a->y, j->token + j->pair_token[row + r]) + out, weight = j->pair_weight[row + r];
                for (uint32_t o = 0; o < n_outs; o++)
                    y[o] += weight * s->acc[0][r * TILE_OUTS + o];
            }
        }
    }
}

void cpu_experts(struct backend *be, const struct experts_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    const struct weight *gate = args->gate[0], *up = args->up[0], *down = args->down[0];
    uint32_t d_expert = gate->desc.n_out;
    assert(gate->desc.n_in == args->x.n_cols && down->desc.n_in == d_expert && down->desc.n_out == args->y.n_cols);
    struct experts_job j = {.cb = cb, .args = args};
    experts_place(&j);
    for (j.token = 0; j.token < args->x.n_rows; j.token += j.n_tokens) {
        j.n_tokens = min_u32(experts_tokens(&cb->limits), args->x.n_rows - j.token);
        uint32_t n_pairs = j.n_tokens * args->n_used;
        experts_sort(&j);
        uint32_t rows_each = n_pieces(n_pairs, j.n_active);
        j.lefts[0] = (struct left){.x = mat_row(args->x, j.token), .x_stride = args->x.stride, .n_in = args->x.n_cols};
        j.lefts[1] = j.lefts[0];
        glu_lefts(cb, j.lefts, gate, up, j.n_tokens);
        j.outs = tile_outs(cb, gate, rows_each, 2 * j.n_active);
        j.n_tiles = n_pieces(d_expert, j.outs);
        uint64_t work = (uint64_t)n_pairs * d_expert * args->x.n_cols / 4;
        count_products(cb, gate, j.n_active, n_pairs);
        count_products(cb, up, j.n_active, n_pairs);
        count_products(cb, down, j.n_active, n_pairs);
        cpu_run(cb, experts_hidden_tile, &j, j.n_tiles * j.n_active, 2 * work);
        j.hidden = (struct left){.x = j.h, .x_stride = d_expert, .n_in = d_expert};
        left_prepare(cb, &j.hidden, down, n_pairs, j.h_rounded);
        j.outs = tile_outs(cb, down, rows_each, 1);
        cpu_run(cb, experts_down_tile, &j, n_pieces(args->y.n_cols, j.outs), work);
    }
}

// ---- Embedding ------------------------------------------------------------------------------------
struct embed_job {
    const struct linear_kernels *kernels;
    const struct weight *table;
    const int32_t *ids;
    float scale;
    struct mat y;
};

static void embed_tile(void *job, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct embed_job *e = job;
    float *y = mat_row(e->y, tile_idx);
    e->kernels->dequantize(e->table, (uint32_t)e->ids[tile_idx], 0, e->table->desc.n_in, y);
    for (uint32_t i = 0; i < e->table->desc.n_in; i++)
        y[i] *= e->scale;
}

void cpu_embed(struct backend *be, const struct weight *table, const int32_t *ids, float scale, struct mat y) {
    struct cpu_backend *cb = cpu_backend(be);
    struct embed_job e = {&cb->kernels.linear, table, ids ? ids : cb->step->token_ids, scale, y};
    cpu_run(cb, embed_tile, &e, y.n_rows, (uint64_t)y.n_rows * y.n_cols);
}
