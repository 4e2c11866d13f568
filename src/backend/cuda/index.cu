// The sparse indexer: scores of every earlier key for each token, and the best n of them by position.
#include "backend/cuda/kv.cuh"

enum { INDEX_THREADS = 256 };

struct index_kernel_args {
    kv_view kv;
    dev_step step;
    const bf16 *q, *weights;
    uint32_t ldq, ldw, n_heads, head_dim, n_selected;
    uint32_t token0; // of this slice
    uint32_t ctx;    // floats a token in `scores`
    float scale;
    float *scores;
    uint32_t *selected;
};

static __global__ void __launch_bounds__(INDEX_THREADS) index_scores_kernel(const __grid_constant__ index_kernel_args a) {
    extern __shared__ float q[]; // [n_heads][head_dim], then [n_heads] weights
    const uint32_t token = a.token0 + blockIdx.y, position = a.step.positions[token];
    const uint32_t key = blockIdx.x * INDEX_THREADS + threadIdx.x, n = a.n_heads * a.head_dim;
    if (blockIdx.x * INDEX_THREADS > position)
        return;
    for (uint32_t i = threadIdx.x; i < n + a.n_heads; i += INDEX_THREADS)
        q[i] = __bfloat162float(i < n ? a.q[(uint64_t)token * a.ldq + i] : a.weights[(uint64_t)token * a.ldw + i - n]);
    __syncthreads();
    if (key > position)
        return;
    const dev_row &row = a.step.rows[a.step.token_row[token]];
    uint8_t *page = a.kv.data +
                    a.step.tables[row.table_off[a.kv.group] + key / KV_PAGE_TOKENS] * a.kv.page_bytes;
    float total = 0;
    for (uint32_t h = 0; h < a.n_heads; h++) {
        float s = 0;
        for (uint32_t d = 0; d < a.head_dim; d++)
            s += q[h * a.head_dim + d] * kv_k_value(a.kv, page, 0, key % KV_PAGE_TOKENS, d);
        total += q[n + h] * fmaxf(s, 0.0f);
    }
    a.scores[(uint64_t)blockIdx.y * a.ctx + key] = total * a.scale;
}

// Order-preserving integers: larger score, larger value.
__device__ __forceinline__ uint32_t ordered(float f) {
    uint32_t bits = __float_as_uint(f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A block a token: find the n-th best score byte by byte, then list the positions above it and, of its
// equals, the lowest, in order.
static __global__ void __launch_bounds__(INDEX_THREADS) index_select_kernel(const __grid_constant__ index_kernel_args a) {
    __shared__ uint32_t histogram[256], prefix, wanted, taken[2], counts[2][INDEX_THREADS / WARP];
    const uint32_t token = a.token0 + blockIdx.x, n_keys = a.step.positions[token] + 1, tid = threadIdx.x;
    const float *scores = a.scores + (uint64_t)blockIdx.x * a.ctx;
    uint32_t *out = a.selected + (uint64_t)token * a.n_selected;
    if (n_keys <= a.n_selected) {
        for (uint32_t i = tid; i < a.n_selected; i += INDEX_THREADS)
            out[i] = i < n_keys ? i : UINT32_MAX;
        return;
    }
    if (tid == 0)
        prefix = 0, wanted = a.n_selected;
    for (int shift = 24; shift >= 0; shift -= 8) {
        histogram[tid] = 0;
        __syncthreads();
        const uint32_t above = shift == 24 ? 0 : ~0u << (shift + 8), want_prefix = prefix;
        for (uint32_t i = tid; i < n_keys; i += INDEX_THREADS) {
            const uint32_t v = ordered(scores[i]);
            if ((v & above) == want_prefix)
                atomicAdd(&histogram[v >> shift & 255], 1);
        }
        __syncthreads();
        if (tid == 0) {
            int b = 255;
            while (b > 0 && histogram[b] < wanted)
                wanted -= histogram[b--];
            prefix |= (uint32_t)b << shift;
        }
        __syncthreads();
    }
    // `prefix` is the n-th best value, `wanted` how many of its equals belong.
    const uint32_t limit = prefix, equals = wanted;
    if (tid == 0)
        taken[0] = taken[1] = 0; // listed; equals seen
    __syncthreads();
    for (uint32_t base = 0; base < n_keys; base += INDEX_THREADS) {
        const uint32_t key = base + tid, v = key < n_keys ? ordered(scores[key]) : 0;
        const bool equal = key < n_keys && v == limit;
        const uint32_t equal_mask = __ballot_sync(FULL_WARP, equal), below = (1u << tid % WARP) - 1;
        if (tid % WARP == 0)
            counts[0][tid / WARP] = __popc(equal_mask);
        __syncthreads();
        uint32_t rank = taken[1] + __popc(equal_mask & below);
        for (uint32_t w = 0; w < tid / WARP; w++)
            rank += counts[0][w];
        const bool take = key < n_keys && (v > limit || (equal && rank < equals));
        const uint32_t take_mask = __ballot_sync(FULL_WARP, take);
        if (tid % WARP == 0)
            counts[1][tid / WARP] = __popc(take_mask);
        __syncthreads();
        uint32_t at = taken[0] + __popc(take_mask & below);
        for (uint32_t w = 0; w < tid / WARP; w++)
            at += counts[1][w];
        if (take)
            out[at] = key;
        __syncthreads();
        if (tid == 0)
            for (uint32_t w = 0; w < INDEX_THREADS / WARP; w++)
                taken[1] += counts[0][w], taken[0] += counts[1][w];
        __syncthreads();
    }
}

void cuda_index(struct backend *be, const struct index_args *args) {
    struct cuda_backend *cu = cuda_of(be);
    index_kernel_args a = {};
    a.kv = args->pool->layers[args->layer];
    a.step = cu->step;
    a.q = (const bf16 *)args->q.data, a.ldq = args->q.stride;
    a.weights = (const bf16 *)args->weights.data, a.ldw = args->weights.stride;
    a.n_heads = args->n_heads, a.head_dim = args->head_dim;
    a.n_selected = args->n_selected, a.selected = args->selected;
    a.scale = args->scale;
    a.scores = cu->index_scores;
    a.ctx = cu->limits.ctx_len;
    const size_t shared = (size_t)(args->n_heads * args->head_dim + args->n_heads) * sizeof(float);
    const uint32_t slice = a.ctx ? (uint32_t)(cu->index_floats / a.ctx) : 0;
    if (slice == 0 || shared > cu->shared_max ||
        (shared > 48 << 10 && cudaFuncSetAttribute(index_scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   (int)shared) != cudaSuccess)) {
        cuda_check(cu, cudaErrorInvalidValue, "index scratch");
        return;
    }
    for (a.token0 = 0; a.token0 < cu->n_tokens; a.token0 += slice) {
        const uint32_t n = cu->n_tokens - a.token0 < slice ? cu->n_tokens - a.token0 : slice;
        // Recorded steps must serve any later length.
        const uint32_t keys = cu->recording ? a.ctx : cu->positions_max + 1;
        index_scores_kernel<<<dim3(div_up(keys, INDEX_THREADS), n), INDEX_THREADS, shared, cu->stream>>>(a);
        CUDA_LAUNCHED(cu, "index scores");
        index_select_kernel<<<n, INDEX_THREADS, 0, cu->stream>>>(a);
        CUDA_LAUNCHED(cu, "index selection");
    }
}
