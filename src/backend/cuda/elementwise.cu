// Everything that touches each element of a matrix once: embedding rows, norms, activations, sums.
#include <string.h>

#include "backend/cuda/device.cuh"

// ---- Eight neighbours of a row ----------------------------------------------------------------------
// `wide`: the matrix can be read in 16-byte pieces, and n is 8.
__device__ __forceinline__ void load8(float f[8], const bf16 *p, uint32_t n, bool wide) {
    if (wide) {
        uint4 v = *(const uint4 *)p;
        f[0] = bf16_lo(v.x), f[1] = bf16_hi(v.x), f[2] = bf16_lo(v.y), f[3] = bf16_hi(v.y);
        f[4] = bf16_lo(v.z), f[5] = bf16_hi(v.z), f[6] = bf16_lo(v.w), f[7] = bf16_hi(v.w);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        f[i] = i < n ? __bfloat162float(p[i]) : 0.0f;
}
__device__ __forceinline__ void store8(bf16 *p, const float f[8], uint32_t n, bool wide) {
    if (wide) {
        *(uint4 *)p = make_uint4(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]), bf16_pair(f[4], f[5]),
                                 bf16_pair(f[6], f[7]));
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (i < n)
            p[i] = __float2bfloat16(f[i]);
}
static bool is_wide(struct mat m) {
    return (uintptr_t)m.data % 16 == 0 && m.stride % 8 == 0;
}

// Run fn(row, col, n, wide) for each piece of 8 columns; the last of a row may be shorter.
template <class Fn>
static __global__ void pieces_kernel(uint32_t n_rows, uint32_t n_cols, bool wide, const Fn fn) {
    wait_for_previous();
    const uint32_t pieces = (n_cols + 7) / 8;
    const uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= (uint64_t)n_rows * pieces)
        return;
    const uint32_t row = (uint32_t)(i / pieces), col = (uint32_t)(i % pieces) * 8;
    const uint32_t n = n_cols - col < 8 ? n_cols - col : 8;
    fn(row, col, n, wide && n == 8);
}
template <class Fn>
static void each_piece(struct cuda_backend *cu, uint32_t n_rows, uint32_t n_cols, bool wide, const Fn &fn,
                       const char *what) {
    const uint64_t n = (uint64_t)n_rows * ((n_cols + 7) / 8);
    if (n == 0)
        return;
    launch(cu, pieces_kernel<Fn>, (uint32_t)((n + 127) / 128), 128, 0, what, n_rows, n_cols, wide, fn);
}

// ---- Rows by index ------------------------------------------------------------------------------------
const int32_t *upload_ids(struct cuda_backend *cu, const int32_t *ids, uint32_t n) {
    if (n > cu->ids_max - cu->ids_used) {
        cuda_check(cu, cudaErrorInvalidValue, "row indices beyond the reservation");
        return cu->ids;
    }
    int32_t *host = cu->ids_host + cu->ids_used, *device = cu->ids + cu->ids_used;
    cu->ids_used += n;
    memcpy(host, ids, n * sizeof *ids);
    cuda_check(cu, cudaMemcpyAsync(device, host, n * sizeof *ids, cudaMemcpyHostToDevice, cu->stream),
               "row indices");
    cu->once = true;
    return device;
}

