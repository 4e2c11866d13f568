#include "backend/cpu/elementwise.h"

#include <assert.h>
#include <string.h>

#include "base/checked.h"

enum {
    TILE_ELEMENTS = 4096,
    // Cost of an element in the units of CPU_DISPATCH_WORK.
    COST_COPY = 1,
    COST_NORM = 3,
    COST_EXP = 8,
};

// What the operations below look like to the pool: a function for [n] columns of one row.
struct job {
    const struct cpu_kernels *kernels;
    const void *args;
    void (*piece)(const struct job *job, uint32_t row, uint32_t col, uint32_t n);
    uint32_t n_rows, n_cols;
    uint32_t rows_a_tile, cols_a_tile, tiles_a_row;
};

static void run_tile(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct job *job = arg;
    uint32_t row = tile_idx / job->tiles_a_row * job->rows_a_tile;
    uint32_t col = tile_idx % job->tiles_a_row * job->cols_a_tile;
    uint32_t n = min_u32(job->cols_a_tile, job->n_cols - col);
    uint32_t end = min_u32(row + job->rows_a_tile, job->n_rows);
    for (; row < end; row++)
        job->piece(job, row, col, n);
}

// `whole_rows`: a row is never cut.
static void run(struct cpu_backend *cb, struct job *job, bool whole_rows, uint32_t cost) {
    if (job->n_rows == 0 || job->n_cols == 0)
        return;
    job->kernels = &cb->kernels;
    job->cols_a_tile = whole_rows ? job->n_cols : min_u32(job->n_cols, TILE_ELEMENTS);
    job->tiles_a_row = (job->n_cols + job->cols_a_tile - 1) / job->cols_a_tile;
    job->rows_a_tile = max_u32(1, TILE_ELEMENTS / job->cols_a_tile);
    uint32_t n_tiles = (job->n_rows + job->rows_a_tile - 1) / job->rows_a_tile * job->tiles_a_row;
    cpu_run(cb, run_tile, job, n_tiles, (uint64_t)job->n_rows * job->n_cols * cost);
}

// ---- Norm ---------------------------------------------------------------------------------------
static void norm_piece(const struct job *job, uint32_t row, uint32_t col, uint32_t n) {
    const struct norm_args *a = job->args;
    float *x = mat_row(a->x, row) + col, *y = mat_row(a->y, row) + col;
    if (a->residual)
        job->kernels->axpby(a->residual_scale, mat_row(*a->residual, row) + col, 1.0f, x, n);
    for (uint32_t i = 0; i < n; i += a->width) {
        if (a->kind == NORM_RMS)
            job->kernels->norm_rms(x + i, a->weight, a->eps, y + i, a->width);
        else
            job->kernels->norm_layer(x + i, a->weight, a->bias, a->eps, y + i, a->width);
    }
}

void cpu_norm(struct backend *be, const struct norm_args *args) {
    assert(args->x.n_cols % args->width == 0);
    struct job job = {.args = args, .piece = norm_piece, .n_rows = args->x.n_rows, .n_cols = args->x.n_cols};
    run(cpu_backend(be), &job, true, COST_NORM);
}

// ---- Activations --------------------------------------------------------------------------------
static void glu_piece(const struct job *job, uint32_t row, uint32_t col, uint32_t n) {
    const struct glu_args *a = job->args;
    job->kernels->glu(a->kind, mat_row(a->gate, row) + col, mat_row(a->up, row) + col, mat_row(a->y, row) + col, n,
                      a->alpha, a->limit);
}

void cpu_glu(struct backend *be, const struct glu_args *args) {
    struct job job = {.args = args, .piece = glu_piece, .n_rows = args->y.n_rows, .n_cols = args->y.n_cols};
    run(cpu_backend(be), &job, false, COST_EXP);
}

struct unary_args {
    enum unary_kind kind;
    const float *p;
    struct mat x, y;
};

static void unary_piece(const struct job *job, uint32_t row, uint32_t col, uint32_t n) {
    const struct unary_args *a = job->args;
    job->kernels->unary(a->kind, a->p, mat_row(a->x, row) + col, mat_row(a->y, row) + col, n);
}

void cpu_unary(struct backend *be, enum unary_kind kind, const float p[4], struct mat x, struct mat y) {
    struct unary_args args = {kind, p, x, y};
    struct job job = {.args = &args, .piece = unary_piece, .n_rows = y.n_rows, .n_cols = y.n_cols};
    run(cpu_backend(be), &job, false, COST_EXP);
}

// ---- Row arithmetic -----------------------------------------------------------------------------
struct pair_args {
    float a, b;
    struct mat x, y;
};

static void axpby_piece(const struct job *job, uint32_t row, uint32_t col, uint32_t n) {
    const struct pair_args *a = job->args;
    const float *x = mat_row(a->x, a->x.n_rows == 1 ? 0 : row) + col;
    float *y = mat_row(a->y, row) + col;
    if (a->b != 0) {
        job->kernels->axpby(a->a, x, a->b, y, n);
        return;
    }
    memcpy(y, x, n * sizeof *y); // what y held may be no number at all
    if (a->a != 1)
        job->kernels->scale(a->a, y, n);
}

void cpu_axpby(struct backend *be, float a, struct mat x, float b, struct mat y) {
    struct pair_args args = {a, b, x, y};
    struct job job = {.args = &args, .piece = axpby_piece, .n_rows = y.n_rows, .n_cols = y.n_cols};
    run(cpu_backend(be), &job, false, COST_COPY);
}

static void mul_piece(const struct job *job, uint32_t row, uint32_t col, uint32_t n) {
    const struct pair_args *a = job->args;
    const float *x = mat_row(a->x, a->x.n_rows == 1 ? 0 : row);
    float *y = mat_row(a->y, row) + col;
    if (a->x.n_cols == 1 && a->y.n_cols != 1)
        job->kernels->scale(*x, y, n);
    else
        job->kernels->mul(x + col, y, n);
}

void cpu_mul(struct backend *be, struct mat x, struct mat y) {
    struct pair_args args = {.x = x, .y = y};
    struct job job = {.args = &args, .piece = mul_piece, .n_rows = y.n_rows, .n_cols = y.n_cols};
    run(cpu_backend(be), &job, false, COST_COPY);
}

struct gather_args {
    struct mat x, y;
    const uint32_t *rows;
};

static void gather_piece(const struct job *job, uint32_t row, uint32_t col, uint32_t n) {
    const struct gather_args *a = job->args;
    memcpy(mat_row(a->y, row) + col, mat_row(a->x, a->rows[row]) + col, n * sizeof(float));
}

void cpu_gather(struct backend *be, struct mat x, const uint32_t *rows, struct mat y) {
    struct cpu_backend *cb = cpu_backend(be);
    struct gather_args args = {x, y, rows ? rows : cb->step->logit_tokens};
    struct job job = {.args = &args, .piece = gather_piece, .n_rows = y.n_rows, .n_cols = y.n_cols};
    run(cb, &job, false, COST_COPY);
}
