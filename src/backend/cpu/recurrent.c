// Both operations walk a row token by token; what runs side by side are rows, heads and columns, which do
// not touch each other.
#include "backend/cpu/recurrent.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/state_pool.h"
#include "base/checked.h"

enum {
    CONV_CHANNELS = 64, // a tile's
    CONV_TAPS_MAX = 16,
    // Columns of a head's state that a tile owns: 128 rows of 32 floats are 16 KiB, so they stay in the
    // first-level cache over all tokens of the row.
    DELTA_COLUMNS = 32,
    DELTA_DIM_MAX = 1024,
};

// ---- Short convolution ----------------------------------------------------------------------------
struct conv_job {
    struct cpu_backend *cb;
    const struct conv_args *args;
    uint32_t tiles_a_row;
};

static void conv_tile(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct conv_job *job = arg;
    const struct conv_args *a = job->args;
    const struct step_row *row = &job->cb->step->rows[tile_idx / job->tiles_a_row];
    uint32_t c0 = tile_idx % job->tiles_a_row * CONV_CHANNELS, n = min_u32(CONV_CHANNELS, a->x.n_cols - c0);
    uint32_t n_channels = a->x.n_cols, n_taps = a->kernel, n_old = n_taps - 1;
    float *state = state_tensor(a->pool, row->state_slot, a->state) + c0;
    float taps[CONV_TAPS_MAX][CONV_CHANNELS], old[CONV_TAPS_MAX][CONV_CHANNELS];
    const float *w[CONV_TAPS_MAX], *x[CONV_TAPS_MAX];
    for (uint32_t t = 0; t < n_taps; t++) {
        for (uint32_t c = 0; c < n; c++)
            taps[t][c] = a->weight[(size_t)(c0 + c) * n_taps + t];
        w[t] = taps[t];
    }
    for (uint32_t t = 0; t < n_old; t++)
        memcpy(old[t], state + (size_t)t * n_channels, n * sizeof(float));
    // Position i of `old` followed by the row's inputs.
#define INPUT_AT(i) ((i) < n_old ? old[i] : mat_row(a->x, row->token_off + (i) - n_old) + c0)
    for (uint32_t t = 0; t < n_old; t++)
        memcpy(state + (size_t)t * n_channels, INPUT_AT(row->n_tokens + t), n * sizeof(float));
    // The last token first: y may be x, and no earlier token needs a later input.
    for (uint32_t i = row->n_tokens; i-- > 0;) {
        for (uint32_t t = 0; t < n_taps; t++)
            x[t] = INPUT_AT(i + t);
        float *y = mat_row(a->y, row->token_off + i) + c0;
        job->cb->kernels.conv(x, w, n_taps, a->bias ? a->bias + c0 : NULL, y, n);
        if (a->silu)
            job->cb->kernels.unary(UNARY_SILU, NULL, y, y, n);
    }
#undef INPUT_AT
}

void cpu_conv(struct backend *be, const struct conv_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    assert(args->kernel >= 1 && args->kernel <= CONV_TAPS_MAX);
    struct conv_job job = {cb, args, (args->x.n_cols + CONV_CHANNELS - 1) / CONV_CHANNELS};
    cpu_run(cb, conv_tile, &job, job.tiles_a_row * cb->step->n_rows,
            (uint64_t)args->x.n_rows * args->x.n_cols * (args->kernel + 8));
}

// ---- Gated delta rule -----------------------------------------------------------------------------
struct delta_job {
    struct cpu_backend *cb;
    const struct delta_args *args;
    uint32_t tiles_a_head;
};

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

// out = x / sqrt(sum x^2 + 1e-6), times `scale`: an RMS norm whose eps is of the mean.
static void l2_norm(const struct cpu_kernels *k, const float *x, float scale, float *out, uint32_t n) {
    k->norm_rms(x, NULL, 1e-6f / (float)n, out, n);
    k->scale(scale / sqrtf((float)n), out, n);
}

static void delta_tile(void *arg, uint32_t tile_idx, uint32_t thread_idx) {
    (void)thread_idx;
    const struct delta_job *job = arg;
    const struct delta_args *a = job->args;
    const struct cpu_kernels *kernels = &job->cb->kernels;
    uint32_t part = tile_idx % job->tiles_a_head, row_head = tile_idx / job->tiles_a_head;
    uint32_t head = row_head % a->n_v_heads, k_head = head / (a->n_v_heads / a->n_k_heads);
    const struct step_row *row = &job->cb->step->rows[row_head / a->n_v_heads];
    uint32_t c0 = part * DELTA_COLUMNS, n = min_u32(DELTA_COLUMNS, a->v_dim - c0);
    float *state = state_tensor(a->pool, row->state_slot, a->state) + (size_t)head * a->k_dim * a->v_dim + c0;
    float k[DELTA_DIM_MAX], q[DELTA_DIM_MAX], rate = -expf(a->a_log[head]);
    for (uint32_t t = row->token_off; t < row->token_off + row->n_tokens; t++) {
        l2_norm(kernels, mat_row(a->k, t) + (size_t)k_head * a->k_dim, 1.0f, k, a->k_dim);
        l2_norm(kernels, mat_row(a->q, t) + (size_t)k_head * a->k_dim, 1.0f / sqrtf((float)a->k_dim), q, a->k_dim);
        float decay = expf(rate * softplus(mat_row(a->a, t)[head] + a->dt_bias[head]));
        float beta = 1.0f / (1.0f + expf(-mat_row(a->b, t)[head]));
        size_t at = (size_t)head * a->v_dim + c0;
        kernels->delta(state, a->v_dim, k, q, a->k_dim, mat_row(a->v, t) + at, decay, beta, mat_row(a->out, t) + at,
                       n);
    }
}

void cpu_delta(struct backend *be, const struct delta_args *args) {
    struct cpu_backend *cb = cpu_backend(be);
    assert(args->k_dim <= DELTA_DIM_MAX && args->n_v_heads % args->n_k_heads == 0);
    struct delta_job job = {cb, args, (args->v_dim + DELTA_COLUMNS - 1) / DELTA_COLUMNS};
    cpu_run(cb, delta_tile, &job, job.tiles_a_head * args->n_v_heads * cb->step->n_rows,
            (uint64_t)args->out.n_rows * args->n_v_heads * args->k_dim * args->v_dim * 4);
}
