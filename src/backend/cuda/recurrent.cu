// Layers with a carried state: the pool of states, short convolution, the gated delta rule.
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device.cuh"

// ---- The pool -----------------------------------------------------------------------------------------
struct state_pool *cuda_state_create(struct backend *be, const size_t *n_floats, uint32_t n_states,
                                     uint32_t n_slots, struct err *err) {
    struct state_pool *pool = (struct state_pool *)calloc(1, sizeof *pool);
    if (pool) {
        pool->data = (float **)calloc(n_states ? n_states : 1, sizeof *pool->data);
        pool->n_floats = (size_t *)calloc(n_states ? n_states : 1, sizeof *pool->n_floats);
    }
    if (!pool || !pool->data || !pool->n_floats) {
        err_set(err, ERR_NOMEM, "cuda: out of memory for %u recurrent states", n_states);
        cuda_state_destroy(be, pool);
        return NULL;
    }
    pool->n_states = n_states, pool->n_slots = n_slots;
    for (uint32_t i = 0; i < n_states; i++) {
        const size_t n_bytes = n_floats[i] * n_slots * sizeof(float);
        pool->n_floats[i] = n_floats[i];
        cudaError_t status = cudaMalloc((void **)&pool->data[i], n_bytes ? n_bytes : 1);
        if (status == cudaSuccess)
            status = cudaMemset(pool->data[i], 0, n_bytes);
        if (status != cudaSuccess) {
            cudaGetLastError();
            err_set(err, ERR_NOMEM, "cuda: no room on %s for %u slots of recurrent state %u (%zu MiB): %s",
                    cuda_of(be)->name, n_slots, i, n_bytes >> 20, cudaGetErrorString(status));
            cuda_state_destroy(be, pool);
            return NULL;
        }
    }
    return pool;
}

void cuda_state_destroy(struct backend *be, struct state_pool *pool) {
    if (!pool)
        return;
    cudaStreamSynchronize(cuda_of(be)->stream);
    for (uint32_t i = 0; pool->data && i < pool->n_states; i++)
        cudaFree(pool->data[i]);
    free(pool->data);
    free(pool->n_floats);
    free(pool);
}

void cuda_state_clear(struct backend *be, struct state_pool *pool, uint32_t slot) {
    struct cuda_backend *cu = cuda_of(be);
    for (uint32_t i = 0; i < pool->n_states; i++)
        cuda_check(cu, cudaMemsetAsync(pool->data[i] + slot * pool->n_floats[i], 0,
                                       pool->n_floats[i] * sizeof(float), cu->stream),
                   "clearing a state");
}
void cuda_state_copy(struct backend *be, struct state_pool *pool, uint32_t from, uint32_t to) {
    struct cuda_backend *cu = cuda_of(be);
    for (uint32_t i = 0; i < pool->n_states; i++)
        cuda_check(cu, cudaMemcpyAsync(pool->data[i] + to * pool->n_floats[i],
                                       pool->data[i] + from * pool->n_floats[i],
                                       pool->n_floats[i] * sizeof(float), cudaMemcpyDeviceToDevice, cu->stream),
                   "copying a state");
}
size_t cuda_state_slot_bytes(const struct state_pool *pool) {
    size_t n = 0;
    for (uint32_t i = 0; i < pool->n_states; i++)
        n += pool->n_floats[i] * sizeof(float);
    return n;
}
static void move_state(struct cuda_backend *cu, const struct state_pool *pool, uint32_t slot, float *out,
                       const float *in) {
    for (uint32_t i = 0; i < pool->n_states; i++) {
        float *device = pool->data[i] + slot * pool->n_floats[i];
        const size_t n_bytes = pool->n_floats[i] * sizeof(float);
        cuda_check(cu, out ? cudaMemcpyAsync(out, device, n_bytes, cudaMemcpyDeviceToHost, cu->stream)
                           : cudaMemcpyAsync(device, in, n_bytes, cudaMemcpyHostToDevice, cu->stream),
                   "moving a state");
        if (out)
            out += pool->n_floats[i];
        else
            in += pool->n_floats[i];
    }
    cuda_check(cu, cudaStreamSynchronize(cu->stream), "moving a state");
}
void cuda_state_read(struct backend *be, const struct state_pool *pool, uint32_t slot, void *out) {
    move_state(cuda_of(be), pool, slot, (float *)out, NULL);
}
void cuda_state_write(struct backend *be, struct state_pool *pool, uint32_t slot, const void *in) {
    move_state(cuda_of(be), pool, slot, NULL, (const float *)in);
}