struct embed_fn {
    wview w;
    const int32_t *ids;
    float scale;
    bf16 *y;
    uint32_t ldy;
    __device__ void operator()(uint32_t row, uint32_t col, uint32_t n, bool wide) const {
        const int32_t id = ids[row];
        float f[8] = {};
        if (id >= 0 && (uint32_t)id < w.n_out) {
            if (w.format == WEIGHT_BF16 && wide && w.n_in % 8 == 0)
                load8(f, (const bf16 *)(w.data + id * w.row_bytes) + col, n, true);
            else {
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    f[i] = i < n ? weight_value(w, (uint32_t)id, col + i) : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] *= scale;
        store8(y + (uint64_t)row * ldy + col, f, n, wide);
    }
};
void cuda_embed(struct backend *be, const struct weight *table, const int32_t *ids, float scale,
                struct mat y) {
    struct cuda_backend *cu = cuda_of(be);
    embed_fn fn = {table->view, ids ? upload_ids(cu, ids, y.n_rows) : cu->step.token_ids, scale,
                   (bf16 *)y.data, y.stride};
    each_piece(cu, y.n_rows, y.n_cols, is_wide(y), fn, "embed");
}

struct gather_fn {
    const bf16 *x;
    uint32_t ldx;
    const uint32_t *rows;
    bf16 *y;
    uint32_t ldy;
    __device__ void operator()(uint32_t row, uint32_t col, uint32_t n, bool wide) const {
        float f[8];
        load8(f, x + (uint64_t)rows[row] * ldx + col, n, wide);
        store8(y + (uint64_t)row * ldy + col, f, n, wide);
    }
};
void cuda_gather(struct backend *be, struct mat x, const uint32_t *rows, struct mat y) {
    struct cuda_backend *cu = cuda_of(be);
    gather_fn fn = {(const bf16 *)x.data, x.stride,
                    rows ? (const uint32_t *)upload_ids(cu, (const int32_t *)rows, y.n_rows)
                         : cu->step.logit_tokens,
                    (bf16 *)y.data, y.stride};
    each_piece(cu, y.n_rows, y.n_cols, is_wide(x) && is_wide(y), fn, "gather");
}

// ---- Norms --------------------------------------------------------------------------------------------
struct norm_kernel_args {
    bf16 *x, *y;
    const bf16 *residual;
    uint32_t ldx, ldy, ldr, width, pieces;
    float eps, residual_scale;
    const float *weight, *bias;
    bool wide;
};
// A block a piece; a thread keeps NV times 8 elements.
template <int NV, bool LAYER> static __global__ void norm_kernel(const __grid_constant__ norm_kernel_args a) {
    __shared__ float shared[32];
    wait_for_previous();
    const uint32_t row = blockIdx.x / a.pieces, col0 = blockIdx.x % a.pieces * a.width;
    bf16 *x = a.x + (uint64_t)row * a.ldx + col0;
    float f[NV][8], sum = 0;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const uint32_t col = (v * blockDim.x + threadIdx.x) * 8;
        const uint32_t n = col >= a.width ? 0 : a.width - col < 8 ? a.width - col : 8;
        const bool wide = a.wide && n == 8;
        load8(f[v], x + col, n, wide);
        if (a.residual && n) {
            float r[8];
            load8(r, a.residual + (uint64_t)row * a.ldr + col0 + col, n, wide);
#pragma unroll
            for (int i = 0; i < 8; i++) // as the next reader of x will see it
                f[v][i] = __bfloat162float(__float2bfloat16(fmaf(a.residual_scale, r[i], f[v][i])));
            store8(x + col, f[v], n, wide);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += LAYER ? f[v][i] : f[v][i] * f[v][i];
    }
    float mean = 0;
    if (LAYER) {
        mean = block_sum(sum, shared) / (float)a.width;
        sum = 0;
#pragma unroll
        for (int v = 0; v < NV; v++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t col = (v * blockDim.x + threadIdx.x) * 8 + i;
                const float d = f[v][i] - mean;
                sum += col < a.width ? d * d : 0.0f;
            }
    }
    const float inv = rsqrtf(block_sum(sum, shared) / (float)a.width + a.eps);
    bf16 *y = a.y + (uint64_t)row * a.ldy + col0;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const uint32_t col = (v * blockDim.x + threadIdx.x) * 8;
        const uint32_t n = col >= a.width ? 0 : a.width - col < 8 ? a.width - col : 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t c = i < (int)n ? col + i : 0;
            f[v][i] = (f[v][i] - mean) * inv;
            if (a.weight)
                f[v][i] *= a.weight[c];
            if (LAYER && a.bias)
                f[v][i] += a.bias[c];
        }
        store8(y + col, f[v], n, a.wide && n == 8);
    }
}
template <bool LAYER>
static void norm_launch(struct cuda_backend *cu, const norm_kernel_args &a, uint32_t n_blocks) {
    uint32_t threads = (div_up(a.width, 8) + 31) / 32 * 32;
    if (threads <= 1024)
        launch(cu, norm_kernel<1, LAYER>, n_blocks, threads, 0, "norm", a);
    else
        launch(cu, norm_kernel<4, LAYER>, n_blocks, 1024, 0, "norm", a);
}
void cuda_norm(struct backend *be, const struct norm_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    norm_kernel_args a = {};
    a.x = (bf16 *)args->x.data, a.ldx = args->x.stride;
    a.y = (bf16 *)args->y.data, a.ldy = args->y.stride;
    a.wide = is_wide(args->x) && is_wide(args->y) && args->width % 8 == 0;
    if (args->residual) {
        a.residual = (const bf16 *)args->residual->data, a.ldr = args->residual->stride;
        a.wide = a.wide && is_wide(*args->residual);
    }
    a.width = args->width;
    a.pieces = args->x.n_cols / args->width;
    a.eps = args->eps;
    a.residual_scale = args->residual_scale;
    a.weight = args->weight, a.bias = args->bias;
    const uint32_t n_blocks = args->x.n_rows * a.pieces;
    if (n_blocks == 0)
        return;
    if (args->width > 4 * 8 * 1024)
        cuda_check(cu, cudaErrorInvalidValue, "norm wider than 32768");
    else if (args->kind == NORM_LAYER)
        norm_launch<true>(cu, a, n_blocks);
    else
        norm_launch<false>(cu, a, n_blocks);
}

// ---- Activations and sums -------------------------------------------------------------------------------
struct glu_fn {
    uint32_t kind;
    float alpha, limit;
    const bf16 *gate, *up;
    bf16 *y;
    uint32_t ldg, ldu, ldy;
    __device__ void operator()(uint32_t row, uint32_t col, uint32_t n, bool wide) const {
        float f[8], u[8];
        load8(f, gate + (uint64_t)row * ldg + col, n, wide);
        load8(u, up + (uint64_t)row * ldu + col, n, wide);
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] = glu_value(kind, f[i], u[i], alpha, limit);
        store8(y + (uint64_t)row * ldy + col, f, n, wide);
    }
};
void cuda_glu(struct backend *be, const struct glu_args *args) {
    glu_fn fn = {(uint32_t)args->kind, args->alpha, args->limit, (const bf16 *)args->gate.data,
                 (const bf16 *)args->up.data, (bf16 *)args->y.data, args->gate.stride, args->up.stride,
                 args->y.stride};
    each_piece(cuda_of(be), args->y.n_rows, args->y.n_cols,
               is_wide(args->gate) && is_wide(args->up) && is_wide(args->y), fn, "glu");
}

__device__ __forceinline__ float xielu(float x, float alpha_p, float alpha_n, float beta, float eps) {
    if (x > 0)
        return alpha_p * x * x + beta * x;
    return (expm1f(fminf(x, eps)) - x) * alpha_n + beta * x;
}
__device__ __forceinline__ float unary_value(uint32_t kind, const float p[4], float x) {
    switch (kind) {
    case UNARY_SILU:
        return x * sigmoid(x);
    case UNARY_GELU:
        return gelu_erf(x);
    case UNARY_GELU_TANH:
        return gelu_tanh(x);
    case UNARY_RELU:
        return fmaxf(x, 0.0f);
    case UNARY_RELU2:
        return x > 0 ? x * x : 0.0f;
    case UNARY_SIGMOID:
        return sigmoid(x);
    case UNARY_TANH_CAP:
        return p[0] * tanhf(x / p[0]);
    default: // UNARY_XIELU
        return xielu(x, p[0], p[1], p[2], p[3]);
    }
}
struct unary_fn {
    uint32_t kind;
    float p[4];
    const bf16 *x;
    bf16 *y;
    uint32_t ldx, ldy;
    __device__ void operator()(uint32_t row, uint32_t col, uint32_t n, bool wide) const {
        float f[8];
        load8(f, x + (uint64_t)row * ldx + col, n, wide);
#pragma unroll
        for (int i = 0; i < 8; i++)
            f[i] = unary_value(kind, p, f[i]);
        store8(y + (uint64_t)row * ldy + col, f, n, wide);
    }
};
void cuda_unary(struct backend *be, enum unary_kind kind, const float p[4], struct mat x, struct mat y) {
    unary_fn fn = {(uint32_t)kind, {}, (const bf16 *)x.data, (bf16 *)y.data, x.stride, y.stride};
    for (int i = 0; p && i < 4; i++)
        fn.p[i] = p[i];
    each_piece(cuda_of(be), y.n_rows, y.n_cols, is_wide(x) && is_wide(y), fn, "unary");
}

struct axpby_fn {
    float a, b;
    const bf16 *x;
    bf16 *y;
    uint64_t ldx; // 0: one row for all
    uint32_t ldy;
    __device__ void operator()(uint32_t row, uint32_t col, uint32_t n, bool wide) const {
        float f[8], g[8];
        load8(f, x + row * ldx + col, n, wide);
        load8(g, y + (uint64_t)row * ldy + col, n, wide);
#pragma unroll
        for (int i = 0; i < 8; i++) // b = 0 must not read what y happens to hold
            f[i] = b == 0.0f ? a * f[i] : fmaf(a, f[i], b * g[i]);
        store8(y + (uint64_t)row * ldy + col, f, n, wide);
    }
};
void cuda_axpby(struct backend *be, float a, struct mat x, float b, struct mat y) {
    axpby_fn fn = {a, b, (const bf16 *)x.data, (bf16 *)y.data, x.n_rows == 1 ? 0 : x.stride, y.stride};
    each_piece(cuda_of(be), y.n_rows, y.n_cols, is_wide(x) && is_wide(y), fn, "axpby");
}

struct mul_fn {
    const bf16 *x;
    bf16 *y;
    uint64_t ldx;
    uint32_t ldy;
    bool one_col;
    __device__ void operator()(uint32_t row, uint32_t col, uint32_t n, bool wide) const {
        float f[8], g[8];
        if (one_col) {
            f[0] = __bfloat162float(x[row * ldx]);
#pragma unroll
            for (int i = 1; i < 8; i++)
                f[i] = f[0];
        } else {
            load8(f, x + row * ldx + col, n, wide);
        }
        load8(g, y + (uint64_t)row * ldy + col, n, wide);
#pragma unroll
        for (int i = 0; i < 8; i++)
            g[i] *= f[i];
        store8(y + (uint64_t)row * ldy + col, g, n, wide);
    }
};
void cuda_mul(struct backend *be, struct mat x, struct mat y) {
    const bool one_col = x.n_cols == 1 && y.n_cols != 1;
    mul_fn fn = {(const bf16 *)x.data, (bf16 *)y.data, x.n_rows == 1 ? 0 : x.stride, y.stride, one_col};
    each_piece(cuda_of(be), y.n_rows, y.n_cols, (one_col || is_wide(x)) && is_wide(y), fn, "mul");
}