// ---- Convolution ----------------------------------------------------------------------------------------
enum { CONV_KERNEL_MAX = 16 };
struct conv_kernel_args {
    dev_step step;
    float *state; // [n_slots][kernel - 1][channels]
    const bf16 *x;
    bf16 *y;
    uint32_t ldx, ldy, channels, kernel;
    const float *weight, *bias;
    bool silu;
};
// A thread a channel of a row: it carries the last inputs along. KERNEL 0: any, up to the most.
template <int KERNEL> static __global__ void conv_kernel(const __grid_constant__ conv_kernel_args a) {
    constexpr int N = KERNEL ? KERNEL : CONV_KERNEL_MAX;
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, kernel = KERNEL ? KERNEL : a.kernel;
    if (c >= a.channels)
        return;
    const dev_row &row = a.step.rows[blockIdx.y];
    float *state = a.state + (uint64_t)row.state_slot * (kernel - 1) * a.channels + c;
    float taps[N], weight[N]; // aligned at the end: [N - 1] is the newest
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = j - (N - (int)kernel);
        weight[j] = i >= 0 ? a.weight[c * kernel + i] : 0.0f;
        // taps[j] will be shifted once before the first token.
        taps[j] = i >= 1 ? state[(uint64_t)(i - 1) * a.channels] : 0.0f;
    }
    const float bias = a.bias ? a.bias[c] : 0.0f;
    for (uint32_t t = row.token_off; t < row.token_off + row.n_tokens; t++) {
        const float x = __bfloat162float(a.x[(uint64_t)t * a.ldx + c]);
#pragma unroll
        for (int j = 0; j + 1 < N; j++)
            taps[j] = taps[j + 1];
        taps[N - 1] = x;
        float v = bias;
#pragma unroll
        for (int j = 0; j < N; j++)
            v += weight[j] * taps[j];
        if (a.silu)
            v *= sigmoid(v);
        a.y[(uint64_t)t * a.ldy + c] = __float2bfloat16(v);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = j - (N - (int)kernel);
        if (i >= 1)
            state[(uint64_t)(i - 1) * a.channels] = taps[j];
    }
}

void cuda_conv(struct backend *be, const struct conv_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    if (args->kernel < 1 || args->kernel > CONV_KERNEL_MAX) {
        cuda_check(cu, cudaErrorInvalidValue, "convolution kernel longer than 16");
        return;
    }
    conv_kernel_args a = {cu->step, args->pool->data[args->state], (const bf16 *)args->x.data,
                          (bf16 *)args->y.data, args->x.stride, args->y.stride, args->x.n_cols, args->kernel,
                          args->weight, args->bias, args->silu};
    const dim3 grid(div_up(a.channels, 128), cu->n_rows);
    if (args->kernel == 4)
        conv_kernel<4><<<grid, 128, 0, cu->stream>>>(a);
    else
        conv_kernel<0><<<grid, 128, 0, cu->stream>>>(a);
    CUDA_LAUNCHED(cu, "conv");
}

// ---- The gated delta rule -------------------------------------------------------------------------------
// A block: 32 columns of a head's state for one row, a quad of threads a column, each with every fourth
// element of the key axis in registers.
enum { DELTA_COLS = 32, DELTA_THREADS = 4 * DELTA_COLS };
struct delta_kernel_args {
    dev_step step;
    float *state; // [n_slots][n_v_heads][k_dim][v_dim]
    const bf16 *q, *k, *v, *a, *b;
    uint32_t ldq, ldk, ldv, lda, ldb, ldo;
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim;
    const float *a_log, *dt_bias;
    bf16 *out;
};
template <int N> static __global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(const __grid_constant__ delta_kernel_args a) {
    __shared__ float q[4 * N], k[4 * N], shared[32];
    const dev_row &row = a.step.rows[blockIdx.z];
    const uint32_t head = blockIdx.y, k_head = head / (a.n_v_heads / a.n_k_heads), tid = threadIdx.x;
    const uint32_t col = blockIdx.x * DELTA_COLS + tid / 4, part = tid % 4;
    const bool there = col < a.v_dim;
    float *state = a.state + ((uint64_t)row.state_slot * a.n_v_heads + head) * a.k_dim * a.v_dim;
    float s[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = there && 4 * i + part < a.k_dim ? state[(uint64_t)(4 * i + part) * a.v_dim + col] : 0.0f;
    const float decay_rate = -expf(a.a_log[head]), dt_bias = a.dt_bias[head], q_scale = rsqrtf((float)a.k_dim);
    for (uint32_t t = row.token_off; t < row.token_off + row.n_tokens; t++) {
        // q and k, normed, into shared memory.
        float qk[2][(4 * N + DELTA_THREADS - 1) / DELTA_THREADS], sum_q = 0, sum_k = 0;
#pragma unroll
        for (int i = 0; i < (4 * N + DELTA_THREADS - 1) / DELTA_THREADS; i++) {
            const uint32_t d = i * DELTA_THREADS + tid;
            const bool in = d < a.k_dim;
            qk[0][i] = in ? __bfloat162float(a.q[(uint64_t)t * a.ldq + k_head * a.k_dim + d]) : 0.0f;
            qk[1][i] = in ? __bfloat162float(a.k[(uint64_t)t * a.ldk + k_head * a.k_dim + d]) : 0.0f;
            sum_q += qk[0][i] * qk[0][i];
            sum_k += qk[1][i] * qk[1][i];
        }
        const float inv_q = rsqrtf(block_sum(sum_q, shared) + 1e-6f) * q_scale;
        const float inv_k = rsqrtf(block_sum(sum_k, shared) + 1e-6f);
#pragma unroll
        for (int i = 0; i < (4 * N + DELTA_THREADS - 1) / DELTA_THREADS; i++) {
            const uint32_t d = i * DELTA_THREADS + tid;
            if (d < 4 * N)
                q[d] = qk[0][i] * inv_q, k[d] = qk[1][i] * inv_k;
        }
        __syncthreads();
        const float x = __bfloat162float(a.a[(uint64_t)t * a.lda + head]) + dt_bias;
        const float softplus = x > 20.0f ? x : log1pf(expf(x));
        const float decay = expf(decay_rate * softplus);
        const float beta = 1.0f / (1.0f + expf(-__bfloat162float(a.b[(uint64_t)t * a.ldb + head])));
        const float v = there ? __bfloat162float(a.v[(uint64_t)t * a.ldv + head * a.v_dim + col]) : 0.0f;
        float seen = 0, out = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] *= decay;
            seen += s[i] * k[4 * i + part];
        }
        seen += __shfl_xor_sync(FULL_WARP, seen, 1);
        seen += __shfl_xor_sync(FULL_WARP, seen, 2);
        const float u = beta * (v - seen);
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] += k[4 * i + part] * u;
            out += s[i] * q[4 * i + part];
        }
        out += __shfl_xor_sync(FULL_WARP, out, 1);
        out += __shfl_xor_sync(FULL_WARP, out, 2);
        if (part == 0 && there)
            a.out[(uint64_t)t * a.ldo + head * a.v_dim + col] = __float2bfloat16(out);
        // block_sum's barriers keep the next token's q and k from these readers.
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (there && 4 * i + part < a.k_dim)
            state[(uint64_t)(4 * i + part) * a.v_dim + col] = s[i];
}

void cuda_delta(struct backend *be, const struct delta_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    delta_kernel_args a = {};
    a.step = cu->step;
    a.state = args->pool->data[args->state];
    a.q = (const bf16 *)args->q.data, a.ldq = args->q.stride;
    a.k = (const bf16 *)args->k.data, a.ldk = args->k.stride;
    a.v = (const bf16 *)args->v.data, a.ldv = args->v.stride;
    a.a = (const bf16 *)args->a.data, a.lda = args->a.stride;
    a.b = (const bf16 *)args->b.data, a.ldb = args->b.stride;
    a.out = (bf16 *)args->out.data, a.ldo = args->out.stride;
    a.n_k_heads = args->n_k_heads, a.n_v_heads = args->n_v_heads;
    a.k_dim = args->k_dim, a.v_dim = args->v_dim;
    a.a_log = args->a_log, a.dt_bias = args->dt_bias;
    const dim3 grid(div_up(a.v_dim, DELTA_COLS), a.n_v_heads, cu->n_rows);
    if (a.k_dim <= 64)
        delta_kernel<16><<<grid, DELTA_THREADS, 0, cu->stream>>>(a);
    else if (a.k_dim <= 128)
        delta_kernel<32><<<grid, DELTA_THREADS, 0, cu->stream>>>(a);
    else if (a.k_dim <= 256)
        delta_kernel<64><<<grid, DELTA_THREADS, 0, cu->stream>>>(a);
    else
        cuda_check(cu, cudaErrorInvalidValue, "delta rule keys wider than 256");
    CUDA_LAUNCHED(cu, "delta");
}
